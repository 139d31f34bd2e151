//! etcd by hand: a lease, a key under it, and a queue by create revision.
//!
//! | step | how |
//! |---|---|
//! | acquire | grants a lease of the TTL, puts the key `lock/LEN:KEY/LEASE` under it, and reads the first key of the queue in the same transaction |
//! | wait | watches the key that precedes its own by create revision, and only that: one deletion wakes one waiter |
//! | renew | one keep-alive of the lease |
//! | release | revokes the lease, and the key goes with it; a lease that has ended is `NotOwner` |
//! | token | the create revision of the key (or a counter, see [`tokens`](super::tokens)) |
//!
//! Waiters are granted the lock in the order of their create revisions, so the tokens grow with every grant: a queue
//! position is a token. While an acquire waits, its lease is kept alive; from the grant on, only [`Handle::renew`] does so,
//! and [`Handle::acquired_at`] is the last renewal. TTLs are whole seconds, at least etcd's minimum (2 s with its usual
//! election timeout): [`Handle::ttl`] is what etcd granted.

use std::time::{Duration, Instant};

use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse, WatchOptions,
};
use futures_util::future::BoxFuture;

use super::cleanup::Patience;
use super::etcd_lease::{Cluster, Connection, lease_id, queue};
use super::tokens::Tokens;
use super::{Error, Handle, Held, Locks, Options, Released, Request};

/// Locks in an etcd cluster.
#[derive(Debug)]
pub struct Etcd {
    cluster: Cluster,
    tokens: Tokens,
}

/// A place in a lock's queue.
struct Position {
    queue: String,
    key: String,
    /// The create revision of the key.
    revision: i64,
    token: u64,
    /// Whether no other key was before it.
    first: bool,
}

impl Etcd {
    /// Locks in the etcd cluster with these endpoints (`HOST:PORT`).
    #[must_use]
    pub fn new(endpoints: &[String], options: &Options) -> Etcd {
        Etcd { cluster: Cluster::new("etcd", endpoints, options), tokens: options.tokens }
    }

    async fn wait(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let connection = self.cluster.connection().await?;
        let id = lease_id();
        let undo = self.cluster.undo_grant(id);
        let sent = Instant::now();
        let lease = self.cluster.grant(&connection, id, request.ttl).await?;
        let keeper = self.cluster.keep(&connection, lease, sent);
        let position = self.enqueue(&connection, key, &request.owner, id).await?;
        if !position.first {
            self.reach_the_front(&connection, key, &position, patience).await?;
        }
        let leased_at = keeper.leased_at();
        drop(keeper);
        undo.disarm();
        let held = Taken { cluster: self.cluster.clone(), connection, lease: id };
        Ok(Handle::new(key, request, position.token, lease.ttl, leased_at, Box::new(held)))
    }

    /// Puts the waiter's key, and reads the first key of the queue.
    async fn enqueue(&self, client: &Client, key: &str, owner: &str, lease: i64) -> Result<Position, Error> {
        let queue = queue(key);
        let own = format!("{queue}{lease:016x}");
        let counter = self.tokens.counter(key, Tokens::Revision);
        let first = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
        let first = TxnOp::get(queue.clone(), Some(first));
        let mut join = vec![
            TxnOp::put(own.clone(), owner, Some(PutOptions::new().with_lease(lease))),
            first.clone(),
            TxnOp::get(own.clone(), None),
        ];
        if let Some(counter) = &counter {
            join.push(TxnOp::put(counter.clone(), "", None));
            join.push(TxnOp::get(counter.clone(), None));
        }
        // If an earlier attempt was applied, and only its answer was lost, the position is read again.
        let absent = Compare::create_revision(own.clone(), CompareOp::Equal, 0);
        let again = vec![TxnOp::get(own.clone(), None), first, TxnOp::get(own.clone(), None)];
        let txn = Txn::new().when(vec![absent]).and_then(join).or_else(again);
        let answer = self.txn(client, txn).await?;
        let mut reads = reads(&answer);
        if !answer.succeeded() {
            reads.remove(0);
            if counter.is_some() {
                let reason =
                    "the answer that held the token was lost, and the counter may have moved on; acquire again";
                return Err(self.cluster.error(reason));
            }
        }
        let kv = |read: usize| reads.get(read).and_then(|read: &GetResponse| read.kvs().first());
        let missing = || self.cluster.error(format!("the transaction that queues for {key} returned no {own}"));
        let revision = kv(1).ok_or_else(missing)?.create_revision();
        let token = match counter {
            Some(_) => kv(2).ok_or_else(missing)?.version(),
            None => revision,
        };
        let first = kv(0).is_some_and(|first| first.key() == own.as_bytes());
        Ok(Position { queue, key: own, revision, token: u64::try_from(token).unwrap_or(0), first })
    }

