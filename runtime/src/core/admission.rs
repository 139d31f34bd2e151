//! Limits on new requests, checked against the applied state: requests in flight may exceed a limit
//! by as many as there are of them. A request for a claim that its session already has adds
//! nothing, and meets no limit.

use std::time::Duration;

use palisade_client::wire::{Code, Failure};
use palisade_spec::lock::{
    Change, ClaimIndex, Command, Key, Keys, LockRequest, LockTable, Mode, Session, SessionId, Token, Value, Writer,
};
use palisade_spec::raft::Node;

use super::openers::Openers;
use super::request::Request;
use super::respond::Responder;
use super::waits::Waits;
use crate::accounts::AccountName;
use crate::limits;
use crate::storage::{Space, SpaceView};

/// The limits that an operator may set.
#[derive(Clone, Copy, Debug)]
pub struct Quotas {
    /// Maximum number of live sessions.
    pub max_sessions: usize,
    /// Maximum number of live sessions of one client, as far as the leader knows them; 0 for no limit,
    /// `None` for a share of all sessions.
    pub max_sessions_per_client: Option<usize>,
    /// Maximum number of waiting acquires of one client at this leader; 0 for no limit, `None` for as
    /// many as by default it may have sessions.
    pub max_waiters_per_client: Option<usize>,
    /// The bytes that all records of the store may have: keys, contents, and 64 for each.
    pub max_store_bytes: u64,
    /// The bytes that all claims may have: keys, values, and 64 for each.
    pub max_claim_bytes: u64,
    /// Pause between two transfers of leadership that clients request, and from the beginning of a
    /// leadership to the first.
    pub transfer_pause: Duration,
}

impl Default for Quotas {
    fn default() -> Quotas {
        Quotas {
            max_sessions: limits::SESSIONS,
            max_sessions_per_client: None,
            max_waiters_per_client: None,
            max_store_bytes: limits::STORE_BYTES,
            max_claim_bytes: limits::CLAIM_BYTES,
            transfer_pause: Duration::ZERO,
        }
    }
}

impl Quotas {
    /// Whether the sessions of each client are limited, and so are to be counted.
    pub(super) fn limit_sessions_of_clients(&self) -> bool {
        self.max_sessions_per_client != Some(0)
    }

    /// A limit of this client: the one that is set, or a share of all sessions.
    fn of_client(&self, limit: Option<usize>, client: &AccountName) -> usize {
        match limit {
            Some(0) => usize::MAX,
            Some(limit) => limit,
            None => limits::part(self.max_sessions, limits::SESSION_SHARE, client.is_loopback()),
        }
    }

    /// Maximum number of sessions of this client while the clients of so many sessions are unknown. Any of
    /// these may belong to an address, and none to a principal. So an address may have at most its share
    /// of the sessions that these leave: the share that it has by default, or what the operator has set
    /// if that is more. An address that changes the leader again and again gets less each time. One that
    /// opens few sessions notices nothing before nearly all sessions are used.
    fn sessions_of_client(&self, client: &AccountName, unknown: usize) -> usize {
        let limit = self.of_client(self.max_sessions_per_client, client);
        if limit == usize::MAX || matches!(client, AccountName::Principal(_)) {
            return limit;
        }
        let share = limit.max(self.of_client(None, client));
        let left = self.max_sessions.saturating_sub(unknown);
        limit.min(share.saturating_mul(left) / self.max_sessions.max(1)).max(1)
    }
}

/// The rejection of a request.
#[derive(Debug)]
pub(super) struct Rejection {
    pub(super) failure: Box<Failure>,
    /// The limit that the client has reached, if it is a limit of each client.
    pub(super) limit_of_client: Option<&'static str>,
}

impl From<Failure> for Rejection {
    fn from(failure: Failure) -> Rejection {
        Rejection { failure: Box::new(failure), limit_of_client: None }
    }
}

