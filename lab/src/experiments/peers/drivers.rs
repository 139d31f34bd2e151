//! The systems, and what one client does in a pair: it acquires a lock and releases it.
//!
//! Each system is used as its users would use it for speed: a lease or a session is opened once for each client and serves all
//! of its pairs.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client as Etcd, Compare, CompareOp, LockOptions, PutOptions, Txn, TxnOp};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use zookeeper_client::{Acls, Client as ZooKeeper, CreateMode};

use super::super::text;
use super::raw::Raw;
use super::record::{self, Record};
use super::{TTL, WAIT};
use crate::dlock::{self, Backend, Connections, Handle, Locks, Released, Renewal, Request};
use crate::servers::{Durability, Kind, Options};

/// How long an instance of Redlock may take to answer. One that answers late gives no vote, so that with the lab's usual 50 ms
/// the throughput would measure the timeout.
pub(super) const INSTANCE_TIMEOUT: Duration = Duration::from_secs(5);

/// A system with its way of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Palisade by its Rust client, over a WebSocket.
    Palisade,
    /// Palisade by plain HTTP.
    PalisadeHttp,
    /// Palisade's wire protocol, without the client.
    PalisadeRaw,
    /// etcd's own lock service.
    EtcdLock,
    /// etcd: a transaction that puts the key if it is absent, and a delete.
    EtcdTxn,
    /// ZooKeeper's recipe: ephemeral sequential nodes.
    Zookeeper,
    /// ZooKeeper: one ephemeral node, created and deleted.
    ZookeeperNode,
    /// One Redis that syncs each write.
    Redis,
    /// One Redis that writes nothing to the disk.
    RedisVolatile,
    /// Five Redis, by majority; each syncs each write.
    Redlock,
}

/// Systems that use the same servers.
#[derive(Debug)]
pub struct Servers {
    /// The kind.
    pub kind: Kind,
    /// When Redis syncs.
    pub durability: Durability,
    /// The systems.
    pub systems: &'static [System],
}

/// All servers, in the order of the first round.
pub const ALL: [Servers; 6] = [
    Servers {
        kind: Kind::Palisade,
        durability: Durability::Always,
        systems: &[System::Palisade, System::PalisadeHttp, System::PalisadeRaw],
    },
    Servers { kind: Kind::Etcd, durability: Durability::Always, systems: &[System::EtcdLock, System::EtcdTxn] },
    Servers {
        kind: Kind::Zookeeper,
        durability: Durability::Always,
        systems: &[System::Zookeeper, System::ZookeeperNode],
    },
    Servers { kind: Kind::Redis, durability: Durability::Always, systems: &[System::Redis] },
    Servers { kind: Kind::Redis, durability: Durability::Volatile, systems: &[System::RedisVolatile] },
    Servers { kind: Kind::Redlock, durability: Durability::Always, systems: &[System::Redlock] },
];

