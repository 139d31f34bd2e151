//! Code that both etcd backends share: connections, requests with a deadline, and leases.
//!
//! A lease's ID is drawn by the client, so that an acquire that is cancelled before the grant of its lease is answered can
//! revoke it. A request that finds no server is repeated until the deadline, because a cluster goes on without one of its
//! servers; each request here has the same effect if it is applied twice.

use std::fmt::{self, Display};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, Error as EtcdError, LeaseGrantOptions};
use parking_lot::Mutex;
use rand::Rng;

use super::cleanup::{Background, Undo, within};
use super::pool::{Pool, Pooled};
use super::{Error, Options};

/// gRPC's code of what does not exist.
const NOT_FOUND: i32 = 5;
/// gRPC's code of a precondition that does not hold: etcd's answer to a lease that exists already.
const FAILED_PRECONDITION: i32 = 9;
/// gRPC's code of a server that cannot be reached, or that knows no leader.
const UNAVAILABLE: i32 = 14;
/// The pause before a request that found no server is repeated.
const RETRY: Duration = Duration::from_millis(50);

/// A client that an acquire uses, and the handle after it: one connection to each of the endpoints.
pub(super) type Connection = Pooled<Client>;

/// An etcd cluster.
#[derive(Clone)]
pub(super) struct Cluster {
    backend: &'static str,
    servers: Arc<str>,
    pool: Arc<Pool<Client>>,
    pub(super) timeout: Duration,
}

/// A lease that was granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// As the server has rounded it: whole seconds, and not below the server's minimum (2 s for the usual election
    /// timeout of 1 s).
    pub(super) ttl: Duration,
}

fn code(error: &EtcdError) -> Option<i32> {
    match error {
        EtcdError::GRpcStatus(status) => Some(i32::from(status.code())),
        EtcdError::TransportError(_) => Some(UNAVAILABLE),
        _ => None,
    }
}

/// Whether the server says that there is no such lease.
fn lease_not_found(error: &EtcdError) -> bool {
    code(error) == Some(NOT_FOUND)
        || matches!(error, EtcdError::LeaseKeepAliveError(reason) if reason == "lease not found")
}

impl Cluster {
    pub(super) fn new(backend: &'static str, endpoints: &[String], options: &Options) -> Cluster {
        let timeout = options.request_timeout;
        let servers: Arc<str> = Arc::from(endpoints.join(","));
        let (endpoints, named) = (endpoints.to_vec(), Arc::clone(&servers));
        let pool = Pool::new(options.connections, move || {
            let (endpoints, named) = (endpoints.clone(), Arc::clone(&named));
            Box::pin(async move {
                let options = ConnectOptions::new().with_connect_timeout(timeout);
                within(timeout, backend, &named, Client::connect(endpoints, Some(options))).await
            })
        });
        Cluster { backend, servers, pool, timeout }
    }

    pub(super) async fn connection(&self) -> Result<Connection, Error> {
        self.pool.take().await
    }

    pub(super) fn error(&self, reason: impl Display) -> Error {
        Error::Backend { backend: self.backend, reason: format!("{}: {reason}", self.servers) }
    }

