//! A cluster of real `palisade serve` processes, on free ports and in a temporary directory.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use palisade_client::Security;
use palisade_client::wire::StatusView;
use rustix::process::{Pid, Signal, kill_process};

use super::certificates::Certificates;
use super::wires::Wires;
use super::{eventually, http, https, ports, process};

/// A running cluster. Whatever happens to the test, its processes end with it: they hold the other
/// end of a pipe.
pub struct Cluster {
    directory: tempfile::TempDir,
    nodes: Vec<Node>,
    /// Flags that every node gets beside the necessary ones.
    flags: Vec<String>,
    /// The pause between two transfers of leadership: none, unless a test is about it.
    transfer_pause: String,
    /// What a test changes in the command that runs a node, at every start of it.
    adjust: Adjust,
    /// Where its nodes record what they do, if anywhere.
    recordings: Option<PathBuf>,
    /// What the test connects with to ask for their status.
    security: Security,
}

/// Names the directory in which every cluster of every test leaves recordings, in a directory of
/// its own. `palisade-conformance validate` judges them when the tests are over: the server cannot
/// depend on the crate that judges it.
const RECORDINGS: &str = "PALISADE_TEST_RECORDINGS";
/// A node's recording is cut here, which fails the validation: the tests are not to fill a disk. A
/// test that needs more [does not record](Cluster::start_unrecorded).
const RECORDING_LIMIT: &str = "67108864";

/// The flags of a cluster whose leader stays.
pub const CALM: [&str; 2] = ["--election-timeout", "750ms"];

/// Where the next cluster of this process is to leave its recordings.
pub fn recordings() -> Option<PathBuf> {
    static CLUSTERS: AtomicUsize = AtomicUsize::new(1);
    let directory = PathBuf::from(std::env::var_os(RECORDINGS)?);
    let test = std::env::current_exe().expect("a test knows its program");
    let test = test.file_stem().expect("a program has a name").to_string_lossy().into_owned();
    let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
    Some(directory.join(format!("{test}-{}-{number}", std::process::id())))
}

/// The same for a cluster with these flags: a test that is about recordings says itself where they
/// are.
fn recordings_of(flags: &[&str]) -> Option<PathBuf> {
    if flags.contains(&"--record") { None } else { recordings() }
}

type Adjust = Box<dyn Fn(u16, &mut Command) + Send + Sync>;

struct Node {
    client_addr: String,
    peer_addr: String,
    /// Where other nodes reach it.
    reached_at: String,
    process: Option<Child>,
    /// The node that it asked to join, if it is no founder; empty if its command line names no node
    /// any more.
    joins: Option<String>,
    /// The program that it runs from its next start on.
    program: PathBuf,
}

/// The program that this test was built with.
fn this_program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_palisade"))
}

/// The same for each of so many nodes.
fn programs(size: u16) -> Vec<PathBuf> {
    vec![this_program(); usize::from(size)]
}

impl Cluster {
    /// Starts `size` nodes and waits until all of them know a leader.
    pub fn start(size: u16) -> Cluster {
        Cluster::start_with(size, &[])
    }

    /// A cluster whose leader stays: for tests that are not about failover, and run on a machine
    /// where a process may stand still for longer than the usual election timeout.
    pub fn start_calm(size: u16) -> Cluster {
        Cluster::start_with(size, &CALM)
    }

    /// The same, with these flags added to every node's command line.
    pub fn start_calm_with(size: u16, flags: &[&str]) -> Cluster {
        Cluster::start_with(size, &[&CALM[..], flags].concat())
    }

    /// A cluster with these flags added to every node's command line.
    pub fn start_with(size: u16, flags: &[&str]) -> Cluster {
        Cluster::start_adjusted(size, flags, |_, _| {})
    }

    /// The same, and every time a node is started, `adjust` may change its command.
    pub fn start_adjusted(
        size: u16,
        flags: &[&str],
        adjust: impl Fn(u16, &mut Command) + Send + Sync + 'static,
    ) -> Cluster {
        Cluster::start_programs(flags, &programs(size), adjust, Security::plain())
    }

