//! The processes: real `palisade serve`, one for each node, that record what they do.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::clock;
use super::namespace;
use super::network::{Address, Network};

/// So many lines of a log are a node's last words.
const LAST_WORDS: usize = 20;

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: u16,
    pub(super) seat: Address,
    data: PathBuf,
    log: PathBuf,
    /// How it comes into the cluster: as a founder, or by asking a node.
    way_in: [String; 2],
    /// Whether its clock runs fast.
    hurries: bool,
    process: Option<Child>,
    /// How long its log was when it was started last.
    logged: u64,
    /// What was done to it since it was started, for which it may stop by itself.
    excuses: BTreeSet<Excuse>,
}

/// A reason for a node to stop by itself. Any other one means that it has found something wrong with itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Excuse {
    /// Its disk was filled. It is noticed when something has to grow, perhaps when there is room again.
    FullDisk,
    /// A sync was made to fail.
    FailedSync,
}

impl Excuse {
    /// How a node ends then: the exit code for its disk (docs/operations.md), and the system's words in its log.
    const CODE: i32 = 74;

    fn words(self) -> &'static str {
        match self {
            Excuse::FullDisk => "No space left on device",
            Excuse::FailedSync => "Input/output error",
        }
    }
}

/// How a node ended by itself.
#[derive(Debug)]
pub(super) struct End {
    pub(super) status: ExitStatus,
    /// What it logged last.
    pub(super) words: String,
    /// Why it may have.
    pub(super) excuse: Option<Excuse>,
}

/// What every node is started with.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// The program.
    pub(super) palisade: PathBuf,
    /// Where everything is.
    pub(super) directory: PathBuf,
    /// Whether the clocks of some run fast.
    pub(super) skewed: bool,
}

impl Setup {
    /// Where the nodes' recordings are.
    pub(super) fn recordings(&self) -> PathBuf {
        self.directory.join("recordings")
    }

    fn node(&self, id: u16, network: &Network) -> io::Result<Node> {
        let seat = network.seat(id)?;
        let (data, log) = (self.directory.join(format!("node-{id}")), self.directory.join(format!("node-{id}.log")));
        let way_in = [String::new(), String::new()];
        let (hurries, excuses) = (self.skewed && clock::hurries(id), BTreeSet::new());
        Ok(Node { id, seat, data, log, way_in, hurries, process: None, logged: 0, excuses })
    }

    /// The founders of a cluster.
    pub(super) fn founders(&self, size: u16, network: &Network) -> io::Result<Vec<Node>> {
        let mut nodes = (1..=size).map(|id| self.node(id, network)).collect::<io::Result<Vec<Node>>>()?;
        let peers: Vec<String> = nodes.iter().map(|node| format!("{}={}", node.id, node.seat.reached_at)).collect();
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

impl Node {
    /// Starts it, on the data that it has.
    pub(super) fn start(&mut self, setup: &Setup) -> io::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        self.logged = log.metadata()?.len();
        let mut command = self.program(setup);
        command
            .args(["serve", "--id", &self.id.to_string(), "--stop-with-stdin"])
            .args(["--client-addr", &self.seat.client_addr, "--peer-addr", &self.seat.peer_addr])
            .args(["--advertise-peer-addr", &self.seat.reached_at])
            .args(&self.way_in)
            .args(["--election-timeout", "200ms"])
            // Small enough that segments and snapshots come and go while somebody watches.
            .args(["--segment-bytes", "65536", "--snapshot-log-bytes", "131072", "--snapshot-margin", "64"])
            .arg("--data")
            .arg(&self.data)
            .arg("--record")
            .arg(setup.recordings())
            // A Ctrl-C is for who tortures: it ends the faults, and then all is still looked at.
            .process_group(0);
        // If this process dies, the pipe ends, and the node with it.
        self.process = Some(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?);
        self.excuses.clear();
        Ok(())
    }

    /// The server's program, in the node's own network, by the node's own clock. Whatever leads there becomes the server: it
    /// is the same process.
    fn program(&self, setup: &Setup) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if namespace::has_mounts() {
            // If this process is killed, the pipe ends, and so does a node that runs; this is for one that stands still.
            words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(OsString::from));
        }
        if let Some(namespace) = &self.seat.within {
            words.extend(["nsenter".into(), format!("--net={}", namespace.display()).into(), "--".into()]);
        }
        if self.hurries {
            words.extend(clock::hurried());
        }
        words.push(setup.palisade.clone().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// Whether it was started, and its end was not seen.
    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// The process's number, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Whether it has not ended yet, by itself or otherwise.
    pub(super) fn is_alive(&mut self) -> io::Result<bool> {
        let Some(process) = &mut self.process else { return Ok(false) };
        Ok(process.try_wait()?.is_none())
    }

    /// It may stop for this from now on, until it is started again.
    pub(super) fn excuse(&mut self, excuse: Excuse) {
        self.excuses.insert(excuse);
    }

    /// How it ended, if it did by itself.
    pub(super) fn ended(&mut self) -> io::Result<Option<End>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let Some(status) = process.try_wait()? else { return Ok(None) };
        self.process = None;
        let words = self.last_words()?;
        let excuse = self.excuses.iter().copied().find(|excuse| {
            // The code says that it was the disk, the log what it was.
            status.code() == Some(Excuse::CODE) && words.contains(excuse.words())
        });
        Ok(Some(End { status, words, excuse }))
    }

    /// As a crash would.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Stops it where it stands, or lets it go on.
    pub(super) fn freeze(&self, frozen: bool) -> io::Result<()> {
        if let Some(process) = &self.process {
            kill_process(Pid::from_child(process), if frozen { Signal::STOP } else { Signal::CONT })?;
        }
        Ok(())
    }

    /// What it logged last, since it was started.
    fn last_words(&self) -> io::Result<String> {
        let mut log = File::open(&self.log)?;
        log.seek(SeekFrom::Start(self.logged))?;
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let tail: Vec<&str> = text.lines().rev().take(LAST_WORDS).collect();
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
