//! A cluster in memory: nodes, their disks, and a controlled network.
//!
//! It drives each [`Node`] according to the contract of
//! [`raft::interface`](palisade_spec::raft::interface), and can stop at any output: a held node's
//! outputs wait, and a crash executes any prefix of them, also of the entries inside one write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use palisade_spec::checker::{ClusterChecker, Feed, Reference, Slot};
use palisade_spec::invariants::{Check, Property, leader_append_only};
use palisade_spec::raft::{
    Body, Change, Config, Durable, Entry, Index, Input, Members, Message, Node, NodeId, Output, Payload, Persist,
    RequestId, StateMachine, Term,
};
use palisade_spec::require;

use super::machine::Scripted;
use super::print;

/// A cluster.
pub(crate) struct World<S: Scripted> {
    pub(crate) replicas: BTreeMap<NodeId, Replica<S>>,
    /// The messages in flight, in the order in which they were sent.
    pub(crate) flight: Vec<Message<S>>,
    /// The links that lose every message, as sender and recipient.
    pub(crate) cut: BTreeSet<(NodeId, NodeId)>,
    /// The real time passed in milliseconds, if all clocks advance together.
    pub(crate) real: Option<u64>,
    pub(crate) checker: ClusterChecker<S>,
    pub(crate) event_log: EventLog,
    /// Every entry that any node has applied.
    applied: BTreeMap<(Index, Term), Entry<S::Command>>,
    /// The last committed index known when each read was requested.
    reads: BTreeMap<RequestId, Index>,
    /// The id of the last request that [`World::next_request`] numbered.
    requests: RequestId,
    /// How many installed snapshots have replaced a node's state.
    pub(crate) installed: u64,
    /// The number of answered reads.
    pub(crate) read: u64,
}

/// A node and its disk, which survives a crash of the node.
pub(crate) struct Replica<S: Scripted> {
    pub(crate) config: Config,
    pub(crate) disk: Durable<S>,
    /// `None` while it is down.
    pub(crate) node: Option<Node<S>>,
    /// Outputs of the node that are not executed yet.
    pub(crate) pending: VecDeque<Output<S>>,
    /// Whether outputs wait until they are flushed.
    pub(crate) held: bool,
    /// The last index that the driver knows to be applied.
    pub(crate) applied: Index,
}

/// A log of events, one line each.
#[derive(Default)]
pub(crate) struct EventLog {
    /// Whether events are recorded.
    pub(crate) on: bool,
    /// Whether timers are recorded.
    pub(crate) timers: bool,
    pub(crate) lines: Vec<String>,
}

impl EventLog {
    pub(crate) fn record(&mut self, line: impl FnOnce() -> String) {
        if self.on {
            self.lines.push(line());
        }
    }
}

impl<S: Scripted> World<S> {
    /// A cluster of running nodes with blank disks.
    pub(crate) fn new(configs: impl IntoIterator<Item = Config>) -> World<S> {
        let configs: Vec<Config> = configs.into_iter().collect();
        let members = Members::of(configs.iter().map(|config| config.id));
        let mut world = World {
            replicas: BTreeMap::new(),
            flight: Vec::new(),
            cut: BTreeSet::new(),
            real: None,
            checker: ClusterChecker::new(Feed { fingerprint: Some(fingerprint), ..Feed::of_everything() }),
            event_log: EventLog::default(),
            applied: BTreeMap::new(),
            reads: BTreeMap::new(),
            requests: RequestId(1000),
            installed: 0,
            read: 0,
        };
        configs.into_iter().for_each(|config| world.start_node(config, members.clone()));
        world
    }

    /// Starts a node with a blank disk, as a founding member or without known members.
    pub(crate) fn start_node(&mut self, config: Config, members: Members) {
        let disk = Durable::blank(S::default(), members);
        self.checker.recovered(slot(config.id), config.id, &disk).expect("a blank disk is correct");
        let node = Some(Node::recover(config.clone(), disk.clone()));
        let replica = Replica { config, disk, node, pending: VecDeque::new(), held: false, applied: Index(0) };
        self.replicas.insert(replica.config.id, replica);
    }

    /// The node, which must be running.
    pub(crate) fn node(&self, id: NodeId) -> &Node<S> {
        self.replicas[&id].node.as_ref().expect("the node is down")
    }

    pub(crate) fn replica(&mut self, id: NodeId) -> &mut Replica<S> {
        self.replicas.get_mut(&id).expect("there is no such node")
    }

