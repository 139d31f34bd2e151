//! Running servers of one kind, for experiments: stop, pause, kill and restart each; all end with the value.

mod clock_offset;
mod faults;
mod replicas;

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::Signal;

pub use self::faults::Stopped;
use super::error::Error;
use super::home::Home;
use super::kinds;
use super::options::{Kind, Options};
use super::plan::{NodePlan, Plan};
use super::process::{Identity, log_tail, signal_all, wait_blocking};

#[derive(Debug)]
struct Node {
    plan: NodePlan,
    /// The process, with the identity that it had at its start.
    running: Mutex<Option<(Child, Identity)>>,
}

/// Servers of one kind. Dropping it ends all of them and removes their directory.
///
/// Nodes are numbered from 0. All methods take `&self`, so that a task can pause a node while others use
/// the cluster.
///
/// # Panics
/// Methods that take a node's number panic if there is no such node.
#[derive(Debug)]
pub struct Cluster {
    kind: Kind,
    nodes: Vec<Node>,
    endpoints: Vec<String>,
    version: String,
    options: Options,
    home: Home,
}

impl Cluster {
    /// Starts all nodes of the plan and waits until each serves.
    pub(super) async fn start(kind: Kind, options: &Options, home: Home, plan: Plan) -> Result<Self, Error> {
        let nodes = plan.nodes.into_iter().map(|plan| Node { plan, running: Mutex::new(None) }).collect();
        let (options, endpoints) = (options.clone(), plan.endpoints);
        let mut cluster = Self { kind, nodes, endpoints, version: String::new(), options, home };
        for node in 0..cluster.len() {
            cluster.launch(node)?;
        }
        for node in 0..cluster.len() {
            cluster.wait_ready(node).await?;
        }
        let unfit = |node: String| move |reason: String| Error::Unfit { node, reason };
        kinds::settle(kind, cluster.endpoints.len(), &cluster.addresses()).await.map_err(unfit(kind.to_string()))?;
        let first = cluster.nodes.first().map(|node| node.plan.address.clone()).unwrap_or_default();
        let version = kinds::version(kind, &cluster.options, &first).await;
        cluster.version = version.map_err(unfit(cluster.name(0).to_owned()))?;
        Ok(cluster)
    }

    /// The kind of the servers.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The product and version, as the running server says it: `Redis 7.0.15`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The addresses for clients, HOST:PORT. Of Redis with replicas, the primary's only: replicas have
    /// [`Cluster::address`]. Of PostgreSQL, see [`Cluster::url`].
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// What a client takes in one argument: `postgres://…` for PostgreSQL, `http://…` for the object store,
    /// the endpoints with commas for the others.
    #[must_use]
    pub fn url(&self) -> String {
        kinds::url(self.kind, &self.endpoints)
    }

