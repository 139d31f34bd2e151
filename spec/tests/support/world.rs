//! A cluster in memory: nodes, their disks, and a network that does as it is told.
//!
//! It is a driver of [`Node`] that keeps the contract of [`raft::interface`](palisade_spec::raft::interface) to the
//! letter, and can be cut off at any place: a held node's outputs wait, and a crash carries out any prefix of them,
//! also of the entries inside one write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use palisade_spec::invariants::Check;
use palisade_spec::raft::{
    Body, Config, Durable, Entry, Index, Input, Members, Message, Node, NodeId, Output, Persist, ReadId, Term,
};

use super::checker::{Checker, require};
use super::machine::Scripted;
use super::print;

/// A cluster.
pub(crate) struct World<S: Scripted> {
    pub(crate) seats: BTreeMap<NodeId, Replica<S>>,
    /// What is on its way, in the order in which it was sent.
    pub(crate) flight: Vec<Message<S>>,
    /// The links that lose everything, from and to.
    pub(crate) cut: BTreeSet<(NodeId, NodeId)>,
    /// How many milliseconds have really passed, where all clocks advance together.
    pub(crate) real: Option<u64>,
    pub(crate) checker: Checker<S>,
    pub(crate) story: Story,
    /// Every entry that any node has applied.
    applied: BTreeMap<(Index, Term), Entry<S::Command>>,
    /// How much was known to be committed when a read was asked for.
    reads: BTreeMap<ReadId, Index>,
    /// How often a leader's snapshot took the place of a node's state.
    pub(crate) installed: u64,
    /// How many reads were answered.
    pub(crate) read: u64,
}

/// A node's place: its disk outlives it.
pub(crate) struct Replica<S: Scripted> {
    pub(crate) config: Config,
    pub(crate) disk: Durable<S>,
    /// `None` while it is down.
    pub(crate) node: Option<Node<S>>,
    /// What it asked for and was not given yet.
    pub(crate) pending: VecDeque<Output<S>>,
    /// Whether its outputs wait until they are flushed.
    pub(crate) held: bool,
    /// How far the driver knows the log to be applied.
    pub(crate) applied: Index,
}

/// What happens, line by line.
#[derive(Default)]
pub(crate) struct Story {
    /// Whether anybody listens.
    pub(crate) on: bool,
    /// Whether the timers are worth a line.
    pub(crate) timers: bool,
    pub(crate) lines: Vec<String>,
}

impl Story {
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.on {
            self.lines.push(line());
        }
    }
}

impl<S: Scripted> World<S> {
    /// Nodes with blank disks, all of them running.
    pub(crate) fn new(configs: impl IntoIterator<Item = Config>) -> World<S> {
        let configs: Vec<Config> = configs.into_iter().collect();
        let members = Members::of(configs.iter().map(|config| config.id));
        let mut world = World {
            seats: BTreeMap::new(),
            flight: Vec::new(),
            cut: BTreeSet::new(),
            real: None,
            checker: Checker::default(),
            story: Story::default(),
            applied: BTreeMap::new(),
            reads: BTreeMap::new(),
            installed: 0,
            read: 0,
        };
        configs.into_iter().for_each(|config| world.take_seat(config, members.clone()));
        world
    }

    /// A node with a blank disk starts, as a founding member, or knowing of no members.
    pub(crate) fn take_seat(&mut self, config: Config, members: Members) {
        let disk = Durable::blank(S::default(), members);
        let node = Some(Node::recover(config.clone(), disk.clone()));
        let seat = Replica { config, disk, node, pending: VecDeque::new(), held: false, applied: Index(0) };
        self.seats.insert(seat.config.id, seat);
    }

    /// The node, which must be running.
    pub(crate) fn node(&self, id: NodeId) -> &Node<S> {
        self.seats[&id].node.as_ref().expect("the node is down")
    }

    pub(crate) fn seat(&mut self, id: NodeId) -> &mut Replica<S> {
        self.seats.get_mut(&id).expect("there is no such node")
    }

    /// Gives a node an input, and unless it is held carries out all that it asks for.
    pub(crate) fn step(&mut self, id: NodeId, input: Input<S>) -> Check {
        let seat = self.seats.get_mut(&id).expect("there is no such node");
        let node = seat.node.as_mut().expect("the node is down");
        let before = node.clone();
        if let Input::Read(read) = input {
            self.reads.insert(read, self.checker.last_committed());
        }
        let mut out = Vec::new();
        node.step(input, &mut out);
        let (was, is) = (print::role(&before), print::role(node));
        if was != is {
            self.story.tell(|| format!("n{id} {was} → {is}"));
        }
        for output in &out {
            if let Output::Applied { index, term, .. } = output {
                let entry = node.log().get(*index).expect("what was applied is in the log").clone();
                self.applied.insert((*index, *term), entry);
            }
            if let Output::ReadReady(read) = output {
                self.read += 1;
                let (asked, has) = (self.reads[read], node.commit());
                require("linearizable reads", asked <= has, || {
                    format!("n{id} answers read {read} at {has}, where {asked} was committed before it was asked")
                })?;
            }
        }
        seat.pending.extend(out);
        self.checker.stepped(&before, node, self.real)?;
        if before.log() != node.log() {
            self.check_logs(id)?;
        }
        if self.seats[&id].held { Ok(()) } else { self.flush(id, usize::MAX) }
    }

