//! What differs from kind to kind: each kind's plan, its sign of readiness, and its signals.

use std::path::Path;

use rustix::process::Signal;

use super::cluster::{Cluster, Plan};
use super::error::Error;
use super::options::{Durability, Kind, Options};
use super::redis;

/// Writes the configurations and prepares the data directories.
pub(super) async fn plan(kind: Kind, options: &Options, home: &Path) -> Result<Plan, Error> {
    match kind {
        Kind::Redis | Kind::Redlock => redis::plan(kind, options, home),
        _ => Err(Error::Config { kind: kind.name(), reason: "its servers cannot be started yet".to_owned() }),
    }
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
        _ => Err(String::new()),
    }
}

/// Waits for what only all nodes together have, once each of them serves.
pub(super) async fn settle(cluster: &Cluster) -> Result<(), String> {
    match cluster.kind() {
        Kind::Redis | Kind::Redlock => redis::settle(cluster).await,
        _ => Ok(()),
    }
}

/// The product and version, from the running server where it says it.
pub(super) async fn version(kind: Kind, _options: &Options, address: &str) -> Result<String, String> {
    match kind {
        Kind::Redis | Kind::Redlock => redis::version(address).await,
        _ => Err(String::new()),
    }
}

/// What a client takes in one argument.
pub(super) fn url(kind: Kind, endpoints: &[String]) -> String {
    let list = endpoints.join(",");
    match kind {
        Kind::Postgres => format!("postgres://postgres@{list}/postgres"),
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
pub(super) fn clean_up(_kind: Kind, _data: &Path) {}