impl System {
    /// The name in tables, and as the results have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            System::Palisade => "palisade",
            System::PalisadeHttp => "palisade-http",
            System::PalisadeRaw => "palisade-raw",
            System::EtcdLock => "etcd-lock",
            System::EtcdTxn => "etcd-txn",
            System::Zookeeper => "zookeeper",
            System::ZookeeperNode => "zookeeper-node",
            System::Redis => "redis",
            System::RedisVolatile => "redis-volatile",
            System::Redlock => "redlock",
        }
    }

    /// What a pair is, and what it promises.
    #[must_use]
    pub fn promise(self) -> [&'static str; 4] {
        match self {
            System::Palisade => {
                ["acquire and release by the Rust client over a WebSocket", "3, a majority synced", "yes", "yes"]
            }
            System::PalisadeHttp => {
                ["one POST each to the leader, a session for each client", "3, a majority synced", "yes", "yes"]
            }
            System::PalisadeRaw => [
                "the binary frames of the wire protocol without the client, a session for each client",
                "3, a majority synced",
                "yes",
                "yes",
            ],
            System::EtcdLock => {
                ["`Lock` and `Unlock` of v3lock, a lease for each client", "3, a majority synced", "yes", "yes"]
            }
            System::EtcdTxn => [
                "a transaction that puts the key if it is absent, a delete; a lease for each client. One hot key: a lease for each acquire, waiters watch their predecessors",
                "3, a majority synced",
                "yes",
                "hot key only",
            ],
            System::Zookeeper => [
                "the recipe: creates a sequential node, lists the queue, deletes the node; a session for each client",
                "3, a majority synced",
                "yes",
                "yes",
            ],
            System::ZookeeperNode => {
                ["creates and deletes one node; a session for each client", "3, a majority synced", "yes", "no"]
            }
            System::Redis => ["scripts: SET NX PX with INCR, and compare-and-DEL", "1, synced", "yes", "no: spins"],
            System::RedisVolatile => ["the same", "1, in memory only", "until a restart", "no: spins"],
            System::Redlock => ["the same at five servers", "5 independent, a majority synced", "no", "no: spins"],
        }
    }

    /// Whether many requests can be in flight on one connection, which HTTP/1.1 excludes.
    #[must_use]
    pub fn shares(self) -> bool {
        self != System::PalisadeHttp
    }

    /// Whether a client can wait for a held lock.
    #[must_use]
    pub fn hands_over(self) -> bool {
        self != System::ZookeeperNode
    }

    /// The lock service.
    pub(super) fn backend(self) -> Backend {
        match self {
            System::Palisade | System::PalisadeHttp | System::PalisadeRaw => Backend::Palisade,
            System::EtcdLock => Backend::EtcdLock,
            System::EtcdTxn => Backend::Etcd,
            System::Zookeeper | System::ZookeeperNode => Backend::ZooKeeper,
            System::Redis | System::RedisVolatile => Backend::Redis,
            System::Redlock => Backend::Redlock,
        }
    }
}

impl Servers {
    /// How they are started.
    #[must_use]
    pub fn options(&self, palisade: Option<&std::path::PathBuf>) -> Options {
        Options { palisade: palisade.cloned(), durability: self.durability, ..Options::default() }
    }
}

/// The clients of a window.
pub enum Driver {
    /// By the lab's lock library, which has a connection for each client.
    Locks(Arc<dyn Locks>),
    /// etcd clients, each with a lease.
    EtcdLock(Vec<(Etcd, i64)>),
    /// etcd clients, each with a lease.
    EtcdTxn(Vec<(Etcd, i64)>),
    /// Connections to Palisade's leader, each of which makes the pairs of its clients.
    Raw(Arc<Raw>),
    /// ZooKeeper sessions, which the clients take in turn.
    Nodes(Vec<ZooKeeper>),
}

impl Driver {
    /// Makes the connections of all clients. `leader` is the leader's address: clients of etcd use it directly.
    ///
    /// # Errors
    /// A connection could not be made.
    pub async fn connect(
        system: System,
        endpoints: &[String],
        leader: &str,
        clients: usize,
        shared: Option<usize>,
        hot: bool,
    ) -> Result<Driver, String> {
        let connections = shared.unwrap_or(clients);
        match system {
            System::PalisadeRaw => Ok(Driver::Raw(Arc::new(Raw::open(leader, clients, connections, hot).await?))),
            System::EtcdLock => Ok(Driver::EtcdLock(leases(leader, clients, connections).await?)),
            System::EtcdTxn if !hot => Ok(Driver::EtcdTxn(leases(leader, clients, connections).await?)),
            System::ZookeeperNode => {
                let servers = endpoints.join(",");
                let open = async |_| {
                    let mut connector = ZooKeeper::connector().with_session_timeout(Duration::from_secs(20));
                    connector = connector.with_fail_eagerly();
                    connector.connect(&servers).await.map_err(text)
                };
                Ok(Driver::Nodes(try_join_all((0..connections).map(open)).await?))
            }
            _ => {
                let renewal = if system == System::PalisadeHttp { Renewal::OnRequest } else { Renewal::Automatic };
                let connections = shared.map_or(Connections::Own, Connections::Shared);
                let options = dlock::Options {
                    connections,
                    renewal,
                    request_timeout: TTL,
                    instance_timeout: INSTANCE_TIMEOUT,
                    ..dlock::Options::default()
                };
                let alone = [leader.to_owned()];
                let endpoints = if system == System::EtcdTxn { &alone[..] } else { endpoints };
                let locks = dlock::connect(system.backend(), endpoints, &options).map_err(text)?;
                warm(&locks, clients).await?;
                Ok(Driver::Locks(locks))
            }
        }
    }

