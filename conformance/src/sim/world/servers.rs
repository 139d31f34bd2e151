//! Servers: how a process starts, how the effects of a driver iteration reach the world, and how a
//! process ends.

use palisade_spec::invariants::Property;
use palisade_spec::violated;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use palisade::core::{Batch, Driver, DriverParts, Event, Quotas, SharedView, SnapshotWriter};
use palisade::metrics::Metrics;
use palisade::storage::{Identity, Incarnation, LockedDir, RecoveryReport, Snapshots, StorageError, Wal};
use palisade::watch::{Feed, Hub};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Config, Durable, Members, Message, Node, NodeId, Snapshot};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::call::CallId;
use super::super::clock::Clock;
use super::super::disk::MemoryDisk;
use super::super::event_log::Note;
use super::super::host::{CrashPoint, Done, Host};
use super::super::judge::JudgeObserver;
use super::super::network::{Wire, message_delays};
use super::super::plan::Plan;
use super::{EventKind, World};

/// Interval between checks of the free disk space, as in the server.
const SPACE_CHECKED_EVERY: Duration = Duration::from_secs(1);
/// The data directory.
const DIRECTORY: &str = "/data";

/// One machine of the cluster.
pub(super) struct Server {
    pub(super) identity: Identity,
    pub(super) host: Host,
    pub(super) disk: MemoryDisk,
    clock: Clock,
    jitter: u64,
    pub(super) process: Option<Process>,
    /// Counts of disk faults before the process started. A later fault may be the cause of the
    /// process's end, even if the failure shows only when the core waits for the failed work.
    before: (u64, u64),
    /// Number of starts.
    boot: u64,
    /// How the process dies next.
    pub(super) death: Death,
    pub(super) fitness: Fitness,
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// The process alone dies: the operating system keeps its writes.
    Killed,
    /// The machine loses power.
    PowerFailure,
}

/// Whether a server can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fitness {
    /// The server can start.
    Sound,
    /// This file is damaged, and the server has not read it yet.
    Damaged(String),
    /// The server refused to start on the damaged file, and never starts again.
    Refused,
    /// The server was removed from the cluster.
    Retired,
}

/// A process on a machine.
pub(super) struct Process {
    pub(super) driver: Driver<Wire>,
    pub(super) snapshots: Arc<Snapshots>,
    /// Where watchers find the node's events.
    pub(super) watches: Arc<Hub>,
    inbox: Batch,
    wake_at: Duration,
    /// The process does not run its driver before this time.
    busy_until: Duration,
    /// Time of the next check of the free disk space.
    checks_space_at: Duration,
}

/// Schedules the writing of snapshots as a later event.
#[derive(Debug)]
struct Later(Host);

impl SnapshotWriter for Later {
    fn begin(&mut self, snapshot: Snapshot<LockTable>) -> bool {
        self.0.write_snapshot(snapshot);
        true
    }
}

impl Server {
    /// The node, if its process runs.
    pub(super) fn node(&self) -> Option<&Node<LockTable>> {
        self.process.as_ref().map(|process| process.driver.node())
    }

    pub(super) fn boot(&self) -> u64 {
        self.boot
    }

    /// Whether this process still runs and has a caller waiting for the answer to `call`.
    pub(super) fn waits(&self, boot: u64, call: CallId) -> bool {
        self.runs(boot) && self.host.is_open(call)
    }

    /// Whether this process still runs.
    pub(super) fn runs(&self, boot: u64) -> bool {
        self.process.is_some() && self.boot == boot
    }

    /// Whether the process is down although its server can start.
    pub(super) fn is_away(&self) -> bool {
        self.process.is_none() && matches!(self.fitness, Fitness::Sound)
    }

    fn open(&self, plan: &Plan) -> Result<(Wal<LockTable>, Durable<LockTable>, RecoveryReport), StorageError> {
        let directory = LockedDir::open_on(self.disk.shared(), DIRECTORY)?.claim(&self.identity)?;
        let founders = self.identity.founders.iter().map(|(&id, address)| (id, Address::from(address.as_str())));
        let blank = Durable::blank(LockTable::default(), Members::founding(founders));
        Wal::open_with_segments_of(plan.segment_bytes, directory, blank)
    }
}

