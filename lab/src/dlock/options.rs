//! Options of the use of a lock service: connections, deadlines, renewals, fencing tokens.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::tokens::Tokens;

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
