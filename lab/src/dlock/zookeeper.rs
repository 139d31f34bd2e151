//! ZooKeeper: ephemeral sequential nodes, each waiter watching its predecessor.
//!
//! | step | how |
//! |---|---|
//! | acquire | creates `/locks/KEY/w-ID-SEQUENCE`, ephemeral and sequential; the lowest sequence number holds the lock |
//! | wait | watches the node just before its own, and only that |
//! | renew | see below |
//! | release | deletes the node; a node or a session that is gone is `NotOwner` |
//! | token | the node's `czxid`: the number of the transaction that created it. Sequence numbers are no token: they start again when the parent node is deleted, which ZooKeeper does to containers without children |
//!
//! **What a TTL is here.** ZooKeeper's leases are sessions. A session ends when the servers have heard nothing of its client
//! for the session's timeout, and its nodes go with it. The servers keep the timeout within bounds of their configuration
//! (2 to 20 ticks by default; [`Handle::ttl`] is what they agreed to) and round the end up to their next tick. Every client
//! library sends heartbeats by itself as long as its process runs. So a lock is lost by a process that is stopped, killed or
//! cut off, but not by one that sleeps; and nothing is renewed by hand. This file offers two ways:
//!
//! - [`Renewal::Automatic`]: the usual way. Sessions are the connections of `--connections`: of the owner's own, or shared, and
//!   then the locks of a shared session are lost together. [`Handle::renew`] sends nothing but the question whether the node
//!   is still there.
//! - [`Renewal::OnRequest`]: the way that compares with the other backends. Each acquire has a session of its own, which is
//!   kept alive while it waits. When the lock is granted, the client closes the connection and leaves the session: it ends one
//!   timeout later. A renewal reattaches to the session, which starts the timeout anew, and leaves again. A release reattaches,
//!   deletes the node and closes the session. Renewals and releases so cost a connection each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use zookeeper_client::{Client, SessionInfo};

use super::cleanup::{Patience, Undo};
use super::pool::{Pool, Pooled};
use super::zookeeper_queue::{Ensemble, Node, parent};
use super::{Connections, Error, Handle, Held, Locks, Options, Released, Renewal, Request};

/// Locks in a ZooKeeper ensemble.
#[derive(Debug)]
pub struct ZooKeeper {
    ensemble: Ensemble,
    renewal: Renewal,
    connections: Connections,
    /// The sessions that renew themselves, by their timeout.
    sessions: Mutex<HashMap<Duration, Arc<Pool<Client>>>>,
}

impl ZooKeeper {
    /// Locks in the ensemble of these servers (`HOST:PORT`).
    #[must_use]
    pub fn new(endpoints: &[String], options: &Options) -> ZooKeeper {
        ZooKeeper {
            ensemble: Ensemble::new(endpoints, options.request_timeout),
            renewal: options.renewal,
            connections: options.connections,
            sessions: Mutex::default(),
        }
    }

    /// A session of the acquire's own, left when the lock is granted.
    async fn on_request(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let client = self.ensemble.open(request.ttl, true).await?;
        let (session, ttl) = (client.session().clone(), client.session_timeout());
        let undo = {
            let (ensemble, session) = (self.ensemble.clone(), session.clone());
            Undo::new(move || Box::pin(async move { ensemble.close(ttl, session).await }))
        };
        let parent = parent(key);
        let id = Node::id();
        let node = self.ensemble.enqueue(&client, &parent, &id, &request.owner).await?;
        let leased_at = self.ensemble.reach_the_front(&client, key, &node, patience).await?;
        undo.disarm();
        // Without `CloseSession`: the client was told to leave its session.
        drop(client);
        let fence = node.token();
        let held = Detached { ensemble: self.ensemble.clone(), session, timeout: ttl, node };
        Ok(Handle::new(key, request, fence, ttl, leased_at, Box::new(held)))
    }

    /// A session that the client keeps alive.
    async fn automatic(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let session = self.session(request.ttl).await?;
        let parent = parent(key);
        let id = Node::id();
        let undo = {
            let (ensemble, client, parent, id) = (self.ensemble.clone(), session.clone(), parent.clone(), id.clone());
            Undo::new(move || Box::pin(async move { ensemble.withdraw(&client, &parent, &id).await }))
        };
        let node = self.ensemble.enqueue(&session, &parent, &id, &request.owner).await?;
        let leased_at = self.ensemble.reach_the_front(&session, key, &node, patience).await?;
        let (fence, ttl) = (node.token(), session.session_timeout());
        let held = Attached { ensemble: self.ensemble.clone(), session, node, undo: Some(undo) };
        Ok(Handle::new(key, request, fence, ttl, leased_at, Box::new(held)))
    }

    /// A session with this timeout that is alive.
    async fn session(&self, timeout: Duration) -> Result<Pooled<Client>, Error> {
        let pool = {
            let mut sessions = self.sessions.lock();
            let fresh = || {
                let ensemble = self.ensemble.clone();
                Pool::new(self.connections, move || {
                    let ensemble = ensemble.clone();
                    Box::pin(async move { ensemble.open(timeout, false).await })
                })
            };
            Arc::clone(sessions.entry(timeout).or_insert_with(fresh))
        };
        loop {
            let mut session = pool.take().await?;
            if !session.state().is_terminated() {
                return Ok(session);
            }
            session.broke();
        }
    }
}

impl Locks for ZooKeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        match self.renewal {
            Renewal::OnRequest => Box::pin(self.on_request(key, request)),
            Renewal::Automatic => Box::pin(self.automatic(key, request)),
        }
    }
}

/// A lock of a session that its client has left.
#[derive(Debug)]
struct Detached {
    ensemble: Ensemble,
    session: SessionInfo,
    timeout: Duration,
    node: Node,
}

impl Held for Detached {
    /// The session's timeout is that of its beginning, whatever `ttl` says.
    fn renew(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let client = self.ensemble.reattach(self.timeout, self.session.clone(), true).await?;
            let Some(client) = client else { return Ok(false) };
            self.ensemble.exists(&client, &self.node).await
        })
    }

    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        Box::pin(async move {
            let client = self.ensemble.reattach(self.timeout, self.session.clone(), false).await?;
            let Some(client) = client else { return Ok(Released::NotOwner) };
            // The client that is dropped after this closes the session.
            self.ensemble.delete(&client, &self.node).await
        })
    }
}

/// A lock of a session that its client keeps alive.
struct Attached {
    ensemble: Ensemble,
    session: Pooled<Client>,
    node: Node,
    /// Deletes the node if the handle is dropped without a release.
    undo: Option<Undo>,
}

impl Held for Attached {
    fn renew(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { self.ensemble.exists(&self.session, &self.node).await })
    }

    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        Box::pin(async move {
            let released = self.ensemble.delete(&self.session, &self.node).await?;
            if let Some(undo) = self.undo.take() {
                undo.disarm();
            }
            Ok(released)
        })
    }
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached").field("session", &self.session.session_id()).field("node", &self.node).finish()
    }
}
