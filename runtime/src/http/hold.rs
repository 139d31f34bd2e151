//! `GET /v1/hold`: a WebSocket that holds one lock for one process of a client.
//!
//! The server asks the process at intervals whether it is there, and renews the session after each answer: so
//! the client needs no timer to renew, and a process that stands still loses its lock although its connection is
//! open. docs/api.md has the frames; decision 0035 says why the rules are as they are.
//!
//! A connection uses the requests of every client (open, acquire, keepalive, release), with the same limits and
//! access rules. It has no state of the protocol: when it ends without a release, its session stays until its TTL
//! is over, and a later connection resumes it, at this node or at another one. The [`Holds`] of a node only say
//! which connection is the latest of its session.

mod checks;
mod frames;
mod link;
mod registry;
mod resumes;
mod session;

use std::sync::Arc;

use axum::Extension;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::Uri;
use axum::response::Response;
use palisade_client::wire::{Answer, Code, Failure, LeaderView, Op, OpenSession};

pub use self::frames::ClientFrame;
pub(super) use self::frames::ServerFrame;
pub(super) use self::registry::Holds;

use self::frames::{Claim, Interruption, Resume};
use self::link::{End, Link};
use self::session::{Hold, Lease};
use super::listen::ConnectionPermit;
use super::socket_protocols::PROTOCOL;
use super::websocket::{Credential, not_a_websocket, removed};
use super::{App, Caller, reply};
use crate::core::{Request, not_leading, session_id};
use crate::limits;
use crate::peers::Removal;

pub(super) async fn upgrade(
    Caller(app): Caller,
    Extension(permit): Extension<Arc<ConnectionPermit>>,
    credential: Credential,
    through: Option<Extension<Removal>>,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    if let Err(elsewhere) = app.leads() {
        return reply::response(Err(elsewhere), &uri);
    }
    let (ended, removed) = (credential.ended(&app), removed(through));
    match upgrade {
        Ok(upgrade) => upgrade
            .protocols([PROTOCOL])
            .max_message_size(limits::REQUEST_BYTES)
            .max_frame_size(limits::REQUEST_BYTES)
            .read_buffer_size(limits::READ_BUFFER)
            .on_upgrade(move |socket| async move {
                serve(app, Link::new(socket, removed), ended).await;
                drop(permit);
            }),
        Err(error) => not_a_websocket(&error, &uri),
    }
}

async fn serve(app: App, mut link: Link, ended: impl Future<Output = String> + Send + 'static) {
    let mut ended = Box::pin(ended);
    let (end, hold) = tokio::select! {
        ran = run(&app, &mut link) => ran,
        why = &mut ended => (app.interrupted(Failure::new(Code::Unauthenticated, why)), None),
    };
    if let Some(hold) = hold {
        hold.leave(ended);
    }
    if end.is_invalid() {
        app.metrics.frames_rejected.inc();
    }
    link.end(end).await;
}

/// Serves a connection until it ends, and returns what it leaves.
async fn run(app: &App, link: &mut Link) -> (End, Option<Hold>) {
    let begun = async {
        match link.first_frame().await? {
            ClientFrame::Acquire(claim) => acquire(app, link, claim).await,
            ClientFrame::Resume(resume) => self::resume(app, resume).await,
            ClientFrame::Here(_) | ClientFrame::Value { .. } | ClientFrame::Release {} => {
                Err(End::invalid("the first frame of a connection is an `acquire` or a `resume`"))
            }
        }
    };
    match begun.await {
        Ok(mut hold) => (hold.run(link).await, Some(hold)),
        Err(end) => (end, None),
    }
}

