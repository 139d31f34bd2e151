//! Limits on new requests, checked against the applied state: requests in flight may exceed a limit
//! by as many as there are of them. A request for a claim that its session already has adds
//! nothing, and meets no limit.

use palisade_client::wire::{Code, Failure};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::Node;

use super::request::{Acquirer, Request};
use super::respond::ConnectionId;
use super::waits::Waits;
use crate::limits;
use crate::storage::{Space, SpaceView};

/// Rejects a request that would exceed a limit; the error names the limit.
pub(super) fn within_limits(
    node: &Node<LockTable>,
    waits: &Waits,
    max_sessions: usize,
    space: &Space,
    request: &Request,
    connection: ConnectionId,
) -> Result<(), Failure> {
    if node.log().last().index.0 - node.commit().0 >= limits::UNCOMMITTED {
        let message = "too many log entries are not committed yet: the other nodes do not keep up with the leader; \
                       try again in a moment";
        return Err(Failure::new(Code::Overloaded, message));
    }
    let table = node.machine();
    if space.is_low() && takes_on(table, request) {
        return Err(no_space(&space.view()));
    }
    let opens = matches!(request, Request::Open(_) | Request::Acquire { session: Acquirer::Once(_), .. });
    if opens && table.sessions().len() >= max_sessions {
        return reached("sessions", max_sessions);
    }
    let Request::Acquire { session, key, wait } = request else { return Ok(()) };
    let claims = match session {
        Acquirer::Session(id, _) => table.session(*id).filter(|session| !session.claims_key(key)),
        Acquirer::Once(_) => None,
    };
    if claims.is_some_and(|session| session.claims().len() >= limits::CLAIMS) {
        return reached("locks of one session", limits::CLAIMS);
    }
    let is_new = claims.is_some() || matches!(session, Acquirer::Once(_));
    if !is_new || wait.is_zero() {
        return Ok(());
    }
    if table.lock(key).is_some_and(|lock| lock.queue.len() >= limits::QUEUE) {
        return reached("waiters for one lock", limits::QUEUE);
    }
    if waits.of(connection) >= limits::CONNECTION_WAITS {
        return reached("waiting acquires of one connection", limits::CONNECTION_WAITS);
    }
    Ok(())
}

/// Whether the request creates something that a later request has to end: a session, or a claim
/// that its session does not have yet. Every other request ends or keeps something.
fn takes_on(table: &LockTable, request: &Request) -> bool {
    match request {
        Request::Open(_) | Request::Acquire { session: Acquirer::Once(_), .. } => true,
        Request::Acquire { session: Acquirer::Session(id, _), key, .. } => {
            !table.session(*id).is_some_and(|session| session.claims_key(key))
        }
        _ => false,
    }
}

/// The error of a leader whose disk is nearly full.
fn no_space(space: &SpaceView) -> Failure {
    let why = match (&space.obstacle, space.free) {
        (Some(obstacle), _) => format!("the next segment of its log cannot be prepared: {obstacle}"),
        (None, Some(free)) => format!("{free} bytes are free, and {} are needed", space.mark),
        (None, None) => "the free space is unknown".into(),
    };
    let message = format!(
        "the leader's disk is nearly full ({why}): the leader accepts releases and keepalives, but no new sessions or \
         acquires until space is freed"
    );
    Failure::new(Code::NoSpace, message)
}

fn reached(what: &str, limit: usize) -> Result<(), Failure> {
    Err(Failure::new(Code::Limit, format!("the limit of {limit} {what} is reached; try again later")))
}
