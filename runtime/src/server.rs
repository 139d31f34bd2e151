//! Starts a node from its parts (disk, core, peers, clients) and runs it until it stops.

mod bootstrap;
mod listeners;
mod peer_thread;
mod replacement;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::{Options, Security};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Config, Durable, Members, NodeId};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;
use tracing::{info, warn};

use self::listeners::{Listeners, Reserved};
use self::peer_thread::PeerThread;
use crate::accounts::{Accounts, ClientLimits};
use crate::addresses::is_wildcard;
use crate::audit::{self, AuditError};
use crate::core::{self, Core, DriverParts, Event, Quotas, SnapshotPolicy, Timing};
use crate::descriptors::{ConnectionLimit, Descriptors, TooFew};
use crate::grant_signer::{self, GrantSigner, SigningError};
use crate::http::{self, App, Listener, Setup, Site};
use crate::limits::ADMIN_CONNECTIONS;
use crate::member_address::MemberAddress;
use crate::metrics::Metrics;
use crate::peers::{self, Peers, PinnedPeers, Roster};
use crate::recording;
use crate::storage::{Identity, LockedDir, RecoveryReport, Space, Start, StorageError, SystemDisk, Wal};
use crate::tls::{self, Tls, TlsError, TlsFiles};
use crate::watch::{Feed, Hub};

/// Connections of other nodes, over which they forward requests, that are about to be served.
const FORWARDED_AT_ONCE: usize = 64;
/// How often the free disk space is measured.
const SPACE_CHECKED_EVERY: Duration = Duration::from_secs(1);

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// This node.
    pub node: NodeId,
    /// The cluster's name. Needed at the first start of a founder; at other starts it is only
    /// checked.
    pub cluster: Option<String>,
    /// The node's data directory.
    pub data: PathBuf,
    /// The address to listen on for clients, `host:port`.
    pub client_addr: String,
    /// The address at which clients reach the node: other nodes redirect clients there.
    pub advertised_client_addr: String,
    /// The address of a listener of its own for administrative requests, if the node has one: it then
    /// refuses them at `client_addr`.
    pub admin_addr: Option<String>,
    /// The address at which operators reach that listener: other nodes redirect administrative requests
    /// there.
    pub advertised_admin_addr: Option<String>,
    /// Further host names under which clients may address the node, beside the hosts of the addresses
    /// above.
    pub allowed_hosts: Vec<String>,
    /// The origins of web pages that may use this node, beside its own page.
    pub allowed_origins: Vec<String>,
    /// The address to listen on for other nodes.
    pub peer_addr: String,
    /// The address at which other nodes reach the node, if it differs from the address it listens
    /// on.
    pub advertised_peer_addr: Option<String>,
    /// At the first start, the founders of the cluster and their peer addresses, this node
    /// included. At later starts, the addresses of members that are no longer at the address in the
    /// log.
    pub peers: BTreeMap<NodeId, String>,
    /// At the first start of a node that joins a cluster: the address at which one of the cluster's
    /// nodes answers administrative requests.
    pub join: Option<String>,
    /// At the first start of a founder: the snapshot with which the cluster begins.
    pub restore: Option<PathBuf>,
    /// The timing of elections.
    pub timing: Timing,
    /// When the node takes snapshots.
    pub snapshots: SnapshotPolicy,
    /// Length of a log segment, in bytes.
    pub segment_bytes: u64,
    /// The limits that an operator may set.
    pub quotas: Quotas,
    /// The limits of each client at this node.
    pub client_limits: ClientLimits,
    /// The number of free bytes below which a leader refuses new sessions and acquires; by default
    /// computed ([`Space`]).
    pub min_free_bytes: Option<u64>,
    /// Memory for the newest events, which watches show, in bytes.
    pub watch_history: usize,
    /// How many files this process may have open.
    pub open_files: usize,
    /// Where the node records its inputs and outputs, if it does.
    pub record: Option<Recording>,
    /// The directory of the node's audit log, if it has one.
    pub audit: Option<PathBuf>,
    /// The file of the key with which the node signs grants, if it does.
    pub sign_grants: Option<PathBuf>,
    /// The files with which all ports speak TLS.
    pub tls: Option<TlsFiles>,
    /// Whether the node may listen on an address that other machines reach although it has no TLS.
    pub insecure: bool,
    /// Whether the node asks the cluster to replace it by a new member when its data directory has
    /// lost durable data. Otherwise such a node does not start.
    pub returns: bool,
}

