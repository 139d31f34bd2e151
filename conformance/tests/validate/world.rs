//! A cluster without processes that records itself: nodes, disks, a network that delays, loses and
//! reorders, and a counter as the clock. It is deterministic for a seed, so that a test may edit
//! the recordings.
//!
//! It has a driver of its own, which can be given a bug: the validator must find the bug in the
//! recordings.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade::core::Observer;
use palisade::recording::{Header, Reading, Record, Recorder, format};
use palisade_spec::lock::{
    Claim, Command, Key, Keys, LockRequest, LockTable, Mode, Opening, Owner, Principal, Proof, Ttl,
};
use palisade_spec::raft::{
    Body, Config, Durable, HardState, Input, Members, Message, Node, NodeId, Output, Payload, Persist, RequestId, Role,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

/// The driver's bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// No bug.
    None,
    /// Sends all messages before it writes.
    SendsBeforeItWrites,
    /// Reports writes of terms and votes as done without doing them.
    ForgetsVotes,
    /// Reports writes of entries as done, and loses the last entry in a crash.
    LosesAnEntry,
    /// Counts every moment twice.
    FastClock,
}

pub(crate) struct World {
    pub(crate) directory: TempDir,
    bug: Bug,
    random: SmallRng,
    now: Arc<AtomicU64>,
    disks: BTreeMap<NodeId, Durable<LockTable>>,
    running: BTreeMap<NodeId, Running>,
    network: Vec<Message<LockTable>>,
    /// The id of the last request to any node.
    requests: RequestId,
    verbose: bool,
}

struct Running {
    node: Node<LockTable>,
    recorder: Recorder,
    began: u64,
    reported_ms: u64,
}

const MILLISECOND: u64 = 1_000_000;

