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

mod cluster;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use hyper::Method;
use parking_lot::Mutex;
use serde_json::json;

use self::cluster::{Cluster, Exchange, Session};
use super::cleanup::{Patience, Undo};
use super::redis_node::millis;
use super::{Error, Handle, Held, Locks, Options, Released, Request};
use crate::text::path_segment;

const NAME: &str = "palisade";
/// Locks in a Palisade cluster.
#[derive(Debug)]
pub struct Palisade {
    cluster: Cluster,
    idle: Arc<Mutex<Vec<Session>>>,
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
        let index = idle.iter().position(|session| session.ttl_ms == ttl_ms && session.owner == owner)?;
        Some(idle.swap_remove(index))
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
        let path = format!("/v1/locks/{}/acquire", path_segment(key));
        loop {
            let sent = Instant::now();
            let body =
                || Some(json!({ "session": session.id, "wait_ms": u64::try_from(patience.left().as_millis()).ok() }));
            let Exchange { answer, attempts } = self.cluster.ask(Method::POST, &path, body, patience.left()).await?;
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
                        signed: answer.body["signed"].as_str().map(str::to_owned),
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
    signed: Option<String>,
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
            let path = format!("/v1/locks/{}/release", path_segment(&self.key));
            let body = || Some(json!({ "session": self.session.id, "token": self.fence }));
            let Exchange { answer, attempts } = self.cluster.ask(Method::POST, &path, body, Duration::ZERO).await?;
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

    fn signed_token(&self) -> Option<&str> {
        self.signed.as_deref()
    }

    /// 2% for the leader's clock and this machine's, as docs/protocol.md asks for ("Cluster time").
    fn drift(&self, ttl: Duration) -> Duration {
        ttl / 50
    }
}
