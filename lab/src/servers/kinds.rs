//! The differences between the kinds of servers: each kind's plan, its sign of readiness, and its signals.

use std::path::Path;

use rustix::process::Signal;

use super::error::Error;
use super::options::{Durability, Kind, Options};
use super::plan::Plan;
use super::{etcd, objects, palisade, postgres, redis, zookeeper};

/// Writes the configurations and prepares the data directories.
pub(super) async fn plan(kind: Kind, options: &Options, home: &Path) -> Result<Plan, Error> {
    match kind {
        Kind::Redis | Kind::Redlock => redis::plan(kind, options, home),
        Kind::Etcd => etcd::plan(options, home),
        Kind::Zookeeper => zookeeper::plan(options, home),
        Kind::Postgres => postgres::plan(options, home).await,
        Kind::Objects => objects::plan(options, home).await,
        Kind::Palisade => palisade::plan(options, home),
    }
}

/// The port after those of a kind that was started from `first` on.
pub(super) fn next_port(kind: Kind, options: &Options, first: u16) -> Result<u16, Error> {
    let count = match kind {
        Kind::Redis => 1 + options.replicas,
        Kind::Redlock => redis::REDLOCK_NODES,
        Kind::Etcd => etcd::PORTS,
        Kind::Zookeeper => zookeeper::PORTS,
        Kind::Palisade => palisade::PORTS,
        Kind::Postgres | Kind::Objects => 1,
    };
    let next = u16::try_from(count).ok().and_then(|count| first.checked_add(count));
    next.ok_or_else(|| Error::Port(format!("there are not enough ports after {first}; choose a lower first port")))
}

/// Whether the servers are meant to keep their data on a disk.
pub(super) fn is_durable(kind: Kind, options: &Options) -> bool {
    match kind {
        Kind::Redis | Kind::Redlock => options.durability != Durability::Volatile,
        Kind::Objects => false,
        Kind::Etcd | Kind::Zookeeper | Kind::Postgres | Kind::Palisade => true,
    }
}

/// Asks a node whether it serves; the error says what it answered.
pub(super) async fn probe(kind: Kind, address: &str) -> Result<(), String> {
    match kind {
        Kind::Redis | Kind::Redlock => redis::probe(address).await,
        Kind::Etcd => etcd::probe(address).await,
        Kind::Zookeeper => zookeeper::probe(address).await,
        Kind::Postgres => postgres::probe(address).await,
        Kind::Objects => objects::probe(address).await,
        Kind::Palisade => palisade::probe(address).await,
    }
}

/// Whether a node leads: the leader of a cluster that agrees, or the primary of replicated Redis.
pub(super) async fn leads(kind: Kind, address: &str) -> Result<bool, String> {
    match kind {
        Kind::Redis => redis::leads(address).await,
        Kind::Etcd => etcd::leads(address).await,
        Kind::Zookeeper => zookeeper::leads(address).await,
        Kind::Palisade => palisade::leads(address).await,
        Kind::Redlock | Kind::Postgres | Kind::Objects => Err(format!("{kind} has no leader")),
    }
}

/// Makes a node state the time of its wall clock: in the answer, in milliseconds since 1970, or in a line of its log.
pub(super) async fn state_time(kind: Kind, address: &str) -> Result<Option<i64>, String> {
    match kind {
        Kind::Redis | Kind::Redlock => redis::time(address).await.map(Some),
        Kind::Etcd => etcd::compact(address).await.map(|()| None),
        Kind::Zookeeper => zookeeper::leads(address).await.map(|_| None),
        Kind::Palisade => palisade::snapshot(address).await.map(|()| None),
        Kind::Postgres | Kind::Objects => Err(format!("{kind} is not asked for its time")),
    }
}

/// Waits for what only all nodes together have, once each of them serves. The first ones are primaries.
pub(super) async fn settle(kind: Kind, primaries: usize, addresses: &[&str]) -> Result<(), String> {
    match kind {
        Kind::Redis | Kind::Redlock => redis::settle(primaries, addresses).await,
        Kind::Objects => objects::settle(addresses[0]).await,
        Kind::Etcd | Kind::Zookeeper | Kind::Postgres | Kind::Palisade => Ok(()),
    }
}

/// The product and version, from the running server where it says it.
pub(super) async fn version(kind: Kind, options: &Options, address: &str) -> Result<String, String> {
    match kind {
        Kind::Redis | Kind::Redlock => redis::version(address).await,
        Kind::Etcd => etcd::version(address).await,
        Kind::Zookeeper => zookeeper::version(address).await,
        Kind::Postgres => postgres::version(address).await,
        Kind::Objects => objects::version().await,
        Kind::Palisade => palisade::version(options).await,
    }
}

/// What a client takes in one argument.
pub(super) fn url(kind: Kind, endpoints: &[String]) -> String {
    let list = endpoints.join(",");
    match kind {
        Kind::Postgres => postgres::url(&list),
        Kind::Objects => format!("http://{list}"),
        Kind::Redis | Kind::Redlock | Kind::Etcd | Kind::Zookeeper | Kind::Palisade => list,
    }
}

/// The signal on which a server ends in good order.
pub(super) fn stop_signal(kind: Kind) -> Signal {
    match kind {
        // SIGTERM makes PostgreSQL wait until its clients leave; SIGINT disconnects them.
        Kind::Postgres => Signal::INT,
        _ => Signal::TERM,
    }
}

/// The signal on which a server ends at once and cleans up, where SIGKILL would leave something
/// outside its directory: PostgreSQL has a segment of shared memory.
pub(super) fn quick_stop_signal(kind: Kind) -> Option<Signal> {
    (kind == Kind::Postgres).then_some(Signal::QUIT)
}

/// Removes what a killed server has left outside its directory.
pub(super) fn clean_up(kind: Kind, data: &Path) {
    if kind == Kind::Postgres {
        postgres::clean_up(data);
    }
}
