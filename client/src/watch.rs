//! Watches: the events of locks, followed across reconnects.
//!
//! A [`Watcher`] has a connection of its own, to any node: every node shows the same events under the same IDs. When
//! the connection breaks, or the node stops or falls behind, it goes on at the next node after the last event that it
//! has returned. It never returns an event twice, and never skips one without saying so: where a node no longer has the
//! events after the last one, it returns [`Watched::Compacted`] and then a listing of the present state.

mod position;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::{Connection, Incoming, Outgoing};
use crate::route::{Hop, Route};
use crate::tls::DialError;
use crate::wire::{Answer, Code, EventId, Failure, Op, Outcome, Request, Response, Watch, Watched};
use crate::{Error, Options, codec};

pub use position::WatchPosition;

/// The id of the only request on a watcher's connection.
const ID: u64 = 1;
/// How long a connection may be silent: the server sends a ping every 20 s.
const SILENCE: Duration = Duration::from_secs(45);

/// Follows the events of a key or a prefix. Made by [`Client::watch`](crate::Client::watch); ends when it is dropped.
///
/// ```no_run
/// use palisade_client::wire::{Change, Watch, Watched};
/// # async fn example(client: palisade_client::Client) -> Result<(), palisade_client::Error> {
/// let mut watcher = client.watch(Watch::prefix("jobs/"));
/// loop {
///     match watcher.next().await? {
///         Watched::Listing(listing) => println!("{} locks at revision {}", listing.locks.len(), listing.revision),
///         Watched::Event(event) => match event.change {
///             Change::Granted { owner, token, .. } => println!("{} is held by {owner} with token {token}", event.key),
///             change => println!("{}: {}", event.key, change.name()),
///         },
///         Watched::Compacted { .. } => println!("events were missed: a new listing follows"),
///     }
/// }
/// # }
/// ```
pub struct Watcher {
    route: Route,
    options: Options,
    watch: Watch,
    position: WatchPosition,
    connection: Option<Connection>,
    /// The next connection, which is being opened.
    dialling: Option<Dialling>,
    /// The node that was dialled last.
    endpoint: String,
    outbox: VecDeque<Outgoing>,
    inbox: Vec<Incoming>,
    /// When the node was last heard of.
    heard: Instant,
    /// What has arrived and is not returned yet.
    ready: VecDeque<Watched>,
    /// Why the last node was left.
    trouble: String,
    /// The last refusal of this client or its watch since a node has served it, and when the first came.
    refusal: Option<(Instant, Error)>,
}

type Dialling = Pin<Box<dyn Future<Output = (String, Result<Connection, DialError>)> + Send + Sync>>;

/// What a frame asks for.
enum Step {
    Stay,
    /// The next node may serve the watch.
    Leave(String),
    /// This node refuses the watch, and the next one may serve it.
    Refused(Failure),
    Fail(Failure),
}

impl Watcher {
    pub(crate) fn new(endpoints: Vec<String>, options: Options, watch: Watch) -> Watcher {
        let position = WatchPosition::new(watch.after);
        Watcher {
            route: Route::new(endpoints),
            options,
            watch,
            position,
            connection: None,
            dialling: None,
            endpoint: String::new(),
            outbox: VecDeque::new(),
            inbox: Vec::new(),
            heard: Instant::now(),
            ready: VecDeque::new(),
            trouble: String::new(),
            refusal: None,
        }
    }

    /// The ID after which the watch would be resumed ([`WatchPosition::after`]). With it, another process can go on
    /// ([`Watch::after`](Watch::after)).
    pub fn position(&self) -> Option<EventId> {
        self.position.after()
    }

    /// Waits for the next thing that the watch tells, as long as that takes: while no node can be reached, it goes on
    /// trying. Can be dropped and called anew: nothing is lost.
    ///
    /// # Errors
    /// [`Error::Refused`] if the watch is none. If it is not permitted, or exceeds a limit, and with
    /// [`Error::Unauthenticated`] if nodes refuse this client, or are refused by it, the next node is asked: it is an error
    /// when every node has refused, or when some have and no other could be reached for an [`Options::request_timeout`]. A
    /// later call tries again.
    pub async fn next(&mut self) -> Result<Watched, Error> {
        loop {
            if let Some(watched) = self.ready.pop_front() {
                self.position.note(&watched);
                return Ok(watched);
            }
            if self.connection.is_none() {
                self.dial().await?;
                continue;
            }
            let why = match self.receive().await {
                Ok(()) => self.take_in()?,
                Err(why) => Some(why),
            };
            if let Some(why) = why {
                self.hang_up(why);
            }
        }
    }

