//! A node, put together: disk, core, peers, clients.

mod bootstrap;
mod replacement;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Config, Durable, Members, NodeId};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::core::{self, Core, DriverParts, Event, SnapshotPolicy, Timing};
use crate::descriptors::{Descriptors, Places, TooFew};
use crate::http::{self, App};
use crate::metrics::Metrics;
use crate::peers::{self, Peers, PinnedPeers, Roster};
use crate::recording;
use crate::stepper;
use crate::storage::{Identity, LockedDir, RecoveryReport, Space, StorageError, Wal};

/// How often the free space of the disk is looked at.
const SPACE_CHECKED_EVERY: Duration = Duration::from_secs(1);

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// This node.
    pub node: NodeId,
    /// The cluster's name.
    pub cluster: String,
    /// Its directory.
    pub data: PathBuf,
    /// Where it serves clients, `host:port`.
    pub client_addr: String,
    /// Where clients reach it: other nodes send them there.
    pub advertised_client_addr: String,
    /// Where it listens for other nodes.
    pub peer_addr: String,
    /// Where other nodes reach it, if that is not where it listens.
    pub advertised_peer_addr: Option<String>,
    /// At the first start, the founders of the cluster and their addresses for nodes, this one's included. At later ones
    /// also where to find a member that is not at the address in the log.
    pub peers: BTreeMap<NodeId, String>,
    /// At the first start of a node that joins a cluster: where one of its nodes serves clients.
    pub join: Option<String>,
    /// At the first start of a founder: the snapshot with which the cluster begins.
    pub restore: Option<PathBuf>,
    /// How it times elections.
    pub timing: Timing,
    /// When it takes snapshots.
    pub snapshots: SnapshotPolicy,
    /// How long the segments of its log are, in bytes.
    pub segment_bytes: u64,
    /// How many sessions there may be at once.
    pub max_sessions: usize,
    /// Below how many free bytes a leader refuses new sessions and acquires, if that is not to be computed ([`Space`]).
    pub min_free_bytes: Option<u64>,
    /// How many files this process may have open.
    pub open_files: usize,
    /// Where it writes down what it does, if anywhere.
    pub record: Option<Recording>,
    /// Whether it asks to be replaced by a new member when it finds that its directory has lost what it promised. Otherwise it
    /// does not start.
    pub returns: bool,
}

impl ServerConfig {
    /// Where other nodes reach this one.
    fn advertised_peer_addr(&self) -> String {
        let own_founding_addr = self.peers.get(&self.node);
        self.advertised_peer_addr.as_ref().or(own_founding_addr).unwrap_or(&self.peer_addr).clone()
    }
}

/// How a node records what it does.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Where recordings are, one file for each run.
    pub directory: PathBuf,
    /// Whether what the node asked for is there in words too, not only as a digest.
    pub verbose: bool,
    /// How many bytes a recording may have; past that it is cut.
    pub length: u64,
}