impl World {
    pub(crate) fn new(seed: u64, bug: Bug, verbose: bool) -> World {
        let ids = [1, 2, 3].map(NodeId);
        let blank = Durable::blank(LockTable::default(), Members::of(ids));
        let mut world = World {
            directory: tempfile::tempdir().unwrap(),
            bug,
            random: SmallRng::seed_from_u64(seed),
            now: Arc::new(AtomicU64::new(1_000 * MILLISECOND)),
            disks: ids.map(|id| (id, blank.clone())).into(),
            running: BTreeMap::new(),
            network: Vec::new(),
            requests: RequestId(0),
            verbose,
        };
        ids.into_iter().for_each(|id| world.start(id));
        world
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn start(&mut self, id: NodeId) {
        let began = self.now.fetch_add(1_000, Ordering::Relaxed);
        let config = Config::new(id);
        let header = Header { version: "test".into(), cluster: 7, incarnation: u64::from(id.0), config, began };
        let file = File::create_new(self.directory.path().join(format!("node-{id}-{began:020}.recording"))).unwrap();
        let clock = Arc::clone(&self.now);
        let clock = move || clock.fetch_add(1_000, Ordering::Relaxed);
        let mut recorder = Recorder::new(&header, file, clock, self.verbose);
        let durable = self.disks[&id].clone();
        recorder.recovered(&durable);
        let node = Node::recover(Config::new(id), durable);
        self.running.insert(id, Running { node, recorder, began: self.now(), reported_ms: 0 });
    }

    /// Makes this many random events happen.
    pub(crate) fn run(&mut self, actions: u32) {
        for _ in 0..actions {
            self.now.fetch_add(self.random.random_range(0..3 * MILLISECOND), Ordering::Relaxed);
            self.act();
        }
    }

    fn act(&mut self) {
        let id = NodeId(self.random.random_range(1..=3));
        match self.random.random_range(0..1000) {
            0..600 if !self.network.is_empty() => {
                let position = self.random.random_range(0..self.network.len());
                let message = self.network.swap_remove(position);
                self.step(message.to, Input::Receive(message));
            }
            600..650 if !self.network.is_empty() => {
                let position = self.random.random_range(0..self.network.len());
                self.network.swap_remove(position);
            }
            650..670 => self.step(id, Input::ElectionTimeout),
            670..760 => self.step(id, Input::HeartbeatTimeout),
            760..900 => {
                if let Some(command) = self.command(id) {
                    self.requests.0 += 1;
                    self.step(id, Input::Propose { id: self.requests, payloads: vec![Payload::Command(command)] });
                }
            }
            900..905 => self.crash(id),
            905..910 => self.compact(id),
            _ => {}
        }
    }

    /// A request that a client of a leader could make.
    fn command(&mut self, id: NodeId) -> Option<Command> {
        let node = &self.running[&id].node;
        let Role::Leader(_) = node.role() else { return None };
        let table = node.machine();
        let some = self.random.random_range(0..table.sessions().len().max(1));
        let Some(&session) = table.sessions().keys().nth(some) else {
            let opening = Opening {
                proof: Proof::from(u128::from(self.random.random::<u64>())),
                owner: Owner::from("w"),
                principal: Principal::default(),
                ttl: Ttl(400),
            };
            return Some(Command::Open { opening });
        };
        Some(match self.random.random_range(0..7) {
            0 => Command::Open {
                opening: Opening {
                    proof: Proof::from(u128::from(self.random.random::<u64>())),
                    owner: Owner::from("w"),
                    principal: Principal::default(),
                    ttl: Ttl(400),
                },
            },
            1 => Command::KeepAlive { sessions: [session].into() },
            2 | 3 => Command::Acquire { session, sequence: None, request: self.request() },
            4 => {
                let (key, lock) = table.locks().iter().next()?;
                let holder = lock.first_holder()?;
                let (session, key, token) = (holder.session, key.clone(), holder.token);
                Command::Proclaim { session, sequence: None, key, token, value: "new".into() }
            }
            _ => {
                let (key, lock) = table.locks().iter().next()?;
                let holder = lock.first_holder()?;
                let (keys, claim) = (holder.keys(key), Claim::Held(holder.token));
                Command::Release { session: holder.session, sequence: None, keys, claim }
            }
        })
    }

    /// A request for one key or two, in any mode, that waits.
    fn request(&mut self) -> LockRequest {
        let keys = [&["a"][..], &["b"], &["c"], &["a", "b"], &["b", "c"]][self.random.random_range(0..5)];
        let keys = Keys::new(keys.iter().copied().map(Key::from).collect()).unwrap();
        let modes = [Mode::EXCLUSIVE, Mode::EXCLUSIVE, Mode::SHARED, Mode::semaphore(1, 2).unwrap()];
        let mode = modes[self.random.random_range(0..modes.len())];
        let (reentrant, value) = (self.random.random_bool(0.2), self.random.random_bool(0.3).then(|| "old".into()));
        LockRequest { keys, mode, max_queue: LockRequest::ANY_QUEUE, reentrant, value }
    }

    fn crash(&mut self, id: NodeId) {
        self.running.remove(&id);
        let disk = self.disks.get_mut(&id).unwrap();
        let last = disk.log.last().index;
        if self.bug == Bug::LosesAnEntry && last > disk.snapshot.last.index.max(disk.log.base().index) {
            disk.log.truncate(last);
        }
        self.start(id);
    }

    fn compact(&mut self, id: NodeId) {
        let node = &self.running[&id].node;
        let through = node.commit();
        let disk = self.disks.get_mut(&id).unwrap();
        if through > disk.snapshot.last.index {
            disk.snapshot = disk.snapshot_at(through);
            self.step(id, Input::Compact(through));
        }
    }

    pub(crate) fn step(&mut self, id: NodeId, input: Input<LockTable>) {
        let now = self.now();
        let running = self.running.get_mut(&id).unwrap();
        let passed = (now - running.began) / MILLISECOND * if self.bug == Bug::FastClock { 2 } else { 1 };
        let elapsed = passed - running.reported_ms;
        running.reported_ms = passed;
        for input in [Input::ClockAdvanced(elapsed), input] {
            let running = self.running.get_mut(&id).unwrap();
            let mut outputs = Vec::new();
            running.node.step(input.clone(), &mut outputs);
            running.recorder.stepped(&running.node, &input, &outputs);
            running.recorder.executing();
            self.execute(id, outputs);
        }
    }

    fn execute(&mut self, id: NodeId, mut outputs: Vec<Output<LockTable>>) {
        if self.bug == Bug::SendsBeforeItWrites {
            let sent = outputs.extract_if(.., |output| matches!(output, Output::Send(_)));
            for output in sent.collect::<Vec<_>>() {
                // The network delivers at once.
                let Output::Send(message) = output else { unreachable!() };
                self.step(message.to, Input::Receive(message));
            }
        }
        for output in outputs {
            match output {
                Output::Persist(write) => self.write(id, write),
                Output::Send(message) => self.network.push(message),
                Output::SendSnapshot { to, term } => {
                    let snapshot = Arc::new(self.disks[&id].snapshot.clone());
                    self.network.push(Message { from: id, to, term, body: Body::InstallSnapshot { snapshot } });
                }
                _ => {}
            }
        }
    }

    fn write(&mut self, id: NodeId, write: Persist<LockTable>) {
        let disk = self.disks.get_mut(&id).unwrap();
        if !(self.bug == Bug::ForgetsVotes && matches!(write, Persist::HardState(HardState { vote: Some(_), .. }))) {
            disk.apply(&write);
        }
        self.running.get_mut(&id).unwrap().recorder.written(&[write]);
    }

    /// The recordings, in the order in which they began.
    pub(crate) fn recordings(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.directory.path()).unwrap();
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }
}

/// All records of a recording.
pub(crate) fn read(path: &Path) -> Vec<Record> {
    let (header, mut reading) = Reading::open(path).unwrap().unwrap();
    let mut records = vec![Record::Began(header)];
    while let Some(record) = reading.record().unwrap() {
        records.push(record);
    }
    records
}

/// Edits a recording.
pub(crate) fn edit(path: &Path, change: impl FnOnce(&mut Vec<Record>)) {
    let mut records = read(path);
    change(&mut records);
    std::fs::write(path, format::whole(&records)).unwrap();
}