    /// Opens a connection to the next node. A call that is dropped leaves the attempt for the next call.
    async fn dial(&mut self) -> Result<(), Error> {
        let Watcher { route, options, dialling, .. } = self;
        let dialled = dialling.get_or_insert_with(|| {
            let (Hop { endpoint, pause, .. }, options) = (route.next(), options.clone());
            Box::pin(async move {
                if !pause.is_zero() {
                    sleep(pause).await;
                }
                let dialled = Connection::dial(&endpoint, &options.security, options.dial_timeout, false).await;
                (endpoint, dialled)
            })
        });
        let (endpoint, dialled) = dialled.await;
        self.dialling = None;
        self.endpoint = endpoint;
        match dialled {
            Ok(connection) => {
                self.position.resume();
                let watch = Watch { after: self.position.after(), ..self.watch.clone() };
                let (mut frame, op) = (Vec::new(), Op::Watch(watch));
                codec::encode_into(&Request { id: ID, op }, &mut frame);
                self.outbox.clear();
                self.outbox.push_back(Outgoing::Frame(frame));
                self.inbox.clear();
                self.heard = Instant::now();
                self.connection = Some(connection);
                Ok(())
            }
            Err(DialError { why, refused }) => {
                let refusal = refused.then(|| Error::Unauthenticated { trouble: why.clone() });
                self.pass_over(why, refusal)
            }
        }
    }

    /// Waits until frames have come, or says why the connection is of no use any more.
    async fn receive(&mut self) -> Result<(), String> {
        let Watcher { connection, outbox, inbox, heard, .. } = self;
        let Some(connection) = connection else { return Ok(()) };
        let frames = poll_fn(|context| connection.poll(context, outbox, inbox));
        match timeout_at(*heard + SILENCE, frames).await {
            Ok(received) => {
                *heard = Instant::now();
                received
            }
            Err(_) => Err(format!("the node sent nothing for {} s", SILENCE.as_secs())),
        }
    }

    /// Takes frames in; says why the node is to be left, if it is.
    fn take_in(&mut self) -> Result<Option<String>, Error> {
        for incoming in std::mem::take(&mut self.inbox) {
            let Incoming::Frame(frame) = incoming else { continue };
            let step = match codec::decode::<Response>(&frame) {
                Ok(Response { id: ID, result }) => self.judge(result),
                Ok(_) => Step::Stay,
                Err(error) => Step::Leave(format!("the node sent what is no answer: {error}")),
            };
            match step {
                Step::Stay => {}
                Step::Leave(why) => return Ok(Some(why)),
                Step::Refused(failure) => {
                    self.pass_over(failure.message.clone(), Some(Error::Refused(failure)))?;
                    return Ok(None);
                }
                Step::Fail(failure) => {
                    self.hang_up(failure.message.clone());
                    return Err(Error::Refused(failure));
                }
            }
        }
        Ok(None)
    }

    fn judge(&mut self, result: Outcome) -> Step {
        match result {
            Outcome::Ok(Answer::Watched(watched)) => {
                self.route.arrived();
                self.forget_refusals();
                self.ready.push_back(watched);
                Step::Stay
            }
            Outcome::Ok(other) => {
                Step::Leave(format!("the node's answer is of another kind than a watch's: {other:?}"))
            }
            Outcome::Error(failure) => match failure.error {
                // Another node may serve it, or this one later.
                Code::NoLeader
                | Code::ShuttingDown
                | Code::Overloaded
                | Code::LeadershipLost
                | Code::TooSlow
                | Code::TooSoon => Step::Leave(failure.message),
                Code::Limit | Code::Denied | Code::Unauthenticated => Step::Refused(failure),
                _ => Step::Fail(failure),
            },
        }
    }

    /// Leaves a node that has accepted the watch, or may accept it later.
    fn hang_up(&mut self, why: String) {
        self.connection = None;
        self.trouble = why;
        self.route.failed();
        self.forget_refusals();
    }

