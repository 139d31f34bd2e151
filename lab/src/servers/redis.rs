//! Redis: one, with asynchronous replicas if asked for, or five independent ones for Redlock.

use std::path::Path;
use std::time::Duration;

use super::config;
use super::error::Error;
use super::find;
use super::options::{Durability, Kind, Options};
use super::plan::{NodePlan, Plan, node_dir, write_config};
use super::ports;
use super::process::{Launch, wait};

/// What Redlock's description recommends: a majority survives the loss of two.
pub(super) const REDLOCK_NODES: usize = 5;
const TEMPLATE: &str = include_str!("../../config/redis.conf");

pub(super) fn plan(kind: Kind, options: &Options, home: &Path) -> Result<Plan, Error> {
    let program = find::redis(kind).map_err(|missing| Error::Missing(vec![missing]))?;
    let (count, replicas) = if kind == Kind::Redlock { (REDLOCK_NODES, 0) } else { (1, options.replicas) };
    let (appendonly, appendfsync) = match options.durability {
        Durability::Always => ("yes", "always"),
        Durability::EverySecond => ("yes", "everysec"),
        Durability::Volatile => ("no", "no"),
    };
    let ports = ports::reserve(count + replicas, options.first_port)?;
    let primary = ports.first().map(|port| port.number).unwrap_or_default();
    let mut nodes = Vec::new();
    for (index, port) in ports.into_iter().enumerate() {
        let name = format!("{kind}-{}", index + 1);
        let (dir, data) = node_dir(home, &name)?;
        let (number, data_text) = (port.number.to_string(), data.display().to_string());
        let values = [
            ("port", number.as_str()),
            ("data", data_text.as_str()),
            ("appendonly", appendonly),
            ("appendfsync", appendfsync),
        ];
        let mut settings = options.settings.clone();
        if index >= count {
            settings.push(("replicaof".to_owned(), format!("127.0.0.1 {primary}")));
        }
        let text = config::render(kind.name(), TEMPLATE, &values, &settings, " ")?;
        let file = write_config(&dir, "redis.conf", &text)?;
        let launch = Launch::new(&program, [file.display().to_string()], options, kind, &dir)?;
        nodes.push(NodePlan { name, address: port.address(), dir, data, launch, _ports: vec![port] });
    }
    let endpoints = nodes.iter().take(count).map(|node| node.address.clone()).collect();
    Ok(Plan { nodes, endpoints })
}

/// `PING`: it is refused while the data is loaded.
pub(super) async fn probe(address: &str) -> Result<(), String> {
    ask(address, &["PING"]).await.map(drop)
}

/// Waits until all replicas follow the primary, which comes first.
pub(super) async fn settle(primaries: usize, addresses: &[&str]) -> Result<(), String> {
    for replica in &addresses[primaries..] {
        follows(replica, addresses[0]).await?;
    }
    Ok(())
}

/// Waits until a replica follows this primary.
pub(super) async fn follows(address: &str, primary: &str) -> Result<(), String> {
    let (_, port) = primary.rsplit_once(':').unwrap_or_default();
    let wanted = [format!("master_port:{port}"), "master_link_status:up".to_owned()];
    let mut replication = String::new();
    for _ in 0..600 {
        replication = ask(address, &["INFO", "replication"]).await?;
        if wanted.iter().all(|wanted| replication.lines().any(|line| line.trim() == wanted)) {
            return Ok(());
        }
        wait(Duration::from_millis(50), || false).await;
    }
    Err(format!("{address} does not follow {primary} within 30 s:\n{replication}"))
}

/// The server says that it is a primary.
pub(super) async fn leads(address: &str) -> Result<bool, String> {
    let replication = ask(address, &["INFO", "replication"]).await?;
    Ok(replication.lines().any(|line| line.trim() == "role:master"))
}

/// The server's wall clock, in milliseconds since 1970.
pub(super) async fn time(address: &str) -> Result<i64, String> {
    let info = ask(address, &["INFO", "server"]).await?;
    let time = info.lines().find_map(|line| line.strip_prefix("server_time_usec:")?.trim().parse::<i64>().ok());
    time.map(|time| time / 1000).ok_or_else(|| format!("states no time: {info}"))
}

pub(super) async fn version(address: &str) -> Result<String, String> {
    let info = ask(address, &["INFO", "server"]).await?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    version.map(|version| format!("Redis {}", version.trim())).ok_or_else(|| format!("states no version: {info}"))
}

/// Sends a command; the answer as text.
pub(super) async fn ask(address: &str, command: &[&str]) -> Result<String, String> {
    let ask = async {
        let client = redis::Client::open(format!("redis://{address}/"))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut cmd = redis::Cmd::new();
        cmd.arg(command);
        cmd.query_async::<String>(&mut connection).await
    };
    ask.await.map_err(|error| error.to_string())
}
