//! The node of the process: it is built from the server's parts, and executes requests.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::core::{Core, CoreInbox, Driver, DriverParts, Observer, Quotas, SnapshotPolicy, SnapshotWriter, Timing};
use palisade::descriptors::Descriptors;
use palisade::metrics::Metrics;
use palisade::peers::{self, Peers, PinnedPeers, Roster};
use palisade::storage::{
    Disk, Identity, Incarnation, LayeredDisk, LockedDir, SnapshotInfo, Snapshots, Start, StorageError, SystemDisk, Wal,
};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Config, Durable, Input, Members, Node, Output, Persist, Snapshot};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::effect_log::EffectLog;
use super::error::StepperError;
use super::observed_disk::ObservedDisk;
use super::observed_transport::ObservedTransport;
use super::protocol::{Answer, Now, Request, Setting, Stepped, Stop};
use super::read_only_disk::ReadOnlyDisk;

/// How long a requested message may take to arrive through the socket.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(45);

/// The node, and the server's parts around it.
pub(super) struct SteppedNode {
    driver: Driver<ObservedTransport>,
    inbox: CoreInbox,
    effects: Arc<EffectLog>,
    seen: Arc<Mutex<Seen>>,
    written: Arc<Mutex<Option<Result<SnapshotInfo, StorageError>>>>,
    directory: PathBuf,
    identity: Identity,
    blank: Durable<LockTable>,
    segment_bytes: u64,
    pub(super) peer_addr: SocketAddr,
    /// Runs the connections to the peers.
    _runtime: tokio::runtime::Runtime,
}

impl SteppedNode {
    /// Starts the node of a directory, and its connections.
    pub(super) fn begin(
        directory: &Path,
        setting: Setting,
        effects: Arc<EffectLog>,
        runtime: tokio::runtime::Runtime,
    ) -> Result<SteppedNode, StepperError> {
        for address in setting.founders.values().chain([&setting.peer_addr]) {
            check_loopback(address)?;
        }
        let disk = LayeredDisk::new(ObservedDisk(Arc::clone(&effects)), SystemDisk::shared());
        let locked = LockedDir::open_on(Arc::new(disk), directory)?;
        if !locked.mark_stepped()? {
            return Err(StepperError::Served(directory.to_owned()));
        }
        let incarnation = Incarnation(setting.incarnation);
        let Setting { node, cluster, founders, machine, segment_bytes, .. } = setting;
        let Setting { max_batch, max_inflight, max_commits, .. } = setting;
        let members = Members::founding(founders.iter().map(|(&id, address)| (id, Address::from(address.as_str()))));
        let identity = Identity { incarnation, founders, ..Identity::of(cluster, node) };
        let blank = Durable::blank(machine, members);
        let (wal, durable, report) =
            Wal::open_with_segments_of(segment_bytes, locked.claim(&identity)?, blank.clone())?;

        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).map_err(StepperError::Listen)?;
        let peer_addr = listener.local_addr().map_err(StepperError::Listen)?;
        let metrics = Metrics::new();
        let roster = Roster {
            cluster,
            cluster_name: identity.cluster_name.clone(),
            node,
            incarnation,
            // The gate between stepped nodes introduces each of them with the same one for ever.
            start: Start::default(),
            client_addr: String::new(),
            admin_addr: None,
            peer_addr: setting.peer_addr,
            peer_addrs: identity.founders.clone(),
            tls: None,
        };
        let pinned = PinnedPeers::load(directory)?;
        let (peers, to_dial) = Peers::new(roster, pinned, Arc::clone(wal.snapshots()), Arc::clone(&metrics));
        let (core, inbox) = Core::channel();
        let (seen, written) = (Arc::new(Mutex::new(Seen::default())), Arc::default());
        let writer = SynchronousWriter { snapshots: Arc::clone(wal.snapshots()), written: Arc::clone(&written) };
        let parts = DriverParts {
            config: Config { max_batch, max_inflight, max_commits, ..Config::new(node) },
            durable,
            wal,
            log_bytes: report.log_bytes,
            // No founders: the driver would wait until all of them know this node, and here they
            // do.
            founders: Vec::new(),
            timing: Timing::with_election_timeout(Duration::from_secs(1)),
            jitter: SmallRng::seed_from_u64(0),
            snapshots: SnapshotPolicy { log_bytes: u64::MAX, interval: Duration::MAX, margin: 0 },
            writer: Box::new(writer),
            transport: ObservedTransport { peers: Arc::clone(&peers), effects: Arc::clone(&effects) },
            view: Arc::clone(core.view()),
            metrics,
            quotas: Quotas::default(),
            observer: Some(Box::new(StepObserver(Arc::clone(&seen)))),
            audit: None,
            watches: None,
        };
        let driver = Driver::new(parts, Instant::now());
        // It serves no clients, and so no requests that other nodes forward.
        let (forwarded, _) = mpsc::channel(1);
        runtime.spawn(peers::accept(Arc::clone(&peers), core, listener, Descriptors::AT_EASE, forwarded));
        runtime.spawn(peers::dial_all(Arc::clone(&peers), to_dial));
        let directory = directory.to_owned();
        Ok(SteppedNode {
            driver,
            inbox,
            effects,
            seen,
            written,
            directory,
            identity,
            blank,
            segment_bytes,
            peer_addr,
            _runtime: runtime,
        })
    }

    /// Executes a request.
    pub(super) fn request(&mut self, request: Request) -> Result<Answer, StepperError> {
        match request {
            Request::Give { input: Input::Receive(_), .. } => {
                Ok(Answer::Cannot("messages come from peers: use Receive".into()))
            }
            Request::Give { input, stop } => self.step(input, stop),
            Request::Receive { from, stop } => {
                let messages = self.inbox.messages_within(RECEIVE_TIMEOUT).unwrap_or_default();
                match <[_; 1]>::try_from(messages) {
                    Ok([message]) if message.from == from => self.step(Input::Receive(message), stop),
                    Ok([message]) => Ok(Answer::Cannot(format!("the next message is from node {}", message.from))),
                    Err(messages) if messages.is_empty() => {
                        Ok(Answer::Cannot(format!("no message from node {from} arrived within {RECEIVE_TIMEOUT:?}")))
                    }
                    Err(messages) => Ok(Answer::Cannot(format!("expected one message, {} arrived", messages.len()))),
                }
            }
            Request::TakeSnapshot => {
                self.effects.begin(None);
                self.driver.take_snapshot();
                let Some(result) = self.written.lock().take() else {
                    return Ok(Answer::Cannot("the newest snapshot already includes every applied entry".into()));
                };
                let failed = result.as_ref().err().map(ToString::to_string);
                self.driver.snapshot_written(result);
                Ok(match failed {
                    Some(error) => Answer::Cannot(error),
                    None => Answer::Taken(Box::new(self.now()?)),
                })
            }
        }
    }

    fn step(&mut self, input: Input<LockTable>, stop: Option<Stop>) -> Result<Answer, StepperError> {
        self.effects.begin(stop);
        self.driver.step_once(input)?;
        let Seen { input, outputs } = std::mem::take(&mut *self.seen.lock());
        let input = input.expect("the driver has shown its step to the observer");
        let effects = self.effects.effects();
        Ok(Answer::Stepped(Box::new(Stepped { input, outputs, effects, now: self.now()? })))
    }

    /// The state of the node and of its disk.
    pub(super) fn now(&self) -> Result<Now, StepperError> {
        // A background thread may remove a segment after the directory was listed and before the
        // segment is read.
        let mut attempts = 0..3;
        let disk = loop {
            match self.read_back() {
                Err(error) if attempts.next().is_none() => return Err(error.into()),
                Err(_) => {}
                Ok(disk) => break disk,
            }
        };
        Ok(Now { node: self.driver.node().clone(), disk })
    }

    /// What a restart would recover from the disk.
    fn read_back(&self) -> Result<Durable<LockTable>, StorageError> {
        let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk);
        let directory = LockedDir::open_on(disk, &self.directory)?.claim(&self.identity)?;
        let (_, durable, _) = Wal::open_with_segments_of(self.segment_bytes, directory, self.blank.clone())?;
        Ok(durable)
    }

    /// Writes an answer to standard output.
    pub(super) fn answer(&self, answer: &Answer) -> Result<(), StepperError> {
        let line = serde_json::to_string(answer).map_err(|error| StepperError::Stdio(error.into()))?;
        let mut out = io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(StepperError::Stdio)
    }
}

