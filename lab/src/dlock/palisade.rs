//! Palisade by its HTTP interface (docs/api.md), renewed on request only.
//!
//! | step | how |
//! |---|---|
//! | acquire | opens a session of the TTL, or takes one that an earlier acquire of the same owner has left; then one request that the leader answers when the lock is granted |
//! | wait | the session is kept alive while it waits; from the grant on, only [`Handle::renew`] does so |
//! | renew | one keep-alive of the session |
//! | release | releases the session's grant by its token; a grant that has ended is `NotOwner` |
//! | token | the fencing token of the grant, which grows with every grant in the cluster |
//!
//! The usual client's guard ([`guarded`](super::guarded)) renews its lock until it is dropped. Here nothing is renewed behind the
//! holder's back, so that a pause longer than the TTL means the same on every backend.
//!
//! A request follows the leader, and is repeated until the deadline if no leader answers: a repeated acquire of a session
//! finds its queue position again, or its grant with the same token. Each waiting request has an HTTP connection of its own,
//! whatever `--connections` says. Dropping a waiting acquire closes its session, which releases what it may have been granted.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use hyper::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::cleanup::{Background, Patience, Undo};
use super::http::{Answer, Http, encode};
use super::redis_node::millis;
use super::{Error, Handle, Held, Locks, Options, Released, Request};

const NAME: &str = "palisade";
/// The pause before a request that no leader answered is repeated.
const RETRY: Duration = Duration::from_millis(25);

/// Locks in a Palisade cluster.
#[derive(Debug)]
pub struct Palisade {
    cluster: Cluster,
    idle: Arc<Mutex<Vec<Session>>>,
}

/// The cluster's nodes, and which of them leads.
#[derive(Debug, Clone)]
struct Cluster {
    http: Http,
    endpoints: Arc<[String]>,
    leader: tokio::sync::watch::Sender<String>,
    timeout: Duration,
}

/// A session, which one acquire uses at a time.
#[derive(Debug, Clone)]
struct Session {
    id: String,
    owner: String,
    ttl_ms: u64,
    /// The sending of the last request that set the session to a whole TTL.
    leased_at: Instant,
    /// Every request was answered at the first attempt: no repetition is on its way that could acquire the lock later.
    clean: bool,
}

/// What the leader answered, and how many attempts that took.
struct Told {
    answer: Answer,
    attempts: u32,
}

impl Cluster {
    fn new(endpoints: &[String], timeout: Duration) -> Cluster {
        let leader = tokio::sync::watch::Sender::new(endpoints[0].clone());
        Cluster { http: Http::new(), endpoints: endpoints.into(), leader, timeout }
    }

    fn error(&self, reason: impl Display) -> Error {
        Error::Backend { backend: NAME, reason: format!("{}: {reason}", self.endpoints.join(",")) }
    }

    /// Another server than the one that failed, unless another request has found one already.
    fn leave(&self, failed: &str) {
        self.leader.send_if_modified(|leader| {
            let same = leader == failed;
            if same {
                let place = self.endpoints.iter().position(|endpoint| endpoint == failed).map_or(0, |place| place + 1);
                leader.clone_from(&self.endpoints[place % self.endpoints.len()]);
            }
            same
        });
    }

