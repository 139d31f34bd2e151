//! The lock services, by the names that `--backend` has for them.

use std::fmt;

/// A lock service: the values of `--backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Backend {
    /// A Palisade cluster.
    Palisade,
    /// One Redis, or a primary and its replicas.
    Redis,
    /// Independent Redis servers, by majority.
    Redlock,
    /// An etcd cluster: a lease and a queue of keys, by hand.
    Etcd,
    /// An etcd cluster: its own lock service.
    EtcdLock,
    /// A ZooKeeper ensemble.
    #[value(name = "zookeeper")]
    ZooKeeper,
}

impl Backend {
    /// All of them, in the order of the lab's tables.
    pub const ALL: [Backend; 6] =
        [Backend::Redis, Backend::Redlock, Backend::Etcd, Backend::EtcdLock, Backend::ZooKeeper, Backend::Palisade];

    /// The name, as in `--backend`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Backend::Palisade => "palisade",
            Backend::Redis => "redis",
            Backend::Redlock => "redlock",
            Backend::Etcd => "etcd",
            Backend::EtcdLock => "etcd-lock",
            Backend::ZooKeeper => "zookeeper",
        }
    }

    /// Whether fencing tokens grow with every grant of a key. Redlock's do not: see [`redlock`](super::redlock).
    #[must_use]
    pub fn fences(self) -> bool {
        self != Backend::Redlock
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
