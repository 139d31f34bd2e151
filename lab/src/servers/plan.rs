//! The plan of the servers of a kind, before they are started.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{Error, file};
use super::ports::Port;
use super::process::Launch;

/// What one node is, before it is started.
#[derive(Debug)]
pub(super) struct NodePlan {
    pub(super) name: String,
    /// The address at which clients reach it, HOST:PORT.
    pub(super) address: String,
    /// The directory of its configuration and log.
    pub(super) dir: PathBuf,
    pub(super) data: PathBuf,
    pub(super) launch: Launch,
    /// Reserved while the cluster lives, also while the node does not.
    pub(super) _ports: Vec<Port>,
}

/// What the servers of a kind are, before they are started.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) nodes: Vec<NodePlan>,
    pub(super) endpoints: Vec<String>,
}

/// Makes the directory of a node, and its data directory.
pub(super) fn node_dir(home: &Path, name: &str) -> Result<(PathBuf, PathBuf), Error> {
    let dir = home.join(name);
    let data = dir.join("data");
    fs::create_dir_all(&data).map_err(file("cannot make", &data))?;
    Ok((dir, data))
}

/// Writes a node's configuration.
pub(super) fn write_config(dir: &Path, name: &str, text: &str) -> Result<PathBuf, Error> {
    let path = dir.join(name);
    fs::write(&path, text).map_err(file("cannot write", &path))?;
    Ok(path)
}
