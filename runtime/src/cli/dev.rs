//! `palisade dev`: a cluster of real processes on this machine.
//!
//! Every node is a `palisade serve` of the same binary, with its own directory and its own log
//! file. Each node's standard input is a pipe from this process: a node stops in good order when
//! the pipe closes. No node outlives this process: when it ends, even by SIGKILL, the kernel kills
//! the nodes that it has not stopped ([`run-with-parent`](super::child)), and the temporary
//! directory is removed ([`temporary`]).

mod certificates;
mod temporary;

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use clap::Args;
use palisade_client::Security;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use self::certificates::Certificates;
pub(super) use self::temporary::RemoveAfterUse;
use self::temporary::TemporaryDirectory;
use super::signals::StopSignals;
use super::{block_on, config, print_error};

/// How long the cluster may take to elect a leader that all nodes know.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a node may take to answer a status request.
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a node may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Start a cluster of real processes on this machine, to try things out
#[derive(Debug, Args)]
pub(super) struct Dev {
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// Node i serves clients on PORT+i and other nodes on PORT+100+i
    #[arg(long, value_name = "PORT", default_value_t = 7400, value_parser = clap::value_parser!(u16).range(1..=65_000))]
    port: u16,
    /// Keep the nodes' data directories and logs here; by default they are in a temporary directory
    /// that is removed at the end
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Use TLS: make a CA, and a certificate for each node and for a client, in the directory `tls`
    /// beside the data
    #[arg(long)]
    tls: bool,
}

/// What a cluster is to be.
pub(super) struct Plan<'a> {
    /// The number of its nodes.
    pub(super) nodes: u16,
    /// Node i serves clients on `port + i` and other nodes on `port + 100 + i`.
    pub(super) port: u16,
    /// The directory of the nodes' data and logs, if it is not a temporary one.
    pub(super) data: Option<PathBuf>,
    /// Additional arguments of each node.
    pub(super) arguments: &'a [String],
    /// Whether the nodes use TLS.
    pub(super) tls: bool,
    /// Whether each node keeps an audit log.
    pub(super) audit: bool,
}

/// A running cluster.
pub(super) struct Cluster {
    nodes: Vec<Node>,
    /// The temporary directory, if the nodes use one: removed when this is dropped, after the nodes.
    temporary: Option<TemporaryDirectory>,
    /// The cluster's certificates, with TLS.
    certificates: Option<Certificates>,
}

struct Node {
    id: u16,
    client_addr: String,
    directory: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Child,
}

impl Dev {
    pub(super) fn run(self) -> ExitCode {
        block_on(async {
            // Listen before the nodes start: a Ctrl-C during the start must not leave their
            // directory behind.
            let mut stop = match StopSignals::listen_or_report() {
                Ok(stop) => stop,
                Err(code) => return ExitCode::from(code),
            };
            let Dev { nodes, port, data, tls } = self;
            let mut cluster = match Cluster::launch(Plan { nodes, port, data, arguments: &[], tls, audit: false }) {
                Ok(cluster) => cluster,
                Err(error) => {
                    print_error(error);
                    return ExitCode::FAILURE;
                }
            };
            let ready = tokio::select! {
                ready = cluster.wait_for_leader() => ready.map(|()| true),
                _ = stop.next() => Ok(false),
            };
            let code = match ready {
                Ok(true) => {
                    cluster.print_usage();
                    cluster.watch(&mut stop).await;
                    ExitCode::SUCCESS
                }
                Ok(false) => ExitCode::SUCCESS,
                Err(error) => {
                    print_error(error);
                    ExitCode::FAILURE
                }
            };
            cluster.stop().await;
            code
        })
    }
}

impl Cluster {
    /// Starts the nodes, and waits until all of them know a leader.
    pub(super) async fn start(plan: Plan<'_>) -> Result<Cluster, String> {
        let mut cluster = Cluster::launch(plan)?;
        let ready = cluster.wait_for_leader().await;
        if let Err(error) = ready {
            cluster.stop().await;
            return Err(error);
        }
        Ok(cluster)
    }