    /// An id that no request has yet; those below are left to the scripts, which number their reads.
    pub(crate) fn next_request(&mut self) -> RequestId {
        self.requests.0 += 1;
        self.requests
    }

    /// Proposes entries at a node.
    pub(crate) fn propose(&mut self, node: NodeId, payloads: Vec<Payload<S::Command>>) -> Check {
        let id = self.next_request();
        self.step(node, Input::Propose { id, payloads })
    }

    /// Requests a membership change from a node.
    pub(crate) fn change(&mut self, node: NodeId, change: Change) -> Check {
        let id = self.next_request();
        self.step(node, Input::Change { id, change })
    }

    /// Requests a leadership transfer from a node.
    pub(crate) fn transfer(&mut self, node: NodeId, to: Option<NodeId>) -> Check {
        let id = self.next_request();
        self.step(node, Input::Transfer { id, to })
    }

    /// Gives a node an input, and executes all its outputs unless it is held.
    pub(crate) fn step(&mut self, id: NodeId, input: Input<S>) -> Check {
        let replica = self.replicas.get_mut(&id).expect("there is no such node");
        let node = replica.node.as_mut().expect("the node is down");
        let before = node.clone();
        if let Input::Read(read) = input {
            self.reads.insert(read, self.checker.reference().map_or(Index(0), Reference::last));
        }
        let mut out = Vec::new();
        node.step(input.clone(), &mut out);
        let (was, is) = (print::role(&before), print::role(node));
        if was != is {
            self.event_log.record(|| format!("n{id} {was} → {is}"));
        }
        for output in &out {
            if let Output::Applied { index, term, .. } = output {
                let entry = node.log().get(*index).expect("what was applied is in the log").clone();
                self.applied.insert((*index, *term), entry);
            }
            if let Output::ReadReady(read) = output {
                self.read += 1;
                let (asked, has) = (self.reads[read], node.commit());
                require!(
                    Property::LinearizableReads,
                    asked <= has,
                    "n{id} answers read {read} at {has}, where {asked} was committed before it was asked"
                )?;
            }
        }
        self.checker.set_time(self.real.map(Duration::from_millis));
        self.checker.stepped(slot(id), node, &input, &out)?;
        leader_append_only(&before, node)?;
        replica.pending.extend(out);
        let has_changed = before.log() != node.log() || before.commit() != node.commit();
        if !self.replicas[&id].held {
            self.execute_outputs(id, usize::MAX)?;
        }
        if has_changed { self.compare(id) } else { Ok(()) }
    }

    /// Executes the first `count` pending outputs of a node. Timers do not count, because safety
    /// does not depend on them.
    pub(crate) fn flush(&mut self, id: NodeId, count: usize) -> Check {
        self.execute_outputs(id, count)?;
        self.compare(id)
    }

    fn execute_outputs(&mut self, id: NodeId, count: usize) -> Check {
        let mut done = 0;
        while let Some(output) = self.replicas[&id].pending.front() {
            let timer = matches!(output, Output::ArmElectionTimer | Output::ArmHeartbeatTimer);
            if !timer && done == count {
                break;
            }
            done += usize::from(!timer);
            let output = self.replica(id).pending.pop_front().expect("it was there");
            self.execute(id, output)?;
        }
        Ok(())
    }

    /// Compares a running node with its disk, the other nodes and what was agreed.
    fn compare(&mut self, id: NodeId) -> Check {
        let others = self.replicas.iter().filter(|(other, _)| **other != id);
        let others = others.filter_map(|(_, replica)| replica.node.as_ref());
        let Some(node) = &self.replicas[&id].node else { return Ok(()) };
        self.checker.compare(slot(id), node, others)?;
        assert_eq!(&self.replicas[&id].disk, self.checker.disk(slot(id)), "the checker knows the disk");
        Ok(())
    }

    /// Makes all pending writes durable with one sync at the place of the first (group commit).
    pub(crate) fn merge_writes(&mut self, id: NodeId) {
        let pending = &mut self.replica(id).pending;
        let is_write = |output: &Output<S>| matches!(output, Output::Persist(_));
        let Some(first) = pending.iter().position(is_write) else { return };
        let (writes, rest): (Vec<_>, Vec<_>) = pending.drain(first..).partition(is_write);
        pending.extend(writes);
        pending.extend(rest);
    }

