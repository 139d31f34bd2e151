//! Palisade: three nodes.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::config;
use super::error::Error;
use super::find;
use super::http;
use super::options::{Kind, Options};
use super::plan::{NodePlan, Plan, node_dir, write_config};
use super::ports;
use super::process::Launch;

pub(super) const NODES: usize = 3;
/// The cluster's name, as in the template.
pub(super) const CLUSTER: &str = "lab";
pub(super) const PORTS: usize = 2 * NODES;
const TEMPLATE: &str = include_str!("../../config/palisade.flags");

pub(super) fn plan(options: &Options, home: &Path) -> Result<Plan, Error> {
    let program = find::palisade(options).map_err(|missing| Error::Missing(vec![missing]))?;
    let mut clients = ports::reserve(PORTS, options.first_port)?;
    let peers = clients.split_off(NODES);
    let members = peers.iter().enumerate().map(|(index, peer)| format!("{}={}", index + 1, peer.address()));
    let members = members.collect::<Vec<_>>().join(",");
    let mut nodes = Vec::new();
    for (index, (client, peer)) in clients.into_iter().zip(peers).enumerate() {
        let id = (index + 1).to_string();
        let name = format!("palisade-{id}");
        let (dir, data) = node_dir(home, &name)?;
        let (address, peer_address, data_text) = (client.address(), peer.address(), data.display().to_string());
        let values = [
            ("id", id.as_str()),
            ("data", data_text.as_str()),
            ("client", address.as_str()),
            ("peer", peer_address.as_str()),
            ("peers", members.as_str()),
        ];
        let mut settings = options.settings.clone();
        if let Some(keys) = &options.sign_grants {
            settings.push(("--sign-grants".to_owned(), node_key(keys, index + 1).display().to_string()));
        }
        let text = config::render("palisade", TEMPLATE, &values, &settings, " ")?;
        write_config(&dir, "palisade.flags", &text)?;
        let args = std::iter::once("serve".to_owned()).chain(config::flags(&text));
        let launch = Launch::new(&program, args, options, Kind::Palisade, &dir)?;
        nodes.push(NodePlan { name, address, dir, data, launch, _ports: vec![client, peer] });
    }
    let endpoints = nodes.iter().map(|node| node.address.clone()).collect();
    Ok(Plan { nodes, endpoints })
}

/// `/readyz`: the node knows a leader.
pub(super) async fn probe(address: &str) -> Result<(), String> {
    http::get(address, "/readyz").await.map(drop)
}

/// The program states its version; the running node does not.
pub(super) async fn version(options: &Options) -> Result<String, String> {
    let program = find::palisade(options).map_err(|missing| missing.to_string())?;
    let output = Command::new(&program).arg("--version").output().await;
    let output = output.map_err(|error| format!("states no version: {}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.trim().strip_prefix("palisade ").filter(|_| output.status.success());
    version.map(|version| format!("Palisade {version}")).ok_or_else(|| format!("states no version: {text}"))
}

/// The node says that it is the leader.
pub(super) async fn leads(address: &str) -> Result<bool, String> {
    let status = http::get(address, "/v1/status").await?;
    let parsed: serde_json::Value = serde_json::from_str(&status).map_err(|error| format!("{error} in {status}"))?;
    Ok(parsed["role"] == "leader")
}

/// Takes a snapshot, which the node notes in its log if its state has changed since the last one.
pub(super) async fn snapshot(address: &str) -> Result<(), String> {
    match http::request("POST", &format!("http://{address}/v1/snapshot"), &[]).await? {
        (200, _) => Ok(()),
        (status, body) => Err(format!("/v1/snapshot answers {status}: {body}")),
    }
}

/// The file of a node's key; nodes are numbered from 1.
pub(super) fn node_key(directory: &Path, node: usize) -> PathBuf {
    directory.join(format!("node-{node}.key"))
}