impl World {
    /// Adds a machine with an empty disk: a founder, or, if `founders` is empty, a server that
    /// joins later.
    pub(super) fn add_server(&mut self, id: NodeId, founders: &[NodeId]) {
        let founders: BTreeMap<NodeId, String> = founders.iter().map(|id| (*id, format!("node-{id}:1"))).collect();
        let incarnation = Incarnation(self.rng.random());
        let identity = Identity { incarnation, founders, ..Identity::of(0xC1, id) };
        let host = Host::default();
        let server = Server {
            identity,
            disk: MemoryDisk::new(host.clone(), self.rng.random()),
            host,
            clock: Clock::new(self.zero, &mut self.rng),
            jitter: self.rng.random(),
            process: None,
            before: (0, 0),
            boot: 0,
            death: Death::Killed,
            fitness: Fitness::Sound,
        };
        self.servers.insert(id, server);
    }

    /// Gives the machine of a server that lost its log to the next generation `by`, which starts
    /// empty. If the disk fails, the operator retries at its next turn.
    pub(super) fn return_with_empty_disk(&mut self, lost: NodeId, by: NodeId) {
        let drawn = Incarnation(self.rng.random());
        let server = self.servers.get_mut(&lost).expect("it has a machine");
        server.host.power_on();
        let before = counts(server);
        let set_aside = LockedDir::open_on(server.disk.shared(), DIRECTORY).and_then(|mut directory| {
            // An earlier attempt may have failed late, after the directory took the next
            // generation's identity.
            if directory.identity().is_some_and(|identity| identity.node == lost) {
                let incarnation = directory.begin_return(drawn)?;
                directory.complete_return(incarnation)?;
            }
            Ok(directory.identity().expect("it has one").incarnation)
        });
        let incarnation = match set_aside {
            Ok(incarnation) => incarnation,
            Err(error) if before != counts(server) => {
                self.tally.disk_stops += 1;
                self.harmed_at = self.now;
                return self.record(format!("node {lost} cannot set its files aside: {error}"));
            }
            Err(error) => {
                let check = violated!(Property::LostLogCanBeSetAside, "node {lost}: {error}");
                return self.judge.lock().note(check);
            }
        };
        let mut server = self.servers.remove(&lost).expect("it was just there");
        server.identity = Identity { node: by, incarnation, founders: BTreeMap::new(), ..server.identity };
        server.fitness = Fitness::Sound;
        self.servers.insert(by, server);
        // The lost server remains as a retired identity.
        self.add_server(lost, &[]);
        self.servers.get_mut(&lost).expect("it was just added").fitness = Fitness::Retired;
        self.tally.returned += 1;
        self.harmed_at = self.now;
        self.record(format!("server {lost} returns as {by}, with an empty disk"));
        self.after(Duration::from_millis(1), EventKind::Start(by));
    }

    /// Starts a process, if its server can start.
    pub(super) fn start(&mut self, id: NodeId) {
        let (plan, now) = (self.plan, self.now);
        let dies_at_once = self.storms && self.rng.random_bool(0.08);
        let crash_point = CrashPoint { left: self.rng.random_range(1..40), of_disk: true };
        let Some(server) = self.servers.get_mut(&id) else { return };
        if server.process.is_some() || matches!(server.fitness, Fitness::Refused | Fitness::Retired) {
            return;
        }
        self.tally.starts += 1;
        server.boot += 1;
        server.host.power_on();
        if dies_at_once {
            server.host.set_crash_point(crash_point);
        }
        server.before = counts(server);
        let opened = server.open(&plan);
        if server.host.is_off() {
            drop(opened);
            self.tally.in_the_middle += 1;
            return self.crashed(id);
        }
        let harmed = || server.before != counts(server);
        let (wal, durable, report) = match opened {
            Ok(opened) => opened,
            Err(error) if matches!(&server.fitness, Fitness::Damaged(file) if error.to_string().contains(file)) => {
                server.fitness = Fitness::Refused;
                self.tally.rotten += 1;
                return self.record(format!("node {id} refuses to start: {error}"));
            }
            Err(error) if harmed() => {
                self.tally.disk_stops += 1;
                self.harmed_at = self.now;
                self.record(format!("node {id} cannot start: {error}"));
                let pause = self.milliseconds(50..1000);
                return self.after(pause, EventKind::Start(id));
            }
            Err(error) => {
                let check = violated!(Property::SoundDiskIsAccepted, "node {id} does not start: {error}");
                return self.judge.lock().note(check);
            }
        };
        if let Fitness::Damaged(_) = server.fitness {
            // The recovered state was compared with the durable one: the damage lay where nothing
            // is read.
            server.fitness = Fitness::Sound;
            self.tally.rot_harmless += 1;
        }
        let founders = server.identity.founders.keys().copied().filter(|&founder| founder != id).collect();
        let snapshots = Arc::clone(wal.snapshots());
        let mut config = Config::new(id);
        config.max_batch = plan.max_batch;
        (config.max_inflight, config.max_commits) = (plan.max_inflight, plan.max_commits);
        let metrics = Metrics::new();
        let watches = Hub::new(plan.watch_bytes, &metrics);
        let parts = DriverParts {
            config,
            durable,
            wal,
            log_bytes: report.log_bytes,
            founders,
            timing: plan.timing,
            jitter: SmallRng::seed_from_u64(server.jitter ^ server.boot),
            snapshots: plan.policy,
            writer: Box::new(Later(server.host.clone())),
            transport: Wire {
                node: id,
                host: server.host.clone(),
                links: self.links.clone(),
                judge: Arc::clone(&self.judge),
            },
            view: Arc::new(SharedView::default()),
            metrics,
            quotas: Quotas::default(),
            observer: Some(Box::new(JudgeObserver { node: id, judge: Arc::clone(&self.judge) })),
            audit: None,
            watches: Some(Feed::new(&watches)),
        };
        let driver = Driver::new(parts, server.clock.at(now));
        let (boot, last) = (server.boot, driver.node().log().last().index);
        let process = Process {
            driver,
            snapshots,
            watches,
            inbox: Batch::default(),
            wake_at: now,
            busy_until: now,
            checks_space_at: now,
        };
        server.process = Some(process);
        self.links.set_up(id, true);
        self.record(format!("node {id} starts, with a log up to {last}"));
        self.after(Duration::ZERO, EventKind::Wake(id, boot));
    }