    /// Asks the leader, again until it answers. The leader may take `wait` longer than a usual request. A waiting request is
    /// sent again when another request has found another leader.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: impl Fn() -> Option<Value>,
        wait: Duration,
    ) -> Result<Told, Error> {
        let (mut attempts, mut trouble) = (0, String::new());
        let repeated = async {
            loop {
                attempts += 1;
                let mut leader = self.leader.subscribe();
                let server = leader.borrow_and_update().clone();
                let body = body();
                let sent = self.http.send(&method, &server, path, body.as_ref());
                let answer = tokio::select! {
                    answer = sent => answer,
                    _ = leader.changed(), if !wait.is_zero() => Err("another node leads".to_owned()),
                };
                match answer {
                    Ok(Answer { status: 307, location: Some(location), .. }) => {
                        trouble = format!("{server} names {location} as the leader");
                        self.leader.send_if_modified(|leader| {
                            let stale = *leader == server && *leader != location;
                            if stale {
                                leader.clone_from(&location);
                            }
                            stale
                        });
                        if attempts <= 2 {
                            continue;
                        }
                    }
                    Ok(answer) if answer.status != 503 => return answer,
                    Ok(answer) => {
                        trouble = format!("{server} answered: {}", answer.sentence());
                        self.leave(&server);
                    }
                    Err(error) => {
                        trouble = format!("{server}: {error}");
                        self.leave(&server);
                    }
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        let limit = self.timeout + wait;
        match tokio::time::timeout(limit, repeated).await {
            Ok(answer) => Ok(Told { answer, attempts }),
            Err(_) => {
                // The guard of `borrow` must be gone before `leave` writes.
                let silent = self.leader.borrow().clone();
                self.leave(&silent);
                Err(self.error(format!("no leader answered within {limit:?}; {trouble}")))
            }
        }
    }

    async fn open(&self, owner: &str, ttl_ms: u64) -> Result<Session, Error> {
        let leased_at = Instant::now();
        let body = || Some(json!({ "ttl_ms": ttl_ms, "owner": owner }));
        // A repetition may open a second session, which ends with its TTL.
        let Told { answer, .. } = self.ask(Method::POST, "/v1/sessions", body, Duration::ZERO).await?;
        let id = answer.body["session"].as_str().map(str::to_owned);
        let id = id.ok_or_else(|| self.error(format!("no session was opened: {}", answer.sentence())))?;
        Ok(Session { id, owner: owner.to_owned(), ttl_ms, leased_at, clean: true })
    }

    /// Keeps a session alive; false if it has ended.
    async fn keep_alive(&self, id: &str) -> Result<bool, Error> {
        let path = format!("/v1/sessions/{id}/keepalive");
        let Told { answer, .. } = self.ask(Method::POST, &path, || None, Duration::ZERO).await?;
        match (answer.status, answer.code()) {
            (200, _) => Ok(true),
            (_, "no_session") => Ok(false),
            _ => Err(self.error(answer.sentence())),
        }
    }

    /// Closes a session: what it holds is released, and it leaves its queue.
    async fn close(&self, id: &str) {
        let _ = self.ask(Method::DELETE, &format!("/v1/sessions/{id}"), || None, Duration::ZERO).await;
    }

    /// Keeps a waiter's session alive, three times in its TTL.
    fn keep(&self, session: &Session, leased_at: Arc<Mutex<Instant>>) -> Background {
        let (cluster, id) = (self.clone(), session.id.clone());
        let pause = Duration::from_millis(session.ttl_ms) / 3;
        // A session that was used before has less than its TTL left.
        let first = pause.saturating_sub(session.leased_at.elapsed());
        Background::spawn(async move {
            tokio::time::sleep(first).await;
            loop {
                let sent = Instant::now();
                match cluster.keep_alive(&id).await {
                    Ok(true) => *leased_at.lock() = sent,
                    Ok(false) => return,
                    Err(_) => {}
                }
                tokio::time::sleep(pause).await;
            }
        })
    }
}

impl Palisade {
    /// Locks in the cluster of these nodes (`HOST:PORT`).
    #[must_use]
    pub fn new(endpoints: &[String], options: &Options) -> Palisade {
        Palisade { cluster: Cluster::new(endpoints, options.request_timeout), idle: Arc::default() }
    }

    /// A session that the owner's earlier acquire has left and that certainly lives for half of its TTL.
    fn used(&self, owner: &str, ttl_ms: u64) -> Option<Session> {
        let mut idle = self.idle.lock();
        idle.retain(|session| session.leased_at.elapsed() < Duration::from_millis(session.ttl_ms) / 2);
        let place = idle.iter().position(|session| session.ttl_ms == ttl_ms && session.owner == owner)?;
        Some(idle.swap_remove(place))
    }

    async fn wait(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let ttl_ms = millis(request.ttl);
        let mut used = self.used(&request.owner, ttl_ms);
        loop {
            let again = used.is_some();
            let session = match used.take() {
                Some(session) => session,
                None => self.cluster.open(&request.owner, ttl_ms).await?,
            };
            match self.claim(key, request, session, patience).await? {
                Some(handle) => return Ok(handle),
                // The session had ended, because it was an old one.
                None if again => {}
                None => {
                    return Err(self.cluster.error(format!("the session ended while the acquire of {key} waited")));
                }
            }
        }
    }

    /// Acquires the lock with a session; `None` if the session has ended.
    async fn claim(
        &self,
        key: &str,
        request: &Request,
        mut session: Session,
        patience: Patience,
    ) -> Result<Option<Handle>, Error> {
        let undo = {
            let (cluster, id) = (self.cluster.clone(), session.id.clone());
            Undo::new(move || Box::pin(async move { cluster.close(&id).await }))
        };
        let leased_at = Arc::new(Mutex::new(session.leased_at));
        let keeper = self.cluster.keep(&session, Arc::clone(&leased_at));
        let path = format!("/v1/locks/{}/acquire", encode(key));
        loop {
            let sent = Instant::now();
            let body =
                || Some(json!({ "session": session.id, "wait_ms": u64::try_from(patience.left().as_millis()).ok() }));
            let Told { answer, attempts } = self.cluster.ask(Method::POST, &path, body, patience.left()).await?;
            session.clean &= attempts == 1;
            match (answer.status, answer.code()) {
                (200, _) => {
                    let fence = answer.body["token"].as_u64();
                    let fence =
                        fence.ok_or_else(|| self.cluster.error(format!("a grant without a token: {}", answer.body)))?;
                    drop(keeper);
                    undo.disarm();
                    // The grant itself sets the session to a whole TTL, after the request was sent.
                    session.leased_at = sent.max(*leased_at.lock());
                    let (leased_at, ttl) = (session.leased_at, Duration::from_millis(session.ttl_ms));
                    let held = Taken {
                        cluster: self.cluster.clone(),
                        idle: Arc::clone(&self.idle),
                        session,
                        key: key.to_owned(),
                        fence,
                    };
                    return Ok(Some(Handle::new(key, request, fence, ttl, leased_at, Box::new(held))));
                }
                (_, "held" | "timeout") => return Err(patience.timeout(key)),
                (_, "no_session") => return Ok(None),
                // The leader has noticed the end of a connection that this acquire has left.
                (_, "withdrawn") => session.clean = false,
                _ => return Err(self.cluster.error(answer.sentence())),
            }
        }
    }
}

impl Locks for Palisade {
    fn name(&self) -> &'static str {
        NAME
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        Box::pin(self.wait(key, request))
    }
}

/// A lock that was granted.
#[derive(Debug)]
struct Taken {
    cluster: Cluster,
    idle: Arc<Mutex<Vec<Session>>>,
    session: Session,
    key: String,
    fence: u64,
}

impl Held for Taken {
    /// The session's TTL is that of its beginning, whatever `ttl` says.
    fn renew(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let sent = Instant::now();
            let renewed = self.cluster.keep_alive(&self.session.id).await?;
            if renewed {
                self.session.leased_at = sent;
            }
            Ok(renewed)
        })
    }

    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        Box::pin(async move {
            let path = format!("/v1/locks/{}/release", encode(&self.key));
            let body = || Some(json!({ "session": self.session.id, "token": self.fence }));
            let Told { answer, attempts } = self.cluster.ask(Method::POST, &path, body, Duration::ZERO).await?;
            let outcome = match (answer.status, answer.code()) {
                (200, _) => Ok(Released::Done),
                (_, "not_holder" | "no_session") if attempts == 1 => Ok(Released::NotOwner),
                (_, "not_holder" | "no_session") => Err(self
                    .cluster
                    .error("the answer to the release was lost; the lock is free now, by this release or before it")),
                _ => Err(self.cluster.error(answer.sentence())),
            };
            if matches!(outcome, Ok(Released::Done)) && attempts == 1 && self.session.clean {
                self.idle.lock().push(self.session.clone());
            } else {
                let (cluster, id) = (self.cluster.clone(), self.session.id.clone());
                tokio::spawn(async move { cluster.close(&id).await });
            }
            outcome
        })
    }

    /// 2% for the leader's clock and this machine's, as docs/protocol.md asks for ("Cluster time").
    fn drift(&self, ttl: Duration) -> Duration {
        ttl / 50
    }
}