fn check_loopback(address: &str) -> Result<(), StepperError> {
    match address.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(()),
        _ => Err(StepperError::NotLoopback(address.to_owned())),
    }
}

/// The last input of the driver's node, and the node's outputs.
#[derive(Debug, Default)]
struct Seen {
    input: Option<Input<LockTable>>,
    outputs: Vec<String>,
}

struct StepObserver(Arc<Mutex<Seen>>);

impl Observer for StepObserver {
    fn recovered(&mut self, _: &Durable<LockTable>) {}

    fn stepped(&mut self, _: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]) {
        let outputs = outputs.iter().map(|output| format!("{output:?}")).collect();
        *self.0.lock() = Seen { input: Some(input.clone()), outputs };
    }

    fn written(&mut self, _: &[Persist<LockTable>]) {}
}

/// Writes snapshots synchronously, and leaves the result to the stepper.
#[derive(Debug)]
struct SynchronousWriter {
    snapshots: Arc<Snapshots>,
    written: Arc<Mutex<Option<Result<SnapshotInfo, StorageError>>>>,
}

impl SnapshotWriter for SynchronousWriter {
    fn begin(&mut self, snapshot: Snapshot<LockTable>) -> bool {
        *self.written.lock() = Some(self.snapshots.write(&snapshot));
        true
    }
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::NodeId;

    use super::*;

    #[test]
    fn only_loopback_addresses_are_accepted() {
        for address in ["127.0.0.1:7501", "[::1]:1"] {
            assert!(check_loopback(address).is_ok());
        }
        for address in ["10.0.0.4:7501", "localhost:7501", "", "127.0.0.1"] {
            assert!(matches!(check_loopback(address), Err(StepperError::NotLoopback(_))), "{address}");
        }
    }

    #[test]
    fn a_servers_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity::of(7, NodeId(1));
        drop(LockedDir::open(directory.path()).unwrap().claim(&identity).unwrap());
        let setting = Setting {
            node: NodeId(1),
            cluster: 7,
            incarnation: 0,
            peer_addr: "127.0.0.1:1".into(),
            founders: [(NodeId(1), "127.0.0.1:1".into())].into(),
            machine: LockTable::default(),
            max_batch: 1,
            max_inflight: 1,
            max_commits: 1,
            segment_bytes: 4096,
        };
        let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let refused = SteppedNode::begin(directory.path(), setting.clone(), Arc::new(EffectLog::new()), runtime());
        assert!(matches!(refused, Err(StepperError::Served(_))));
        assert!(!LockedDir::open(directory.path()).unwrap().is_stepped().unwrap());
        let own = tempfile::tempdir().unwrap();
        drop(SteppedNode::begin(own.path(), setting, Arc::new(EffectLog::new()), runtime()).unwrap());
        assert!(LockedDir::open(own.path()).unwrap().is_stepped().unwrap());
    }
}