    /// Waits until no key of the queue precedes the waiter's.
    async fn reach_the_front(
        &self,
        client: &Client,
        key: &str,
        position: &Position,
        patience: Patience,
    ) -> Result<(), Error> {
        loop {
            let before = GetOptions::new()
                .with_prefix()
                .with_max_create_revision(position.revision - 1)
                .with_sort(SortTarget::Create, SortOrder::Descend)
                .with_limit(1);
            let both = vec![TxnOp::get(position.key.clone(), None), TxnOp::get(position.queue.clone(), Some(before))];
            let answer = self.txn(client, Txn::new().and_then(both)).await?;
            let reads = reads(&answer);
            let kv = |read: usize| reads.get(read).and_then(|read: &GetResponse| read.kvs().first());
            if kv(0).is_none() {
                return Err(self.cluster.error(format!("the lease ended while the acquire of {key} waited")));
            }
            let Some(predecessor) = kv(1) else { return Ok(()) };
            let left = patience.left();
            if left.is_zero() {
                return Err(patience.timeout(key));
            }
            let from = answer.header().map_or(0, |header| header.revision()) + 1;
            let deleted = self.deletion(client, predecessor.key().to_vec(), from);
            // A watch that failed is made again after the queue was read again; a read that fails is an error.
            let _ = tokio::time::timeout(left, deleted).await;
        }
    }

    /// Waits until the key is deleted, or the watch ends.
    async fn deletion(&self, client: &Client, key: Vec<u8>, from: i64) {
        let options = WatchOptions::new().with_start_revision(from);
        let opened = {
            let mut watches = client.watch_client();
            async move { watches.watch(key, Some(options)).await }
        };
        // A server that accepts the watch and says nothing is found by the read after this.
        let Ok(Ok(mut events)) = tokio::time::timeout(self.cluster.timeout, opened).await else { return };
        while let Ok(Some(message)) = events.message().await {
            if message.canceled() || message.events().iter().any(|event| event.event_type() == EventType::Delete) {
                return;
            }
        }
        // The watch broke: its server is gone. The next one should not be made in the same moment.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    async fn txn(&self, client: &Client, txn: Txn) -> Result<TxnResponse, Error> {
        let answer = self
            .cluster
            .ask(|| {
                let (mut kv, txn) = (client.kv_client(), txn.clone());
                async move { kv.txn(txn).await }
            })
            .await?;
        answer.map_err(|error| self.cluster.error(error))
    }
}

/// The answers to the reads of a transaction.
fn reads(answer: &TxnResponse) -> Vec<GetResponse> {
    let reads = answer.op_responses().into_iter().filter_map(|response| match response {
        TxnOpResponse::Get(read) => Some(read),
        _ => None,
    });
    reads.collect()
}

impl Locks for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        Box::pin(self.wait(key, request))
    }
}

/// A lock that was granted: it is held as long as its lease lives.
#[derive(Debug)]
struct Taken {
    cluster: Cluster,
    connection: Connection,
    lease: i64,
}

impl Held for Taken {
    /// The lease's TTL is that of its grant, whatever `ttl` says.
    fn renew(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.cluster.keep_alive(&self.connection, self.lease))
    }

    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        Box::pin(async move {
            let revoked = self.cluster.revoke(&self.connection, self.lease).await?;
            Ok(if revoked { Released::Done } else { Released::NotOwner })
        })
    }
}