    /// Starts the nodes, and does not wait for a leader.
    fn launch(plan: Plan<'_>) -> Result<Cluster, String> {
        let Plan { nodes, port, data, arguments, tls, audit } = plan;
        // Check all ports first: another cluster on these ports would answer in the place of this
        // one.
        for port in (1..=nodes).flat_map(|id| [port + id, port + 100 + id]) {
            TcpListener::bind(("127.0.0.1", port)).map_err(|error| {
                format!(
                    "cannot listen on port {port}: {error}; if another cluster runs there, choose other ports with --port"
                )
            })?;
        }
        let temporary = match data {
            Some(_) => None,
            None => Some(TemporaryDirectory::create().map_err(|error| {
                format!("cannot create a temporary directory: {error}; give another with --data DIR")
            })?),
        };
        let data = data.unwrap_or_else(|| temporary.as_ref().map_or_else(PathBuf::new, |dir| dir.path().to_path_buf()));
        std::fs::create_dir_all(&data)
            .map_err(|error| format!("cannot create the directory {}: {error}", data.display()))?;
        let data = data.canonicalize().unwrap_or(data);
        let certificates = if tls { Some(Certificates::make(&data.join("tls"), nodes)?) } else { None };
        let mut cluster = Cluster { nodes: Vec::new(), temporary, certificates };
        for id in 1..=nodes {
            let secured = cluster.certificates.iter().flat_map(|certificates| certificates.of_node(id));
            let directory = data.join(format!("audit-{id}")).display().to_string();
            let audited = audit.then(|| ["--audit".to_owned(), directory]).into_iter().flatten();
            let arguments: Vec<String> = secured.chain(audited).chain(arguments.iter().cloned()).collect();
            let node = Node::start(id, nodes, port, &data, &arguments, cluster.temporary.as_ref())?;
            cluster.nodes.push(node);
        }
        Ok(cluster)
    }