/// Opens a session for the claim, and acquires.
async fn acquire(app: &App, link: &mut Link, Claim { keys, options }: Claim) -> Result<Hold, End> {
    app.within_rate(false).map_err(|(failure, _)| End::refused(failure))?;
    let at_once = Op::Acquire { keys: keys.clone(), options: options.clone(), number: None };
    if options.wait_ms == 0 {
        // One entry opens the session and acquires. A refusal opens none.
        return match app.request(at_once).await {
            Ok(Answer::Acquired(acquired)) => {
                let lease = Lease::of(acquired.session, acquired.ttl_ms);
                let mut hold = Hold::new(app, keys, lease, true);
                hold.holds(acquired.token);
                hold.hand_over(link).await?;
                hold.granted(acquired);
                Ok(hold)
            }
            other => Err(app.ended(unexpected(other), false)),
        };
    }
    // A claim that is refused for its form opens no session.
    app.validate(at_once).map_err(End::refused)?;
    let open = OpenSession { ttl_ms: options.ttl_ms, owner: options.owner.clone() };
    let lease = match app.request(Op::OpenSession(open)).await {
        Ok(Answer::Session(opened)) => Lease::of(opened.session, opened.ttl_ms),
        other => return Err(app.ended(unexpected(other), false)),
    };
    let mut hold = Hold::new(app, keys, lease, true);
    // The claim comes after the credential: a session that the client cannot know has none.
    hold.hand_over(link).await?;
    hold.wait(options).await?;
    Ok(hold)
}

/// Goes on with the session of an earlier connection. The frame shows that the client's process is there, so the
/// session is renewed first.
async fn resume(app: &App, Resume { claim: Claim { keys, options }, session, token }: Resume) -> Result<Hold, End> {
    // A holder is never refused for its rate. A waiter comes back: without a bound, resumes would be acquires that
    // no limit counts.
    app.within_rate(token.is_some()).map_err(|(failure, _)| app.interrupted(failure))?;
    let read = Request::read_grant(session, &keys, &app.principal).map_err(End::refused)?;
    // The end of an older connection's wait does not close the session from here on, until this one has entered.
    let _resuming = app.holds.resume(session_id(session, app.principal.as_str()));
    let lease = match app.request(Op::KeepAlive { session }).await {
        Ok(Answer::Session(renewed)) => Lease::of(renewed.session, renewed.ttl_ms),
        other => return Err(app.ended(unexpected(other), token.is_some())),
    };
    let Some(token) = token else {
        // The older connection may wait for the same grant. It is interrupted when the core has this request, which
        // joins that wait: so the session keeps its queue position.
        let mut hold = Hold::unregistered(app, keys, lease);
        hold.queue(ServerFrame::Waiting(lease.view()));
        hold.wait(options).await?;
        hold.register();
        return Ok(hold);
    };
    // From here on the connection is told of a break: so the grant that is read afterwards is not lost unnoticed.
    let mut hold = Hold::new(app, keys, lease, false);
    hold.holds(token);
    match app.send_request(read).await {
        Ok(Answer::Acquired(acquired)) => {
            hold.is_own(&acquired)?;
            hold.granted(acquired);
            Ok(hold)
        }
        other => Err(app.ended(unexpected(other), true)),
    }
}

/// The failure of a request whose answer is not the one that it should have.
fn unexpected(answer: Result<Answer, Failure>) -> Failure {
    match answer {
        Err(failure) => failure,
        Ok(answer) => unreachable!("the core gives each request its own kind of answer, and not {answer:?}"),
    }
}

/// Whether a failure says something about this node, and nothing about the lock.
fn interrupts(code: Code) -> bool {
    use Code::{LeadershipLost, NoLeader, NotLeader, Overloaded, ShuttingDown};
    matches!(code, LeadershipLost | NoLeader | NotLeader | Overloaded | ShuttingDown)
}

impl App {
    /// Refuses what only the leader can do, at another node.
    fn leads(&self) -> Result<(), Failure> {
        let leader = self.core.view().leader();
        if leader == Some(self.peers.roster().node) {
            return Ok(());
        }
        let mut leader = leader.map(|id| LeaderView { id: id.number(), client_addr: self.peers.client_addr(id) });
        self.readdress(&mut [], leader.as_mut());
        Err(not_leading(leader))
    }

    /// The end of a connection at a failure: of a client that holds the lock, or of one that does not.
    fn ended(&self, failure: Failure, holds: bool) -> End {
        if interrupts(failure.error) {
            return self.interrupted(failure);
        }
        match failure.error {
            Code::NotHolder | Code::NoSession if holds => End::lost(failure),
            _ => End::refused(failure),
        }
    }

    /// The end of a connection with which the lock does not end. It names the leader, if that is another node.
    fn interrupted(&self, failure: Failure) -> End {
        let leader = failure.leader.or_else(|| self.leads().err()?.leader);
        let Failure { error, message, .. } = failure;
        End::Last(Box::new(ServerFrame::Interrupted(Interruption { error, message, leader })))
    }
}
