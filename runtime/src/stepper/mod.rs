//! A node on strings: for tests that step live nodes as a model was stepped.
//!
//! A puppet is a server's process with a server's parts: the node, the driver that carries out what it asks for, the
//! write-ahead log in real files, the connections to its peers with their handshakes and frames. What it lacks is will: it
//! has no timers, serves no clients, and takes no input until somebody pulls a [string](protocol). Then the driver steps the
//! node exactly once and carries out the outputs; and the puppet tells what was done, what the node is now, and what a
//! start would find on the disk. It can be told to stand still in the middle, between two messages, or in a write, to be
//! killed there.
//!
//! What is not exercised so is what a round decides: what is drained together, in which order it is stepped, and when timers
//! run out. None of it can break safety (docs/protocol.md, "What the driver may decide").
//!
//! A puppet listens on the loopback device only, and believes in no address elsewhere. Its directory is marked: no server
//! serves from it; and a puppet takes no directory that a server has founded.

mod effect_log;
mod observed_disk;
mod observed_transport;
pub mod protocol;

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Config, Durable, Input, Members, Node, Output, Persist, Snapshot};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::net::TcpListener;

use self::effect_log::EffectLog;
use self::observed_disk::{ObservedDisk, ReadOnlyDisk};
use self::observed_transport::ObservedTransport;
use self::protocol::{Answer, Now, Request, Setting, Stepped, Stop};
use crate::core::{Core, CoreInbox, Driver, DriverParts, Observer, SnapshotPolicy, SnapshotWriter, Timing};
use crate::descriptors::Descriptors;
use crate::limits;
use crate::metrics::Metrics;
use crate::peers::{self, Peers, PinnedPeers, Roster};
use crate::storage::{
    Disk, Identity, Incarnation, LockedDir, SnapshotInfo, Snapshots, StorageError, SystemDisk, Wal, files,
};
use crate::sync::Mutex;

/// The file that marks a puppet's directory.
const MARK: &str = "stepper";
/// How long a message that is to be taken may still be on its way through the socket.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a directory is a puppet's.
pub fn owns(directory: &Path) -> bool {
    directory.join(MARK).exists()
}

/// Why a puppet cannot be played with, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum StepperError {
    /// The directory is a server's.
    #[error("{} is the directory of a node that serves: a stepper would make it say what it never said", .0.display())]
    Served(PathBuf),
    /// Somebody else could be reached.
    #[error("`{0}` is not an address of this machine's own, and a stepper has no business elsewhere")]
    Elsewhere(String),
    /// The first line says nothing that can be understood.
    #[error("the setting makes no sense: {0}")]
    Setting(#[source] serde_json::Error),
    /// There is nobody to be played by.
    #[error("the strings are cut: {0}")]
    Strings(#[source] io::Error),
    /// The network.
    #[error("cannot listen: {0}")]
    Listen(#[source] io::Error),
    /// The disk.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl StepperError {
    /// The process's exit code, after sysexits.
    pub fn exit_code(&self) -> u8 {
        match self {
            StepperError::Served(_) | StepperError::Elsewhere(_) | StepperError::Setting(_) => 78,
            StepperError::Strings(_) => 65,
            StepperError::Listen(_) => 71,
            StepperError::Storage(_) => 74,
        }
    }
}

/// Plays the node of a directory as standard input says, until that ends.
///
/// # Errors
/// See [`StepperError`].
pub fn run(directory: &Path) -> Result<(), StepperError> {
    let effects = Arc::new(EffectLog::new());
    let lines = read_lines(Arc::clone(&effects)).map_err(StepperError::Strings)?;
    let Ok(first) = lines.recv() else { return Ok(()) };
    let setting = serde_json::from_str(&first).map_err(StepperError::Setting)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(StepperError::Listen)?;
    let mut stepper = Stepper::begin(directory, setting, effects, runtime)?;
    stepper.say(&Answer::Ready { peer_addr: stepper.peer_addr.to_string(), self_now: Box::new(stepper.now()?) })?;
    for line in lines {
        let answer = match serde_json::from_str(&line) {
            Ok(request) => stepper.request(request)?,
            Err(error) => Answer::Cannot(format!("that makes no sense: {error}")),
        };
        stepper.say(&answer)?;
    }
    Ok(())
}

/// Reads the strings beside the puppet: it notices their end wherever it stands.
fn read_lines(effects: Arc<EffectLog>) -> io::Result<mpsc::Receiver<String>> {
    let (pulled, lines) = mpsc::channel();
    let read = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if pulled.send(line).is_err() {
                break;
            }
        }
        effects.cut();
    };
    std::thread::Builder::new().name("strings".into()).spawn(read)?;
    Ok(lines)
}