impl ServerConfig {
    /// The address at which other nodes reach this node, if the command line gives one.
    fn named_peer_addr(&self) -> Option<String> {
        let listens = Some(&self.peer_addr).filter(|address| !is_wildcard(address));
        self.advertised_peer_addr.as_ref().or(self.peers.get(&self.node)).or(listens).cloned()
    }

    /// Refuses what no node can run with. Reads the files of TLS, whose certificate names the cluster.
    fn prepare(&mut self) -> Result<Option<Arc<Tls>>, ServeError> {
        Descriptors::divide(self.open_files, 0)?;
        self.check_addresses()?;
        let tls = self.load_tls()?;
        // With TLS, the certificate has named the cluster.
        if let Some(file) = &self.sign_grants {
            grant_signer::check(file, self.cluster.as_deref(), self.restore.is_some())?;
        }
        Ok(tls)
    }

    /// Reads the files of TLS. The node's certificate names the node and its cluster: the command
    /// line need not repeat the cluster's name, and must not contradict it.
    fn load_tls(&mut self) -> Result<Option<Arc<Tls>>, ServeError> {
        let Some(files) = &self.tls else { return Ok(None) };
        let tls = Tls::load(files.clone())?;
        let ((cluster, node), cert) = (tls.identity(), files.cert.display());
        if node != self.node.number() {
            return Err(ServeError::Config(format!(
                "the certificate {cert} is that of node {node}, and --id says {}: correct --tls-cert or --id",
                self.node.number()
            )));
        }
        let given = self.cluster.get_or_insert_with(|| cluster.clone());
        if *given != cluster {
            return Err(ServeError::Config(format!(
                "the certificate {cert} is of cluster `{cluster}`, and --cluster names `{given}`: correct one of them"
            )));
        }
        Ok(Some(tls))
    }

    /// How this node connects to other nodes' ports for clients.
    fn options(&self, tls: Option<&Tls>) -> Options {
        let security = tls.map_or_else(Security::plain, Tls::security);
        Options { security, ..Options::default() }
    }

    /// Refuses an address that the node would give to clients or operators, and that none of them can
    /// reach.
    fn check_addresses(&self) -> Result<(), ServeError> {
        let given = [
            ("clients", "--advertise-client-addr", Some(&self.advertised_client_addr)),
            ("operators", "--advertise-admin-addr", self.advertised_admin_addr.as_ref()),
        ];
        let unreachable = given.into_iter().find_map(|(whom, option, address)| {
            address.filter(|address| is_wildcard(address)).map(|address| (whom, option, address))
        });
        let Some((whom, option, address)) = unreachable else { return Ok(()) };
        Err(ServeError::Config(format!(
            "{whom} would be redirected to {address}, which means every address of their own machine: give \
             {option} HOST:PORT, the address at which {whom} reach this node"
        )))
    }
}

/// How a node records its inputs and outputs.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The directory of the recordings, one file for each run.
    pub directory: PathBuf,
    /// Whether a recording has the outputs in full, not only their digest.
    pub verbose: bool,
    /// Maximum length of a recording in bytes; a longer one is cut there.
    pub length: u64,
}

