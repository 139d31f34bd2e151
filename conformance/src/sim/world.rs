//! The world: nodes, network, disks, clients and whoever harms them, in one thread and in virtual time.
//!
//! Everything that happens is an event in a queue, in the order of (time, number); whatever is left to chance is drawn
//! from one generator. So a seed decides everything, and a run can be repeated to the last bit.

mod clients;
mod nemesis;
mod operator;
mod servers;
mod streams;
mod waits;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::core::{ConnectionId, Request};
use palisade_spec::invariants::Violation;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Address, Members, Message, Node, NodeId, Snapshot};
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
use super::network::{Links, Weather};
use super::plan::{CALM, CLOSING, Plan, STORM};
use super::reference_state::broken;
use super::resource::Resource;
use super::tally::Tally;
use crate::history;

/// Everything.
pub(super) struct World {
    plan: Plan,
    rng: SmallRng,
    now: Duration,
    queue: BinaryHeap<Event>,
    scheduled: u64,
    zero: Instant,
    servers: BTreeMap<NodeId, Server>,
    links: Links,
    weather: Weather,
    judge: SharedJudge,
    clients: Vec<Client>,
    /// When each client has its next turn.
    turns: Vec<Duration>,
    resource: Resource,
    history: HistoryRecorder,
    streams: BTreeMap<u64, Stream>,
    /// Acquires that wait for an answer.
    waits: Vec<OpenWait>,
    /// Requests that open a session, with its random number.
    openings: BTreeMap<CallId, u64>,
    operator: Operator,
    /// Faults happen.
    storms: bool,
    /// Nothing new is begun.
    closing: bool,
    /// When a node last stopped, or could not start, because of what had been done to its disk.
    harmed_at: Duration,
    tally: Tally,
    events: SharedEventLog,
}

/// Something that will happen.
struct Event {
    at: Duration,
    number: u64,
    what: Happening,
}

/// What can happen.
enum Happening {
    /// A node looks whether there is something to do, if its process is still this one.
    Wake(NodeId, u64),
    /// A message arrives.
    Deliver(Box<Message<LockTable>>),
    /// A request arrives.
    Request(NodeId, CallId, Box<Request>),
    /// A node learns that a connection is gone.
    HangUp(NodeId, ConnectionId),
    /// An answer arrives.
    Reply(CallId, Box<Reply>),
    /// A client has something to do.
    Client(ClientId),
    /// A process writes a snapshot.
    WriteSnapshot(NodeId, u64, Box<Snapshot<LockTable>>),
    /// A snapshot that is streamed goes on.
    Stream(u64),
    /// A node starts.
    Start(NodeId),
    /// Something goes wrong.
    Trouble,
    /// Something that went wrong is over.
    Repair(nemesis::Repair),
    /// The operator does something.
    Operate,
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
    /// The earliest is the greatest: that is what the heap gives out.
    fn cmp(&self, other: &Event) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl World {
    /// A cluster that a seed decides on, before its first start.
    pub(super) fn new(seed: u64, events: SharedEventLog) -> World {
        let mut rng = SmallRng::seed_from_u64(seed);
        let plan = Plan::draw(&mut rng);
        let founders: Vec<NodeId> = (1..=u32::from(plan.founders)).map(NodeId).collect();
        let address = |id: &NodeId| (*id, Address::from(format!("node-{id}:1").as_str()));
        let members = Members::founding(founders.iter().map(address));
        let mut world = World {
            plan,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            scheduled: 0,
            zero: Instant::now(),
            servers: BTreeMap::new(),
            links: Links::default(),
            weather: Weather::FAIR,
            judge: Arc::new(Mutex::new(Judge::new(members))),
            clients: Vec::new(),
            turns: Vec::new(),
            resource: Resource::default(),
            history: HistoryRecorder::default(),
            streams: BTreeMap::new(),
            waits: Vec::new(),
            openings: BTreeMap::new(),
            operator: Operator::new(plan.founders),
            storms: false,
            closing: false,
            harmed_at: Duration::ZERO,
            tally: Tally::default(),
            events,
            rng,
        };
        for &id in &founders {
            world.add_server(id, &founders);
            world.after(Duration::ZERO, Happening::Start(id));
        }
        for number in 0..plan.clients {
            let client = Client::new(ClientId(number), &mut world.rng);
            world.clients.push(client);
            world.turns.push(Duration::ZERO);
            world.after(Duration::ZERO, Happening::Client(ClientId(number)));
        }
        world.after(plan.pace, Happening::Trouble);
        world.after(Duration::from_secs(5), Happening::Operate);
        world
    }

    /// Lets so much time pass, storms and calms by turns, then everything come to its end.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub(super) fn live(&mut self, time: Duration) -> Result<(), Violation> {
        self.run_until(CALM)?;
        while self.now < time {
            self.storms = true;
            self.tell("faults begin");
            self.run_until(self.now + STORM)?;
            self.calm_down();
            let committed = self.calm()?;
            self.check_recovered(committed);
            self.tally.calms += 1;
            self.verdict()?;
        }
        self.closing = true;
        self.tell("nothing new is begun");
        let end = self.now + CLOSING;
        let mut committed = self.judge.lock().reference.last();
        while !self.is_closed(committed) && self.now < end {
            committed = self.judge.lock().reference.last();
            self.run_until(self.now + LAG)?;
        }
        self.check_closed(committed);
        self.verdict()?;
        self.history.check()
    }