    /// Carries out the first `count` outputs that wait at a node. Timers are not counted: they bind nobody.
    pub(crate) fn flush(&mut self, id: NodeId, count: usize) -> Check {
        let mut done = 0;
        while let Some(output) = self.seats[&id].pending.front() {
            let timer = matches!(output, Output::ArmElectionTimer | Output::ArmHeartbeatTimer);
            if !timer && done == count {
                break;
            }
            done += usize::from(!timer);
            let output = self.seat(id).pending.pop_front().expect("it was there");
            self.carry_out(id, output)?;
        }
        let seat = &self.seats[&id];
        match &seat.node {
            Some(node) if seat.pending.is_empty() => self.checker.settled(node, &seat.disk),
            _ => Ok(()),
        }
    }

    /// Lets one sync, at the place of the first write, make all the writes that wait durable (group commit).
    pub(crate) fn merge_writes(&mut self, id: NodeId) {
        let pending = &mut self.seat(id).pending;
        let is_write = |output: &Output<S>| matches!(output, Output::Persist(_));
        let Some(first) = pending.iter().position(is_write) else { return };
        let (writes, rest): (Vec<_>, Vec<_>) = pending.drain(first..).partition(is_write);
        pending.extend(writes);
        pending.extend(rest);
    }

    /// A snapshot of the state after the entry at `through`, made of what is on the node's disk, becomes its snapshot.
    pub(crate) fn snapshot(&mut self, id: NodeId, through: Index) {
        let seat = self.seats.get_mut(&id).expect("there is no such node");
        assert!(through <= seat.applied, "a driver snapshots what it knows to be applied");
        seat.disk.snapshot = seat.disk.snapshot_at(through);
        let last = seat.disk.snapshot.last;
        self.story.tell(|| format!("n{id} has a snapshot {}", print::position(last)));
    }

    /// The node dies after the first `after` outputs that wait. If `torn` is given, the next one is a write of entries
    /// of which only so many arrive, or of a snapshot with the log to follow.
    pub(crate) fn crash(&mut self, id: NodeId, after: usize, torn: Option<usize>) -> Check {
        self.flush(id, after)?;
        let seat = self.seats.get_mut(&id).expect("there is no such node");
        if let Some(kept) = torn {
            match seat.pending.pop_front() {
                Some(Output::Persist(Persist::Entries(entries))) => {
                    seat.disk.log.truncate(entries[0].index);
                    entries.into_iter().take(kept).for_each(|entry| seat.disk.log.push(entry));
                }
                Some(Output::Persist(Persist::Snapshot(snapshot))) => seat.disk.snapshot = (*snapshot).clone(),
                _ => panic!("the next output is not a write that can be torn"),
            }
        }
        (seat.node, seat.held) = (None, false);
        seat.pending.clear();
        self.story.tell(|| format!("n{id} crashes: {}", print::disk(&seat.disk)));
        self.check_logs(id)
    }

    /// The node comes back with what its disk has.
    pub(crate) fn restart(&mut self, id: NodeId) {
        let seat = self.seat(id);
        assert!(seat.node.is_none(), "the node is running");
        seat.disk.settle();
        seat.applied = seat.disk.snapshot.last.index;
        seat.node = Some(Node::recover(seat.config.clone(), seat.disk.clone()));
    }

    /// A message arrives: at a node that is down, or is not there yet, for nothing.
    pub(crate) fn arrive(&mut self, message: Message<S>) -> Check {
        let Message { from, to, .. } = message;
        let down = self.seats.get(&to).is_none_or(|seat| seat.node.is_none());
        self.story.tell(|| format!("n{to} ← n{from} {}{}", message.body.name(), if down { " ✗" } else { "" }));
        if down {
            return Ok(());
        }
        let told = self.story.lines.len();
        self.step(to, Input::Receive(message))?;
        self.story.lines[told..].iter_mut().for_each(|line| line.insert_str(0, "  "));
        Ok(())
    }

    /// Delivers everything that is on its way, and everything that follows from it.
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