/// Why a node could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The command line does not fit the data directory, or contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The node cannot sign grants with the key that it was given.
    #[error(transparent)]
    Signing(#[from] SigningError),
    /// The limit of open files is too low.
    #[error(transparent)]
    Descriptors(#[from] TooFew),
    /// The node cannot listen on an address.
    #[error("cannot listen on {address} for {whom}: {source}; {}", listeners::advice(source))]
    Listen {
        /// The address.
        address: String,
        /// "clients", "nodes" or "operators".
        whom: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// TLS cannot be used.
    #[error("cannot use TLS: {0}")]
    Tls(#[from] TlsError),
    /// The node cannot join the cluster of `--join`.
    #[error("cannot join the cluster of the node at {address}: {source}")]
    Join {
        /// The address of `--join`.
        address: String,
        /// The client's error.
        source: Box<palisade_client::Error>,
    },
    /// The cluster refuses to replace a node that has lost its log.
    #[error(
        "node {node} has lost its log, and its cluster does not take it back: {source}. If its data directory is an old copy, start the node with the newest one. Otherwise remove the member (palisade members remove {}), and add the server under a new node ID, with an empty data directory",
        .node.number()
    )]
    NotTakenBack {
        /// The node's old identity.
        node: NodeId,
        /// The cluster's refusal.
        source: Box<palisade_client::Error>,
    },
    /// The snapshot of `--restore` cannot be used.
    #[error("cannot restore the snapshot {}: {reason}", .path.display())]
    Restore {
        /// The snapshot's file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The recording cannot be started.
    #[error("cannot start a recording in {}: {source}", .path.display())]
    Record {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The data directory cannot be read or written, or is damaged.
    #[error("{0}{advice}", advice = advice(.0))]
    Storage(#[from] StorageError),
    /// A thread could not be started.
    #[error("cannot start a thread of the node: {0}")]
    Thread(#[source] io::Error),
    /// A broken invariant stopped the core.
    #[error(
        "the node stopped itself: a broken invariant made one of its threads or tasks panic (the message is above); its data is as it was"
    )]
    Panicked,
}

/// What to do about a damaged directory. An old backup is unsafe: it lacks later votes and
/// acknowledgements.
fn advice(error: &StorageError) -> &'static str {
    if error.is_damage() {
        ". This node must not start: it may have lost votes that it cast or entries that it acknowledged. Bring back the whole data \
         directory as it was when the node last stopped (an older copy lacks later votes), or replace the node by one with a new \
         node ID and an empty data directory. Never copy another node's data directory"
    } else {
        ""
    }
}

impl ServeError {
    /// The process's exit code, after sysexits: 78 configuration, 74 disk, 71 system, 70 internal.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServeError::Config(_)
            | ServeError::Restore { .. }
            | ServeError::Descriptors(_)
            | ServeError::Signing(_)
            | ServeError::Tls(_) => 78,
            ServeError::Join { .. } | ServeError::NotTakenBack { .. } => 69,
            ServeError::Storage(_) | ServeError::Record { .. } | ServeError::Audit(_) => 74,
            ServeError::Listen { .. } | ServeError::Thread(_) => 71,
            ServeError::Panicked => 70,
        }
    }
}

/// The nodes of `--peers` that neither founded the directory's cluster nor are members of it now. The log of a node
/// that has just joined or returned names no members yet: then no node is known to be none.
fn strangers(peers: &BTreeMap<NodeId, String>, identity: &Identity, members: &Members) -> String {
    if members.iter().next().is_none() {
        return String::new();
    }
    let known = |number: u16| {
        let founders = identity.founders.keys().map(|founder| founder.number());
        founders.chain(members.iter().map(|(member, _)| member.number())).any(|one| one == number)
    };
    let strangers = peers.keys().map(|peer| peer.number()).filter(|&number| !known(number));
    strangers.map(|number| number.to_string()).collect::<Vec<_>>().join(", ")
}

