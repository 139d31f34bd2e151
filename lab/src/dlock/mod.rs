//! One interface to the lock services.
//!
//! [`Locks::acquire`] waits for a key and returns a [`Handle`]. Dropping the future of a waiting
//! acquire cancels it: the waiter leaves the queue, and a lock that was granted meanwhile is
//! released. Releasing or renewing a lock that is no longer the handle's changes nothing, and is
//! reported ([`Released::NotOwner`], `Ok(false)`).
//!
//! A handle's fencing token ([`Handle::fence`]) grows with every grant of its key, except with Redlock, which
//! has no fencing token; what it is made of differs by backend, and is written at the top of each backend's
//! file.
//!
//! | file | contents |
//! |---|---|
//! | `backend.rs`, `options.rs`, `connect.rs` | [`Backend`], [`Options`] and [`connect`]: from the command line to a [`Locks`] |
//! | [`redis`] | one Redis: SET NX PX, scripts, and the wrong release of experiment 3 |
//! | [`redlock`] | independent Redis servers, by majority |
//! | [`etcd`] | a lease and a queue of keys by create revision, by hand |
//! | [`etcd_lock`] | the lock service of etcd itself (v3lock) |
//! | [`zookeeper`] | ephemeral sequential nodes |
//! | [`palisade`] | Palisade by its HTTP interface, renewed on request only; [`guarded`]: the usual client |
//! | [`reentrant`] | the same owner acquires again, counted; in front of any backend |
//! | [`bounded`] | a queue with a limit; in front of any backend |
//! | [`tokens`] | where a fencing token comes from: a counter by key, sharded or global, or a revision |
//!
//! Every await that talks to a server has a deadline ([`Options::request_timeout`]).

mod backend;
pub mod bounded;
mod cleanup;
mod connect;
pub mod etcd;
mod etcd_lease;
pub mod etcd_lock;
pub mod guarded;
mod http;
mod options;
pub mod palisade;
mod pool;
pub mod redis;
pub(crate) mod redis_node;
pub mod redlock;
pub mod reentrant;
pub mod tokens;
pub mod zookeeper;
mod zookeeper_queue;

use std::fmt;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

pub use self::backend::Backend;
pub use self::connect::connect;
pub use self::options::{Connections, Options, Renewal};

/// What an acquire asks for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The name to show as the lock's owner; unique to the worker.
    pub owner: String,
    /// How long the lock lasts without a renewal. Rounded up to the backend's unit.
    pub ttl: Duration,
    /// How long to wait for the key; zero: do not wait.
    pub wait: Duration,
}

/// A lock service.
pub trait Locks: fmt::Debug + Send + Sync {
    /// The backend's name, as in `--backend`.
    fn name(&self) -> &'static str;

    /// Waits for the key.
    ///
    /// # Errors
    /// [`Error::Timeout`] if another owner held the key for all of `request.wait`; other errors name
    /// the server and what it answered. After an error other than a timeout, the backend releases
    /// what it may have acquired, if it can reach the server.
    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>>;
}

/// A lock that was acquired. It is not renewed unless [`Handle::renew`] is called, and a dropped
/// handle is not released: it lasts until its TTL ends, as with a process that was killed.
#[derive(Debug)]
pub struct Handle {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) fence: u64,
    pub(crate) ttl: Duration,
    pub(crate) acquired_at: Instant,
    /// When this process learnt of the grant.
    pub(crate) granted_at: Instant,
    /// The sending of the last request that certainly set the lease to a whole TTL.
    pub(crate) leased_at: Instant,
    pub(crate) held: Box<dyn Held>,
}

/// What a backend does with a lock that it granted.
pub trait Held: fmt::Debug + Send {
    /// Extends the lock to a whole TTL from now. False if the lock is no longer the handle's.
    fn renew(&mut self, ttl: Duration) -> BoxFuture<'_, Result<bool, Error>>;

    /// Gives the lock back.
    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>>;

    /// The fencing token with the cluster's signature, if the cluster signs its grants.
    fn signed_token(&self) -> Option<&str> {
        None
    }

    /// What the backend's rules subtract from a TTL for clocks that run at different rates.
    fn drift(&self, _ttl: Duration) -> Duration {
        Duration::ZERO
    }
}

/// What a release did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The lock was the handle's, and is free or the next waiter's now.
    Done,
    /// The lock was not the handle's any more; nothing was changed.
    NotOwner,
}

impl Handle {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The owner's name.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The fencing token.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// The fencing token with the cluster's signature, if the cluster signs its grants (docs/fencing.md).
    #[must_use]
    pub fn signed_token(&self) -> Option<&str> {
        self.held.signed_token()
    }

    /// The time that the lock lasts from its acquisition or last renewal, as the backend has rounded it.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// When the request was sent whose answer was the grant, or that last renewed the waiter's lease before the
    /// grant: the lease lasts until this moment plus the TTL at least.
    #[must_use]
    pub fn acquired_at(&self) -> Instant {
        self.acquired_at
    }

    /// Until when the holder may count on the lock by the backend's own rules, if the clocks are right: the sending of
    /// the last request that set the lease, plus the TTL, less the backend's allowance for clocks. A lease that the
    /// backend's client renews by itself ([`Renewal::Automatic`]) usually lasts longer.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.leased_at + self.ttl.saturating_sub(self.held.drift(self.ttl))
    }

    /// Extends the lock to a whole TTL from now; false if it is lost already.
    ///
    /// # Errors
    /// The server could not be reached, or has refused.
    pub async fn renew(&mut self) -> Result<bool, Error> {
        let (ttl, sent) = (self.ttl, Instant::now());
        let renewed = self.held.renew(ttl).await?;
        if renewed {
            self.leased_at = sent;
        }
        Ok(renewed)
    }

    /// A lock that a backend granted.
    fn new(key: &str, request: &Request, fence: u64, ttl: Duration, sent: Instant, held: Box<dyn Held>) -> Handle {
        let (key, owner) = (key.to_owned(), request.owner.clone());
        Handle { key, owner, fence, ttl, acquired_at: sent, granted_at: Instant::now(), leased_at: sent, held }
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// The server could not be reached, or has refused: the lock then ends with its TTL.
    pub async fn release(mut self) -> Result<Released, Error> {
        self.held.release().await
    }
}

/// Why a lock was not acquired, renewed or released.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another owner held the key for as long as the acquire waited.
    #[error("{key} was held by another owner for {waited:?}")]
    Timeout {
        /// The key.
        key: String,
        /// How long the acquire waited.
        waited: Duration,
    },
    /// The queue of a bounded lock is full.
    #[error("{limit} waiters are in the queue of {key} already")]
    QueueFull {
        /// The key.
        key: String,
        /// The limit of the queue.
        limit: usize,
    },
    /// A server could not be reached or has refused; the backend and the server are named.
    #[error("{backend}: {reason}")]
    Backend {
        /// The backend's name.
        backend: &'static str,
        /// What failed, with the server's address if one server failed.
        reason: String,
    },
}