/// Why a node could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The command line contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The limit of open files is too low.
    #[error(transparent)]
    Descriptors(#[from] TooFew),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {whom}: {source}; is another process there?")]
    Listen {
        /// The address.
        address: String,
        /// Clients or nodes.
        whom: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The cluster to join cannot be joined.
    #[error("cannot join the cluster of {address}: {source}")]
    Join {
        /// Where its node was asked.
        address: String,
        /// What came of it.
        source: Box<palisade_client::Error>,
    },
    /// The cluster does not take a node back that has lost its log.
    #[error(
        "node {node} has lost its log, and its cluster does not take it back: {source}. If its directory is an old copy, start the newest one. Otherwise remove the member, and add the server under a new number, with an empty directory"
    )]
    NotTakenBack {
        /// Its old identity.
        node: NodeId,
        /// What the cluster says.
        source: Box<palisade_client::Error>,
    },
    /// The snapshot to begin with cannot be used.
    #[error("cannot restore {}: {reason}", .path.display())]
    Restore {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What the node does cannot be recorded.
    #[error("cannot record in {}: {source}", .path.display())]
    Record {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The disk.
    #[error("{0}{advice}", advice = advice(.0))]
    Storage(#[from] StorageError),
    /// The core's thread could not be started.
    #[error("cannot start the core's thread: {0}")]
    Thread(#[source] io::Error),
    /// A broken invariant stopped the core.
    #[error("the node stopped itself: an invariant of its own is broken (see above); its data was left as it was")]
    Panicked,
}

/// What to do about damage, if it is damage. An old backup would do harm: it has forgotten votes and acknowledgements.
fn advice(error: &StorageError) -> &'static str {
    if error.is_damage() {
        ". This node must not start: it may have voted or acknowledged what it has lost. Bring back the whole directory as it was \
         when the node last stopped (an older copy has forgotten votes), or replace the node by one with a new number and an empty \
         directory. Never copy another node's directory"
    } else {
        ""
    }
}

impl ServeError {
    /// The process's exit code, after sysexits: 78 configuration, 74 disk, 71 system, 70 internal.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServeError::Config(_) | ServeError::Restore { .. } | ServeError::Descriptors(_) => 78,
            ServeError::Join { .. } | ServeError::NotTakenBack { .. } => 69,
            ServeError::Storage(_) | ServeError::Record { .. } => 74,
            ServeError::Listen { .. } | ServeError::Thread(_) => 71,
            ServeError::Panicked => 70,
        }
    }
}

/// Runs a node until `stop` resolves.
///
/// # Errors
/// If it cannot start, or has to stop: see [`ServeError`].
pub async fn serve(config: ServerConfig, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
    tokio::pin!(stop);
    // Too few for any node is found out before anything is written.
    Descriptors::divide(config.open_files, 0)?;
    let (identity, (wal, durable, report)) = loop {
        match open(&config).await {
            Err(ServeError::Storage(damage)) if config.returns && damage.is_damage() => tokio::select! {
                () = &mut stop => return Ok(()),
                replaced = replacement::replace(&config, damage) => replaced?,
            },
            opened => break opened?,
        }
    };
    let node = identity.node;
    let (segments, frames, snapshot) = (report.segments, report.frames, report.snapshot.unwrap_or_default().index);
    info!(%node, data = %config.data.display(), %snapshot, segments, frames, "recovered");
    if let Some(cut) = report.cut {
        let (bytes, offset) = (cut.bytes, cut.offset);
        warn!(file = %cut.path.display(), offset, bytes, "an unfinished write was cut off; nothing in it was acknowledged");
    }

    let others = durable.log.members().iter().filter(|(id, _)| *id != node).count();
    let descriptors = Descriptors::divide(config.open_files, others)?;
    let space = Arc::clone(wal.space());
    if let Some(bytes) = config.min_free_bytes {
        space.demand(bytes);
    }
    space.check();
    let clients = bind(&config.client_addr, "clients").await?;
    let nodes = bind(&config.peer_addr, "nodes").await?;
    let metrics = Metrics::new();
    let roster = Roster {
        cluster: identity.cluster,
        node,
        incarnation: identity.incarnation,
        peer_addr: config.advertised_peer_addr(),
        client_addr: config.advertised_client_addr,
        peer_addrs: config.peers,
    };
    let acquaintances = PinnedPeers::load(&config.data)?;
    let (peers, to_dial) = Peers::new(roster, acquaintances, Arc::clone(wal.snapshots()), Arc::clone(&metrics));
    let (core, events) = Core::channel();
    let writer = core.start_snapshot_writer(wal.snapshots(), &metrics).map_err(ServeError::Thread)?;
    let observer = config.record.map(|record| {
        let failed = |source| ServeError::Record { path: record.directory.clone(), source };
        recording::start(&record.directory, &identity, record.verbose, record.length).map_err(failed)
    });
    let observer = observer.transpose()?;
    let parts = DriverParts {
        config: Config::new(node),
        durable,
        wal,
        log_bytes: report.log_bytes,
        founders: identity.founders.keys().copied().filter(|&founder| founder != node).collect(),
        timing: config.timing,
        jitter: SmallRng::from_os_rng(),
        snapshots: config.snapshots,
        writer: Box::new(writer),
        transport: Arc::clone(&peers),
        view: Arc::clone(core.view()),
        metrics: Arc::clone(&metrics),
        max_sessions: config.max_sessions,
        observer: observer.map(|recorder| Box::new(recorder) as Box<dyn core::Observer>),
    };
    let thread = core::start(events, parts).map_err(ServeError::Thread)?;
    let mut ended = tokio::task::spawn_blocking(move || thread.join());

    let mut links = tokio::task::JoinSet::new();
    links.spawn(peers::accept(Arc::clone(&peers), core.clone(), nodes, descriptors));
    links.spawn(watch_space(Arc::clone(&space)));
    links.spawn(peers::dial_all(Arc::clone(&peers), to_dial));
    let (stopping, stopped) = watch::channel(false);
    let places = Places::new(descriptors.clients, "clients", &metrics.connections_refused);
    let app = App::new(core.clone(), peers, metrics, space);
    let listening = tokio::spawn(http::listen(app, clients, places, stopped));
    info!(%node, clients = config.client_addr, nodes = config.peer_addr, "serving");

    tokio::select! {
        () = &mut stop => {
            info!("stopping");
            // A leader hands over first, and meanwhile redirects its clients.
            core.deliver(Event::Stop);
            let ended = ended.await;
            let _ = stopping.send(true);
            let _ = listening.await;
            outcome(ended)
        }
        joined = &mut ended => outcome(joined),
    }
}

