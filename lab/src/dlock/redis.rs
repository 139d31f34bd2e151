//! One Redis: `SET key owner NX PX ttl`, and scripts for the rest.
//!
//! | step | how |
//! |---|---|
//! | acquire | one script: SET NX PX, and INCR of the key's counter if that was set |
//! | wait | attempts with random pauses, which double up to `--spin-max`; no queue: any waiter may be next |
//! | renew | one script: PEXPIRE if the value is the handle's |
//! | release | one script: DEL if the value is the handle's |
//! | token | the counter `fence:{key}` (or another one, see [`tokens`](super::tokens)) |
//!
//! The token is a fencing token as long as Redis forgets no write. A server that restarts without its last writes, or a
//! replica that takes over without them, counts a token a second time, and may grant a lock that is held.
//!
//! [`ReleaseHow::GetThenDel`] is the release that one finds in many programs, and it is **wrong**: between GET and DEL the
//! lock may end and another owner may take it, whose lock DEL then deletes. Experiment 3 forces that; nothing else uses
//! it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::cleanup::{Backoff, Patience, Undo};
use super::redis_node::{Connection, Node, millis, value};
use super::tokens::Tokens;
use super::{Error, Handle, Held, Locks, Options, Released, Request};

/// What an experiment does between the two steps of the wrong release; it is given the key.
pub type Between = Arc<dyn Fn(String) -> BoxFuture<'static, ()> + Send + Sync>;

/// How a lock is released.
#[derive(Clone)]
pub enum ReleaseHow {
    /// One script compares and deletes.
    Script,
    /// Wrong, for experiment 3 only: GET, compare, then whatever `between` does, then DEL.
    GetThenDel {
        /// Runs between the two steps.
        between: Between,
    },
}

/// Locks in one Redis.
#[derive(Debug)]
pub struct Redis {
    node: Node,
    tokens: Tokens,
    spin_max: Duration,
    release: ReleaseHow,
}

impl Redis {
    /// Locks in the Redis at `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// The address is none.
    pub fn new(address: &str, options: &Options) -> Result<Redis, Error> {
        Redis::replicated(&[address.to_owned()], options)
    }

    /// Locks in the primary among these Redis servers, of which the others are its replicas. Replication is asynchronous:
    /// a replica that takes over may lack locks and tokens that the primary had granted.
    ///
    /// # Errors
    /// An address is none.
    pub fn replicated(addresses: &[String], options: &Options) -> Result<Redis, Error> {
        let node = Node::replicated("redis", addresses, options.connections, options.request_timeout)?;
        Ok(Redis { node, tokens: options.tokens, spin_max: options.spin_max, release: ReleaseHow::Script })
    }

    /// Releases in another way, for experiment 3.
    #[must_use]
    pub fn release_how(mut self, release: ReleaseHow) -> Redis {
        self.release = release;
        self
    }

    async fn spin(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let counter = self.tokens.counter(key, Tokens::PerKey).unwrap_or_default();
        let value = value(&request.owner);
        let mut connection = self.node.connection().await?;
        let mut backoff = Backoff::new(self.spin_max);
        loop {
            let undo = {
                let (node, key, value) = (self.node.clone(), key.to_owned(), value.clone());
                Undo::new(move || Box::pin(async move { node.undo(&key, &value).await }))
            };
            let sent = Instant::now();
            let token = self.node.take(&mut connection, key, &counter, &value, request.ttl).await?;
            undo.disarm();
            if let Some(token) = token {
                let ttl = Duration::from_millis(millis(request.ttl));
                let (node, release) = (self.node.clone(), self.release.clone());
                let held = Taken { node, connection, key: key.to_owned(), value, release };
                return Ok(Handle::new(key, request, token, ttl, sent, Box::new(held)));
            }
            let left = patience.left();
            if left.is_zero() {
                return Err(patience.timeout(key));
            }
            tokio::time::sleep(backoff.pause().min(left)).await;
        }
    }
}

impl Locks for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        Box::pin(self.spin(key, request))
    }
}

/// A lock that was taken.
#[derive(Debug)]
struct Taken {
    node: Node,
    connection: Connection,
    key: String,
    value: String,
    release: ReleaseHow,
}

impl Taken {
    async fn get_then_del(&mut self, between: &Between) -> Result<Released, Error> {
        let get = ::redis::Cmd::get(&self.key);
        let holder: Option<String> = self.node.command(&mut self.connection, &get).await?;
        if holder.as_ref() != Some(&self.value) {
            return Ok(Released::NotOwner);
        }
        between(self.key.clone()).await;
        let deleted: bool = self.node.command(&mut self.connection, &::redis::Cmd::del(&self.key)).await?;
        // It cannot tell whose lock that was.
        Ok(if deleted { Released::Done } else { Released::NotOwner })
    }
}

impl Held for Taken {
    fn renew(&mut self, ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.node.renew(&mut self.connection, &self.key, &self.value, ttl))
    }

    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        Box::pin(async move {
            if let ReleaseHow::GetThenDel { between } = self.release.clone() {
                return self.get_then_del(&between).await;
            }
            let deleted = self.node.release(&mut self.connection, &self.key, &self.value).await?;
            Ok(if deleted { Released::Done } else { Released::NotOwner })
        })
    }
}

impl fmt::Debug for ReleaseHow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReleaseHow::Script => "Script",
            ReleaseHow::GetThenDel { .. } => "GetThenDel",
        })
    }
}
