//! A node, put together: disk, core, peers, clients.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Config, NodeId};
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::core::{self, Core, CoreParts, Event, SnapshotPolicy, Timing};
use crate::http::{self, App};
use crate::metrics::Metrics;
use crate::peers::{self, Peers, Roster};
use crate::storage::{DataDir, Identity, StorageError, Wal};

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
    /// Every node's address for nodes, this one's included.
    pub peers: BTreeMap<NodeId, String>,
    /// How it times elections.
    pub timing: Timing,
    /// When it takes snapshots.
    pub snapshots: SnapshotPolicy,
    /// How long the segments of its log are, in bytes.
    pub segment_bytes: u64,
}

/// Why a node could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The command line contradicts itself.
    #[error("{0}")]
    Config(String),
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
    /// The disk.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The core's thread could not be started.
    #[error("cannot start the core's thread: {0}")]
    Thread(#[source] io::Error),
    /// A broken invariant stopped the core.
    #[error("the node stopped itself: an invariant of its own is broken (see above); its data was left as it was")]
    Panicked,
}

impl ServeError {
    /// The process's exit code, after sysexits: 78 configuration, 74 disk, 71 system, 70 internal.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServeError::Config(_) => 78,
            ServeError::Storage(_) => 74,
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
    if !config.peers.contains_key(&config.node) {
        return Err(ServeError::Config(format!("--peers does not name this node, {}", config.node)));
    }
    let cluster = cluster_id(&config.cluster);
    let voters: Vec<NodeId> = config.peers.keys().copied().collect();
    let identity = Identity { cluster, node: config.node, voters: voters.clone() };
    let directory = DataDir::open(&config.data, &identity)?;
    let (wal, durable, report) = Wal::open_with_segments_of(config.segment_bytes, directory, LockTable::default())?;
    let (segments, frames, snapshot) = (report.segments, report.frames, report.snapshot.unwrap_or_default().index);
    info!(node = %config.node, data = %config.data.display(), %snapshot, segments, frames, "recovered");
    if let Some(cut) = report.cut {
        let (bytes, offset) = (cut.bytes, cut.offset);
        warn!(file = %cut.path.display(), offset, bytes, "an unfinished write was cut off; nothing in it was acknowledged");
    }

    let clients = bind(&config.client_addr, "clients").await?;
    let nodes = bind(&config.peer_addr, "nodes").await?;
    let metrics = Metrics::new();
    let roster =
        Roster { cluster, node: config.node, client_addr: config.advertised_client_addr, peer_addrs: config.peers };
    let peers = Peers::new(roster, Arc::clone(wal.snapshots()), Arc::clone(&metrics));
    let (core, events) = Core::channel();
    let parts = CoreParts {
        config: Config::new(config.node, voters),
        durable,
        wal,
        log_bytes: report.log_bytes,
        timing: config.timing,
        snapshots: config.snapshots,
        peers: Arc::clone(&peers),
        metrics: Arc::clone(&metrics),
    };
    let thread = core::start(&core, events, parts).map_err(ServeError::Thread)?;
    let mut ended = tokio::task::spawn_blocking(move || thread.join());

    let mut links = tokio::task::JoinSet::new();
    links.spawn(peers::accept(Arc::clone(&peers), core.clone(), nodes));
    for peer in peers.ids() {
        links.spawn(peers::dial(Arc::clone(&peers), peer));
        links.spawn(peers::send_snapshots(Arc::clone(&peers), peer));
    }
    let (stopping, stopped) = watch::channel(false);
    let listening = tokio::spawn(http::listen(App::new(core.clone(), peers, metrics), clients, stopped));
    info!(node = %config.node, clients = config.client_addr, nodes = config.peer_addr, "serving");

    tokio::select! {
        () = stop => {
            info!("stopping");
            core.deliver(Event::Stop);
            let _ = stopping.send(true);
            let _ = listening.await;
            outcome(ended.await)
        }
        joined = &mut ended => outcome(joined),
    }
}

type Joined = Result<std::thread::Result<Result<(), StorageError>>, tokio::task::JoinError>;

fn outcome(joined: Joined) -> Result<(), ServeError> {
    match joined {
        Ok(Ok(result)) => result.map_err(ServeError::Storage),
        Ok(Err(_)) | Err(_) => Err(ServeError::Panicked),
    }
}

async fn bind(address: &str, whom: &'static str) -> Result<TcpListener, ServeError> {
    let failed = |source| ServeError::Listen { address: address.to_string(), whom, source };
    let addresses: Vec<SocketAddr> = lookup_host(address).await.map_err(failed)?.collect();
    TcpListener::bind(addresses.as_slice()).await.map_err(failed)
}

/// The cluster's number, from its name: FNV-1a, 64 bits.
fn cluster_id(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// Raises the limit of open files as far as it may go: every connection is one.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        warn!(%error, "cannot raise the limit of open files");
    }
}
