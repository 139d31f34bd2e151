//! The file by which `palisade-lab down` finds what `palisade-lab up` has started: `lab.json`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::error::{Error, file};
use super::options::Kind;
use super::process::Identity;

const FILE: &str = "lab.json";
const FORMAT: u32 = 1;

/// The servers that `up` has started in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    format: u32,
    /// The machine's start: process identities of an earlier one mean nothing.
    boot: String,
    /// Whether `up` made the directory, so that `down` removes it.
    pub(super) made_directory: bool,
    /// The servers, kind by kind.
    pub servers: Vec<Server>,
}

/// The servers of one kind. Their directory is the one of the kind's name beside the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// The kind.
    pub kind: Kind,
    /// The product and version: `Redis 7.0.15`.
    pub version: String,
    /// The addresses for clients, HOST:PORT.
    pub endpoints: Vec<String>,
    /// What a client takes in one argument.
    pub url: String,
    /// The processes.
    pub nodes: Vec<Node>,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The name: `redis-1`.
    pub name: String,
    /// The address for clients, HOST:PORT.
    pub address: String,
    /// The process.
    pub process: Identity,
    /// The data directory.
    pub data: PathBuf,
}

impl State {
    /// A state without servers.
    pub(super) fn new(made_directory: bool) -> Self {
        Self { format: FORMAT, boot: boot(), made_directory, servers: Vec::new() }
    }

    /// The path of the file.
    pub(super) fn path(directory: &Path) -> PathBuf {
        directory.join(FILE)
    }

    /// Adds the servers of a cluster.
    pub(super) fn add(&mut self, cluster: &Cluster) {
        let node = |node: usize| {
            let process = cluster.identity(node)?;
            let (name, address) = (cluster.name(node).to_owned(), cluster.address(node).to_owned());
            Some(Node { name, address, process, data: cluster.data_dir(node).to_owned() })
        };
        self.servers.push(Server {
            kind: cluster.kind(),
            version: cluster.version().to_owned(),
            endpoints: cluster.endpoints().to_vec(),
            url: cluster.url(),
            nodes: (0..cluster.len()).filter_map(node).collect(),
        });
    }

    /// Reads the file of a directory; none if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or is none of this version of the lab.
    pub fn read(directory: &Path) -> Result<Option<Self>, Error> {
        let path = Self::path(directory);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(file("cannot read", &path)(error)),
        };
        let invalid = |reason: String| Error::Directory {
            path: path.clone(),
            reason: format!("{reason}; end the servers by hand and remove the directory"),
        };
        let state: Self =
            serde_json::from_str(&text).map_err(|error| invalid(format!("is no state of servers: {error}")))?;
        if state.format != FORMAT {
            return Err(invalid(format!("has format {}; this palisade-lab reads {FORMAT}", state.format)));
        }
        Ok(Some(state))
    }

    /// Writes the file. It is replaced as a whole, so that a reader sees the old or the new one.
    pub(super) fn write(&self, directory: &Path) -> Result<(), Error> {
        let (path, new) = (Self::path(directory), directory.join("lab.json.new"));
        let text = serde_json::to_string_pretty(self).map_err(|error| file("cannot write", &path)(error.into()))?;
        fs::write(&new, text + "\n").map_err(file("cannot write", &new))?;
        fs::rename(&new, &path).map_err(file("cannot replace", &path))
    }

    /// Whether the node's process runs: this very process, of this start of the machine.
    #[must_use]
    pub fn is_running(&self, node: &Node) -> bool {
        self.boot == boot() && node.process.is_running()
    }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}
