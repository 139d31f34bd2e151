//! The interface for clients and operators: HTTP and WebSocket on one port, or on two.
//!
//! A handler parses a request, passes it to the core, and formats the core's answer. It holds no
//! state of the protocol. docs/api.md is the reference.

mod access;
mod admin;
mod admission;
mod auditing;
mod body;
mod client_limits;
mod client_stream;
#[cfg(test)]
mod description;
mod forward;
mod hold;
mod intake;
mod kv;
mod listen;
mod locks;
mod members;
mod metrics_page;
mod node;
mod pace;
mod published;
mod reply;
mod route_list;
mod routes;
mod sessions;
mod shared_stream;
mod site;
mod snapshot_limits;
mod snapshots;
mod socket_protocols;
mod socket_watches;
mod sockets;
mod target;
mod ui;
mod unread;
mod watch;
mod websocket;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::middleware;
use axum::response::Response;
use palisade_client::wire::{Answer, Code, Failure, MemberChange, Op};
use palisade_spec::lock::Principal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub use admin::Listener;
pub use forward::{Origin, accept as accept_forwarded};
pub use hold::ClientFrame;
pub use listen::listen;
pub use site::{Site, origin};
#[doc(hidden)]
pub use target::{key_of, query_of};

use self::auditing::Intent;
use self::client_limits::gives_back;
use self::hold::Holds;
use self::metrics_page::MetricsPage;
use self::routes::{of_each_node, of_the_leader};
use self::snapshot_limits::SnapshotRequests;
use self::sockets::Sockets;
use crate::accounts::{Account, Accounts, Turn};
use crate::addresses::RemoteAddress;
use crate::audit::Audit;
use crate::budget::{Budget, SENT_BY_STRANGERS, UNREAD};
use crate::core::{ConnectionId, Core, Event, NotTaken, Request, Responder};
use crate::descriptors::ConnectionLimit;
use crate::grant_signer::GrantSigner;
use crate::limits;
use crate::log_pause::LogPause;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::storage::Space;
use crate::tls::{self, Handshakes};
use crate::watch::Hub;

/// The state that all handlers share.
#[derive(Clone, Debug)]
pub struct App {
    /// Sends requests to the core.
    pub core: Core,
    /// The connections to the other nodes.
    pub peers: Arc<Peers>,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// Free space on the disk.
    pub space: Arc<Space>,
    /// Where the requests arrive.
    listener: Listener,
    /// The names under which this node answers, and the origins of pages that it answers.
    site: Site,
    /// Signs grants, if this node does.
    signer: Option<Arc<GrantSigner>>,
    /// The verified name of the client whose request a handler serves; none without TLS.
    principal: Principal,
    /// Memory for the unfinished requests of clients without a certificate.
    stranger_bytes: Arc<Budget>,
    /// Memory for large answers that clients have not read.
    unread_bytes: Arc<Budget>,
    /// The handshakes of TLS at this listener.
    handshakes: Arc<Handshakes>,
    accounts: Arc<Accounts>,
    /// The account of this client.
    account: Option<Arc<Account>>,
    /// Where this client is.
    remote: Option<RemoteAddress>,
    /// The audit log, if this node has one.
    audit: Option<Audit>,
    /// Limits the log lines about clients that are refused.
    log_pause: Arc<LogPause>,
    /// Limits the number of clients that read a snapshot at once.
    snapshot_reads: Arc<Semaphore>,
    snapshot_requests: Arc<SnapshotRequests>,
    /// Room for the contents of transactions that are not answered yet.
    contents: Arc<Semaphore>,
    /// The open WebSockets, which are told of broken grants.
    sockets: Arc<Sockets>,
    /// The connections that hold a lock for their client.
    holds: Arc<Holds>,
    /// The events that watches show.
    hub: Arc<Hub>,
    /// Limits the number of watches.
    watches: Arc<Semaphore>,
    metrics_page: Arc<MetricsPage>,
    /// Connections over which requests are forwarded.
    lines: Arc<forward::Lines>,
    /// What the other members have said of themselves.
    said: Arc<forward::Said>,
    /// Turns true when the node stops.
    stop: tokio::sync::watch::Receiver<bool>,
    next_connection: Arc<AtomicU64>,
}

