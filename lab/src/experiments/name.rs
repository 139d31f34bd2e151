//! The names of the experiments.

use clap::ValueEnum;

/// An experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// A pause longer than the TTL, between acquire and write
    Pause,
    /// Releases of a lock that is no longer the releaser's
    Release,
    /// A holder that is killed: how long the lock stays blocked
    Ttl,
    /// Renewing narrows the window and does not close it
    Renew,
    /// Jobs that take longer than the TTL of their lock, and jobs that do not
    Work,
    /// Latency and throughput against contention
    Contention,
    /// Arrival order against grant order
    Fairness,
    /// The sources of fencing tokens: a counter by key, sharded or common, and the store's own number
    Tokens,
    /// The fence in a PostgreSQL row and in an object store
    FencedStores,
    /// Redlock under partition, pause, and crash without sync
    Redlock,
    /// The gallery's traces beside real runs, step by step
    Prediction,
    /// Ten million short-lived locks: memory, disk and expiry
    TenMillion,
    /// Pairs of acquire and release a second: Palisade beside etcd, ZooKeeper and Redis
    Peers,
    /// The leader is killed under load
    Failover,
    /// The wall clocks of servers are set
    Clocks,
}