    /// Replaces the snapshot on the node's disk by one of the state after the entry at `through`,
    /// made from the disk.
    pub(crate) fn snapshot(&mut self, id: NodeId, through: Index) -> Check {
        let replica = self.replicas.get_mut(&id).expect("there is no such node");
        assert!(through <= replica.applied, "a driver snapshots what it knows to be applied");
        replica.disk.snapshot = replica.disk.snapshot_at(through);
        let last = replica.disk.snapshot.last;
        self.event_log.record(|| format!("n{id} has a snapshot {}", print::position(last)));
        self.checker.snapshot_taken(slot(id), replica.disk.snapshot.clone())
    }

    /// Crashes the node after the first `after` pending outputs. If `torn` is given, the next
    /// output is a write of entries of which only this many become durable, or of a snapshot with
    /// the log not yet replaced.
    pub(crate) fn crash(&mut self, id: NodeId, after: usize, torn: Option<usize>) -> Check {
        self.flush(id, after)?;
        let replica = self.replicas.get_mut(&id).expect("there is no such node");
        if let Some(kept) = torn {
            match replica.pending.pop_front() {
                Some(Output::Persist(Persist::Entries(entries))) => {
                    replica.disk.log.truncate(entries[0].index);
                    entries.into_iter().take(kept).for_each(|entry| replica.disk.log.push(entry));
                }
                Some(Output::Persist(Persist::Snapshot(snapshot))) => replica.disk.snapshot = (*snapshot).clone(),
                _ => panic!("the next output is not a write that can be torn"),
            }
        }
        (replica.node, replica.held) = (None, false);
        replica.pending.clear();
        self.event_log.record(|| format!("n{id} crashes: {}", print::disk(&replica.disk)));
        Ok(())
    }

    /// Changes the disk of a node that is down.
    pub(crate) fn change_disk(&mut self, id: NodeId, change: impl FnOnce(&mut Durable<S>)) {
        let replica = self.replicas.get_mut(&id).expect("there is no such node");
        change(&mut replica.disk);
        self.checker.disk_changed(slot(id), replica.disk.clone());
    }

    /// Restarts the node from its disk.
    pub(crate) fn restart(&mut self, id: NodeId) -> Check {
        let replica = self.replicas.get_mut(&id).expect("there is no such node");
        assert!(replica.node.is_none(), "the node is running");
        replica.disk.settle();
        replica.applied = replica.disk.snapshot.last.index;
        replica.node = Some(Node::recover(replica.config.clone(), replica.disk.clone()));
        self.checker.recovered(slot(id), id, &replica.disk)?;
        self.compare(id)
    }

    /// Delivers a message; a node that is down or not started ignores it.
    pub(crate) fn arrive(&mut self, message: Message<S>) -> Check {
        let Message { from, to, .. } = message;
        let down = self.replicas.get(&to).is_none_or(|replica| replica.node.is_none());
        self.event_log.record(|| format!("n{to} ← n{from} {}{}", message.body.name(), if down { " ✗" } else { "" }));
        if down {
            return Ok(());
        }
        self.checker.received(slot(to), &message)?;
        let start = self.event_log.lines.len();
        self.step(to, Input::Receive(message))?;
        self.event_log.lines[start..].iter_mut().for_each(|line| line.insert_str(0, "  "));
        Ok(())
    }

    /// Delivers all messages in flight, and those sent in response.
    pub(crate) fn settle(&mut self) -> Check {
        for _ in 0..1000 {
            if self.flight.is_empty() {
                return Ok(());
            }
            for message in std::mem::take(&mut self.flight) {
                self.arrive(message)?;
            }
        }
        panic!("the cluster does not come to rest");
    }

    /// Makes `id` the leader of the nodes that it can reach: first they forget their leaders. This
    /// may take several tries, because messages in flight arrive in between.
    pub(crate) fn elect(&mut self, id: NodeId) -> Check {
        for _ in 0..4 {
            if self.node(id).is_leader() {
                return Ok(());
            }
            self.forget_leaders(id)?;
            self.step(id, Input::ElectionTimeout)?;
            self.settle()?;
        }
        panic!("n{id} was not elected");
    }

    /// Runs out the election timers of all nodes that `id` can reach, and drops the messages they
    /// send.
    fn forget_leaders(&mut self, id: NodeId) -> Check {
        let flight = std::mem::take(&mut self.flight);
        let reachable = |other: &NodeId| !self.cut.contains(&(id, *other)) && self.replicas[other].node.is_some();
        for other in self.replicas.keys().copied().filter(reachable).collect::<Vec<_>>() {
            // A leader that has heard from its followers steps down at the second timeout.
            for _ in 0..2 {
                if other != id && self.node(other).leader().is_some() {
                    self.step(other, Input::ElectionTimeout)?;
                }
            }
            assert!(other == id || self.node(other).leader().is_none(), "n{other} does not forget its leader");
        }
        self.flight = flight;
        Ok(())
    }