struct Stepper {
    driver: Driver<ObservedTransport>,
    inbox: CoreInbox,
    effects: Arc<EffectLog>,
    seen: Arc<Mutex<Seen>>,
    written: Arc<Mutex<Option<Result<SnapshotInfo, StorageError>>>>,
    directory: PathBuf,
    identity: Identity,
    blank: Durable<LockTable>,
    segment_bytes: u64,
    peer_addr: SocketAddr,
    /// Where the connections are served.
    _runtime: tokio::runtime::Runtime,
}

impl Stepper {
    fn begin(
        directory: &Path,
        setting: Setting,
        effects: Arc<EffectLog>,
        runtime: tokio::runtime::Runtime,
    ) -> Result<Stepper, StepperError> {
        for address in setting.founders.values().chain([&setting.peer_addr]) {
            stays_here(address)?;
        }
        let locked = LockedDir::open_on(Arc::new(ObservedDisk(Arc::clone(&effects))), directory)?;
        if locked.identity().is_some() && !owns(directory) {
            return Err(StepperError::Served(directory.to_owned()));
        }
        files::replace(&SystemDisk, &directory.join(MARK), directory, b"a stepper's: no node serves from here\n")?;
        let incarnation = Incarnation(setting.incarnation);
        let Setting { node, cluster, founders, machine, segment_bytes, .. } = setting;
        let Setting { max_batch, max_inflight, max_commits, .. } = setting;
        let members = Members::founding(founders.iter().map(|(&id, address)| (id, Address::from(address.as_str()))));
        let identity = Identity { cluster, node, incarnation, founders, restored: None };
        let blank = Durable::blank(machine, members);
        let (wal, durable, report) =
            Wal::open_with_segments_of(segment_bytes, locked.claim(&identity)?, blank.clone())?;

        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).map_err(StepperError::Listen)?;
        let peer_addr = listener.local_addr().map_err(StepperError::Listen)?;
        let metrics = Metrics::new();
        let roster = Roster {
            cluster,
            node,
            incarnation,
            client_addr: String::new(),
            peer_addr: setting.peer_addr,
            peer_addrs: identity.founders.clone(),
        };
        let acquaintances = PinnedPeers::load(directory)?;
        let (peers, to_dial) = Peers::new(roster, acquaintances, Arc::clone(wal.snapshots()), Arc::clone(&metrics));
        let (core, inbox) = Core::channel();
        let (seen, written) = (Arc::new(Mutex::new(Seen::default())), Arc::default());
        let writer = Scribe { snapshots: Arc::clone(wal.snapshots()), written: Arc::clone(&written) };
        let parts = DriverParts {
            config: Config { max_batch, max_inflight, max_commits, ..Config::new(node) },
            durable,
            wal,
            log_bytes: report.log_bytes,
            // That a founder waits until all others know it is the driver's decision, and all do here.
            founders: Vec::new(),
            timing: Timing::with_election_timeout(Duration::from_secs(1)),
            jitter: SmallRng::seed_from_u64(0),
            snapshots: SnapshotPolicy { log_bytes: u64::MAX, interval: Duration::MAX, margin: 0 },
            writer: Box::new(writer),
            transport: ObservedTransport { peers: Arc::clone(&peers), effects: Arc::clone(&effects) },
            view: Arc::clone(core.view()),
            metrics,
            max_sessions: limits::SESSIONS,
            observer: Some(Box::new(Watcher(Arc::clone(&seen)))),
        };
        let driver = Driver::new(parts, Instant::now());
        runtime.spawn(peers::accept(Arc::clone(&peers), core, listener, Descriptors::AT_EASE));
        runtime.spawn(peers::dial_all(Arc::clone(&peers), to_dial));
        let directory = directory.to_owned();
        Ok(Stepper {
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

    fn request(&mut self, request: Request) -> Result<Answer, StepperError> {
        match request {
            Request::Give { input: Input::Receive(_), .. } => Ok(Answer::Cannot("messages come from peers".into())),
            Request::Give { input, stop } => self.step(input, stop),
            Request::Receive { from, stop } => {
                let messages = self.inbox.messages_within(PATIENCE).unwrap_or_default();
                match <[_; 1]>::try_from(messages) {
                    Ok([message]) if message.from == from => self.step(Input::Receive(message), stop),
                    Ok([message]) => Ok(Answer::Cannot(format!("the next message is from node {}", message.from))),
                    Err(messages) => Ok(Answer::Cannot(format!("{} messages came at once", messages.len()))),
                }
            }
            Request::TakeSnapshot => {
                self.effects.begin(None);
                self.driver.take_snapshot();
                let Some(result) = self.written.lock().take() else {
                    return Ok(Answer::Cannot("nothing is applied that the newest snapshot does not include".into()));
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
        let input = input.expect("a request is a step");
        let effects = self.effects.effects();
        Ok(Answer::Stepped(Box::new(Stepped { input, outputs, effects, now: self.now()? })))
    }

    fn now(&self) -> Result<Now, StepperError> {
        // What goes on beside the core may remove a segment between a look at the directory and one at the segment.
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

    /// The disk, as a start would find it.
    fn read_back(&self) -> Result<Durable<LockTable>, StorageError> {
        let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk);
        let directory = LockedDir::open_on(disk, &self.directory)?.claim(&self.identity)?;
        let (_, durable, _) = Wal::open_with_segments_of(self.segment_bytes, directory, self.blank.clone())?;
        Ok(durable)
    }

    fn say(&self, answer: &Answer) -> Result<(), StepperError> {
        let line = serde_json::to_string(answer).map_err(|error| StepperError::Strings(error.into()))?;
        let mut out = io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(StepperError::Strings)
    }
}

fn stays_here(address: &str) -> Result<(), StepperError> {
    match address.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(()),
        _ => Err(StepperError::Elsewhere(address.to_owned())),
    }
}

/// What the driver's node was given last, and what it asked for.
#[derive(Debug, Default)]
struct Seen {
    input: Option<Input<LockTable>>,
    outputs: Vec<String>,
}

struct Watcher(Arc<Mutex<Seen>>);

impl Observer for Watcher {
    fn recovered(&mut self, _: &Durable<LockTable>) {}

    fn stepped(&mut self, _: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]) {
        let outputs = outputs.iter().map(|output| format!("{output:?}")).collect();
        *self.0.lock() = Seen { input: Some(input.clone()), outputs };
    }

    fn written(&mut self, _: &[Persist<LockTable>]) {}
}

/// Writes snapshots at once, and tells the puppet.
#[derive(Debug)]
struct Scribe {
    snapshots: Arc<Snapshots>,
    written: Arc<Mutex<Option<Result<SnapshotInfo, StorageError>>>>,
}

impl SnapshotWriter for Scribe {
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
    fn a_puppet_stays_on_this_machine() {
        for address in ["127.0.0.1:7501", "[::1]:1"] {
            assert!(stays_here(address).is_ok());
        }
        for address in ["10.0.0.4:7501", "localhost:7501", "", "127.0.0.1"] {
            assert!(matches!(stays_here(address), Err(StepperError::Elsewhere(_))), "{address}");
        }
    }

    #[test]
    fn a_puppet_takes_no_directory_of_a_node_that_serves() {
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
        let refused = Stepper::begin(directory.path(), setting.clone(), Arc::new(EffectLog::new()), runtime());
        assert!(matches!(refused, Err(StepperError::Served(_))));
        assert!(!owns(directory.path()));
        let own = tempfile::tempdir().unwrap();
        assert!(Stepper::begin(own.path(), setting, Arc::new(EffectLog::new()), runtime()).is_ok());
        assert!(owns(own.path()));
    }
}