/// What an operator decides of the interface for clients.
#[derive(Debug)]
pub struct Setup {
    /// The names under which this node answers, and the origins of pages that it answers.
    pub site: Site,
    /// Signs grants, if this node does.
    pub signer: Option<Arc<GrantSigner>>,
    /// The audit log, if this node has one.
    pub audit: Option<Audit>,
    /// What each client uses of the limits.
    pub accounts: Accounts,
    /// The events that watches show.
    pub hub: Arc<Hub>,
    /// Counts the connections over which requests are forwarded.
    pub forwarding: ConnectionLimit,
    /// Turns true when the node stops.
    pub stop: tokio::sync::watch::Receiver<bool>,
}

impl App {
    /// Creates the handlers' shared state.
    pub fn new(core: Core, peers: Arc<Peers>, metrics: Arc<Metrics>, space: Arc<Space>, setup: Setup) -> App {
        let Setup { site, signer, audit, accounts, hub, forwarding, stop } = setup;
        let snapshot_reads = Arc::new(Semaphore::new(limits::SNAPSHOT_READS));
        let metrics_page = Arc::new(MetricsPage::new(&metrics));
        App {
            core,
            peers,
            metrics,
            space,
            listener: Listener::Only,
            site,
            signer,
            principal: Principal::default(),
            stranger_bytes: Budget::new(&SENT_BY_STRANGERS, limits::STRANGER_BYTES),
            unread_bytes: Budget::new(&UNREAD, limits::UNREAD_BYTES),
            handshakes: Arc::new(Handshakes::new(limits::HANDSHAKES)),
            accounts: Arc::new(accounts),
            account: None,
            remote: None,
            audit,
            log_pause: Arc::default(),
            snapshot_reads,
            snapshot_requests: Arc::new(SnapshotRequests::new()),
            contents: Arc::new(Semaphore::new(limits::UNANSWERED_CONTENTS)),
            sockets: Arc::default(),
            holds: Arc::default(),
            hub,
            watches: Arc::new(Semaphore::new(limits::WATCHES)),
            metrics_page,
            lines: Arc::new(forward::Lines::new(forwarding)),
            said: Arc::default(),
            stop,
            next_connection: Arc::new(AtomicU64::new(1)),
        }
    }

    fn new_connection(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// Validates an operation and converts it to a request of the core.
    fn validate(&self, op: Op) -> Result<Request, Failure> {
        // Each node checks the incarnation against its own pinned peers: a follower may be the leader when its core
        // has the request.
        if let Op::ChangeMembers(MemberChange::Replace(member)) = &op {
            self.peers.recognise_lost(member)?;
        }
        Request::from_wire(op, &self.principal)
    }

    /// Sends an operation to the core and waits for the answer. If the client disconnects, the core
    /// withdraws its wait.
    async fn request(&self, op: Op) -> Result<Answer, Failure> {
        self.accepts_op(&op).inspect_err(|failure| self.log_denial(failure))?;
        let submitted = match self.submit_op(op).await {
            Ok(submitted) => submitted,
            Err(mut failure) => {
                self.complete(Err(&mut failure));
                return Err(failure);
            }
        };
        if submitted.intent.is_none() {
            return submitted.answer(self).await;
        }
        // A task of its own: also a client that hangs up has a result in the audit log.
        let app = self.clone();
        let task = tokio::spawn(async move { submitted.answer(&app).await });
        task.await.unwrap_or_else(|_| Err(not_taken(NotTaken::Ended)))
    }

    /// The same for a request of the core.
    async fn send_request(&self, request: Request) -> Result<Answer, Failure> {
        self.submit(request, 0).await?.answer(self).await
    }

    /// Sends a request with so many bytes of contents to the core, which has it before every later event when this
    /// returns.
    async fn submit(&self, request: Request, bytes: usize) -> Result<Submitted, Failure> {
        let turn = self.turn().await;
        let contents = self.room_for_contents(bytes).await;
        self.submit_now(request, turn, contents)
    }

    /// The same without waiting, for a client that has its turn.
    fn submit_now(
        &self,
        request: Request,
        turn: Option<Turn>,
        contents: Option<OwnedSemaphorePermit>,
    ) -> Result<Submitted, Failure> {
        let connection = self.new_connection();
        let (sender, receiver) = oneshot::channel();
        let responder = Responder::once(connection, Instant::now(), sender).at(self.remote);
        let responder = responder.of(self.account_name(), turn);
        let guard = DisconnectGuard::send(&self.core, connection, request, responder)?;
        Ok(Submitted { receiver, guard, intent: None, _contents: contents })
    }

    /// The same for an operation. The intent of an administrative act is first recorded, if this node has an audit
    /// log.
    async fn submit_op(&self, op: Op) -> Result<Submitted, Failure> {
        let act = self.audited(&op);
        let bytes = content_bytes(&op);
        let request = self.validate(op)?;
        let Some(act) = act else { return self.submit(request, bytes).await };
        // An intent costs a write to the disk, and stays there: it comes after all that may refuse the request here.
        self.may_do(&act).await?;
        let turn = self.turn().await;
        let intent = self.intend(act).await?;
        match self.submit_now(request, turn, None) {
            Ok(submitted) => Ok(Submitted { intent, ..submitted }),
            Err(failure) => {
                auditing::answered(intent, Err(&failure));
                Err(failure)
            }
        }
    }

    /// Waits until there is room for the contents of a transaction, which may be large, beside those of the
    /// transactions that are not answered. Its client has its turn: so no client takes more of the room than
    /// it may have requests under way.
    async fn room_for_contents(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        // A transaction with more is refused, whatever room there is.
        let bytes = u32::try_from(bytes.min(limits::TRANSACTION_BYTES)).ok().filter(|bytes| *bytes > 0)?;
        Arc::clone(&self.contents).acquire_many_owned(bytes).await.ok()
    }

    /// Completes what the core has answered, on its way to the client.
    fn complete(&self, answer: Result<&mut Answer, &mut Failure>) {
        match answer {
            Ok(answer) => {
                self.sign(answer);
                self.readdress_answer(answer);
            }
            Err(failure) => {
                self.log_denial(failure);
                self.readdress_failure(failure);
            }
        }
    }

    /// Signs a grant on its way to the client, if this node signs.
    fn sign(&self, answer: &mut Answer) {
        if let (Some(signer), Answer::Acquired(acquired)) = (&self.signer, answer) {
            signer.sign(acquired);
        }
    }
}

/// A request that the core has. If this is dropped before the answer, the core withdraws its wait.
struct Submitted {
    receiver: oneshot::Receiver<Result<Answer, Failure>>,
    guard: DisconnectGuard,
    /// That of an administrative act.
    intent: Option<Intent>,
    _contents: Option<OwnedSemaphorePermit>,
}

impl Submitted {
    /// Waits for the answer, and completes it.
    async fn answer(self, app: &App) -> Result<Answer, Failure> {
        let mut answer = self.answer_of_core().await;
        app.complete(answer.as_mut());
        answer
    }

