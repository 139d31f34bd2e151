//! The processes: one real `palisade serve` for each node, which records what it does.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use palisade_client::Security;
use rustix::process::{Pid, Signal, kill_process};

use super::certificates::Certificates;
use super::clock;
use super::namespace;
use super::network::{Address, Network};

/// Number of lines that are kept of the end of a node's log.
const LOG_END_LINES: usize = 20;

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: u16,
    pub(super) address: Address,
    data: PathBuf,
    log: PathBuf,
    /// The options with which the node enters the cluster: as a founder, or by asking a member.
    join_options: [String; 2],
    /// Whether its clock runs fast.
    has_fast_clock: bool,
    process: Option<Child>,
    /// How often it was started.
    starts: u64,
    /// Size of its log at the last start, in bytes.
    logged: u64,
    /// Faults since its last start that permit it to stop by itself.
    excuses: BTreeSet<Excuse>,
}

/// A permitted reason for a node to stop by itself. With any other, it has found an internal error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Excuse {
    /// Its disk was filled. The node notices when a file must grow, perhaps when there is room
    /// again.
    FullDisk,
    /// A sync was made to fail.
    FailedSync,
}

impl Excuse {
    /// The exit code for a disk error (docs/operations.md), and the system's error text in the log.
    const CODE: i32 = 74;

    fn log_text(self) -> &'static str {
        match self {
            Excuse::FullDisk => "No space left on device",
            Excuse::FailedSync => "Input/output error",
        }
    }
}

/// How a node stopped by itself.
#[derive(Debug)]
pub(super) struct End {
    pub(super) status: ExitStatus,
    /// The end of its log.
    pub(super) log_end: String,
    /// The permitted reason, if any.
    pub(super) excuse: Option<Excuse>,
}

/// The common settings of all nodes.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// The server program.
    pub(super) palisade: PathBuf,
    /// The program of the version before, which each node runs at every second start of it.
    pub(super) previous: Option<PathBuf>,
    /// Directory of data, logs and recordings.
    pub(super) directory: PathBuf,
    /// Whether some nodes have fast clocks.
    pub(super) skewed: bool,
    /// With TLS.
    pub(super) certificates: Option<Certificates>,
}

impl Setup {
    /// Directory of the nodes' recordings.
    pub(super) fn recordings(&self) -> PathBuf {
        self.directory.join("recordings")
    }

    /// How clients connect.
    pub(super) fn security(&self) -> Security {
        self.certificates.as_ref().map_or_else(Security::plain, Certificates::security)
    }

    fn node(&self, id: u16, network: &Network) -> io::Result<Node> {
        let address = network.address(id)?;
        self.certificates.as_ref().map_or(Ok(()), |certificates| certificates.issue(id, &address))?;
        let (data, log) = (self.directory.join(format!("node-{id}")), self.directory.join(format!("node-{id}.log")));
        let join_options = [String::new(), String::new()];
        let (has_fast_clock, excuses) = (self.skewed && clock::has_fast_clock(id), BTreeSet::new());
        let (process, starts, logged) = (None, 0, 0);
        Ok(Node { id, address, data, log, join_options, has_fast_clock, process, starts, logged, excuses })
    }

    /// The founders of a cluster.
    pub(super) fn founders(&self, size: u16, network: &Network) -> io::Result<Vec<Node>> {
        let mut nodes = (1..=size).map(|id| self.node(id, network)).collect::<io::Result<Vec<Node>>>()?;
        let peers: Vec<String> =
            nodes.iter().map(|node| format!("{}={}", node.id, node.address.advertised_addr)).collect();
        nodes.iter_mut().for_each(|node| node.join_options = ["--peers".into(), peers.join(",")]);
        Ok(nodes)
    }

    /// A node that joins through the member that serves clients at `contact`.
    pub(super) fn joiner(&self, id: u16, contact: &str, network: &Network) -> io::Result<Node> {
        let mut node = self.node(id, network)?;
        node.join_options = ["--join".into(), contact.into()];
        Ok(node)
    }
}