    /// Sends a request, again if no server could be reached, until the deadline.
    pub(super) async fn ask<T, F>(&self, mut request: impl FnMut() -> F) -> Result<Result<T, EtcdError>, Error>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let mut last = None;
        let repeated = async {
            loop {
                match request().await {
                    Err(error) if code(&error) == Some(UNAVAILABLE) => last = Some(error),
                    answer => return answer,
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        let answer = tokio::time::timeout(self.timeout, repeated).await;
        answer.map_err(|_| match last {
            Some(error) => self.error(format!("no server answered within {:?}; {error}", self.timeout)),
            None => self.error(format!("no server answered within {:?}", self.timeout)),
        })
    }

    /// Grants a lease under an ID of ours.
    pub(super) async fn grant(&self, client: &Client, id: i64, ttl: Duration) -> Result<Lease, Error> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let answer = self
            .ask(|| {
                let mut leases = client.lease_client();
                async move { leases.grant(seconds, Some(LeaseGrantOptions::new().with_id(id))).await }
            })
            .await?;
        let granted = match answer {
            Ok(answer) => answer.ttl(),
            // An earlier attempt of this request was applied, and only its answer was lost.
            Err(error) if code(&error) == Some(FAILED_PRECONDITION) => seconds,
            Err(error) => return Err(self.error(error)),
        };
        Ok(Lease { id, ttl: Duration::from_secs(u64::try_from(granted).unwrap_or(0)) })
    }

    /// Renews a lease once; false if it has ended.
    pub(super) async fn keep_alive(&self, client: &Client, id: i64) -> Result<bool, Error> {
        let answer = self
            .ask(|| {
                let mut leases = client.lease_client();
                async move { leases.keep_alive(id).await.map(drop) }
            })
            .await?;
        match answer {
            Ok(()) => Ok(true),
            Err(error) if lease_not_found(&error) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Revokes a lease, and deletes its keys with it; false if it had ended.
    pub(super) async fn revoke(&self, client: &Client, id: i64) -> Result<bool, Error> {
        let mut attempts = 0;
        let answer = self
            .ask(|| {
                attempts += 1;
                let mut leases = client.lease_client();
                async move { leases.revoke(id).await.map(drop) }
            })
            .await?;
        match answer {
            Ok(()) => Ok(true),
            Err(error) if lease_not_found(&error) && attempts > 1 => {
                Err(self
                    .error("the answer to the release was lost; the lock is free now, by this release or before it"))
            }
            Err(error) if lease_not_found(&error) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Revokes the lease of an acquire that fails or is cancelled.
    pub(super) fn undo_grant(&self, id: i64) -> Undo {
        let cluster = self.clone();
        Undo::new(move || Box::pin(async move { cluster.undo(id).await }))
    }

    /// Revokes what a cancelled acquire may have left. A grant that is still on its way is revoked when it has arrived:
    /// at the latest it ends with its TTL.
    async fn undo(&self, id: i64) {
        if let Ok(connection) = self.connection().await
            && let Ok(false) = self.revoke(&connection, id).await
        {
            tokio::time::sleep(RETRY).await;
            let _ = self.revoke(&connection, id).await;
        }
    }

    /// Renews a waiter's lease three times in its TTL, until the keeper is dropped.
    pub(super) fn keep(&self, client: &Client, lease: Lease, granted: Instant) -> Keeper {
        let leased_at = Arc::new(Mutex::new(granted));
        let (cluster, client, renewed) = (self.clone(), client.clone(), Arc::clone(&leased_at));
        let task = Background::spawn(async move {
            loop {
                tokio::time::sleep(lease.ttl / 3).await;
                let sent = Instant::now();
                match cluster.keep_alive(&client, lease.id).await {
                    Ok(true) => *renewed.lock() = sent,
                    Ok(false) => return,
                    Err(_) => {}
                }
            }
        });
        Keeper { _task: task, leased_at }
    }
}

/// Keeps a waiter's lease alive.
pub(super) struct Keeper {
    _task: Background,
    leased_at: Arc<Mutex<Instant>>,
}

impl Keeper {
    /// The sending of the last renewal that was answered, or of the lease's grant.
    pub(super) fn leased_at(&self) -> Instant {
        *self.leased_at.lock()
    }
}

/// An ID for a lease: positive, and hardly ever drawn twice.
pub(super) fn lease_id() -> i64 {
    rand::rng().random_range(1..=i64::MAX)
}

/// Where the keys of a lock's queue begin. The key's length keeps `a` from being a prefix of `a/b`.
pub(super) fn queue(key: &str) -> String {
    format!("lock/{}:{key}/", key.len())
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("servers", &self.servers)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_queue_is_a_prefix_of_another() {
        for (one, other) in [("a", "a/b"), ("a", "ab"), ("", "/"), ("1:a", "a")] {
            assert!(!queue(other).starts_with(&queue(one)), "{one:?} {other:?}");
            assert!(!queue(one).starts_with(&queue(other)), "{one:?} {other:?}");
        }
    }
}
