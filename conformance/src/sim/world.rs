//! The simulated world: nodes, network, disks, clients and the nemesis, in one thread and in
//! virtual time.
//!
//! All events stand in one queue, ordered by (time, number), and all random values come from one
//! generator. So a seed determines the whole run, and a run can be repeated exactly.

mod clients;
mod nemesis;
mod operator;
mod servers;
mod streams;
mod waits;
mod watches;

use palisade_spec::violated;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::core::{ConnectionId, Request};
use palisade_spec::invariants::{Property, Violation};
use palisade_spec::lock::{LockTable, Proof};
use palisade_spec::raft::{Message, Node, NodeId, Snapshot};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use self::operator::Operator;
use self::servers::Server;
use self::streams::Stream;
use self::waits::OpenWait;
use super::call::{CallId, ClientId};
use super::client::Client;
use super::event_log::{Note, SharedEventLog};
use super::history_recorder::HistoryRecorder;
use super::host::Reply;
use super::judge::{Judge, SharedJudge};
use super::network::{LinkQuality, Links};
use super::plan::{CALM, CLOSING, Plan, STORM};
use super::resource::Resource;
use super::tally::Tally;
use super::watcher::{WATCHERS, Watcher};
use palisade_history as history;

/// The state of a simulation.
pub(super) struct World {
    plan: Plan,
    rng: SmallRng,
    now: Duration,
    queue: BinaryHeap<Event>,
    scheduled: u64,
    zero: Instant,
    servers: BTreeMap<NodeId, Server>,
    links: Links,
    quality: LinkQuality,
    judge: SharedJudge,
    clients: Vec<Client>,
    /// Time of each client's next turn.
    turns: Vec<Duration>,
    resource: Resource,
    history: HistoryRecorder,
    streams: BTreeMap<u64, Stream>,
    /// Acquires that wait for an answer.
    waits: Vec<OpenWait>,
    /// Requests that open a session, with the session's proof.
    openings: BTreeMap<CallId, Proof>,
    operator: Operator,
    /// Watchers; `None` is the one that has its turn.
    watchers: Vec<Option<Watcher>>,
    /// Faults are being injected.
    storms: bool,
    /// Clients and operator begin nothing new.
    closing: bool,
    /// When a node last stopped, or failed to start, because of a disk fault.
    harmed_at: Duration,
    tally: Tally,
    events: SharedEventLog,
}

/// A scheduled event.
struct Event {
    at: Duration,
    number: u64,
    what: EventKind,
}

/// The kinds of events.
enum EventKind {
    /// The driver of a node runs, unless its process has ended since.
    Wake(NodeId, u64),
    /// A message arrives.
    Deliver(Box<Message<LockTable>>),
    /// A request arrives.
    Request(NodeId, CallId, Box<Request>),
    /// A node's connection is closed.
    HangUp(NodeId, ConnectionId),
    /// The core of a node learns of it.
    Disconnected(NodeId, ConnectionId),
    /// An answer arrives.
    Reply(CallId, Box<Reply>),
    /// A client takes its turn.
    Client(ClientId),
    /// A process writes a snapshot.
    WriteSnapshot(NodeId, u64, Box<Snapshot<LockTable>>),
    /// A snapshot stream takes its next step.
    Stream(u64),
    /// A node starts.
    Start(NodeId),
    /// The nemesis injects a fault.
    Fault,
    /// A fault ends.
    Repair(nemesis::Repair),
    /// The operator acts.
    Operate,
    /// A watcher takes its turn.
    Watch(usize),
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.number == other.number
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest event is the greatest, because `BinaryHeap` pops the greatest.
    fn cmp(&self, other: &Event) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl World {
    /// The cluster that a seed determines, before its first start.
    pub(super) fn new(seed: u64, events: SharedEventLog) -> World {
        let mut rng = SmallRng::seed_from_u64(seed);
        let plan = Plan::draw(&mut rng);
        let founders: Vec<NodeId> = (1..=u32::from(plan.founders)).map(NodeId).collect();
        let mut world = World {
            plan,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            scheduled: 0,
            zero: Instant::now(),
            servers: BTreeMap::new(),
            links: Links::default(),
            quality: LinkQuality::NORMAL,
            judge: Arc::new(Mutex::new(Judge::new())),
            clients: Vec::new(),
            turns: Vec::new(),
            resource: Resource::default(),
            history: HistoryRecorder::default(),
            streams: BTreeMap::new(),
            waits: Vec::new(),
            openings: BTreeMap::new(),
            operator: Operator::new(plan.founders),
            watchers: (0..WATCHERS).map(|number| Some(Watcher::new(number, seed))).collect(),
            storms: false,
            closing: false,
            harmed_at: Duration::ZERO,
            tally: Tally::default(),
            events,
            rng,
        };
        for &id in &founders {
            world.add_server(id, &founders);
            world.after(Duration::ZERO, EventKind::Start(id));
        }
        for number in 0..plan.clients {
            let client = Client::new(ClientId(number), plan.has_access_control, &mut world.rng);
            world.clients.push(client);
            world.turns.push(Duration::ZERO);
            world.after(Duration::ZERO, EventKind::Client(ClientId(number)));
        }
        for number in 0..WATCHERS {
            world.after(Duration::ZERO, EventKind::Watch(number));
        }
        world.after(plan.fault_interval, EventKind::Fault);
        world.after(Duration::from_secs(5), EventKind::Operate);
        world
    }

    /// Runs for `time` of alternating storms and calms, then closes: clients finish and the
    /// replicas converge.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn run(&mut self, time: Duration) -> Result<(), Violation> {
        self.run_until(CALM)?;
        while self.now < time {
            self.storms = true;
            self.record("faults begin");
            self.run_until(self.now + STORM)?;
            self.end_faults();
            let committed = self.calm()?;
            self.check_recovered(committed);
            self.tally.calms += 1;
            self.take_violation()?;
        }
        self.closing = true;
        self.record("nothing new is begun");
        let end = self.now + CLOSING;
        let mut committed = self.judge.lock().last();
        while !self.is_closed(committed) && self.now < end {
            committed = self.judge.lock().last();
            self.run_until(self.now + LAG)?;
        }
        self.check_closed(committed);
        self.take_violation()?;
        self.history.check()
    }