    /// Cuts the links that `lost` selects; the messages in flight on them are lost as well.
    pub(crate) fn cut(&mut self, lost: impl Fn(NodeId, NodeId) -> bool) {
        let ids: Vec<NodeId> = self.replicas.keys().copied().collect();
        let links = ids.iter().flat_map(|&a| ids.iter().map(move |&b| (a, b)));
        self.cut = links.filter(|&(from, to)| from != to && lost(from, to)).collect();
        self.flight.retain(|message| !self.cut.contains(&(message.from, message.to)));
    }

    fn execute(&mut self, id: NodeId, output: Output<S>) -> Check {
        let replica = self.replicas.get_mut(&id).expect("there is no such node");
        let event_log = &mut self.event_log;
        match output {
            Output::Persist(write) => {
                event_log.record(|| format!("n{id} {}", print::persist::<S>(&write)));
                replica.disk.apply(&write);
                self.checker.written(slot(id), std::slice::from_ref(&write))?;
                if let Persist::Snapshot(snapshot) = &write {
                    replica.applied = snapshot.last.index;
                    self.installed += 1;
                }
            }
            Output::Send(message) => {
                self.checker.sent(slot(id), &message)?;
                let lost = self.cut.contains(&(id, message.to));
                event_log.record(|| format!("{}{}", print::message::<S>(&message), if lost { " ✗" } else { "" }));
                if !lost {
                    self.flight.push(message);
                }
            }
            Output::SendSnapshot { to, term } => {
                event_log.record(|| format!("n{id} falls back to a snapshot for n{to}"));
                // A message like any other, except that its content is on the disk.
                let body = Body::InstallSnapshot { snapshot: Arc::new(replica.disk.snapshot.clone()) };
                self.execute(id, Output::Send(Message { from: id, to, term, body }))?;
            }
            Output::Accepted { first, term, .. } => {
                event_log.record(|| format!("n{id} accepts from {first}@{term} on"))
            }
            Output::Refused { leader, .. } => event_log.record(|| format!("n{id} refuses: {}", leads(leader))),
            Output::ChangeRefused { refusal, .. } => {
                event_log.record(|| format!("n{id} refuses: {}", print::refusal(refusal)))
            }
            Output::ReadReady(read) => event_log.record(|| format!("n{id} can answer read {read}")),
            Output::ReadRefused { leader, .. } | Output::TransferRefused { leader, .. } => {
                event_log.record(|| format!("n{id} refuses: {}", leads(leader)));
            }
            Output::Applied { index, term, stamp, outcome } => {
                let entry = self.applied[&(index, term)].clone();
                assert_eq!(entry.stamp, stamp, "Applied names the entry");
                event_log.record(|| {
                    let did = S::show_outcome(&outcome);
                    let did = if did.is_empty() { did } else { format!(" ⇒ {did}") };
                    format!("n{id} applies {} t={stamp}{did}", print::entry::<S>(&entry))
                });
                replica.applied = index;
            }
            Output::LostEntries { follower, acknowledged } => {
                event_log.record(|| format!("n{id} finds that n{follower} has lost entries up to {acknowledged}"));
            }
            Output::ArmElectionTimer if event_log.timers => {
                event_log.record(|| format!("n{id} arms its election timer"))
            }
            Output::ArmHeartbeatTimer if event_log.timers => {
                event_log.record(|| format!("n{id} arms its heartbeat timer"))
            }
            Output::ArmElectionTimer | Output::ArmHeartbeatTimer => {}
            Output::Dropped { from, reason } => event_log.record(|| format!("n{id} {}", print::dropped(from, reason))),
        }
        Ok(())
    }
}

/// The checker's name of a node's disk.
fn slot(id: NodeId) -> Slot {
    Slot(id.0.into())
}

fn fingerprint<S: StateMachine>(message: &Message<S>) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.hash(&mut hasher);
    hasher.finish()
}

/// Names the leader, for the event log.
fn leads(leader: Option<NodeId>) -> String {
    leader.map_or("no leader known".into(), |leader| format!("n{leader} leads"))
}