    /// Acquires the lock of `key`, waits for it if another client holds it, and releases it. What can be had by waiting is
    /// also recorded, if there is a record.
    ///
    /// # Errors
    /// What the system answered.
    pub async fn pair(&self, client: usize, key: &str, record: Option<&Record>) -> Result<(), String> {
        let asked = record.map(|record| (record, record.acquire(client, key)));
        let granted = |token| asked.map(|(record, asked)| (record, record.grant(asked, client, token)));
        let release =
            |granted: Option<(&Record, _)>| granted.map(|(record, granted)| record.release(granted, client, key));
        match self {
            Driver::Locks(locks) => {
                let handle = locks.acquire(key, &request(client)).await.map_err(text)?;
                let release = release(granted(handle.fence()));
                let done = released(handle).await;
                record::released(release, &done);
                done
            }
            Driver::EtcdLock(clients) => {
                let (mut etcd, lease) = clients[client].clone();
                let options = LockOptions::new().with_lease(lease);
                let locked = etcd.lock(key, Some(options)).await.map_err(text)?;
                // The revision at the grant: it grows with each release of the lock.
                let revision = locked.header().map_or(0, |header| header.revision());
                let release = release(granted(u64::try_from(revision).unwrap_or(0)));
                let done = etcd.unlock(locked.key()).await.map(drop).map_err(text);
                record::released(release, &done);
                done
            }
            Driver::EtcdTxn(clients) => {
                let (mut etcd, lease) = clients[client].clone();
                let absent = Compare::create_revision(key, CompareOp::Equal, 0);
                let put = TxnOp::put(key, client.to_string(), Some(PutOptions::new().with_lease(lease)));
                let answer = etcd.txn(Txn::new().when([absent]).and_then([put])).await.map_err(text)?;
                if !answer.succeeded() {
                    return Err(format!("{key} is held"));
                }
                match etcd.delete(key, None).await.map_err(text)?.deleted() {
                    1 => Ok(()),
                    deleted => Err(format!("the release deleted {deleted} keys")),
                }
            }
            Driver::Raw(_) => Err("a bug of the lab: its connections make the pairs".to_owned()),
            Driver::Nodes(sessions) => {
                let (session, path) = (&sessions[client % sessions.len()], format!("/{key}"));
                let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
                session.create(&path, client.to_string().as_bytes(), &options).await.map_err(text)?;
                session.delete(&path, None).await.map_err(text)
            }
        }
    }

    /// Ends what the clients would leave behind.
    pub async fn close(self) {
        if let Driver::Raw(raw) = &self {
            raw.close().await;
        }
        if let Driver::EtcdLock(clients) | Driver::EtcdTxn(clients) = self {
            let revoke = async |(mut etcd, lease): (Etcd, i64)| drop(etcd.lease_revoke(lease).await);
            futures_util::future::join_all(clients.into_iter().map(revoke)).await;
        }
    }
}

/// A lease for each client, on so many connections.
async fn leases(leader: &str, clients: usize, connections: usize) -> Result<Vec<(Etcd, i64)>, String> {
    let connect = async |_| Etcd::connect([leader], None).await.map_err(text);
    let connected = try_join_all((0..connections).map(connect)).await?;
    let one = async |client: usize| {
        let mut etcd = connected[client % connections].clone();
        let seconds = i64::try_from(2 * TTL.as_secs()).unwrap_or(i64::MAX);
        let lease = etcd.lease_grant(seconds, None).await.map_err(text)?.id();
        Ok::<_, String>((etcd, lease))
    };
    try_join_all((0..clients).map(one)).await
}

/// Makes as many connections as there are clients: each takes a lock of its own while the others hold theirs.
async fn warm(locks: &Arc<dyn Locks>, clients: usize) -> Result<(), String> {
    let take = async |client: usize| locks.acquire(&format!("warm-{client}"), &request(client)).await.map_err(text);
    let handles = try_join_all((0..clients).map(take)).await?;
    try_join_all(handles.into_iter().map(released)).await.map(drop)
}

async fn released(handle: Handle) -> Result<(), String> {
    match handle.release().await.map_err(text)? {
        Released::Done => Ok(()),
        Released::NotOwner => Err("the lock was lost before its release".to_owned()),
    }
}

fn request(client: usize) -> Request {
    Request { owner: format!("client-{client}"), ttl: TTL, wait: WAIT }
}
