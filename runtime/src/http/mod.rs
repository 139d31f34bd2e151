//! Clients: HTTP and WebSocket on one port.
//!
//! A handler understands a request, hands it to the core, and puts what comes back into words. It holds no state of
//! the protocol. docs/api.md is the reference.

mod body;
mod listen;
mod locks;
mod members;
mod node;
mod reply;
mod sessions;
mod snapshots;
mod websocket;
mod write_timeout;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::http::header::ORIGIN;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use palisade_client::wire::{Answer, Code, Failure, MemberChange, Op};
use tokio::sync::{Semaphore, oneshot};

pub use listen::listen;

use crate::core::{ConnectionId, Core, Event, NotTaken, Request, Responder};
use crate::limits;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::storage::Space;

/// What every handler can reach.
#[derive(Clone, Debug)]
pub struct App {
    /// The way to the core.
    pub core: Core,
    /// Who is who.
    pub peers: Arc<Peers>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// Free space on the disk.
    pub space: Arc<Space>,
    /// Room for clients that read a snapshot.
    snapshot_reads: Arc<Semaphore>,
    next_connection: Arc<AtomicU64>,
}

impl App {
    /// The handlers' shared part.
    pub fn new(core: Core, peers: Arc<Peers>, metrics: Arc<Metrics>, space: Arc<Space>) -> App {
        let snapshot_reads = Arc::new(Semaphore::new(limits::SNAPSHOT_READS));
        App { core, peers, metrics, space, snapshot_reads, next_connection: Arc::new(AtomicU64::new(1)) }
    }

    fn new_connection(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// Understands an operation, or says what is wrong with it.
    fn understand(&self, op: Op) -> Result<Request, Failure> {
        // A follower redirects to the leader, and that judges by what it knows itself.
        if let Op::ChangeMembers(MemberChange::Replace(member)) = &op
            && self.core.view().leader() == Some(self.peers.roster().node)
        {
            self.peers.recognise_lost(member)?;
        }
        Request::from_wire(op)
    }

    /// Puts a question to the core and waits for the answer. If the caller goes away, what it waits for is withdrawn.
    async fn request(&self, op: Op) -> Result<Answer, Failure> {
        let request = self.understand(op)?;
        let connection = self.new_connection();
        let (sender, receiver) = oneshot::channel();
        let mut presence = Presence { core: &self.core, connection: Some(connection) };
        let responder = Responder::once(connection, sender);
        self.core.send(Event::Request(request, responder)).map_err(not_taken)?;
        let answer = receiver.await;
        presence.connection = None;
        answer.unwrap_or_else(|_| Err(not_taken(NotTaken::Ended)))
    }
}

/// Tells the core when a handler is dropped in the middle, which is how the end of its connection shows.
struct Presence<'a> {
    core: &'a Core,
    connection: Option<ConnectionId>,
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection {
            self.core.deliver(Event::Disconnected(connection));
        }
    }
}

/// What a client is told whose request the core did not take. The two are not the same to it: from a node that stops it
/// goes on to another one.
fn not_taken(why: NotTaken) -> Failure {
    match why {
        NotTaken::Full => {
            Failure::new(Code::Overloaded, "this node has too many requests waiting; try again in a moment")
        }
        NotTaken::Ended => Failure::new(Code::ShuttingDown, "this node is stopping; request another one"),
    }
}

/// Does what a request asks for, if it could be understood.
async fn perform(app: &App, uri: &Uri, op: Result<Op, Failure>) -> Response {
    let result = match op {
        Ok(op) => app.request(op).await,
        Err(failure) => Err(failure),
    };
    if matches!(&result, Err(Failure { error: Code::Invalid | Code::TooLarge, .. })) {
        app.metrics.frames_rejected.inc();
    }
    reply::response(result, uri)
}

/// Refuses what a web page makes a browser send: any page that somebody looks at beside a node could take and end locks
/// otherwise. Browsers say where such a request comes from, and cannot be made not to; no other client does.
async fn no_web_pages(State(app): State<App>, request: axum::extract::Request, next: Next) -> Response {
    if !request.headers().contains_key(ORIGIN) {
        return next.run(request).await;
    }
    app.metrics.frames_rejected.inc();
    let message = "the request has an Origin header: it comes from a web page, and locks are for programs";
    reply::response(Err(Failure::new(Code::Invalid, message)), request.uri())
}

/// Every path.
fn router(app: App) -> Router {
    Router::new()
        .route("/v1/locks", get(locks::list))
        .route("/v1/locks/{key}", get(locks::show))
        .route("/v1/locks/{key}/acquire", post(locks::acquire))
        .route("/v1/locks/{key}/release", post(locks::release))
        // An empty key matches none of these paths, but is a mistake in the key, not in the path.
        .route("/v1/locks/", any(locks::no_key))
        .route("/v1/locks//acquire", any(locks::no_key))
        .route("/v1/locks//release", any(locks::no_key))
        .route("/v1/sessions", post(sessions::open))
        .route("/v1/sessions/{id}", get(sessions::show).delete(sessions::close))
        .route("/v1/sessions/{id}/keepalive", post(sessions::keep_alive))
        .route("/v1/members", get(members::list).post(members::add))
        .route("/v1/members/{id}", delete(members::remove))
        .route("/v1/members/{id}/promote", post(members::promote))
        .route("/v1/members/{id}/replace", post(members::replace))
        .route("/v1/leader/transfer", post(members::transfer))
        .route("/v1/status", get(node::status))
        .route("/v1/snapshot", get(snapshots::read).post(snapshots::take))
        .route("/v1/ws", any(websocket::upgrade))
        .route("/healthz", get(node::health))
        .route("/readyz", get(node::ready))
        .route("/metrics", get(node::metrics))
        .fallback(reply::not_found)
        .method_not_allowed_fallback(reply::method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), no_web_pages))
        .with_state(app)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a node whose core has ended, because a write has failed, sends its clients to another node in the moment
    /// before the process ends. It once said that it had too much to do, and a client that does not wait was refused.
    #[test]
    fn who_asks_a_core_that_has_ended_is_sent_on() {
        let (core, doors) = Core::channel();
        let request = || core.send(Event::Disconnected(ConnectionId(1))).map_err(not_taken);
        assert_eq!(request(), Ok(()));
        for _ in 1..limits::CORE_QUEUE {
            request().expect("there is room");
        }
        assert_eq!(request().unwrap_err().error, Code::Overloaded);
        drop(doors);
        assert_eq!(request().unwrap_err().error, Code::ShuttingDown);
    }

    /// Goal: the core learns that a connection is gone, also when it had no room for the news at that moment. Who waited
    /// on it would otherwise stand in the queue for up to a day.
    #[tokio::test]
    async fn the_end_of_a_connection_is_not_lost() {
        let (core, doors) = Core::channel();
        for _ in 0..limits::CORE_QUEUE {
            core.send(Event::Disconnected(ConnectionId(1))).expect("there is room");
        }
        drop(Presence { core: &core, connection: Some(ConnectionId(7)) });
        let gone = tokio::task::spawn_blocking(move || {
            let mut events = (0..=limits::CORE_QUEUE).map(|_| doors.next_event());
            events.any(|event| matches!(event, Some(Event::Disconnected(ConnectionId(7)))))
        });
        assert!(gone.await.unwrap(), "the core was not told");
    }
}