/// Checks what [`serve`] checks before it opens the data directory and binds its addresses: that the
/// options fit one another, and the files of TLS and of the signing key.
///
/// # Errors
/// The first reason why no node can start so.
pub async fn check(mut config: ServerConfig) -> Result<(), ServeError> {
    config.prepare()?;
    Listeners::check(&config).await
}

/// Runs a node until `stop` resolves.
///
/// # Errors
/// If it cannot start, or has to stop: see [`ServeError`].
pub async fn serve(mut config: ServerConfig, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
    tokio::pin!(stop);
    // Refuse what no node can run with before anything is written.
    let tls = config.prepare()?;
    if tls.as_ref().is_some_and(|tls| tls.is_optional()) {
        warn!(
            "connections without TLS are accepted, too (--tls-optional): start the node without this option as soon as all \
             nodes and clients use TLS"
        );
    }
    let tls = tls.as_ref();
    let peer_thread = PeerThread::start().map_err(ServeError::Thread)?;
    let mut links = JoinSet::new();
    // A node may wait for days until its cluster takes it back or lets it join.
    if let Some(tls) = tls {
        links.spawn(tls::watch(Arc::clone(tls)));
    }
    let Opened { listeners, identity, start, wal, durable, report } = loop {
        match open(&config, tls, stop.as_mut()).await {
            Ok(Some(opened)) => break opened,
            Ok(None) => return Ok(()),
            Err(ServeError::Storage(damage)) if config.returns && damage.is_damage() => tokio::select! {
                () = &mut stop => return Ok(()),
                replaced = replacement::replace(&config, tls, damage) => replaced?,
            },
            Err(error) => return Err(error),
        }
    };
    let node = identity.node;
    let signer = config
        .sign_grants
        .as_deref()
        .map(|file| grant_signer::open(file, &identity.cluster_name, identity.restored.is_some()));
    let signer: Option<Arc<GrantSigner>> = signer.transpose()?;
    let (segments, frames, snapshot) = (report.segments, report.frames, report.snapshot.unwrap_or_default().index.0);
    let cluster = &identity.cluster_name;
    info!(%node, cluster, data = %config.data.display(), snapshot, segments, frames, "recovered the node's state from its data directory");
    if let Some(cut) = report.cut {
        let (bytes, offset) = (cut.bytes, cut.offset);
        warn!(file = %cut.path.display(), offset, bytes, "an unfinished write was cut off; nothing in it was acknowledged");
    }

    // At a later start the log has the node's address.
    let logged_addr = durable.log.members().get(node).map(|member| MemberAddress::of(&member.address).peer_addr);
    let others = durable.log.members().iter().filter(|(id, _)| *id != node).count();
    let strangers = strangers(&config.peers, &identity, durable.log.members());
    if !strangers.is_empty() {
        warn!(
            nodes = strangers,
            data = %config.data.display(),
            "--peers names nodes that are not members of the cluster of this data directory; this node does not wait for \
             them. To add a server, start it with --join. If this directory was founded by mistake and its cluster was never \
             used, stop this node, remove the content of the directory, and start it with the right --peers"
        );
    }
    let descriptors = Descriptors::divide(config.open_files, others)?;
    let space = Arc::clone(wal.space());
    if let Some(bytes) = config.min_free_bytes {
        space.demand(bytes);
    }
    space.check();
    let clients = listeners.clients.listen()?;
    let nodes = {
        let _there = peer_thread.handle.enter();
        listeners.nodes.listen()?
    };
    let admin = listeners.admin.map(Reserved::listen).transpose()?;
    let metrics = Metrics::new();
    let own_addresses = [&config.client_addr, &config.advertised_client_addr];
    let own_addresses = own_addresses.into_iter().chain(&config.admin_addr).chain(&config.advertised_admin_addr);
    let own_names = own_addresses.chain(&config.allowed_hosts).map(String::as_str);
    let site = Site::new(own_names, &config.allowed_origins);
    let roster = Roster {
        cluster: identity.cluster,
        cluster_name: identity.cluster_name.clone(),
        node,
        incarnation: identity.incarnation,
        start,
        peer_addr: config.named_peer_addr().or(logged_addr).unwrap_or_default(),
        client_addr: config.advertised_client_addr,
        admin_addr: config.advertised_admin_addr,
        peer_addrs: config.peers,
        tls: tls.cloned(),
    };
    let pinned = PinnedPeers::load(&config.data)?;
    let (peers, to_dial) = Peers::new(roster, pinned, Arc::clone(wal.snapshots()), Arc::clone(&metrics));
    let (core, events) = Core::channel();
    let hub = Hub::new(config.watch_history, &metrics);
    let (writer, writer_ends) =
        core::start_snapshot_writer(core.clone(), Arc::clone(wal.snapshots()), Arc::clone(&metrics))
            .map_err(ServeError::Thread)?;
    links.spawn(async move { writer_ends.await.expect("the thread that writes snapshots has panicked") });
    let audit =
        config.audit.map(|directory| audit::start(SystemDisk::shared(), &directory, &identity, Arc::clone(&metrics)));
    let (audit, trail, auditor) = audit
        .transpose()?
        .map_or((None, None, None), |(audit, trail, thread)| (Some(audit), Some(trail), Some(thread)));
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
        quotas: config.quotas,
        observer: observer.map(|recorder| Box::new(recorder) as Box<dyn core::Observer>),
        audit: trail,
        watches: Some(Feed::new(&hub)),
    };
    let thread = core::start(events, parts).map_err(ServeError::Thread)?;
    let mut ended = tokio::task::spawn_blocking(move || thread.join());

    let (forwarding, forwarded) = mpsc::channel(FORWARDED_AT_ONCE);
    let accept = peers::accept(Arc::clone(&peers), core.clone(), nodes, descriptors, forwarding);
    links.spawn_on(accept, &peer_thread.handle);
    links.spawn_on(peers::dial_all(Arc::clone(&peers), to_dial), &peer_thread.handle);
    links.spawn(watch_space(Arc::clone(&space)));
    links.spawn(Arc::clone(&hub).dispatch());
    if let Some(signer) = &signer {
        links.spawn(grant_signer::watch(Arc::clone(signer)));
    }
    let (stopping, stopped) = watch::channel(false);
    // Clients leave connections to operators, if these have an address of their own.
    let for_admin = if admin.is_some() { (descriptors.clients / 8).clamp(1, ADMIN_CONNECTIONS) } else { 0 };
    let limit = |connections, of| ConnectionLimit::new(connections, of, &metrics.connections_refused);
    let (permits, admin_permits) = (limit(descriptors.clients - for_admin, "clients"), limit(for_admin, "operators"));
    let forwarding_permits =
        ConnectionLimit::new(descriptors.forwarding, "forwarded requests", &metrics.peer_connections_refused);
    let accounts = Accounts::new(config.client_limits, descriptors.clients - for_admin, &metrics);
    let setup = Setup {
        site,
        signer,
        audit,
        accounts,
        hub: Arc::clone(&hub),
        forwarding: forwarding_permits.clone(),
        stop: stopped.clone(),
    };
    let app = App::new(core.clone(), peers, metrics, space, setup);
    let mut listening = JoinSet::new();
    let at = if admin.is_some() { Listener::Clients } else { Listener::Only };
    listening.spawn(http::listen(app.at(at), clients, permits, stopped.clone()));
    listening.spawn(http::accept_forwarded(app.clone(), forwarded, forwarding_permits, stopped.clone()));
    if let Some(admin) = admin {
        listening.spawn(http::listen(app.at(Listener::Administration), admin, admin_permits, stopped));
    }
    info!(
        %node, clients = config.client_addr, operators = config.admin_addr, nodes = config.peer_addr, tls = tls.is_some(),
        "listening for clients and nodes"
    );

    tokio::select! {
        () = &mut stop => {
            info!("asked to stop; a leader transfers leadership first");
            // The core of a leader first transfers leadership; until it ends, this node redirects
            // clients.
            core.deliver(Event::Stop);
            let ended = ended.await;
            hub.close();
            let _ = stopping.send(true);
            while listening.join_next().await.is_some() {}
            let outcome = outcome(ended);
            if let (Ok(()), Some(auditor)) = (&outcome, auditor) {
                // The core has told it to end.
                let _ = spawn_blocking(move || auditor.join()).await;
            }
            outcome
        }
        joined = &mut ended => outcome(joined),
        // What runs beside the core ends with the node. Without it, the node would be a member that sends no messages,
        // takes no snapshots, or serves no client.
        Some(Err(_)) = links.join_next() => Err(ServeError::Panicked),
        Some(Err(_)) = listening.join_next() => Err(ServeError::Panicked),
    }
}

