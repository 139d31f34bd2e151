//! etcd: three members.

use std::path::Path;

use super::config;
use super::error::Error;
use super::find;
use super::http;
use super::options::{Kind, Options};
use super::plan::{NodePlan, Plan, node_dir, write_config};
use super::ports;
use super::process::Launch;

const NODES: usize = 3;
pub(super) const PORTS: usize = 2 * NODES;
const TEMPLATE: &str = include_str!("../../config/etcd.yaml");

pub(super) fn plan(options: &Options, home: &Path) -> Result<Plan, Error> {
    let program = find::etcd(options).map_err(|missing| Error::Missing(vec![missing]))?;
    let mut clients = ports::reserve(PORTS, options.first_port)?;
    let peers = clients.split_off(NODES);
    let name = |index: usize| format!("etcd-{}", index + 1);
    let members = peers.iter().enumerate().map(|(index, peer)| format!("{}=http://{}", name(index), peer.address()));
    let members = members.collect::<Vec<_>>().join(",");
    let mut nodes = Vec::new();
    for (index, (client, peer)) in clients.into_iter().zip(peers).enumerate() {
        let name = name(index);
        let (dir, data) = node_dir(home, &name)?;
        let (address, peer_address, data_text) = (client.address(), peer.address(), data.display().to_string());
        let values = [
            ("name", name.as_str()),
            ("data", data_text.as_str()),
            ("client", address.as_str()),
            ("peer", peer_address.as_str()),
            ("peers", members.as_str()),
        ];
        let text = config::render("etcd", TEMPLATE, &values, &options.settings, ": ")?;
        let file = write_config(&dir, "etcd.yaml", &text)?;
        let args = ["--config-file".to_owned(), file.display().to_string()];
        let launch = Launch::new(&program, args, options, Kind::Etcd, &dir)?;
        nodes.push(NodePlan { name, address, dir, data, launch, _ports: vec![client, peer] });
    }
    let endpoints = nodes.iter().map(|node| node.address.clone()).collect();
    Ok(Plan { nodes, endpoints })
}

/// `/health` is true if the member has a leader and can read through it.
pub(super) async fn probe(address: &str) -> Result<(), String> {
    let health = http::get(address, "/health").await?;
    let parsed: serde_json::Value = serde_json::from_str(&health).map_err(|error| format!("{error} in {health}"))?;
    if parsed["health"] == "true" { Ok(()) } else { Err(health) }
}

pub(super) async fn version(address: &str) -> Result<String, String> {
    let version = http::get(address, "/version").await?;
    let parsed: serde_json::Value = serde_json::from_str(&version).map_err(|error| format!("{error} in {version}"))?;
    let server = parsed["etcdserver"].as_str().ok_or_else(|| format!("states no version: {version}"))?;
    Ok(format!("etcd {server}"))
}

/// The member says that it is the leader.
pub(super) async fn leads(address: &str) -> Result<bool, String> {
    let ask = async {
        let mut client = etcd_client::Client::connect([address], None).await?;
        client.status().await
    };
    let status = ask.await.map_err(|error| error.to_string())?;
    Ok(status.header().is_some_and(|header| header.member_id() == status.leader()))
}

/// Compacts up to a revision of its own, which all members note in their logs.
pub(super) async fn compact(address: &str) -> Result<(), String> {
    let ask = async {
        let mut client = etcd_client::Client::connect([address], None).await?;
        let now = client.put("compact", "", None).await?.header().map_or(0, |header| header.revision());
        client.compact(now, None).await
    };
    ask.await.map(drop).map_err(|error| error.to_string())
}