    /// Puts work into a process's inbox and wakes the process.
    pub(super) fn enqueue(&mut self, id: NodeId, put: impl FnOnce(&mut Batch)) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(&id) else { return };
        let boot = server.boot;
        let Some(process) = &mut server.process else { return };
        put(&mut process.inbox);
        let at = process.busy_until.max(now);
        if at < process.wake_at {
            process.wake_at = at;
            self.at(at, EventKind::Wake(id, boot));
        }
    }

    /// Pauses a process.
    pub(super) fn pause(&mut self, id: NodeId, time: Duration) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(&id) else { return };
        let boot = server.boot;
        let Some(process) = &mut server.process else { return };
        process.busy_until = process.busy_until.max(now + time);
        let at = process.busy_until;
        if process.wake_at < at {
            process.wake_at = at;
            self.at(at, EventKind::Wake(id, boot));
        }
    }

    /// A message arrives at a node.
    pub(super) fn deliver(&mut self, message: Message<LockTable>) {
        if self.servers.get(&message.to).is_some_and(|server| server.process.is_some()) {
            self.events.lock().record(self.now, Note::of_message(&message));
            self.enqueue(message.to, |inbox| inbox.messages.push(message));
        }
    }

    /// Runs the driver of a process, if it is due.
    pub(super) fn wake(&mut self, id: NodeId, boot: u64) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(&id) else { return };
        if server.boot != boot {
            return;
        }
        let Some(process) = server.process.as_mut().filter(|process| process.wake_at == now) else { return };
        if process.checks_space_at <= now {
            process.checks_space_at = now + SPACE_CHECKED_EVERY;
            process.driver.wal().space().check();
        }
        server.host.begin();
        let result = process.driver.iterate(&mut process.inbox, server.clock.at(now));
        let done = server.host.take();
        let node = process.driver.node();
        let note = Note::Iteration {
            node: id,
            role: node.role().name(),
            term: node.term(),
            commit: node.commit(),
            last: node.log().last().index,
        };
        self.events.lock().record(now, note);
        process.busy_until = now + done.spent;
        let is_off = server.host.is_off();
        let stops = result.is_ok() && process.driver.may_stop();
        let earliest = process.busy_until.max(now + Duration::from_micros(20));
        process.wake_at = server.clock.when(process.driver.next_alarm()).max(earliest);
        let (alarm, harmed) = (process.wake_at, server.before != counts(server));
        self.dispatch_effects(id, done);
        self.check_waits(id);
        match result {
            _ if is_off => {
                self.tally.in_the_middle += 1;
                self.crashed(id);
            }
            Ok(()) if stops => self.stopped(id),
            Ok(()) => self.at(alarm, EventKind::Wake(id, boot)),
            Err(error) if harmed => {
                self.tally.disk_stops += 1;
                self.harmed_at = self.now;
                self.record(format!("node {id} stops: {error}"));
                self.end(id, Death::Killed);
                let pause = self.milliseconds(50..3000);
                self.after(pause, EventKind::Start(id));
            }
            Err(error) => {
                let check = violated!(Property::SoundDiskIsAccepted, "node {id} stops: {error}");
                self.judge.lock().note(check);
            }
        }
    }

    /// Schedules the effects of a driver iteration.
    fn dispatch_effects(&mut self, id: NodeId, done: Done) {
        for (at, message) in done.sent {
            if !self.links.is_open(id, message.to) {
                self.tally.lost += 1;
                continue;
            }
            let mut copies = 0;
            for delay in message_delays(&self.quality, &mut self.rng) {
                copies += 1;
                self.at(self.now + at + delay, EventKind::Deliver(Box::new(message.clone())));
            }
            self.tally.lost += u64::from(copies == 0);
            self.tally.repeated += u64::from(copies == 2);
        }
        for (call, reply) in done.answered {
            self.answer(call, done.spent, reply);
        }
        for (to, term) in done.snapshots {
            self.begin_stream(id, to, term);
        }
        if let Some(snapshot) = done.snapshot {
            let (delay, boot) = (self.milliseconds(1..60), self.servers[&id].boot);
            self.after(delay, EventKind::WriteSnapshot(id, boot, Box::new(snapshot)));
        }
    }

    /// Writes a snapshot, as the server's background thread does.
    pub(super) fn write_snapshot(&mut self, id: NodeId, boot: u64, snapshot: Snapshot<LockTable>) {
        let Some(server) = self.servers.get(&id).filter(|server| server.runs(boot)) else { return };
        let Some(process) = &server.process else { return };
        let result = process.snapshots.write(&snapshot);
        if let Err(error) = &result {
            self.report_disk_error(id, error);
        }
        if result.is_ok() {
            self.tally.snapshots += 1;
            self.judge.lock().snapshot_taken(id, snapshot);
        }
        self.enqueue(id, |inbox| inbox.events.push(Event::SnapshotWritten(result)));
        self.crash_if_off(id);
    }

    /// Reports a disk error as a violation, unless the disk had a fault since the process started,
    /// or the machine is off.
    pub(super) fn report_disk_error(&self, id: NodeId, error: &dyn std::fmt::Display) {
        let server = &self.servers[&id];
        if !server.host.is_off() && server.before == counts(server) {
            self.judge.lock().note(violated!(Property::SoundDiskIsAccepted, "node {id}: {error}"));
        }
    }

    /// Ends the process if its machine has just crashed.
    pub(super) fn crash_if_off(&mut self, id: NodeId) {
        if self.servers.get(&id).is_some_and(|server| server.process.is_some() && server.host.is_off()) {
            self.tally.in_the_middle += 1;
            self.crashed(id);
        }
    }

    /// A machine crashed, by its crash point or by the nemesis.
    pub(super) fn crashed(&mut self, id: NodeId) {
        let death = self.servers[&id].death;
        self.record(format!("node {id} dies: {death:?}"));
        self.end(id, death);
        let pause =
            if self.rng.random_bool(0.8) { self.milliseconds(5..1500) } else { self.milliseconds(1500..20_000) };
        self.after(pause, EventKind::Start(id));
    }

    /// Ends a process.
    pub(super) fn end(&mut self, id: NodeId, death: Death) {
        let Some(server) = self.servers.get_mut(&id) else { return };
        // Nothing that the process's parts do while they are dropped may reach the disk.
        server.host.cut();
        server.process = None;
        self.links.set_up(id, false);
        match death {
            Death::Killed => self.tally.kills += 1,
            Death::PowerFailure => {
                self.tally.power_failures += 1;
                server.disk.power_failure();
            }
        }
    }

    /// A process completes a requested stop.
    fn stopped(&mut self, id: NodeId) {
        self.record(format!("node {id} stops on request"));
        self.tally.stops += 1;
        if let Some(server) = self.servers.get_mut(&id) {
            if let Some(process) = &mut server.process {
                process.driver.shut_down();
            }
            let done = server.host.take();
            server.process = None;
            self.links.set_up(id, false);
            self.dispatch_effects(id, done);
        }
        let pause = self.milliseconds(50..3000);
        self.after(pause, EventKind::Start(id));
    }

    /// What a node's clock shows now.
    pub(super) fn shown(&self, id: NodeId) -> std::time::Instant {
        self.servers[&id].clock.at(self.now)
    }
}

fn counts(server: &Server) -> (u64, u64) {
    let stats = server.disk.stats();
    (stats.failed_syncs, stats.refused_writes)
}