    /// Makes `id` the leader of those whom it can reach: they hear from no other leader any more. It may take a few
    /// tries, for what is still on its way arrives in between.
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

    /// The election timers of all that `id` can reach run out, and what they send is lost.
    fn forget_leaders(&mut self, id: NodeId) -> Check {
        let flight = std::mem::take(&mut self.flight);
        let reachable = |other: &NodeId| !self.cut.contains(&(id, *other)) && self.seats[other].node.is_some();
        for other in self.seats.keys().copied().filter(reachable).collect::<Vec<_>>() {
            // A leader that has heard from its followers steps down at the second.
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

    /// Cuts the links that `lost` names; what is on its way on them is lost as well.
    pub(crate) fn cut(&mut self, lost: impl Fn(NodeId, NodeId) -> bool) {
        let ids: Vec<NodeId> = self.seats.keys().copied().collect();
        let links = ids.iter().flat_map(|&a| ids.iter().map(move |&b| (a, b)));
        self.cut = links.filter(|&(from, to)| from != to && lost(from, to)).collect();
        self.flight.retain(|message| !self.cut.contains(&(message.from, message.to)));
    }

    fn carry_out(&mut self, id: NodeId, output: Output<S>) -> Check {
        let seat = self.seats.get_mut(&id).expect("there is no such node");
        let story = &mut self.story;
        match output {
            Output::Persist(write) => {
                story.tell(|| format!("n{id} {}", print::persist::<S>(&write)));
                seat.disk.apply(&write);
                if let Persist::Snapshot(snapshot) = &write {
                    seat.applied = snapshot.last.index;
                    self.installed += 1;
                }
            }
            Output::Send(message) => {
                self.checker.said(&message, &seat.disk)?;
                let lost = self.cut.contains(&(id, message.to));
                story.tell(|| format!("{}{}", print::message::<S>(&message), if lost { " ✗" } else { "" }));
                if !lost {
                    self.flight.push(message);
                }
            }
            Output::SendSnapshot { to, term } => {
                story.tell(|| format!("n{id} falls back to a snapshot for n{to}"));
                // A message like any other, but that its content is on the disk.
                let body = Body::InstallSnapshot { snapshot: Arc::new(seat.disk.snapshot.clone()) };
                self.carry_out(id, Output::Send(Message { from: id, to, term, body }))?;
            }
            Output::Accepted { first, term } => story.tell(|| format!("n{id} accepts from {first}@{term} on")),
            Output::Refused { leader } => story.tell(|| format!("n{id} refuses: {}", leads(leader))),
            Output::ChangeRefused(refusal) => story.tell(|| format!("n{id} refuses: {}", print::refusal(refusal))),
            Output::ReadReady(read) => story.tell(|| format!("n{id} can answer read {read}")),
            Output::ReadRefused { leader, .. } | Output::TransferRefused { leader } => {
                story.tell(|| format!("n{id} refuses: {}", leads(leader)));
            }
            Output::Applied { index, term, stamp, outcome } => {
                let entry = self.applied[&(index, term)].clone();
                assert_eq!(entry.stamp, stamp, "Applied names the entry");
                story.tell(|| {
                    let did = S::show_outcome(&outcome);
                    let did = if did.is_empty() { did } else { format!(" ⇒ {did}") };
                    format!("n{id} applies {} t={stamp}{did}", print::entry::<S>(&entry))
                });
                self.checker.applied(id, &entry, &outcome)?;
                seat.applied = index;
            }
            Output::LostEntries { follower, acknowledged } => {
                story.tell(|| format!("n{id} finds that n{follower} has lost entries up to {acknowledged}"));
            }
            Output::ArmElectionTimer if story.timers => story.tell(|| format!("n{id} arms its election timer")),
            Output::ArmHeartbeatTimer if story.timers => story.tell(|| format!("n{id} arms its heartbeat timer")),
            Output::ArmElectionTimer | Output::ArmHeartbeatTimer => {}
            Output::Dropped { from, reason } => story.tell(|| format!("n{id} {}", print::dropped(from, reason))),
        }
        Ok(())
    }

    /// Compares a node's log with all others; of a node that is down, its disk's.
    fn check_logs(&self, id: NodeId) -> Check {
        let log = |seat: &'_ Replica<S>| seat.node.as_ref().map_or(seat.disk.log.clone(), |node| node.log().clone());
        let own = log(&self.seats[&id]);
        self.seats
            .iter()
            .filter(|(other, _)| **other != id)
            .try_for_each(|(_, seat)| self.checker.pair(&own, &log(seat)))
    }
}

/// Who leads, for the story.
fn leads(leader: Option<NodeId>) -> String {
    leader.map_or("no leader known".into(), |leader| format!("n{leader} leads"))
}