    /// Runs a calm and returns the index that was committed `LAG` before its end. A node may notice
    /// its disk's damage only during the calm, and stop: the calm then starts again from that
    /// fault.
    fn calm(&mut self) -> Result<palisade_spec::raft::Index, Violation> {
        let mut last_fault = self.now;
        loop {
            self.run_until(self.now.max(last_fault + CALM - LAG))?;
            let committed = self.judge.lock().last();
            self.run_until(self.now + LAG)?;
            if self.harmed_at <= last_fault {
                return Ok(committed);
            }
            last_fault = self.harmed_at;
        }
    }

    /// The clients' history so far.
    pub(super) fn history(&self) -> Vec<history::Event> {
        self.history.lines()
    }

    /// The run's counters.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = self.tally;
        let judge = self.judge.lock();
        tally.time = self.now;
        let (counts, effects) = (judge.checker.counts(), judge.clients.counts);
        (tally.steps, tally.entries) =
            (counts.steps, judge.checker.reference().map_or(0, |agreed| agreed.executed().0));
        (tally.grants, tally.expiries) = (effects.grants, effects.expiries);
        tally.grants_beside_others = effects.grants_beside_others;
        (tally.elections, tally.changes) = (counts.elections, counts.changes);
        (tally.installed, tally.states) = (counts.installed, counts.states);
        (tally.recoveries, tally.messages) = (counts.recoveries, counts.sent);
        for Watcher { counts, .. } in self.watchers.iter().flatten() {
            tally.events_watched += counts.events;
            tally.listings_watched += counts.listings;
            tally.watches_resumed += counts.resumed;
            tally.watches_compacted += counts.compacted;
            tally.watches_cut_off += counts.too_slow;
        }
        for server in self.servers.values() {
            let stats = server.disk.stats();
            tally.syncs += stats.syncs;
            tally.failed_syncs += stats.failed_syncs;
            tally.refused_writes += stats.refused_writes;
            tally.torn_writes += stats.torn_writes;
            tally.lost_writes += stats.lost_writes;
            tally.lost_names += stats.lost_names;
        }
        tally
    }

    fn run_until(&mut self, end: Duration) -> Result<(), Violation> {
        while self.queue.peek().is_some_and(|event| event.at <= end) {
            let Some(Event { at, what, .. }) = self.queue.pop() else { break };
            self.now = at;
            self.judge.lock().now = at;
            self.handle(what);
            self.take_violation()?;
        }
        self.now = end;
        Ok(())
    }

    fn handle(&mut self, what: EventKind) {
        match what {
            EventKind::Wake(id, boot) => self.wake(id, boot),
            EventKind::Deliver(message) => self.deliver(*message),
            EventKind::Request(id, call, request) => self.request(id, call, *request),
            EventKind::HangUp(id, connection) => self.hang_up(id, connection),
            EventKind::Disconnected(id, connection) => self.disconnected(id, connection),
            EventKind::Reply(call, reply) => self.reply(call, *reply),
            EventKind::Client(id) => self.client(id),
            EventKind::WriteSnapshot(id, boot, snapshot) => self.write_snapshot(id, boot, *snapshot),
            EventKind::Stream(number) => self.stream(number),
            EventKind::Start(id) => self.start(id),
            EventKind::Fault => self.inject_fault(),
            EventKind::Repair(repair) => self.repair(repair),
            EventKind::Operate => self.operate(),
            EventKind::Watch(number) => self.watch(number),
        }
    }

    fn take_violation(&mut self) -> Result<(), Violation> {
        match self.judge.lock().violation.take() {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }

    fn after(&mut self, time: Duration, what: EventKind) {
        self.at(self.now + time, what);
    }

    fn at(&mut self, at: Duration, what: EventKind) {
        self.scheduled += 1;
        self.queue.push(Event { at, number: self.scheduled, what });
    }

    fn record(&self, text: impl Into<String>) {
        self.events.lock().record(self.now, Note::Event(text.into()));
    }

    /// A random duration in milliseconds.
    fn milliseconds(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.random_range(range))
    }

    /// The running nodes that are members by the leader's committed configuration.
    fn running_members(&self) -> Vec<&Node<LockTable>> {
        let Some(leader) = self.leader() else { return Vec::new() };
        let members = leader.log().members_at(leader.commit());
        let nodes = self.servers.values().filter_map(Server::node);
        nodes.filter(|node| members.get(node.id()).is_some()).collect()
    }

    /// The leader with the latest term.
    fn leader(&self) -> Option<&Node<LockTable>> {
        let leaders = self.servers.values().filter_map(Server::node).filter(|node| node.is_leader());
        leaders.max_by_key(|node| node.term())
    }

    /// Checks at the end of a calm that there is a leader, that all running members know it, and
    /// that they have committed `committed`.
    fn check_recovered(&mut self, committed: palisade_spec::raft::Index) {
        let check = self.has_recovered(committed);
        let nodes: Vec<&Node<LockTable>> = self.servers.values().filter_map(Server::node).collect();
        let mut judge = self.judge.lock();
        judge.note(check);
        judge.compare_nodes(&nodes);
    }

    fn has_recovered(&self, committed: palisade_spec::raft::Index) -> palisade_spec::invariants::Check {
        let name = Property::ClusterRecovers;
        let Some(leader) = self.leader() else {
            return violated!(name, "there is no leader {CALM:?} after the last fault");
        };
        let members = leader.log().members_at(leader.commit());
        let is_away = |(id, server): &(&NodeId, &Server)| members.get(**id).is_some() && server.is_away();
        if let Some((id, _)) = self.servers.iter().find(is_away) {
            return violated!(name, "{CALM:?} after the last fault node {id} does not run although its disk is sound");
        }
        for node in self.running_members() {
            if node.leader() != Some(leader.id()) || node.commit() < committed {
                let (id, knows, commit) = (node.id(), node.leader(), node.commit());
                let detail = format!(
                    "{CALM:?} after the last fault node {id} knows leader {knows:?} and commit {commit}; the leader is {}, and {committed} was committed {LAG:?} ago",
                    leader.id()
                );
                return violated!(name, "{detail}");
            }
        }
        Ok(())
    }

    /// Whether all clients are done, no session waits, and the replicas have converged.
    fn is_closed(&self, committed: palisade_spec::raft::Index) -> bool {
        let no_waiters = self.judge.lock().waiters() == 0;
        no_waiters && self.clients.iter().all(Client::is_done) && self.divergence(committed).is_none()
    }

    /// Describes a node that has not committed `committed`, or two nodes whose states differ.
    /// Clients keep sessions alive to the end, so a node may be an entry ahead of another at any
    /// moment; nodes at different entries are not compared here, because each was compared with the
    /// reference state.
    fn divergence(&self, committed: palisade_spec::raft::Index) -> Option<String> {
        let nodes = self.running_members();
        let Some(first) = nodes.first() else { return Some("there is no leader".into()) };
        if let Some(late) = nodes.iter().find(|node| node.commit() < committed) {
            return Some(format!(
                "node {} has commit {}, and {committed} was committed {LAG:?} ago",
                late.id(),
                late.commit()
            ));
        }
        let differs = |node: &&&Node<LockTable>| node.commit() == first.commit() && node.machine() != first.machine();
        let other = nodes.iter().find(differs)?;
        Some(format!("node {} and node {} have different states at commit {}", first.id(), other.id(), first.commit()))
    }

    fn check_closed(&mut self, committed: palisade_spec::raft::Index) {
        let nodes: Vec<&Node<LockTable>> = self.servers.values().filter_map(Server::node).collect();
        self.judge.lock().compare_nodes(&nodes);
        let (waiters, name) = (self.judge.lock().waiters(), Property::AllRequestsAreServed);
        let busy = self.clients.iter().filter(|client| !client.is_done()).count();
        let check = match self.divergence(committed) {
            Some(detail) => violated!(Property::ReplicasConverge, "{detail}"),
            None if waiters > 0 => violated!(name, "{waiters} waiters remain {CLOSING:?} after the last calm"),
            None if busy > 0 => violated!(name, "{busy} clients are not done {CLOSING:?} after the last calm"),
            None => Ok(()),
        };
        self.judge.lock().note(check);
        self.check_watchers(committed);
    }
}

/// Time that a node may lag behind the commit index at the end of a calm.
const LAG: Duration = Duration::from_secs(1);