    /// Waits for the answer. A WebSocket completes all answers where it writes them.
    async fn answer_of_core(mut self) -> Result<Answer, Failure> {
        let answer = self.receiver.await;
        self.guard.connection = None;
        let answer = answer.unwrap_or_else(|_| Err(not_taken(NotTaken::Ended)));
        auditing::answered(self.intent, answer.as_ref().map(drop));
        answer
    }
}

/// The state of the handlers, with the client that sent the request.
struct Caller(App);

/// Bytes of contents in an operation.
fn content_bytes(op: &Op) -> usize {
    match op {
        Op::Transact { transaction, .. } => transaction.content_bytes(),
        _ => 0,
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Caller, Infallible> {
        if let Some(origin) = parts.extensions.get::<forward::Origin>() {
            return Ok(Caller(app.for_origin(origin)));
        }
        let mut app = app.clone();
        let connection = parts.extensions.get::<Arc<Account>>();
        if let Some(verified) = parts.extensions.get::<tls::Principal>() {
            app.principal = Principal::from(Arc::clone(&verified.name));
            app.account = connection.map(|connection| app.accounts.of_request(connection, &verified.name));
        } else {
            app.account = connection.cloned();
        }
        app.remote = parts.extensions.get::<RemoteAddress>().copied();
        Ok(Caller(app))
    }
}

/// Reports a disconnect to the core when a handler is dropped before its answer: that is how the
/// HTTP server signals the end of a connection.
struct DisconnectGuard {
    core: Core,
    connection: Option<ConnectionId>,
}

impl DisconnectGuard {
    /// Sends the core a request of this connection. A request that the core does not accept has no guard: the core knows
    /// nothing of it.
    fn send(
        core: &Core,
        connection: ConnectionId,
        request: Request,
        responder: Responder,
    ) -> Result<DisconnectGuard, Failure> {
        core.send(Event::Request(request, responder)).map_err(not_taken)?;
        Ok(DisconnectGuard { core: core.clone(), connection: Some(connection) })
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        if let Some(connection) = self.connection {
            self.core.deliver(Event::Disconnected(connection));
        }
    }
}

/// The failure for a request that the core did not accept. The code matters to a client: it repeats
/// the request at an overloaded node, and goes to another node if this one is stopping.
fn not_taken(why: NotTaken) -> Failure {
    match why {
        NotTaken::Full => {
            Failure::new(Code::Overloaded, "this node has too many requests waiting; try again in a moment")
        }
        NotTaken::Ended => Failure::new(Code::ShuttingDown, "this node is stopping; send the request to another node"),
    }
}

/// Executes an operation, if it could be parsed, and formats the answer.
async fn perform(app: &App, uri: &Uri, op: Result<Op, Failure>) -> Response {
    // Also one that is refused for its form takes time of the node.
    if let Err((failure, seconds)) = app.within_rate(op.as_ref().is_ok_and(gives_back)) {
        return reply::too_soon(failure, seconds, uri);
    }
    let result = match op {
        Ok(op) => app.request(op).await,
        Err(failure) => Err(failure),
    };
    if matches!(&result, Err(Failure { error: Code::Invalid | Code::TooLarge, .. })) {
        app.metrics.frames_rejected.inc();
    }
    app.while_unread(reply::response(result, uri), uri)
}

/// All paths and their handlers, for requests of clients at this node.
fn router(app: App) -> Router {
    let has_tls = app.peers.roster().tls.is_some();
    let forwarding = middleware::from_fn_with_state(app.clone(), forward::to_leader);
    let router = of_the_leader().into_router().route_layer(forwarding).merge(of_each_node().into_router());
    let mut router = with_fallbacks(router);
    // Without TLS no request takes this way.
    if has_tls {
        router = router.layer(middleware::from_fn_with_state(app.clone(), admission::admit));
    }
    // Around all others: it adds a header to every answer.
    router.layer(middleware::from_fn_with_state(app.clone(), site::check)).with_state(app)
}

/// The same for requests that other nodes forward: those have checked where they come from.
fn forwarded_router(app: App) -> Router {
    let forwarded = of_the_leader().get("/v1/status", node::status_for_a_member);
    with_fallbacks(forwarded.into_router()).with_state(app)
}

fn with_fallbacks(router: Router<App>) -> Router<App> {
    router.fallback(reply::not_found).method_not_allowed_fallback(reply::method_not_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: after the core has ended, because a write has failed, and before the process ends, the
    /// node sends its clients to another node. It once answered that it was overloaded, so that a
    /// client without `wait` was refused.
    #[test]
    fn request_to_an_ended_core_is_refused_as_shutting_down() {
        let (core, inbox) = Core::channel();
        let request = || core.send(Event::Disconnected(ConnectionId(1))).map_err(not_taken);
        assert_eq!(request(), Ok(()));
        for _ in 1..limits::CORE_QUEUE {
            request().expect("there is room");
        }
        assert_eq!(request().unwrap_err().error, Code::Overloaded);
        drop(inbox);
        assert_eq!(request().unwrap_err().error, Code::ShuttingDown);
    }

    /// Goal: requests that the core does not accept leave nothing in its queue, or a client that repeats one would
    /// fill the memory, and keep all others out.
    #[test]
    fn refused_request_leaves_nothing_in_the_queue() {
        let (core, inbox) = Core::channel();
        let submit = || {
            let (connection, (sender, _)) = (ConnectionId(1), oneshot::channel());
            let responder = Responder::once(connection, Instant::now(), sender);
            DisconnectGuard::send(&core, connection, Request::Transfer(None, Principal::default()), responder)
        };
        let guards: Vec<_> = (0..limits::CORE_QUEUE).map(|_| submit().expect("there is room")).collect();
        for _ in 0..100 {
            assert_eq!(submit().map(drop).unwrap_err().error, Code::Overloaded);
        }
        assert_eq!(inbox.waiting(), limits::CORE_QUEUE);
        drop(guards);
        assert_eq!(inbox.waiting(), 2 * limits::CORE_QUEUE, "the end of each connection");
    }

    /// Goal: the core learns of the end of a connection even if its queue was full at that moment.
    /// Otherwise a waiter of the connection would stay in a lock's queue for up to a day.
    #[tokio::test]
    async fn disconnect_reaches_a_core_with_a_full_queue() {
        let (core, inbox) = Core::channel();
        for _ in 0..limits::CORE_QUEUE {
            core.send(Event::Disconnected(ConnectionId(1))).expect("there is room");
        }
        drop(DisconnectGuard { core: core.clone(), connection: Some(ConnectionId(7)) });
        let gone = tokio::task::spawn_blocking(move || {
            let mut events = (0..=limits::CORE_QUEUE).map(|_| inbox.next_event());
            events.any(|event| matches!(event, Some(Event::Disconnected(ConnectionId(7)))))
        });
        assert!(gone.await.unwrap(), "the core did not learn of the disconnect");
    }
}
