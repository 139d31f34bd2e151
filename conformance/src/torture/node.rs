//! The processes: real `palisade serve`, one for each node, that record what they do.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::network::Network;

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: u16,
    pub(super) client_addr: String,
    /// Where it listens for other nodes, and the proxy where they dial it.
    peer_addr: String,
    proxy: String,
    data: PathBuf,
    log: PathBuf,
    /// How it comes into the cluster: as a founder, or by asking a node.
    way_in: [String; 2],
    process: Option<Child>,
    pub(super) frozen: bool,
}

/// What every node is started with.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// The program.
    pub(super) palisade: PathBuf,
    /// Where everything is.
    pub(super) directory: PathBuf,
}

impl Setup {
    /// Where the nodes' recordings are.
    pub(super) fn recordings(&self) -> PathBuf {
        self.directory.join("recordings")
    }

    fn node(&self, id: u16, network: &Network) -> io::Result<Node> {
        let [client_addr, peer_addr] = [free_address()?, free_address()?];
        let proxy = network.before(id, peer_addr.clone())?;
        let (data, log) = (self.directory.join(format!("node-{id}")), self.directory.join(format!("node-{id}.log")));
        let way_in = [String::new(), String::new()];
        Ok(Node { id, client_addr, peer_addr, proxy, data, log, way_in, process: None, frozen: false })
    }

    /// The founders of a cluster.
    pub(super) fn founders(&self, size: u16, network: &Network) -> io::Result<Vec<Node>> {
        let mut nodes = (1..=size).map(|id| self.node(id, network)).collect::<io::Result<Vec<Node>>>()?;
        let peers: Vec<String> = nodes.iter().map(|node| format!("{}={}", node.id, node.proxy)).collect();
        nodes.iter_mut().for_each(|node| node.way_in = ["--peers".into(), peers.join(",")]);
        Ok(nodes)
    }

    /// A node that will ask the one that serves clients at `whom`.
    pub(super) fn joiner(&self, id: u16, whom: &str, network: &Network) -> io::Result<Node> {
        let mut node = self.node(id, network)?;
        node.way_in = ["--join".into(), whom.into()];
        Ok(node)
    }
}

/// An address on which nobody listens.
fn free_address() -> io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

impl Node {
    /// Starts it, on the data that it has.
    pub(super) fn start(&mut self, setup: &Setup) -> io::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&setup.palisade);
        command
            .args(["serve", "--id", &self.id.to_string(), "--stop-with-stdin"])
            .args(["--client-addr", &self.client_addr, "--peer-addr", &self.peer_addr])
            .args(["--advertise-peer-addr", &self.proxy])
            .args(&self.way_in)
            .args(["--election-timeout", "200ms"])
            // Small enough that segments and snapshots come and go while somebody watches.
            .args(["--segment-bytes", "262144", "--snapshot-log-bytes", "131072", "--snapshot-margin", "64"])
            .arg("--data")
            .arg(&self.data)
            .arg("--record")
            .arg(setup.recordings())
            // A Ctrl-C is for who tortures: it ends the faults, and then all is still looked at.
            .process_group(0);
        // If this process dies, the pipe ends, and the node with it.
        self.process = Some(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?);
        self.frozen = false;
        Ok(())
    }

    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// How it ended, if it did by itself.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let status = process.try_wait()?;
        if status.is_some() {
            self.process = None;
        }
        Ok(status)
    }

    /// As a crash would.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        self.frozen = false;
        Ok(())
    }

    /// Stops it where it stands, or lets it go on.
    pub(super) fn freeze(&mut self, frozen: bool) -> io::Result<()> {
        if let Some(process) = &self.process {
            kill_process(Pid::from_child(process), if frozen { Signal::STOP } else { Signal::CONT })?;
            self.frozen = frozen;
        }
        Ok(())
    }

    /// What it logged last.
    pub(super) fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Its data directory.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