/// Opens the node's directory, or claims a new one for the node that the command line names.
async fn open(
    config: &ServerConfig,
) -> Result<(Identity, (Wal<LockTable>, Durable<LockTable>, RecoveryReport)), ServeError> {
    let directory = LockedDir::open(&config.data)?;
    if stepper::owns(directory.path()) {
        return Err(ServeError::Config(format!(
            "{} is the directory of a stepped node, for tests only; start the server with another --data",
            config.data.display()
        )));
    }
    let identity = bootstrap::identify(config, &directory).await?;
    let founders = identity.founders.iter().map(|(&id, address)| (id, Address::from(address.as_str())));
    let members = Members::founding(founders);
    let directory = directory.claim(&identity)?;
    let identity = directory.identity().clone();
    if identity.restored.is_some() {
        bootstrap::restore(config.restore.as_deref(), &directory, &members)?;
    }
    let blank = Durable::blank(LockTable::default(), members);
    Ok((identity, Wal::open_with_segments_of(config.segment_bytes, directory, blank)?))
}

type Joined = Result<std::thread::Result<Result<(), StorageError>>, tokio::task::JoinError>;

fn outcome(joined: Joined) -> Result<(), ServeError> {
    match joined {
        Ok(Ok(result)) => result.map_err(ServeError::Storage),
        Ok(Err(_)) | Err(_) => Err(ServeError::Panicked),
    }
}

/// Looks how much space is free, for as long as the task lives. Not where sockets are served: a disk may be slow to say.
async fn watch_space(space: Arc<Space>) {
    loop {
        sleep(SPACE_CHECKED_EVERY).await;
        let space = Arc::clone(&space);
        // If the runtime is shutting down, no task waits for the result.
        let _ = spawn_blocking(move || space.check()).await;
    }
}

async fn bind(address: &str, whom: &'static str) -> Result<TcpListener, ServeError> {
    let failed = |source| ServeError::Listen { address: address.to_string(), whom, source };
    let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(failed)?.collect();
    TcpListener::bind(addresses.as_slice()).await.map_err(failed)
}