    /// The nodes' client addresses.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.client_addr.clone()).collect()
    }

    /// What connections to the nodes are secured with.
    pub(super) fn security(&self) -> Security {
        self.certificates.as_ref().map_or_else(Security::plain, Certificates::security)
    }

    /// What a client of this name connects with. Without TLS clients have no names.
    pub(super) fn security_of(&self, client: &str) -> Result<Security, String> {
        self.certificates
            .as_ref()
            .map_or_else(|| Ok(Security::plain()), |certificates| certificates.security_of(client))
    }

    /// Resident memory of each node, in bytes; without the nodes for which the system does not
    /// report it.
    pub(super) fn memory(&self) -> Vec<u64> {
        let of = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
        };
        self.nodes.iter().filter_map(|node| of(node.child.id()?)).collect()
    }

    /// Disk space that each node's directory uses, in bytes.
    pub(super) fn disk(&self) -> Vec<u64> {
        let of = |directory: &Path| {
            let files = std::fs::read_dir(directory).ok()?.filter_map(|entry| entry.ok()?.metadata().ok());
            Some(files.map(|file| file.len()).sum())
        };
        self.nodes.iter().filter_map(|node| of(&node.directory)).collect()
    }

    async fn wait_for_leader(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        let security = self.security();
        loop {
            let mut following = 0;
            for node in &mut self.nodes {
                let status = security.status(&node.client_addr, STATUS_TIMEOUT).await.ok();
                following += usize::from(status.is_some_and(|status| status.leader.is_some()));
            }
            // Check the processes last: if all still run, the answers above came from them.
            for node in &mut self.nodes {
                if let Ok(Some(status)) = node.child.try_wait() {
                    return Err(format!(
                        "node {} ended during the start ({status}); {}",
                        node.id,
                        node.last_log_line()
                    ));
                }
            }
            if following == self.nodes.len() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let lines: Vec<String> = self.nodes.iter().map(Node::last_log_line).collect();
                return Err(format!(
                    "the nodes did not all know a leader after {START_TIMEOUT:?}, so the cluster was stopped; {}; --data DIR \
                     keeps the logs",
                    lines.join("; ")
                ));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn print_usage(&self) {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let urls: Vec<String> = self.nodes.iter().map(|node| format!("{scheme}://{}", node.client_addr)).collect();
        let (curl, flags) = self.certificates.as_ref().map_or_else(
            || ("curl -s".to_owned(), String::new()),
            |certificates| (certificates.curl(), certificates.flags()),
        );
        let Some(url) = urls.first() else { return };
        outln!("ready {}", urls.join(" "));
        outln!("");
        outln!("Try, in another terminal:");
        outln!("  {curl} -X POST {url}/v1/locks/tea/acquire -d '{{\"ttl_ms\":60000,\"owner\":\"me\"}}'");
        outln!("  {curl} {url}/v1/locks/tea");
        let program = program();
        let endpoints = self.endpoints().join(",");
        outln!("  {program} lock report --endpoints {endpoints}{flags} -- sh -c 'echo token $PALISADE_TOKEN; sleep 5'");
        outln!("  {program} status --endpoints {endpoints}{flags}");
        if let Some(certificates) = &self.certificates {
            let administrator = certificates.administrator_flags();
            let rules = r#"{"rules":[{"subject":"*","prefix":"","rights":["acquire"]}]}"#;
            outln!("");
            outln!("As the administrator, let all clients take locks, and do nothing else:");
            outln!("  echo '{rules}' | {program} acl set - --endpoints {endpoints}{administrator}");
        }
        outln!("");
        outln!("Kill any one node, even the leader: the cluster goes on serving clients.");
        for node in &self.nodes {
            let pid = node.child.id().map_or_else(String::new, |pid| pid.to_string());
            outln!(
                "  kill -9 {pid:<9} # node {}, clients on {}, log in {}",
                node.id,
                node.client_addr,
                node.log.display()
            );
        }
        outln!("This terminal then shows the command that starts the node again. Ctrl-C stops the cluster.");
        if let Some(temporary) = &self.temporary {
            let directory = temporary.path().display();
            outln!("The data is in {directory} and is removed when the cluster stops; --data DIR keeps it.");
        }
    }

    /// Reports nodes that end, until a stop signal comes.
    async fn watch(&mut self, stop: &mut StopSignals) {
        let mut reported = vec![false; self.nodes.len()];
        loop {
            for (node, reported) in self.nodes.iter_mut().zip(&mut reported) {
                if let (false, Ok(Some(status))) = (*reported, node.child.try_wait()) {
                    *reported = true;
                    node.report_end(status);
                }
            }
            tokio::select! {
                _ = stop.next() => return,
                () = sleep(Duration::from_millis(100)) => {}
            }
        }
    }

    /// Ends the leader, if there is one: kills it or requests its stop. Starts it again after
    /// `away_for`.
    pub(super) async fn end_leader(&mut self, kill: bool, away_for: Duration) -> Result<(), String> {
        let leader = self.leader().await;
        let Some(node) = self.nodes.iter_mut().find(|node| Some(node.id) == leader) else { return Ok(()) };
        if kill {
            node.child.start_kill().map_err(|error| format!("cannot kill node {}: {error}", node.id))?;
        } else {
            drop(node.child.stdin.take());
        }
        let _ = timeout(STOP_TIMEOUT, node.child.wait()).await;
        sleep(away_for).await;
        node.start_again(self.temporary.as_ref())
    }

    /// Kills a follower, starts it again, and returns its client address.
    pub(super) async fn restart_follower(&mut self) -> Result<String, String> {
        let leader = self.leader().await;
        let node = self.nodes.iter_mut().find(|node| Some(node.id) != leader).ok_or("there is no follower")?;
        let killed = node.child.kill().await;
        killed.map_err(|error| format!("cannot kill node {}: {error}", node.id))?;
        node.start_again(self.temporary.as_ref())?;
        Ok(node.client_addr.clone())
    }

    async fn leader(&self) -> Option<u16> {
        let security = self.security();
        for node in &self.nodes {
            let status = security.status(&node.client_addr, STATUS_TIMEOUT).await.ok();
            if let Some(leader) = status.and_then(|status| status.leader) {
                return Some(leader.id);
            }
        }
        None
    }

    /// Requests a stop of every node, and kills those that do not stop within [`STOP_TIMEOUT`].
    pub(super) async fn stop(&mut self) {
        for node in &mut self.nodes {
            // A node stops when its standard input ends.
            drop(node.child.stdin.take());
        }
        for node in &mut self.nodes {
            if timeout(STOP_TIMEOUT, node.child.wait()).await.is_err() {
                let _ = node.child.kill().await;
            }
        }
    }
}

impl Node {
    fn start(
        id: u16,
        nodes: u16,
        port: u16,
        data: &Path,
        more: &[String],
        temporary: Option<&TemporaryDirectory>,
    ) -> Result<Node, String> {
        let peer_addr = |id: u16| format!("127.0.0.1:{}", port + 100 + id);
        let client_addr = format!("127.0.0.1:{}", port + id);
        let peers: Vec<String> = (1..=nodes).map(|id| format!("{id}={}", peer_addr(id))).collect();
        let directory = data.join(format!("node-{id}"));
        let arguments: Vec<String> = [
            ("--id", id.to_string()),
            ("--data", directory.display().to_string()),
            ("--client-addr", client_addr.clone()),
            ("--peer-addr", peer_addr(id)),
            ("--peers", peers.join(",")),
            ("--cluster", certificates::CLUSTER.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_string(), value])
        .chain(more.iter().cloned())
        .collect();
        let log = data.join(format!("node-{id}.log"));
        let child = launch(&arguments, &log, temporary)?;
        Ok(Node { id, client_addr, directory, arguments, log, child })
    }

    fn start_again(&mut self, temporary: Option<&TemporaryDirectory>) -> Result<(), String> {
        self.child = launch(&self.arguments, &self.log, temporary)?;
        Ok(())
    }

    fn last_log_line(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().last().unwrap_or("(empty)");
        format!("last line of the log of node {}: {last}", self.id)
    }

    fn report_end(&self, status: ExitStatus) {
        outln!("node {} ended ({status}); its log is {}. To start it again:", self.id, self.log.display());
        let quoted: Vec<String> = self.arguments.iter().map(|word| quoted(word)).collect();
        outln!("  {} serve {}", program(), quoted.join(" "));
    }
}

/// Starts a node's process, whose standard error is appended to this file. Variables that set options of
/// one node must not set them for all.
fn launch(arguments: &[String], log: &Path, temporary: Option<&TemporaryDirectory>) -> Result<Child, String> {
    let cannot = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
    let file = File::options().create(true).append(true).open(log).map_err(|e| cannot("write the log file", e))?;
    let program = std::env::current_exe().map_err(|e| cannot("find this program", e))?;
    let stdout = temporary.map_or_else(|| Ok(Stdio::null()), TemporaryDirectory::hold);
    let mut command = Command::new(&program);
    for name in config::variables_of_one_node() {
        command.env_remove(name);
    }
    command
        .arg("run-with-parent")
        .arg(std::process::id().to_string())
        .arg("--")
        .arg(&program)
        .arg("serve")
        .args(arguments)
        .arg("--stop-with-stdin")
        .stdin(Stdio::piped())
        .stdout(stdout.map_err(|e| cannot("keep the temporary directory for a node", e))?)
        .stderr(file)
        // Keep the terminal's Ctrl-C away from the nodes: this process gets it and stops them all.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| cannot("start a node", e))
}

/// The path of this program, quoted for a shell.
fn program() -> String {
    std::env::current_exe().map_or_else(|_| "palisade".to_string(), |path| quoted(&path.display().to_string()))
}

/// A word, quoted for a shell if necessary.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if word.chars().all(plain) { word.to_string() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
