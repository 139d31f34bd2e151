//! `palisade dev`: a cluster of real processes on this machine.
//!
//! Every node is a `palisade serve` of this very binary, with its own directory and its own log file. The nodes hold
//! the other end of a pipe: whatever happens to this process, they stop with it.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use clap::Args;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::signals::StopSignals;
use super::{block_on, complain};

/// How long the cluster may take to have a leader.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a node may take to answer.
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a node may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Start a cluster of real processes on this machine, to try things out.
#[derive(Debug, Args)]
pub(super) struct Dev {
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// Node i serves clients on PORT+i and other nodes on PORT+100+i
    #[arg(long, value_name = "PORT", default_value_t = 7400, value_parser = clap::value_parser!(u16).range(1..=65_000))]
    port: u16,
    /// Keep the nodes' directories and logs here; without it they are in a temporary directory and end with this
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// A running cluster.
pub(super) struct Cluster {
    nodes: Vec<Node>,
    /// Removed at the end, if it is a temporary one.
    temporary: Option<tempfile::TempDir>,
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
            // From the beginning: a Ctrl-C that comes while the nodes start must not leave their directory behind.
            let mut stop = match StopSignals::listen() {
                Ok(stop) => stop,
                Err(error) => {
                    complain(format!("cannot listen for signals: {error}"));
                    return ExitCode::FAILURE;
                }
            };
            let mut cluster = match Cluster::launch(self.nodes, self.port, self.data, &[]) {
                Ok(cluster) => cluster,
                Err(error) => {
                    complain(error);
                    return ExitCode::FAILURE;
                }
            };
            let ready = tokio::select! {
                ready = cluster.wait_for_leader() => ready.map(|()| true),
                _ = stop.next() => Ok(false),
            };
            let code = match ready {
                Ok(true) => {
                    cluster.greet();
                    cluster.watch(&mut stop).await;
                    ExitCode::SUCCESS
                }
                Ok(false) => ExitCode::SUCCESS,
                Err(error) => {
                    complain(error);
                    ExitCode::FAILURE
                }
            };
            cluster.stop().await;
            code
        })
    }
}

impl Cluster {
    /// Starts the nodes, each with these arguments beside its own, and waits until one of them leads.
    pub(super) async fn start(
        nodes: u16,
        port: u16,
        data: Option<PathBuf>,
        arguments: &[String],
    ) -> Result<Cluster, String> {
        let mut cluster = Cluster::launch(nodes, port, data, arguments)?;
        let ready = cluster.wait_for_leader().await;
        if let Err(error) = ready {
            cluster.stop().await;
            return Err(error);
        }
        Ok(cluster)
    }

    /// Starts the nodes.
    fn launch(nodes: u16, port: u16, data: Option<PathBuf>, arguments: &[String]) -> Result<Cluster, String> {
        // Another cluster on these ports would answer for this one.
        for port in (1..=nodes).flat_map(|id| [port + id, port + 100 + id]) {
            TcpListener::bind(("127.0.0.1", port)).map_err(|error| {
                format!(
                    "cannot listen on port {port}: {error}; is a cluster running already? --port takes another range"
                )
            })?;
        }
        let temporary = match data {
            Some(_) => None,
            None => Some(tempfile::tempdir().map_err(|error| format!("cannot make a temporary directory: {error}"))?),
        };
        let data = data.unwrap_or_else(|| temporary.as_ref().map_or_else(PathBuf::new, |dir| dir.path().to_path_buf()));
        std::fs::create_dir_all(&data).map_err(|error| format!("cannot make {}: {error}", data.display()))?;
        let data = data.canonicalize().unwrap_or(data);
        let start = |id| Node::start(id, nodes, port, &data, arguments);
        let nodes = (1..=nodes).map(start).collect::<Result<_, _>>()?;
        Ok(Cluster { nodes, temporary })
    }