/// Rejects a request that would exceed a limit; the error names the limit.
pub(super) fn within_limits(
    node: &Node<LockTable>,
    waits: &Waits,
    quotas: &Quotas,
    openers: &Openers,
    space: &Space,
    request: &Request,
    responder: &Responder,
) -> Result<(), Rejection> {
    if node.log().last().index.0 - node.commit().0 >= limits::UNCOMMITTED {
        let message = "too many log entries are not committed yet: the other nodes do not keep up with the leader; \
                       try again in a moment";
        return Err(Failure::new(Code::Overloaded, message).into());
    }
    let Request::Propose { command, wait, .. } = request else { return Ok(()) };
    let table = node.machine();
    if is_repeated(table, command) {
        return Ok(());
    }
    if space.is_low() && takes_on(table, command) {
        return Err(no_space(&space.view()).into());
    }
    let added = added_bytes(table, command);
    if added > 0 && table.claimed_bytes() + added > quotas.max_claim_bytes {
        return Err(too_many_bytes(quotas.max_claim_bytes).into());
    }
    let opens = matches!(command, Command::Open { .. } | Command::AcquireOnce { .. });
    if opens && table.sessions().len() >= quotas.max_sessions {
        return reached("sessions", quotas.max_sessions);
    }
    if let Some(client) = responder.client.as_ref().filter(|_| opens) {
        // Until all are recounted, those of principals are among the unknown ones.
        let unknown = if openers.is_recounting() { 0 } else { openers.unknown(table) };
        let limit = quotas.sessions_of_client(client, unknown);
        if openers.sessions_of(client) >= limit {
            let is_lowered = limit < quotas.sessions_of_client(client, 0);
            return Err(too_many_sessions(client, limit, is_lowered.then_some(unknown)));
        }
    }
    if opens && table.next_session() >= limits::SESSION_NUMBERS {
        let message = format!(
            "this cluster has opened {} sessions, and a session's credential has no room for a greater number; found a \
             new cluster",
            table.next_session() - 1
        );
        return Err(Failure::new(Code::Limit, message).into());
    }
    let (&LockRequest { ref keys, mode, .. }, claims) = match command {
        Command::Acquire { session, request, .. } => {
            let has_none = |session: &&Session| !claims_any(session, &request.keys);
            (request, table.session(*session).filter(has_none))
        }
        Command::AcquireOnce { request, .. } => (request, None),
        _ => return Ok(()),
    };
    if claims.is_some_and(|session| session.claims().len() + keys.count() > limits::CLAIMS) {
        return reached("locks of one session", limits::CLAIMS);
    }
    let is_new = claims.is_some() || opens;
    let has_many = |key: &Key| table.lock(key).is_some_and(|lock| lock.holders.len() >= limits::HOLDERS);
    if is_new && mode != Mode::EXCLUSIVE && keys.iter().any(has_many) {
        return reached("holders of one lock", limits::HOLDERS);
    }
    if !is_new || wait.is_zero() {
        return Ok(());
    }
    // A lock may pass to all its waiters at once, and each gets all its keys: so one for several keys waits in short queues
    // only. All queues are full with some 41,000 keys of waiters.
    let is_full = |key: &Key| table.lock(key).is_some_and(|lock| lock.queue.len() * keys.count() >= limits::QUEUE);
    if keys.iter().any(is_full) {
        return reached("waiters for one lock", limits::QUEUE / keys.count());
    }
    if waits.of(responder.connection) >= limits::CONNECTION_WAITS {
        return reached("waiting acquires of one connection", limits::CONNECTION_WAITS);
    }
    if let Some(client) = &responder.client {
        let limit = quotas.of_client(quotas.max_waiters_per_client, client);
        if waits.of_client(client) >= limit {
            return Err(too_many_waiters(client, limit));
        }
    }
    Ok(())
}

/// Whether the command creates something that a later command has to end: a session, or a claim
/// that its session does not have yet. Or it brings another value, or writes a record. Every other command
/// ends or keeps something.
fn takes_on(table: &LockTable, command: &Command) -> bool {
    match command {
        Command::Open { .. } | Command::AcquireOnce { .. } => true,
        Command::Acquire { session: id, request, .. } => {
            let claims = table.session(*id).is_some_and(|session| claims_any(session, &request.keys));
            let present = || table.lock(request.keys.first()).and_then(|lock| lock.value(*id));
            !claims || request.value.as_ref().is_some_and(|value| present() != Some(value))
        }
        Command::Proclaim { .. } => true,
        Command::Transact { transaction, .. } => {
            !transaction.changes.iter().all(|change| matches!(change, Change::Delete { .. }))
        }
        _ => false,
    }
}

/// Whether this operation, which has a number, was done before. It is not done again: its answer says what is left of it.
fn is_repeated(table: &LockTable, command: &Command) -> bool {
    let (session, sequence) = match command {
        Command::Acquire { session, sequence, .. }
        | Command::Release { session, sequence, .. }
        | Command::Proclaim { session, sequence, .. }
        | Command::Transact { writer: Writer::Session { session, sequence }, .. } => (*session, *sequence),
        _ => return false,
    };
    sequence.is_some() && table.session(session).is_some_and(|session| session.last >= sequence)
}