    /// Goes on at the next node, because this one cannot be reached, or refuses. It is an error when no other node is left to
    /// ask; or if none could be reached for so long as a request may take, because a dead node must not hide the refusal.
    fn pass_over(&mut self, why: String, refusal: Option<Error>) -> Result<(), Error> {
        self.connection = None;
        self.trouble = why;
        self.route.failed();
        let is_everywhere = refusal.is_some() && self.route.refused(&self.endpoint);
        if let Some(error) = refusal {
            let since = self.refusal.as_ref().map_or_else(Instant::now, |(since, _)| *since);
            self.refusal = Some((since, error));
        }
        let patience = self.options.request_timeout;
        match self.refusal.take_if(|(since, _)| is_everywhere || since.elapsed() >= patience) {
            Some((_, error)) => {
                self.forget_refusals();
                Err(error)
            }
            None => Ok(()),
        }
    }

    fn forget_refusals(&mut self) {
        self.refusal = None;
        self.route.forget_refusals();
    }

    /// What went wrong last, as a sentence; empty if nothing has.
    pub fn trouble(&self) -> &str {
        &self.trouble
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").field("watch", &self.watch).field("trouble", &self.trouble).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt, StreamExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;
    use tokio_tungstenite::accept_async;
    use tokio_tungstenite::tungstenite::Message;

    use super::*;

    /// The endpoint of a node that answers each watch so.
    async fn node(result: Outcome) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let mut frame = Vec::new();
        codec::encode_into(&Response { id: ID, result }, &mut frame);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(mut socket) = accept_async(socket).await else { continue };
                let _ = socket.send(Message::Binary(frame.clone().into())).await;
                while let Some(Ok(_)) = socket.next().await {}
            }
        });
        endpoint
    }

    fn refusal(code: Code) -> Outcome {
        Outcome::Error(Failure::new(code, "refused by the test"))
    }

    /// Goal: a node that refuses a watch, because it has as many as it may have, hides no other node.
    #[tokio::test]
    async fn what_one_node_refuses_another_one_serves() {
        let served = Watched::Compacted { floor: 7 };
        let endpoints =
            vec![node(refusal(Code::Limit)).await, node(Outcome::Ok(Answer::Watched(served.clone()))).await];
        // Each begins at a random one.
        for _ in 0..8 {
            let mut watcher = Watcher::new(endpoints.clone(), Options::default(), Watch::prefix(""));
            assert_eq!(watcher.next().await, Ok(served.clone()));
        }
    }

    /// Goal: a watch ends with the refusal if every node refuses it, and in time if the others cannot be reached.
    #[tokio::test]
    async fn a_watch_that_is_refused_everywhere_ends() {
        let (denied, full) = (node(refusal(Code::Denied)).await, node(refusal(Code::Limit)).await);
        let mut watcher = Watcher::new(vec![denied.clone(), full], Options::default(), Watch::prefix(""));
        for _ in 0..2 {
            assert!(matches!(watcher.next().await, Err(Error::Refused(_))));
        }
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let (began, patience) = (Instant::now(), Duration::from_millis(300));
        let options = Options { request_timeout: patience, ..Options::default() };
        let refused = Watcher::new(vec![denied, dead], options, Watch::prefix("")).next().await;
        let is_denied = matches!(&refused, Err(Error::Refused(failure)) if failure.error == Code::Denied);
        assert!(is_denied && began.elapsed() >= patience, "{refused:?} after {:?}", began.elapsed());
    }

    /// Goal: a program that waits for a watch for a short time, again and again, reaches a node that takes longer than that
    /// to answer: the attempt goes on.
    #[tokio::test]
    async fn attempt_to_reach_a_slow_node_goes_on_in_the_next_call() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let mut watcher = Watcher::new(vec![endpoint], Options::default(), Watch::prefix(""));
        let mut dialled = Vec::new();
        for _ in 0..20 {
            assert!(timeout(Duration::from_millis(5), watcher.next()).await.is_err());
            while let Ok(Ok(connection)) = timeout(Duration::from_millis(1), listener.accept()).await {
                dialled.push(connection);
            }
        }
        assert_eq!(dialled.len(), 1);
    }
}
