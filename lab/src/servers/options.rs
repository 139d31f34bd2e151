//! Options of the servers to start, which differ from run to run. The settings that never differ are in `lab/config/`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::dlock::Backend;

/// The kinds of servers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One Redis, and the replicas that [`Options::replicas`] asks for
    Redis,
    /// Five independent Redis, for Redlock
    Redlock,
    /// Three nodes of etcd
    Etcd,
    /// Three nodes of ZooKeeper
    Zookeeper,
    /// One PostgreSQL
    Postgres,
    /// One object store that speaks S3, kept in memory
    Objects,
    /// Three nodes of Palisade
    Palisade,
}

impl Kind {
    /// All kinds, in the order in which `up all` starts them.
    pub const ALL: [Self; 7] =
        [Self::Redis, Self::Redlock, Self::Etcd, Self::Zookeeper, Self::Postgres, Self::Objects, Self::Palisade];

    /// The servers of a lock service.
    #[must_use]
    pub fn of(backend: Backend) -> Self {
        match backend {
            Backend::Redis => Self::Redis,
            Backend::Redlock => Self::Redlock,
            Backend::Etcd | Backend::EtcdLock => Self::Etcd,
            Backend::ZooKeeper => Self::Zookeeper,
            Backend::Palisade => Self::Palisade,
        }
    }

    /// The name on the command line, and of the directory.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Etcd => "etcd",
            Self::Zookeeper => "zookeeper",
            Self::Postgres => "postgres",
            Self::Objects => "objects",
            Self::Palisade => "palisade",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When Redis forces what it has written to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Durability {
    /// Before it answers: no acknowledged write is lost by a crash
    #[default]
    Always,
    /// Once a second: a crash of the machine loses up to about two seconds
    EverySecond,
    /// Never: a restart begins with nothing
    Volatile,
}

/// How to start the servers of one kind. [`Options::default`] is what the pages of experiments state,
/// unless they say otherwise.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory in which the servers' own directory is made. By default the system's directory
    /// for temporary files, if that is on a disk.
    pub dir: Option<PathBuf>,
    /// The first of consecutive ports. By default each server gets a free port of its own.
    pub first_port: Option<u16>,
    /// Redis and Redlock: when to write to the disk.
    pub durability: Durability,
    /// Redis: the number of asynchronous replicas. They are nodes 1, 2, … of the cluster.
    pub replicas: usize,
    /// The etcd program; by default `etcd` of the search path.
    pub etcd: Option<PathBuf>,
    /// The Palisade program; by default `palisade` beside this program.
    pub palisade: Option<PathBuf>,
    /// Palisade: sign grants, with the keys in this directory: see [`Signing`](super::Signing).
    pub sign_grants: Option<PathBuf>,
    /// Settings that replace those of the pinned configuration, or are added to it, in the words of
    /// that configuration: `("maxmemory", "100mb")`.
    pub settings: Vec<(String, String)>,
    /// The environment variables of every node, beside `PATH`, `HOME` and `LANG`.
    pub env: Vec<(String, String)>,
    /// A program with arguments that starts the server's program, and becomes it: `["nice", "-n", "5"]`.
    pub prefix: Vec<String>,
    /// Start every node under libfaketime, for [`Cluster::set_clock`](super::Cluster::set_clock).
    pub fake_clock: bool,
    /// Accept a directory in memory (tmpfs) for servers that are meant to be durable.
    pub allow_tmpfs: bool,
    /// How long a server may take until it serves.
    pub ready_timeout: Duration,
    /// How long a server may take to end before it is killed.
    pub stop_timeout: Duration,
    /// The servers outlive this process. Otherwise the system kills them when it ends, however it ends.
    pub outlive: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: None,
            first_port: None,
            durability: Durability::Always,
            replicas: 0,
            etcd: None,
            palisade: None,
            sign_grants: None,
            settings: Vec::new(),
            env: Vec::new(),
            prefix: Vec::new(),
            fake_clock: false,
            allow_tmpfs: false,
            ready_timeout: Duration::from_secs(90),
            stop_timeout: Duration::from_secs(10),
            outlive: false,
        }
    }
}