/// The bytes that the command may add to those of all claims: a claim that its session does not have just so yet, or
/// by how much a value is longer than the one that it replaces.
fn added_bytes(table: &LockTable, command: &Command) -> u64 {
    match command {
        Command::AcquireOnce { request, .. } => request.claimed_bytes(),
        Command::Acquire { session, request, .. } => match present(table, *session, request.keys.first()) {
            Some(present) if present.keys == request.keys.as_slice() => match &request.value {
                // Without a wait it gives up its positions in the queues.
                Some(value) if present.token.is_some() || request.waits() => present.growth(value),
                _ => 0,
            },
            _ if table.session(*session).is_none() => 0,
            _ => request.claimed_bytes(),
        },
        Command::Proclaim { session, key, token, value, .. } => present(table, *session, key)
            .filter(|claim| claim.token == Some(*token))
            .map_or(0, |claim| claim.growth(value)),
        _ => 0,
    }
}

/// A claim that is in the table.
pub(super) struct Present<'a> {
    pub(super) keys: &'a [Key],
    value: Option<&'a Value>,
    /// Of a holder.
    token: Option<Token>,
}

impl Present<'_> {
    /// The bytes by which it grows with this value.
    fn growth(&self, value: &Value) -> u64 {
        let length = |value: &Value| value.as_str().len();
        (length(value).saturating_sub(self.value.map_or(0, length)) * self.keys.len()) as u64
    }
}

/// The session's claim on this key.
pub(super) fn present<'a>(table: &'a LockTable, id: SessionId, key: &'a Key) -> Option<Present<'a>> {
    let lock = table.lock(key)?;
    Some(match lock.claim_index(id)? {
        ClaimIndex::Holds(index) => {
            let holder = &lock.holders[index];
            Present { keys: holder.all_keys(key), value: holder.value(), token: Some(holder.token) }
        }
        ClaimIndex::Waits(index) => {
            let waiter = &lock.queue[index];
            Present { keys: waiter.all_keys(key), value: waiter.value(), token: None }
        }
    })
}

fn claims_any(session: &Session, keys: &Keys) -> bool {
    keys.iter().any(|key| session.claims_key(key))
}

/// The error of a leader whose disk is nearly full.
fn no_space(space: &SpaceView) -> Failure {
    let why = match (&space.obstacle, space.free) {
        (Some(obstacle), _) => format!("the next segment of its log cannot be prepared: {obstacle}"),
        (None, Some(free)) => format!("{free} bytes are free, and {} are needed", space.mark),
        (None, None) => "the free space is unknown".into(),
    };
    let message = format!(
        "the leader's disk is nearly full ({why}): the leader accepts releases and keepalives, but no new sessions, \
         acquires, values or records until space is freed"
    );
    Failure::new(Code::NoSpace, message)
}

/// The error of a leader whose claims have all the memory that they may have.
fn too_many_bytes(limit: u64) -> Failure {
    let message = format!(
        "the limit of {limit} bytes of all claims is reached (keys, values, and 64 bytes for each): release locks, or let \
         the operator raise --max-claim-bytes"
    );
    Failure::new(Code::Limit, message)
}

/// The error for a client that has all the sessions that one client may have. Sessions of so many unknown
/// clients have lowered the limit.
fn too_many_sessions(client: &AccountName, limit: usize, lowered_by: Option<usize>) -> Rejection {
    let remedy = match lowered_by {
        None => "close sessions, or let the operator raise --max-sessions-per-client".to_owned(),
        Some(unknown) => format!(
            "it is a share of what {unknown} sessions leave that began under other leaders. Close sessions, or let the \
             operator raise --max-sessions"
        ),
    };
    let message = format!("the limit of {limit} sessions of one client is reached by {client}: {remedy}");
    Rejection { failure: Box::new(Failure::new(Code::Limit, message)), limit_of_client: Some("sessions") }
}

/// The error for a client that waits for as many locks as one client may wait for.
fn too_many_waiters(client: &AccountName, limit: usize) -> Rejection {
    let message = format!(
        "the limit of {limit} waiting acquires of one client is reached by {client}: withdraw some, or let the operator \
         raise --max-waiters-per-client"
    );
    Rejection { failure: Box::new(Failure::new(Code::Limit, message)), limit_of_client: Some("waiters") }
}

fn reached(what: &str, limit: usize) -> Result<(), Rejection> {
    Err(Failure::new(Code::Limit, format!("the limit of {limit} {what} is reached; try again later")).into())
}