    /// A cluster of one node for each of these programs. `adjust` may change a node's command at each of its starts.
    pub fn start_programs(
        flags: &[&str],
        programs: &[PathBuf],
        adjust: impl Fn(u16, &mut Command) + Send + Sync + 'static,
        security: Security,
    ) -> Cluster {
        Cluster::launch(programs, flags, adjust, None, recordings_of(flags), security)
    }

    /// A cluster whose nodes have the certificates of these, and whose leader stays.
    pub fn start_secured(size: u16, flags: &[&str], certificates: &Certificates) -> Cluster {
        let flags = [&CALM[..], flags].concat();
        Cluster::start_programs(&flags, &programs(size), certificates.adjust(), certificates.client("test"))
    }

    /// The same, and nothing is recorded: see [`Cluster::start_unrecorded`].
    pub fn start_unrecorded_secured(size: u16, certificates: &Certificates) -> Cluster {
        Cluster::launch(&programs(size), &CALM, certificates.adjust(), None, None, certificates.client("test"))
    }

    /// The same, and `adjust` gives each node its certificates at every start of it.
    pub fn start_adjusted_secured(
        size: u16,
        adjust: impl Fn(u16, &mut Command) + Send + Sync + 'static,
        security: Security,
    ) -> Cluster {
        Cluster::start_programs(&CALM, &programs(size), adjust, security)
    }

    /// The test asks for the nodes' status in this way from now on.
    pub fn connect_with(&mut self, security: Security) {
        self.security = security;
    }

    /// The same, and nothing is recorded: for a test that takes from a disk what was durable, which
    /// no validator forgives, or whose recordings would be too large.
    pub fn start_unrecorded(
        size: u16,
        flags: &[&str],
        adjust: impl Fn(u16, &mut Command) + Send + Sync + 'static,
    ) -> Cluster {
        Cluster::launch(&programs(size), flags, adjust, None, None, Security::plain())
    }

    /// A cluster whose nodes reach one another by these wires.
    pub fn start_wired(size: u16, flags: &[&str], wires: &Wires) -> Cluster {
        Cluster::launch(&programs(size), flags, |_, _| {}, Some(wires), recordings_of(flags), Security::plain())
    }

    fn launch(
        programs: &[PathBuf],
        flags: &[&str],
        adjust: impl Fn(u16, &mut Command) + Send + Sync + 'static,
        wires: Option<&Wires>,
        recordings: Option<PathBuf>,
        security: Security,
    ) -> Cluster {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut addresses = ports::free(2 * programs.len()).into_iter().map(|port| format!("127.0.0.1:{port}"));
        let nodes = (1..).zip(programs).map(|(id, program)| {
            let (client_addr, peer_addr) = (addresses.next().unwrap(), addresses.next().unwrap());
            let reached_at = wires.map_or_else(|| peer_addr.clone(), |wires| wires.before(id, &peer_addr));
            Node { client_addr, peer_addr, reached_at, process: None, joins: None, program: program.clone() }
        });
        let nodes = nodes.collect();
        let flags = flags.iter().map(|&flag| flag.to_string()).collect();
        let transfer_pause = "0s".to_owned();
        let adjust: Adjust = Box::new(adjust);
        let mut cluster = Cluster { directory, nodes, flags, transfer_pause, adjust, recordings, security };
        for id in cluster.ids() {
            cluster.restart(id);
        }
        cluster.wait_ready();
        cluster
    }

    /// Every node's number.
    pub fn ids(&self) -> Vec<u16> {
        (1..).take(self.nodes.len()).collect()
    }

    /// The nodes that run.
    pub fn running(&self) -> Vec<u16> {
        self.ids().into_iter().filter(|&id| self.node(id).process.is_some()).collect()
    }