    /// The directory of all nodes.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.home.path()
    }

    /// The number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes. There always are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node's name: `redis-1`.
    #[must_use]
    pub fn name(&self, node: usize) -> &str {
        &self.nodes[node].plan.name
    }

    /// The node's address for clients, HOST:PORT.
    #[must_use]
    pub fn address(&self, node: usize) -> &str {
        &self.nodes[node].plan.address
    }

    fn addresses(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.plan.address.as_str()).collect()
    }

    /// The user as which the node runs, if it is not the lab's own.
    #[must_use]
    pub fn user(&self, node: usize) -> Option<&str> {
        self.nodes[node].plan.launch.user.as_deref()
    }

    /// The node's data directory.
    #[must_use]
    pub fn data_dir(&self, node: usize) -> &Path {
        &self.nodes[node].plan.data
    }

    /// The file of the node's output.
    #[must_use]
    pub fn log(&self, node: usize) -> PathBuf {
        self.nodes[node].plan.dir.join("server.log")
    }

    /// The node's process ID, if it runs or is paused.
    #[must_use]
    pub fn pid(&self, node: usize) -> Option<u32> {
        self.identity(node).map(|process| process.pid)
    }

    /// The node's process, if it runs or is paused.
    #[must_use]
    pub fn identity(&self, node: usize) -> Option<Identity> {
        self.nodes[node].running.lock().as_ref().map(|(_, process)| *process).filter(Identity::is_running)
    }

    /// Starts the process of a node that does not run, with its data. Does not wait until it serves:
    /// nodes that need each other are launched all, and waited for then.
    ///
    /// # Errors
    /// The node runs, or its process cannot be started.
    pub fn launch(&self, node: usize) -> Result<(), Error> {
        let Node { plan, running } = &self.nodes[node];
        let mut running = running.lock();
        if let Some((child, _)) = running.as_mut() {
            if matches!(child.try_wait(), Ok(None)) {
                return Err(Error::State { node: plan.name.clone(), state: "runs already; stop it first" });
            }
            *running = None;
        }
        let failed = |source| Error::Process { what: "start", node: plan.name.clone(), source };
        let mut child = plan.launch.spawn(&plan.dir, &self.log(node)).map_err(failed)?;
        let Some(process) = Identity::of(child.id()) else {
            // A child that its parent has not waited for has an entry in /proc, if that is mounted.
            drop(child.kill().and_then(|()| child.wait()));
            return Err(failed(std::io::Error::other("/proc does not show the process; is /proc mounted?")));
        };
        *running = Some((child, process));
        Ok(())
    }

    /// Waits until the node serves: it answers a request that needs all of it.
    ///
    /// # Errors
    /// The process has ended ([`Error::Died`], with the end of its log), or does not serve in time.
    pub async fn wait_ready(&self, node: usize) -> Result<(), Error> {
        let start = Instant::now();
        let limit = self.options.ready_timeout;
        loop {
            let probe = tokio::time::timeout(Duration::from_secs(2), kinds::probe(self.kind, self.address(node)));
            let reason = match probe.await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(reason)) => reason,
                Err(_) => "it does not answer within 2 s".to_owned(),
            };
            let (name, log) = (self.name(node).to_owned(), self.log(node));
            if let Some(status) = self.ended(node)? {
                let tail = log_tail(&log);
                return Err(Error::Died { node: name, status, log, tail });
            }
            if start.elapsed() >= limit {
                let tail = log_tail(&log);
                return Err(Error::NotReady { node: name, waited: limit, reason, log, tail });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The node that leads: the leader, or the primary of replicated Redis. Waits for it.
    ///
    /// # Errors
    /// No running node says that it leads within the time that a server may take to serve.
    pub async fn leader(&self) -> Result<usize, Error> {
        let start = Instant::now();
        loop {
            let mut reason = "no node leads".to_owned();
            for node in (0..self.len()).filter(|&node| self.pid(node).is_some()) {
                let asked = tokio::time::timeout(Duration::from_secs(2), kinds::leads(self.kind, self.address(node)));
                match asked.await {
                    Ok(Ok(true)) => return Ok(node),
                    Ok(Ok(false)) => {}
                    Ok(Err(error)) => reason = format!("{}: {error}", self.name(node)),
                    Err(_) => reason = format!("{} does not answer within 2 s", self.name(node)),
                }
            }
            if start.elapsed() >= self.options.ready_timeout {
                return Err(Error::Unfit { node: self.kind.to_string(), reason });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// How the process ended; none while it runs.
    fn ended(&self, node: usize) -> Result<Option<ExitStatus>, Error> {
        let Node { plan, running } = &self.nodes[node];
        let name = || plan.name.clone();
        match running.lock().as_mut() {
            Some((child, _)) => {
                child.try_wait().map_err(|source| Error::Process { what: "wait for", node: name(), source })
            }
            None => Err(Error::State { node: name(), state: "does not run; launch it first" }),
        }
    }

    /// Lets the servers run on after this value; the caller records where they are. Only servers that were
    /// started with [`Options::outlive`] survive the end of this process.
    pub(super) fn detach(mut self) {
        self.home.keep();
        for node in &self.nodes {
            // The process is left to the system, which waits for it after this process's end.
            drop(node.running.lock().take());
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let trees: Vec<Vec<Identity>> =
            (0..self.len()).map(|node| self.identity(node).map(|one| one.tree()).unwrap_or_default()).collect();
        let quick = kinds::quick_stop_signal(self.kind);
        for signal in [quick, Some(Signal::KILL)].into_iter().flatten() {
            for (node, tree) in self.nodes.iter().zip(&trees) {
                // A refusal shows below: the process does not end.
                drop(if signal == Signal::KILL { signal_all(tree, signal) } else { node.signal_main(signal) });
                drop(signal_all(tree, Signal::CONT));
            }
            let gone = || self.nodes.iter().zip(&trees).all(|(node, tree)| node.is_gone(tree));
            if wait_blocking(Duration::from_secs(10), gone) {
                break;
            }
        }
        for (node, tree) in self.nodes.iter().zip(&trees) {
            for process in tree.iter().filter(|process| process.is_running()) {
                eprintln!("{}: process {} does not end; end it by hand", node.plan.name, process.pid);
            }
            kinds::clean_up(self.kind, &node.plan.data);
        }
    }
}