    /// Lets a calm pass, and says what was committed a while before its end. Some nodes find out only now what became of
    /// their disks in the storm, and stop: such a fault is the last one then.
    fn calm(&mut self) -> Result<palisade_spec::raft::Index, Violation> {
        let mut last_fault = self.now;
        loop {
            self.run_until(self.now.max(last_fault + CALM - LAG))?;
            let committed = self.judge.lock().reference.last();
            self.run_until(self.now + LAG)?;
            if self.harmed_at <= last_fault {
                return Ok(committed);
            }
            last_fault = self.harmed_at;
        }
    }

    /// What the clients saw so far.
    pub(super) fn history(&self) -> Vec<history::Event> {
        self.history.lines()
    }

    /// What happened, in numbers.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = self.tally;
        let judge = self.judge.lock();
        tally.time = self.now;
        (tally.steps, tally.entries) = (judge.seen.steps, judge.reference.told.entries);
        (tally.grants, tally.expiries) = (judge.reference.told.grants, judge.reference.told.expiries);
        (tally.elections, tally.changes) = (judge.seen.elections, judge.seen.changes);
        (tally.installed, tally.states) = (judge.seen.installed, judge.seen.states);
        (tally.recoveries, tally.messages) = (judge.seen.recoveries, judge.seen.sent);
        for server in self.servers.values() {
            let harm = server.disk.harm();
            tally.syncs += harm.syncs;
            tally.failed_syncs += harm.failed_syncs;
            tally.refused_writes += harm.refused_writes;
            tally.torn_writes += harm.torn_writes;
            tally.lost_writes += harm.lost_writes;
            tally.lost_names += harm.lost_names;
        }
        tally
    }

    fn run_until(&mut self, end: Duration) -> Result<(), Violation> {
        while self.queue.peek().is_some_and(|event| event.at <= end) {
            let Some(Event { at, what, .. }) = self.queue.pop() else { break };
            self.now = at;
            self.judge.lock().now = at;
            self.happen(what);
            self.verdict()?;
        }
        self.now = end;
        Ok(())
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Wake(id, boot) => self.wake(id, boot),
            Happening::Deliver(message) => self.deliver(*message),
            Happening::Request(id, call, ask) => self.request(id, call, *ask),
            Happening::HangUp(id, connection) => self.hang_up(id, connection),
            Happening::Reply(call, reply) => self.reply(call, *reply),
            Happening::Client(id) => self.client(id),
            Happening::WriteSnapshot(id, boot, snapshot) => self.write_snapshot(id, boot, *snapshot),
            Happening::Stream(number) => self.stream(number),
            Happening::Start(id) => self.start(id),
            Happening::Trouble => self.trouble(),
            Happening::Repair(repair) => self.relieve(repair),
            Happening::Operate => self.operate(),
        }
    }

    fn verdict(&mut self) -> Result<(), Violation> {
        match self.judge.lock().violation.take() {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }

    fn after(&mut self, time: Duration, what: Happening) {
        self.at(self.now + time, what);
    }

    fn at(&mut self, at: Duration, what: Happening) {
        self.scheduled += 1;
        self.queue.push(Event { at, number: self.scheduled, what });
    }

    fn tell(&self, text: impl Into<String>) {
        self.events.lock().tell(self.now, Note::Event(text.into()));
    }

    /// So many milliseconds, at random.
    fn milliseconds(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.random_range(range))
    }

    /// The nodes that run, and belong to the cluster as far as its leader knows.
    fn running_members(&self) -> Vec<&Node<LockTable>> {
        let Some(leader) = self.leader() else { return Vec::new() };
        let members = leader.log().members_at(leader.commit());
        let nodes = self.servers.values().filter_map(Server::node);
        nodes.filter(|node| members.get(node.id()).is_some()).collect()
    }

    /// The leader of the latest term that anybody leads.
    fn leader(&self) -> Option<&Node<LockTable>> {
        let leaders = self.servers.values().filter_map(Server::node).filter(|node| node.is_leader());
        leaders.max_by_key(|node| node.term())
    }

    /// At the end of a calm: there is a leader, all that belong to the cluster know it, and have what was committed a
    /// moment ago.
    fn check_recovered(&mut self, committed: palisade_spec::raft::Index) {
        let check = self.has_recovered(committed);
        let nodes: Vec<&Node<LockTable>> = self.servers.values().filter_map(Server::node).collect();
        let mut judge = self.judge.lock();
        judge.note(check);
        judge.look_around(&nodes);
    }

    fn has_recovered(&self, committed: palisade_spec::raft::Index) -> palisade_spec::invariants::Check {
        let name = "the cluster recovers";
        let Some(leader) = self.leader() else {
            return broken(name, format!("nobody leads {CALM:?} after the last fault"));
        };
        let members = leader.log().members_at(leader.commit());
        let is_away = |(id, server): &(&NodeId, &Server)| members.get(**id).is_some() && server.is_away();
        if let Some((id, _)) = self.servers.iter().find(is_away) {
            return broken(
                name,
                format!("{CALM:?} after the last fault node {id} does not run, and its disk is sound"),
            );
        }
        for node in self.running_members() {
            if node.leader() != Some(leader.id()) || node.commit() < committed {
                let (id, knows, commit) = (node.id(), node.leader(), node.commit());
                let detail = format!(
                    "{CALM:?} after the last fault node {id} knows of leader {knows:?} and entry {commit}; {} leads, and {committed} was committed a while ago",
                    leader.id()
                );
                return broken(name, detail);
            }
        }
        Ok(())
    }

    /// Whether no client wants or has anything any more, and all nodes have the same.
    fn is_closed(&self, committed: palisade_spec::raft::Index) -> bool {
        let nobody_waits = self.judge.lock().reference.waiters() == 0;
        nobody_waits && self.clients.iter().all(Client::is_done) && self.unequal(committed).is_none()
    }

    /// A node that lacks what was committed a while ago, or two that differ. Sessions are kept alive to the end, so one may be an
    /// entry ahead of another at any moment: then the states of both were compared with everybody's.
    fn unequal(&self, committed: palisade_spec::raft::Index) -> Option<String> {
        let nodes = self.running_members();
        let Some(first) = nodes.first() else { return Some("nobody leads".into()) };
        if let Some(late) = nodes.iter().find(|node| node.commit() < committed) {
            return Some(format!(
                "node {} is at {}, and {committed} was committed a while ago",
                late.id(),
                late.commit()
            ));
        }
        let differs = |node: &&&Node<LockTable>| node.commit() == first.commit() && node.machine() != first.machine();
        let other = nodes.iter().find(differs)?;
        Some(format!("node {} and node {} at {}", first.id(), other.id(), first.commit()))
    }

    fn check_closed(&mut self, committed: palisade_spec::raft::Index) {
        let nodes: Vec<&Node<LockTable>> = self.servers.values().filter_map(Server::node).collect();
        self.judge.lock().look_around(&nodes);
        let (waiters, name) = (self.judge.lock().reference.waiters(), "all requests are served");
        let busy = self.clients.iter().filter(|client| !client.is_done()).count();
        let check = match self.unequal(committed) {
            Some(detail) => broken("replicas converge", detail),
            None if waiters > 0 => broken(name, format!("{waiters} still wait {CLOSING:?} after the last calm")),
            None if busy > 0 => broken(name, format!("{busy} clients are not done {CLOSING:?} after the last calm")),
            None => Ok(()),
        };
        self.judge.lock().note(check);
    }
}

/// How far a node may be behind at the end of a calm.
const LAG: Duration = Duration::from_secs(1);
