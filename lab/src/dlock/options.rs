//! From the command line to a lock service: `--backend`, `--endpoints` and what goes with them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::tokens::Tokens;
use super::{Error, Locks, etcd, etcd_lock, guarded, palisade, redis, redlock, zookeeper};

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

    /// Whether fencing tokens grow with every grant of a key. Redlock's do not: see [`redlock`].
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

/// How acquires share connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connections {
    /// Each acquire, and the lock that it is granted, has a connection that no other uses meanwhile.
    Own,
    /// So many connections, which all acquires use in turn.
    Shared(usize),
}

impl FromStr for Connections {
    type Err = String;

    fn from_str(text: &str) -> Result<Connections, String> {
        match (text, text.parse()) {
            ("own", _) => Ok(Connections::Own),
            (_, Ok(count)) if count > 0 => Ok(Connections::Shared(count)),
            _ => Err(format!("{text:?} is neither `own` nor a number of connections from 1")),
        }
    }
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Connections::Own => f.write_str("own"),
            Connections::Shared(count) => write!(f, "{count}"),
        }
    }
}

/// Whether a lease is renewed without [`Handle::renew`](super::Handle::renew).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Renewal {
    /// A lock lasts one TTL from its grant or its last `renew`, on every backend alike.
    OnRequest,
    /// The usual client keeps the lease alive as long as the process runs, where it does so: Palisade's guard, and
    /// ZooKeeper's session. A handle that is dropped then releases its lock.
    Automatic,
}

/// How to use a lock service.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Connections: `own` (each contender has its own) or a number that all contenders share
    #[arg(long, default_value_t = Connections::Own)]
    pub connections: Connections,
    /// How long a server may take to answer a request before the request fails
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub request_timeout: Duration,
    /// Whether the backend's client renews leases by itself
    #[arg(long, value_enum, default_value_t = Renewal::OnRequest)]
    pub renewal: Renewal,
    /// Fencing tokens: `default` (redis: per-key; etcd: revision), `per-key`, `global`, `revision`, or `sharded:N`
    #[arg(long, default_value_t = Tokens::Default)]
    pub tokens: Tokens,
    /// Redis, Redlock: the longest pause between two attempts of a waiter
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = humantime::parse_duration)]
    pub spin_max: Duration,
    /// Redlock: how long one instance may take to answer; small beside the TTL
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = humantime::parse_duration)]
    pub instance_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: Connections::Own,
            request_timeout: Duration::from_secs(5),
            renewal: Renewal::OnRequest,
            tokens: Tokens::Default,
            spin_max: Duration::from_millis(50),
            instance_timeout: Duration::from_millis(50),
        }
    }
}

/// A lock service at these servers (`HOST:PORT`). Connections are made when they are needed: a server that cannot be
/// reached is an error of the first acquire.
///
/// # Errors
/// [`Error::Backend`] if there is no endpoint, or an option does not fit the backend.
pub fn connect(backend: Backend, endpoints: &[String], options: &Options) -> Result<Arc<dyn Locks>, Error> {
    let wrong = |reason: String| Err(Error::Backend { backend: backend.name(), reason });
    if endpoints.is_empty() {
        return wrong("no server is named; name at least one with --endpoints HOST:PORT".to_owned());
    }
    if !options.tokens.fits(backend) {
        return wrong(format!("its fencing tokens cannot be {}; use --tokens default", options.tokens));
    }
    Ok(match (backend, options.renewal) {
        (Backend::Redlock, _) if endpoints.len() < 3 => {
            return wrong(format!("a majority needs at least 3 servers, and {} are named", endpoints.len()));
        }
        (Backend::Redis, _) => Arc::new(redis::Redis::replicated(endpoints, options)?),
        (Backend::Redlock, _) => Arc::new(redlock::Redlock::new(endpoints, options)?),
        (Backend::Etcd, _) => Arc::new(etcd::Etcd::new(endpoints, options)),
        (Backend::EtcdLock, _) => Arc::new(etcd_lock::EtcdLock::new(endpoints, options)),
        (Backend::ZooKeeper, _) => Arc::new(zookeeper::ZooKeeper::new(endpoints, options)),
        (Backend::Palisade, Renewal::OnRequest) => Arc::new(palisade::Palisade::new(endpoints, options)),
        (Backend::Palisade, Renewal::Automatic) => Arc::new(guarded::Guarded::new(endpoints, options)),
    })
}