impl Node {
    /// Starts the node on its existing data. Returns whether it runs the version before.
    pub(super) fn start(&mut self, setup: &Setup) -> io::Result<bool> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        self.logged = log.metadata()?.len();
        self.starts += 1;
        let mut command = self.program(setup);
        command
            .args(["serve", "--id", &self.id.to_string(), "--stop-with-stdin"])
            .args(["--client-addr", &self.address.client_addr, "--peer-addr", &self.address.peer_addr])
            .args(["--advertise-peer-addr", &self.address.advertised_addr])
            .args(&self.join_options)
            .args(["--election-timeout", "200ms"])
            // Small enough that segments and snapshots come and go during a run.
            .args(["--segment-bytes", "65536", "--snapshot-log-bytes", "131072", "--snapshot-margin", "64"])
            .arg("--data")
            .arg(&self.data)
            .arg("--record")
            .arg(setup.recordings())
            // A Ctrl-C is for the torture: it ends the faults, and the final checks still need the
            // nodes.
            .process_group(0);
        match &setup.certificates {
            Some(certificates) => command.args(certificates.options(self.id)),
            // Addresses of network namespaces are no loopback addresses.
            None => command.arg("--insecure"),
        };
        // If this process dies, the pipe closes, and the node stops.
        self.process = Some(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?);
        self.excuses.clear();
        Ok(setup.previous.is_some() && self.runs_previous())
    }

    /// The server's command line, in the node's network and with the node's clock. Each wrapper
    /// program replaces itself by the next one, so the server has the same process ID.
    fn program(&self, setup: &Setup) -> Command {
        let mut command_line: Vec<OsString> = Vec::new();
        if namespace::has_mounts() {
            // If this process is killed, the closed pipe stops a running node; this kills a frozen
            // one.
            command_line.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(OsString::from));
        }
        if let Some(namespace) = &self.address.namespace {
            command_line.extend(["nsenter".into(), format!("--net={}", namespace.display()).into(), "--".into()]);
        }
        if self.has_fast_clock {
            command_line.extend(clock::command_prefix());
        }
        let previous = setup.previous.as_ref().filter(|_| self.runs_previous());
        command_line.push(previous.unwrap_or(&setup.palisade).into());
        let mut command = Command::new(&command_line[0]);
        command.args(&command_line[1..]);
        command
    }

    /// Whether its last start was one of those that run the version before, if there is one. The first starts are of
    /// both kinds.
    fn runs_previous(&self) -> bool {
        (u64::from(self.id) + self.starts).is_multiple_of(2)
    }

    /// Whether the node was started and its end was not seen.
    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// The process ID, while the node runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Whether the process has not ended yet.
    pub(super) fn is_alive(&mut self) -> io::Result<bool> {
        let Some(process) = &mut self.process else { return Ok(false) };
        Ok(process.try_wait()?.is_none())
    }

    /// Permits the node to stop for this reason, until its next start.
    pub(super) fn excuse(&mut self, excuse: Excuse) {
        self.excuses.insert(excuse);
    }

    /// How the node stopped, if it stopped by itself.
    pub(super) fn ended(&mut self) -> io::Result<Option<End>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let Some(status) = process.try_wait()? else { return Ok(None) };
        self.process = None;
        let log_end = self.read_log_end()?;
        let excuse = self.excuses.iter().copied().find(|excuse| {
            // The exit code names the disk, the log the error.
            status.code() == Some(Excuse::CODE) && log_end.contains(excuse.log_text())
        });
        Ok(Some(End { status, log_end, excuse }))
    }

    /// Kills the process (SIGKILL), as a crash would.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Freezes the process (SIGSTOP), or continues it (SIGCONT).
    pub(super) fn freeze(&self, frozen: bool) -> io::Result<()> {
        if let Some(process) = &self.process {
            kill_process(Pid::from_child(process), if frozen { Signal::STOP } else { Signal::CONT })?;
        }
        Ok(())
    }

    /// The end of the log since the last start.
    fn read_log_end(&self) -> io::Result<String> {
        let mut log = File::open(&self.log)?;
        log.seek(SeekFrom::Start(self.logged))?;
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let tail: Vec<&str> = text.lines().rev().take(LOG_END_LINES).collect();
        Ok(tail.into_iter().rev().collect::<Vec<_>>().join("\n"))
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
