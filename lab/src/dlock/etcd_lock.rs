//! etcd's own lock service (v3lock): the server queues, the client waits for one answer.
//!
//! | step | how |
//! |---|---|
//! | acquire | grants a lease of the TTL, then one `Lock` request that the server answers when the lock is granted |
//! | renew | one keep-alive of the lease |
//! | release | `Unlock`, then the lease is revoked; a lease that has ended is `NotOwner` |
//! | token | the create revision of the lock's key, which the lock service does not return: one more read |
//!
//! The service has no acquire that does not wait. With `wait` zero the queue is read first, and only an empty one is
//! joined, for at most [`AT_ONCE`]. A lock service of etcd 3.4 that served about a thousand waiters and lost them all at once
//! grants nothing more: let waiters drain, or start afresh.

use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions, LockOptions};
use futures_util::future::BoxFuture;

use super::cleanup::Patience;
use super::etcd_lease::{Cluster, Connection, lease_id, queue};
use super::{Error, Handle, Held, Locks, Options, Released, Request};

/// How long an acquire that does not wait may take after it has found the queue empty.
pub const AT_ONCE: Duration = Duration::from_millis(200);

/// Locks of etcd's lock service.
#[derive(Debug)]
pub struct EtcdLock {
    cluster: Cluster,
}

impl EtcdLock {
    /// Locks of the lock service of the etcd cluster with these endpoints (`HOST:PORT`).
    #[must_use]
    pub fn new(endpoints: &[String], options: &Options) -> EtcdLock {
        EtcdLock { cluster: Cluster::new("etcd-lock", endpoints, options) }
    }

    async fn wait(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let connection = self.cluster.connection().await?;
        let queue = queue(key);
        if request.wait.is_zero() && self.read(&connection, &queue, true).await?.is_some() {
            return Err(patience.timeout(key));
        }
        let id = lease_id();
        let undo = self.cluster.undo_grant(id);
        let sent = Instant::now();
        let lease = self.cluster.grant(&connection, id, request.ttl).await?;
        let keeper = self.cluster.keep(&connection, lease, sent);
        let own = self.lock(&connection, &queue, id, key, patience).await?;
        let Some(revision) = self.read(&connection, &own, false).await? else {
            return Err(self.cluster.error(format!("the lease ended while the acquire of {key} waited")));
        };
        let leased_at = keeper.leased_at();
        drop(keeper);
        undo.disarm();
        let fence = u64::try_from(revision).unwrap_or(0);
        let held = Taken { cluster: self.cluster.clone(), connection, lease: id, key: own };
        Ok(Handle::new(key, request, fence, lease.ttl, leased_at, Box::new(held)))
    }

    /// Waits for the lock service to grant the lock, and returns the lock's key. The service may take as long as the
    /// acquire waits, and the time of a request.
    async fn lock(
        &self,
        client: &Client,
        queue: &str,
        lease: i64,
        key: &str,
        patience: Patience,
    ) -> Result<String, Error> {
        // The service adds the slash and the lease.
        let name = queue.strip_suffix('/').unwrap_or(queue);
        loop {
            let mut locks = client.lock_client();
            let granted = locks.lock(name, Some(LockOptions::new().with_lease(lease)));
            match tokio::time::timeout(patience.left().max(AT_ONCE), granted).await {
                Ok(Ok(granted)) => return Ok(String::from_utf8_lossy(granted.key()).into_owned()),
                Err(_) => return Err(patience.timeout(key)),
                // A server that is gone: a repeated request finds its place in the queue by its lease. If no server can
                // be reached, the read fails.
                Ok(Err(error)) => {
                    self.read(client, queue, true).await?;
                    if patience.left().is_zero() {
                        return Err(self.cluster.error(error));
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// The create revision of the key, or of any key of the queue.
    async fn read(&self, client: &Client, key: &str, prefix: bool) -> Result<Option<i64>, Error> {
        let options = if prefix { GetOptions::new().with_prefix().with_limit(1) } else { GetOptions::new() };
        let answer = self
            .cluster
            .ask(|| {
                let (mut kv, options) = (client.kv_client(), options.clone());
                async move { kv.get(key, Some(options)).await }
            })
            .await?;
        let answer = answer.map_err(|error| self.cluster.error(error))?;
        Ok(answer.kvs().first().map(|kv| kv.create_revision()))
    }
}

impl Locks for EtcdLock {
    fn name(&self) -> &'static str {
        "etcd-lock"
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        Box::pin(self.wait(key, request))
    }
}

/// A lock that was granted.
#[derive(Debug)]
struct Taken {
    cluster: Cluster,
    connection: Connection,
    lease: i64,
    key: String,
}

impl Held for Taken {
    /// The lease's TTL is that of its grant, whatever `ttl` says.
    fn renew(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.cluster.keep_alive(&self.connection, self.lease))
    }

    /// The lock's key contains its lease, so that `Unlock` deletes no other owner's. It does not say whether there was
    /// anything to delete; the lease does.
    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        Box::pin(async move {
            let answer = self
                .cluster
                .ask(|| {
                    let (mut locks, key) = (self.connection.lock_client(), self.key.clone());
                    async move { locks.unlock(key).await.map(drop) }
                })
                .await?;
            answer.map_err(|error| self.cluster.error(error))?;
            let revoked = self.cluster.revoke(&self.connection, self.lease).await?;
            Ok(if revoked { Released::Done } else { Released::NotOwner })
        })
    }
}