    /// Where the nodes serve clients.
    pub fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.client_addr.clone()).collect()
    }

    /// Where node `id` serves clients.
    pub fn client_addr(&self, id: u16) -> String {
        self.node(id).client_addr.clone()
    }

    /// Where node `id` listens for nodes.
    pub fn peer_addr(&self, id: u16) -> String {
        self.node(id).peer_addr.clone()
    }

    /// Node `id`'s data directory.
    pub fn data(&self, id: u16) -> PathBuf {
        self.directory.path().join(format!("node-{id}"))
    }

    /// What node `id` has logged, over all its runs.
    pub fn log(&self, id: u16) -> String {
        std::fs::read_to_string(self.log_path(id)).unwrap_or_default()
    }

    fn log_path(&self, id: u16) -> PathBuf {
        self.directory.path().join(format!("node-{id}.log"))
    }

    fn node(&self, id: u16) -> &Node {
        &self.nodes[usize::from(id) - 1]
    }

    /// The command that runs node `id`, for tests that change it.
    pub fn command(&self, id: u16) -> Command {
        let founders = self.nodes.iter().zip(1..).filter(|(node, _)| node.joins.is_none());
        let peers = founders.map(|(node, id)| format!("{id}={}", node.reached_at));
        let mut command = Command::new(&self.node(id).program);
        command
            // A node zeroes two segments when it starts: 32 MiB, if a test does not ask for less.
            .env("PALISADE_SEGMENT_BYTES", "1048576")
            .args(["serve", "--id", &id.to_string(), "--stop-with-stdin", "--log", "debug"])
            .args(["--transfer-pause", &self.transfer_pause])
            .args(["--client-addr", &self.node(id).client_addr, "--peer-addr", &self.node(id).peer_addr])
            .args(match self.node(id).joins.as_deref() {
                None => vec!["--peers".to_owned(), peers.collect::<Vec<_>>().join(",")],
                Some("") => vec![],
                Some(address) => vec!["--join".to_owned(), address.to_owned()],
            })
            .args(&self.flags)
            .arg("--data")
            .arg(self.data(id));
        if let Some(directory) = &self.recordings {
            command.arg("--record").arg(directory).args(["--record-limit", RECORDING_LIMIT]);
        }
        command
    }

    /// A new cluster begins: what the nodes do from here on has no connection with the earlier run,
    /// and is recorded separately.
    pub fn begin_anew(&mut self) {
        self.recordings = self.recordings.take().and_then(|_| recordings());
    }

    /// Starts one more node, which joins through the node `member`, and returns its number.
    pub fn join(&mut self, member: u16) -> u16 {
        self.join_at(self.client_addr(member))
    }

    /// The same, and it asks the node at this address.
    pub fn join_at(&mut self, address: String) -> u16 {
        let [clients, peers] = ports::free(2)[..] else { unreachable!() };
        let joins = Some(address);
        let (client_addr, peer_addr) = (format!("127.0.0.1:{clients}"), format!("127.0.0.1:{peers}"));
        let (reached_at, program) = (peer_addr.clone(), this_program());
        self.nodes.push(Node { client_addr, reached_at, peer_addr, process: None, joins, program });
        let id = u16::try_from(self.nodes.len()).expect("a few nodes");
        self.restart(id);
        id
    }

    /// The later command lines of all nodes have the pause between transfers that a server has by
    /// default.
    pub fn pause_transfers(&mut self) {
        self.transfer_pause = "3s".to_owned();
    }

    /// The later command lines of all nodes have these flags, too.
    pub fn add_flags(&mut self, flags: &[&str]) {
        self.flags.extend(flags.iter().map(ToString::to_string));
    }

    /// The later command lines of node `id` name no other node.
    pub fn name_no_other_node(&mut self, id: u16) {
        self.nodes[usize::from(id) - 1].joins = Some(String::new());
    }

    /// Where node `id` listens for nodes at its later starts, in other words for the same address.
    pub fn listen_for_nodes_at(&mut self, id: u16, address: String) {
        self.nodes[usize::from(id) - 1].peer_addr = address;
    }

    /// Node `id` runs this program from its next start on.
    pub fn run_program(&mut self, id: u16, program: PathBuf) {
        self.nodes[usize::from(id) - 1].program = program;
    }

    /// Starts node `id` again, on the data it has.
    pub fn restart(&mut self, id: u16) {
        let log = File::options().create(true).append(true).open(self.log_path(id)).expect("a log file");
        let mut command = self.command(id);
        (self.adjust)(id, &mut command);
        let process =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn().expect("the server starts");
        self.nodes[usize::from(id) - 1].process = Some(process);
    }

    /// Kills node `id` with SIGKILL, as a crash would.
    pub fn kill(&mut self, id: u16) {
        if let Some(mut process) = self.nodes[usize::from(id) - 1].process.take() {
            process.kill().expect("the process can be killed");
            process.wait().expect("the process ends");
        }
    }

    /// Asks node `id` to stop (SIGTERM), and waits until it has.
    pub fn stop(&mut self, id: u16) {
        self.signal(id, Signal::TERM);
        let mut process = self.nodes[usize::from(id) - 1].process.take().expect("the node runs");
        let status = eventually("the node stops", || process.try_wait().expect("a child can be waited for"));
        assert!(status.success(), "node {id} stopped with {status}");
    }

    /// Stops node `id` where it stands (SIGSTOP), with all its threads.
    pub fn freeze(&self, id: u16) {
        process::freeze(self.pid(id));
    }

    /// Lets node `id` go on (SIGCONT).
    pub fn thaw(&self, id: u16) {
        self.signal(id, Signal::CONT);
    }

    /// Sends node `id` a signal.
    pub fn signal(&self, id: u16, signal: Signal) {
        kill_process(self.pid(id), signal).expect("the process takes signals");
    }

    /// Node `id`'s process.
    pub fn pid(&self, id: u16) -> Pid {
        let process = self.node(id).process.as_ref().expect("the node runs");
        Pid::from_child(process)
    }

    /// Node `id`'s own view of the cluster, if it answers.
    pub fn status(&self, id: u16) -> Option<StatusView> {
        if self.security.is_tls() {
            return https::status(&self.node(id).client_addr, &self.security);
        }
        let response = http::get(&self.node(id).client_addr, "/v1/status").ok()?;
        serde_json::from_str(&response.body).ok()
    }

    /// All nodes but this one.
    pub fn others(&self, than: u16) -> Vec<u16> {
        self.ids().into_iter().filter(|&id| id != than).collect()
    }

    /// The leader and a follower, once every running node knows the same leader.
    pub fn roles(&self) -> (u16, u16) {
        let leader = self.wait_ready();
        (leader, self.others(leader)[0])
    }

    /// Waits until every running node has connections from all others and knows the same leader, and returns the leader.
    pub fn wait_connected(&self) -> u16 {
        self.wait_ready();
        eventually("all nodes are connected", || {
            let connected = |id| self.status(id)?.members.iter().all(|member| member.connected).then_some(());
            self.running().into_iter().map(connected).collect::<Option<Vec<_>>>()
        });
        self.wait_ready()
    }

    /// Waits until every running node knows the same leader, and returns it.
    pub fn wait_ready(&self) -> u16 {
        eventually("every running node knows the same leader", || self.agreed_leader())
    }

    /// The leader that every running node knows, if they agree.
    pub fn agreed_leader(&self) -> Option<u16> {
        let leaders = self
            .running()
            .into_iter()
            .map(|id| self.status(id)?.leader.map(|leader| leader.id))
            .collect::<Option<Vec<_>>>()?;
        let leader = *leaders.first()?;
        let runs = self.node(leader).process.is_some();
        (runs && leaders.iter().all(|&other| other == leader)).then_some(leader)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for id in self.ids() {
            self.kill(id);
        }
        if std::thread::panicking() {
            for id in self.ids() {
                let log = self.log(id);
                let tail: Vec<&str> = log.lines().rev().take(40).collect();
                eprintln!("--- the end of node {id}'s log ---");
                tail.iter().rev().for_each(|line| eprintln!("{line}"));
            }
        }
    }
}