    /// Where the nodes serve clients.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.client_addr.clone()).collect()
    }

    /// How much memory each node has in use, in bytes, as far as the system says.
    pub(super) fn memory(&self) -> Vec<u64> {
        let of = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
        };
        self.nodes.iter().filter_map(|node| of(node.child.id()?)).collect()
    }

    /// How much of its disk each node has in use, in bytes.
    pub(super) fn disk(&self) -> Vec<u64> {
        let of = |directory: &Path| {
            let files = std::fs::read_dir(directory).ok()?.filter_map(|entry| entry.ok()?.metadata().ok());
            Some(files.map(|file| file.len()).sum())
        };
        self.nodes.iter().filter_map(|node| of(&node.directory)).collect()
    }

    async fn wait_for_leader(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let mut following = 0;
            for node in &mut self.nodes {
                let status = palisade_client::status(&node.client_addr, STATUS_TIMEOUT).await.ok();
                following += usize::from(status.is_some_and(|status| status.leader.is_some()));
            }
            // Looked at last: whoever answered is one of these.
            for node in &mut self.nodes {
                if let Ok(Some(status)) = node.child.try_wait() {
                    let log = std::fs::read_to_string(&node.log).unwrap_or_default();
                    let last = log.lines().last().unwrap_or("its log is empty");
                    return Err(format!("node {} ended at once ({status}): {last}", node.id));
                }
            }
            if following == self.nodes.len() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = self.nodes.first().map(|node| node.log.display().to_string()).unwrap_or_default();
                return Err(format!("no leader after {START_TIMEOUT:?}; the nodes' logs are beside {log}"));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn greet(&self) {
        let urls: Vec<String> = self.nodes.iter().map(|node| format!("http://{}", node.client_addr)).collect();
        let Some(url) = urls.first() else { return };
        say!("ready {}", urls.join(" "));
        say!("");
        say!("Try, in another terminal:");
        say!("  curl -sL -X POST {url}/v1/locks/tea/acquire -d '{{\"ttl_ms\":60000,\"owner\":\"me\"}}'");
        say!("  curl -sL {url}/v1/locks/tea");
        let program = program();
        let endpoints = self.endpoints().join(",");
        say!("  {program} lock report --endpoints {endpoints} -- sh -c 'echo token $PALISADE_TOKEN; sleep 5'");
        say!("  {program} status --endpoints {endpoints}");
        say!("");
        say!("Kill a node, the leader too, and nobody will notice:");
        for node in &self.nodes {
            let pid = node.child.id().map_or_else(String::new, |pid| pid.to_string());
            say!(
                "  kill -9 {pid:<9} # node {}, clients on {}, log in {}",
                node.id,
                node.client_addr,
                node.log.display()
            );
        }
        say!("The command that starts it again will be printed here. Ctrl-C stops the cluster.");
        if let Some(temporary) = &self.temporary {
            say!("Data is in {} and goes away with the cluster; --data DIR keeps it.", temporary.path().display());
        }
    }

    /// Tells of nodes that end, until the user has enough.
    async fn watch(&mut self, stop: &mut StopSignals) {
        let mut told = vec![false; self.nodes.len()];
        loop {
            for (node, told) in self.nodes.iter_mut().zip(&mut told) {
                if let (false, Ok(Some(status))) = (*told, node.child.try_wait()) {
                    *told = true;
                    node.tell_end(status);
                }
            }
            tokio::select! {
                _ = stop.next() => return,
                () = sleep(Duration::from_millis(100)) => {}
            }
        }
    }

    /// Ends the leader, if there is one: kills it, or asks it to stop; and starts it again after a while.
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
        node.start_again()
    }

    /// Kills a node that does not lead, starts it again, and returns where it serves clients.
    pub(super) async fn restart_follower(&mut self) -> Result<String, String> {
        let leader = self.leader().await;
        let node = self.nodes.iter_mut().find(|node| Some(node.id) != leader).ok_or("there is no follower")?;
        let killed = node.child.kill().await;
        killed.map_err(|error| format!("cannot kill node {}: {error}", node.id))?;
        node.start_again()?;
        Ok(node.client_addr.clone())
    }

    async fn leader(&self) -> Option<u16> {
        for node in &self.nodes {
            let status = palisade_client::status(&node.client_addr, STATUS_TIMEOUT).await.ok();
            if let Some(leader) = status.and_then(|status| status.leader) {
                return Some(leader.id);
            }
        }
        None
    }

    /// Asks every node to stop, and makes those that do not.
    pub(super) async fn stop(&mut self) {
        for node in &mut self.nodes {
            // The end of its standard input asks a node to stop.
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
    fn start(id: u16, nodes: u16, port: u16, data: &Path, more: &[String]) -> Result<Node, String> {
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
            ("--cluster", "dev".to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_string(), value])
        .chain(more.iter().cloned())
        .collect();
        let log = data.join(format!("node-{id}.log"));
        let child = launch(&arguments, &log)?;
        Ok(Node { id, client_addr, directory, arguments, log, child })
    }

    fn start_again(&mut self) -> Result<(), String> {
        self.child = launch(&self.arguments, &self.log)?;
        Ok(())
    }

    fn tell_end(&self, status: ExitStatus) {
        say!("node {} ended ({status}); its log is {}. Start it again with", self.id, self.log.display());
        let words: Vec<String> = self.arguments.iter().map(|word| quoted(word)).collect();
        say!("  {} serve {}", program(), words.join(" "));
    }
}

/// Starts a node's process, which logs to this file.
fn launch(arguments: &[String], log: &Path) -> Result<Child, String> {
    let cannot = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
    let file = File::options().create(true).append(true).open(log).map_err(|e| cannot("write the log file", e))?;
    Command::new(std::env::current_exe().map_err(|e| cannot("find this program", e))?)
        .arg("serve")
        .args(arguments)
        .arg("--stop-with-stdin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(file)
        // Ctrl-C in the terminal is for the cluster as a whole: it stops the nodes in good order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| cannot("start a node", e))
}

/// This program, as the user would call it.
fn program() -> String {
    std::env::current_exe().map_or_else(|_| "palisade".to_string(), |path| quoted(&path.display().to_string()))
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if word.chars().all(plain) { word.to_string() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