/// A node's addresses and data directory, ready to use.
struct Opened {
    listeners: Listeners,
    identity: Identity,
    start: Start,
    wal: Wal<LockTable>,
    durable: Durable<LockTable>,
    report: RecoveryReport,
}

/// Opens the node's data directory; claims an empty one for the node that the command line names.
/// Returns `None` if the node was asked to stop before it could join a cluster.
async fn open(
    config: &ServerConfig,
    tls: Option<&Arc<Tls>>,
    stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<Opened>, ServeError> {
    let directory = LockedDir::open(&config.data)?;
    if let (Some(tls), Some(found)) = (tls, directory.identity()) {
        let (cluster, _) = tls.identity();
        if cluster != found.cluster_name {
            return Err(ServeError::Config(format!(
                "this node's certificate is of cluster `{cluster}`, and {} belongs to cluster `{}`: issue a certificate of \
                 that cluster (palisade cert init --cluster NAME, palisade cert node)",
                config.data.display(),
                found.cluster_name
            )));
        }
    }
    if directory.is_stepped()? {
        return Err(ServeError::Config(format!(
            "{} is the directory of a stepped node (palisade-conformance step-node), and cannot be served; give another --data",
            config.data.display()
        )));
    }
    // After the directory's lock, which tells more about a second process of this node than a port
    // in use does; before anything is written or asked.
    let listeners = Listeners::reserve(config).await?;
    let Some(identity) = bootstrap::identify(config, tls.map(Arc::as_ref), &directory, stop).await? else {
        return Ok(None);
    };
    let founders = identity.founders.iter().map(|(&id, address)| (id, Address::from(address.as_str())));
    let members = Members::founding(founders);
    let directory = directory.claim(&identity)?;
    directory.end_join()?;
    let identity = directory.identity().clone();
    // Durable before a peer learns of this process.
    let start = directory.record_start(rand::random())?;
    if identity.restored.is_some() {
        bootstrap::restore(config.restore.as_deref(), &directory, &members)?;
    }
    let blank = Durable::blank(LockTable::default(), members);
    let (wal, durable, report) = Wal::open_with_segments_of(config.segment_bytes, directory, blank)?;
    Ok(Some(Opened { listeners, identity, start, wal, durable, report }))
}

type Joined = Result<std::thread::Result<Result<(), StorageError>>, tokio::task::JoinError>;

fn outcome(joined: Joined) -> Result<(), ServeError> {
    match joined {
        Ok(Ok(result)) => result.map_err(ServeError::Storage),
        Ok(Err(_)) | Err(_) => Err(ServeError::Panicked),
    }
}

/// Measures the free space at intervals, on a blocking thread: the call may be slow, and must not
/// delay sockets.
async fn watch_space(space: Arc<Space>) {
    loop {
        sleep(SPACE_CHECKED_EVERY).await;
        let space = Arc::clone(&space);
        // If the runtime is shutting down, no task waits for the result.
        let _ = spawn_blocking(move || space.check()).await;
    }
}
