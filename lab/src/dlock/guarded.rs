//! Palisade by its usual client, `palisade-client`: what a program would use.
//!
//! The client keeps one connection to the leader for all its locks (`--connections` says how many clients there are), numbers
//! its operations so that a repetition takes effect once, and **renews each lock in the background** as long as its guard
//! lives. So a pause that leaves the runtime alone never loses the lock, a stopped process (SIGSTOP) does, and a handle that is
//! dropped releases it. For throughput and failover this is the fair backend; for the pauses of experiment 1 there is
//! [`palisade`](super::palisade), which renews on request only.
//!
//! A guard knows when its lock is lost. The handle does not keep its holder from anything then: [`Handle::renew`] says false,
//! [`Handle::release`] `NotOwner`, and a holder that writes without asking writes blindly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use palisade_client::{Client, Error as ClientError, Guard, LockOptions};

use super::cleanup::{Patience, within};
use super::pool::{Pool, Pooled};
use super::redis_node::millis;
use super::{Error, Handle, Held, Locks, Options, Released, Request};

const NAME: &str = "palisade";

/// Locks of a Palisade cluster, with the usual client.
#[derive(Debug)]
pub struct Guarded {
    pool: Arc<Pool<Client>>,
    servers: Arc<str>,
    timeout: Duration,
}

impl Guarded {
    /// Locks in the cluster of these nodes (`HOST:PORT`).
    #[must_use]
    pub fn new(endpoints: &[String], options: &Options) -> Guarded {
        let timeout = options.request_timeout;
        let client = palisade_client::Options {
            request_timeout: timeout,
            connect_timeout: timeout,
            ..palisade_client::Options::default()
        };
        let servers: Arc<str> = Arc::from(endpoints.join(","));
        let (endpoints, named) = (endpoints.to_vec(), Arc::clone(&servers));
        let pool = Pool::new(options.connections, move || {
            let (endpoints, client, named) = (endpoints.clone(), client.clone(), Arc::clone(&named));
            Box::pin(async move {
                let dial = Client::connect(&endpoints, client);
                within(timeout + Duration::from_secs(1), NAME, &named, dial).await
            })
        });
        Guarded { pool, servers, timeout }
    }

    async fn wait(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let client = self.pool.take().await?;
        let ttl = Duration::from_millis(millis(request.ttl));
        let mut options = LockOptions::default().ttl(ttl).owner(request.owner.clone());
        if !request.wait.is_zero() {
            options = options.wait(patience.left());
        }
        let sent = Instant::now();
        match client.lock(key, options).await {
            Ok(guard) => {
                let fence = guard.token();
                let held = Taken {
                    guard: Some(guard),
                    _client: client,
                    servers: Arc::clone(&self.servers),
                    timeout: self.timeout,
                };
                Ok(Handle::new(key, request, fence, ttl, sent, Box::new(held)))
            }
            Err(ClientError::Held { .. } | ClientError::TimedOut { .. }) => Err(patience.timeout(key)),
            Err(error) => Err(Error::Backend { backend: NAME, reason: format!("{}: {error}", self.servers) }),
        }
    }
}

impl Locks for Guarded {
    fn name(&self) -> &'static str {
        NAME
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        Box::pin(self.wait(key, request))
    }
}

/// A lock that was granted, with the client that renews it.
#[derive(Debug)]
struct Taken {
    /// `None` once it was released.
    guard: Option<Guard>,
    _client: Pooled<Client>,
    servers: Arc<str>,
    timeout: Duration,
}

impl Held for Taken {
    /// The guard renews by itself; this only asks whether it still holds.
    fn renew(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(self.guard.as_ref().is_some_and(Guard::is_valid)) })
    }

    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        Box::pin(async move {
            let Some(guard) = self.guard.take() else { return Ok(Released::NotOwner) };
            let released = tokio::time::timeout(self.timeout + Duration::from_secs(1), guard.release()).await;
            match released {
                Ok(Ok(())) => Ok(Released::Done),
                Ok(Err(ClientError::Lost)) => Ok(Released::NotOwner),
                Ok(Err(error)) => Err(Error::Backend { backend: NAME, reason: format!("{}: {error}", self.servers) }),
                Err(_) => {
                    let reason = format!("{} did not answer to a release within {:?}", self.servers, self.timeout);
                    Err(Error::Backend { backend: NAME, reason })
                }
            }
        })
    }

    fn signed_token(&self) -> Option<&str> {
        self.guard.as_ref().and_then(Guard::signed_token)
    }

    fn drift(&self, ttl: Duration) -> Duration {
        palisade_client::margin(ttl)
    }
}
