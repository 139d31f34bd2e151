//! Recoveries, steps and writes of all servers, and what follows of them: elections and commits.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::agreed::Reference;
use super::disk;
use super::inputs::check_input;
use super::machine::Checked;
use super::messages::Promise;
use super::server::{AppliedOutput, Before, Sending, Server};
use super::written::WrittenEntries;
use super::{Feed, Slot};
use crate::invariants::{
    Check, Leaders, Property, Violation, acknowledgement_matches_log, clock_monotonicity, commit_only_grows,
    committed_by_a_majority, elected_by_a_majority, election_safety, leader_completeness, members_follow_the_log,
    node_is_sound, one_change_at_a_time, removed_leader_steps_down, replies_name_entries, replies_name_requests,
    votes_stand,
};
use crate::raft::{
    Body, Durable, HardState, Index, Input, Log, Members, Message, Node, NodeId, Output, Payload, Persist, Position,
    Snapshot, Stamp, Term,
};
use crate::{require, violated};

/// The observed state of a cluster. Every event returns the first violation that it shows; after a
/// violation the checker is of no further use.
#[derive(Debug)]
pub struct ClusterChecker<S: Checked> {
    pub(super) feed: Feed<S>,
    pub(super) servers: BTreeMap<Slot, Server<S>>,
    /// Of several servers with the same node ID, the one that communicates.
    pub(super) numbers: BTreeMap<NodeId, Slot>,
    pub(super) reference: Option<Reference<S>>,
    leaders: Leaders,
    written: WrittenEntries<S::Command>,
    /// The messages that were sent, by their fingerprints.
    pub(super) sent: BTreeMap<u64, Promise>,
    /// Snapshots that were to be sent: sender, receiver, term.
    pub(super) offers: BTreeSet<(NodeId, NodeId, Term)>,
    now: Option<Duration>,
    has_made_up: bool,
    nothing: Log<S::Command>,
    pub(super) counts: Counts,
}

/// How much was checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Steps.
    pub steps: u64,
    /// Messages that left.
    pub sent: u64,
    /// Messages that arrived.
    pub received: u64,
    /// Recoveries, the first ones included.
    pub recoveries: u64,
    /// Recoveries after the first ones.
    pub restarts: u64,
    /// Elections.
    pub elections: u64,
    /// Commits of leaders.
    pub commits: u64,
    /// Snapshots that arrived.
    pub snapshots: u64,
    /// Snapshots that replaced a node's state.
    pub installed: u64,
    /// Changes of the members of a node's log.
    pub changes: u64,
    /// Whole states compared.
    pub states: u64,
    /// Majorities that were not counted, because a server was unknown.
    pub uncounted: u64,
}

impl<S: Checked> ClusterChecker<S> {
    /// A checker of a cluster that has not started.
    pub fn new(feed: Feed<S>) -> ClusterChecker<S> {
        let written_kept = feed.written_kept;
        ClusterChecker {
            feed,
            servers: BTreeMap::new(),
            numbers: BTreeMap::new(),
            reference: None,
            leaders: Leaders::new(),
            written: WrittenEntries::new(written_kept),
            sent: BTreeMap::new(),
            offers: BTreeSet::new(),
            now: None,
            has_made_up: false,
            nothing: Log::default(),
            counts: Counts::default(),
        }
    }

    /// The present time by the feeder's clock; `None` if it has none, and cluster time is not
    /// compared with it.
    pub fn set_time(&mut self, now: Option<Duration>) {
        self.now = now;
    }

    /// The committed state, once a founder has started.
    pub fn reference(&self) -> Option<&Reference<S>> {
        self.reference.as_ref()
    }

    /// How much was checked.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The writes of a server that are not reported durable; `None` before its first start.
    pub fn pending(&self, slot: Slot) -> Option<impl ExactSizeIterator<Item = &Persist<S>>> {
        self.servers.get(&slot).map(|server| server.pending.iter())
    }

    /// What a server's disk has reported durable.
    pub fn disk(&self, slot: Slot) -> &Durable<S> {
        &self.servers[&slot].disk
    }

    pub(super) fn agreed(&self) -> Result<&Reference<S>, Violation> {
        let missing = || Violation::new(Property::ClusterHasFounders, format_args!("no founder started"));
        self.reference.as_ref().ok_or_else(missing)
    }

    /// A server will be reported. Without this, the feeder begins to know it when it recovers.
    pub fn announce(&mut self, slot: Slot, id: NodeId) {
        self.numbers.entry(id).or_insert(slot);
    }

    /// When the entry at this position was first written, if that is known.
    pub fn born(&self, position: Position) -> Option<Duration> {
        self.written.born(position)
    }

    /// A server recovers: the first time its disk is blank, later it has what was reported durable.
    ///
    /// # Errors
    /// The first violation.
    pub fn recovered(&mut self, slot: Slot, id: NodeId, found: &Durable<S>) -> Check {
        self.counts.recoveries += 1;
        let mut earlier = Vec::new();
        if let Some(was) = self.servers.remove(&slot) {
            self.counts.restarts += 1;
            let Feed { batches_are_atomic, .. } = self.feed;
            require!(
                Property::AcknowledgedWritesSurvive,
                disk::may_hold(&was.disk, &was.pending, batches_are_atomic, was.released, found),
                "node {id} had {:?}, a log up to {:?}, a snapshot at {:?} or later and {} writes under way; it \
                 recovered {:?}, {:?}, {:?}",
                was.disk.hard,
                was.disk.log.last(),
                was.disk.snapshot.last,
                was.pending.len(),
                found.hard,
                found.log.last(),
                found.snapshot.last
            )?;
            earlier = was.earlier;
            earlier.push(was.done);
        } else {
            let blank = found.hard == HardState::default() && found.log.last() == found.snapshot.last;
            require!(Property::RecordedFromFirstStart, blank, "node {id} has a past that was not observed")?;
            let members = &*found.snapshot.members;
            if members.ids().next().is_some() {
                let agreed = self.reference.get_or_insert_with(|| Reference::new(&found.snapshot));
                require!(Property::FoundersAgree, agreed.founders() == members, "node {id} has other founders")?;
            }
        }
        if self.reference.is_some() {
            self.compare_snapshot(&found.snapshot)?;
        }
        self.announce(slot, id);
        self.servers.insert(slot, Server::new(id, found.clone(), earlier));
        Ok(())
    }

    /// The feeder itself has changed the disk of a server that is down.
    pub fn disk_changed(&mut self, slot: Slot, disk: Durable<S>) {
        if let Some(server) = self.servers.get_mut(&slot) {
            server.pending.clear();
            server.disk = disk;
            // Its log, with which acknowledgements are compared, is not known any more.
            server.before.leads = None;
        }
    }

    /// The feeder itself makes up messages from now on: what is known only if every message was
    /// sent by a server is judged no longer, which is what majorities did and what was agreed.
    pub fn messages_are_made_up(&mut self) {
        self.has_made_up = true;
    }

    /// A node took a step; it is now `node`. None of the outputs is executed yet.
    ///
    /// # Errors
    /// The first violation.
    pub fn stepped(&mut self, slot: Slot, node: &Node<S>, input: &Input<S>, outputs: &[Output<S>]) -> Check {
        self.counts.steps += 1;
        let before = self.server(slot)?.before.clone();
        node_is_sound(node)?;
        removed_leader_steps_down(node)?;
        votes_stand(node.id(), before.hard, node.hard_state())?;
        check_input(before.transfer, input, outputs, node)?;
        let (id, was, is) = (node.id(), before.commit, node.commit());
        commit_only_grows(was, node)?;
        clock_monotonicity((before.clock, before.last), node)?;
        replies_name_entries((was, before.last.index), outputs, node)?;
        every_commit_is_applied(was, outputs, node)?;
        replies_name_requests(&mut self.server(slot)?.open_reads, input, outputs, node)?;
        if let Input::Compact(through) = input {
            let server = self.server(slot)?;
            let (released, snapshot) = (server.released, server.disk.snapshot.last.index);
            require!(
                Property::CompactedAfterRelease,
                *through <= released.max(snapshot),
                "node {id} compacts up to {through}, and only entries up to {released} are released"
            )?;
        }
        let mut rewritten = node.log().base() != before.base;
        for output in outputs {
            rewritten |= self.output(slot, node, &before, output)?;
        }
        self.server(slot)?.before = Before::of(node);
        self.counts.changes += u64::from(!Arc::ptr_eq(&before.members, node.log().members()));
        if rewritten {
            self.check_members(node)?;
        }
        self.release(slot)?;
        let leads = node.is_leader().then(|| node.term());
        if leads.is_some() && leads != before.leads {
            self.elected(node)?;
        }
        // A leader that commits its own removal leads no longer at the end of the step.
        if is > was && (leads.is_some() || before.leads == Some(node.term())) {
            self.committed(node)?;
        }
        self.time_never_runs_ahead(node)?;
        self.compare_now_and_then(slot, node)
    }

    /// Records an output; returns whether it changes the members in the log, or may.
    fn output(&mut self, slot: Slot, node: &Node<S>, before: &Before, output: &Output<S>) -> Result<bool, Violation> {
        let mut rewrites = false;
        match output {
            Output::Persist(write) => {
                match write {
                    Persist::Entries(entries) => {
                        let first = entries[0].index;
                        let appends = first == before.last.index.next();
                        let leads = node.is_leader() && before.leads == Some(node.term());
                        require!(
                            Property::LeaderAppendOnly,
                            appends || !leads,
                            "leader {} wrote entry {first} again",
                            node.id()
                        )?;
                        rewrites = !appends || entries.iter().any(|entry| matches!(entry.payload, Payload::Members(_)));
                        self.written.write(node.log(), entries, self.now)?;
                    }
                    Persist::Snapshot(snapshot) => {
                        rewrites = true;
                        self.counts.installed += 1;
                        self.compare_snapshot(snapshot)?;
                    }
                    Persist::HardState(_) | Persist::Compact(_) => {}
                }
                let server = self.server(slot)?;
                server.asked += 1;
                server.pending.push_back(write.clone());
            }
            Output::Send(message) => {
                self.check_acknowledgement(message, node)?;
                self.must_send(slot, Sending::Message(message.clone()))?;
            }
            Output::SendSnapshot { to, term } => self.must_send(slot, Sending::Snapshot(*to, *term))?,
            Output::Applied { index, outcome, .. } => {
                let entry = node.log().get(*index).expect("an entry that was just applied is in the log").clone();
                let agreed = self.agreed()?;
                agreed.compare(&entry)?;
                agreed.compare_outcome(*index, outcome)?;
                let server = self.server(slot)?;
                let applied = AppliedOutput { entry, term: node.term(), outcome: outcome.clone() };
                server.unreleased.push_back((server.asked, applied));
            }
            _ => {}
        }
        Ok(rewrites)
    }

    /// The disk reports the next writes durable.
    ///
    /// # Errors
    /// The first violation.
    pub fn written(&mut self, slot: Slot, writes: &[Persist<S>]) -> Check {
        let computes = !self.feed.reports_snapshots;
        let server = self.server(slot)?;
        let id = server.id;
        for write in writes {
            if server.pending.front() != Some(write) {
                let asked = &server.pending;
                return violated!(
                    Property::WritesMatchOutputs,
                    "node {id} wrote {write:?}, and was to write {asked:?}"
                );
            }
            disk::apply(&mut server.disk, write, computes)?;
            server.pending.pop_front();
            server.done += 1;
        }
        let (before, disk) = (&server.before, &server.disk);
        let same = (before.hard, before.last, before.base) == (disk.hard, disk.log.last(), disk.log.base());
        require!(
            Property::MemoryMatchesDisk,
            same || !server.pending.is_empty(),
            "the memory of node {id} differs from its disk"
        )?;
        self.release(slot)
    }

    /// A driver's own snapshot is durable.
    ///
    /// # Errors
    /// The first violation.
    pub fn snapshot_taken(&mut self, slot: Slot, snapshot: Snapshot<S>) -> Check {
        self.compare_snapshot(&snapshot)?;
        let server = self.server(slot)?;
        let (id, released, last) = (server.id, server.released, snapshot.last.index);
        require!(
            Property::CompactedAfterRelease,
            last <= released,
            "the snapshot of node {id} includes entry {last}, and only entries up to {released} are released"
        )?;
        if last > server.disk.snapshot.last.index {
            server.disk.snapshot = snapshot;
        }
        Ok(())
    }

    pub(super) fn server(&mut self, slot: Slot) -> Result<&mut Server<S>, Violation> {
        let unknown = || Violation::new(Property::RecordedInOrder, format_args!("{slot:?} has not started"));
        self.servers.get_mut(&slot).ok_or_else(unknown)
    }

    /// Agrees on the entries whose `Applied` outputs may be executed by now.
    fn release(&mut self, slot: Slot) -> Check {
        let Feed { entries_kept, states_kept, checked_whole_up_to, .. } = self.feed;
        let server = self.servers.get_mut(&slot).expect("it has started");
        while server.unreleased.front().is_some_and(|(writes, _)| *writes <= server.done) {
            let Some((_, AppliedOutput { entry, term, outcome })) = server.unreleased.pop_front() else { break };
            server.released = entry.index;
            let agreed = self.reference.as_mut().expect("a founder has started");
            let born = self.written.born(entry.position());
            agreed.agree(&entry, term, &outcome, born, (entries_kept, states_kept, checked_whole_up_to))?;
        }
        if server.pending.is_empty() {
            server.released = server.before.commit;
        }
        Ok(())
    }

    /// A follower acknowledges an entry to the leader of its term.
    fn check_acknowledgement(&self, message: &Message<S>, from: &Node<S>) -> Check {
        let Body::AppendAccepted { matched, .. } = message.body else { return Ok(()) };
        let leads = |to: &&Server<S>| to.before.leads == Some(message.term) && matched >= to.before.base.index;
        match self.speaker(message.to).filter(leads) {
            Some(leader) if !self.has_made_up => acknowledgement_matches_log(matched, from, leader.term_at(matched)),
            _ => Ok(()),
        }
    }

    fn check_members(&self, node: &Node<S>) -> Check {
        members_follow_the_log(node.log())?;
        let Some(agreed) = &self.reference else { return Ok(()) };
        // What is committed counts, whether this node knows of the commit or not.
        one_change_at_a_time(node.log(), node.commit().max(agreed.last()))?;
        if self.has_made_up { Ok(()) } else { agreed.compare_base(node.log()) }
    }

    /// Compares a snapshot with what was agreed.
    pub(super) fn compare_snapshot(&self, snapshot: &Snapshot<S>) -> Check {
        if self.is_unknown(snapshot.last.index) { Ok(()) } else { self.agreed()?.compare_snapshot(snapshot) }
    }

    /// Whether made-up messages may have led a node to this entry, which no node has committed.
    pub(super) fn is_unknown(&self, index: Index) -> bool {
        self.has_made_up && self.reference.as_ref().is_none_or(|agreed| index > agreed.last())
    }

    /// A node has become leader.
    fn elected(&mut self, leader: &Node<S>) -> Check {
        self.counts.elections += 1;
        election_safety(&mut self.leaders, leader.term(), leader.id())?;
        if self.may_count(leader.log().members()) {
            // Of the other servers, only what is durable counts.
            elected_by_a_majority(leader, |id| match self.speaker(id) {
                _ if id == leader.id() => leader.hard_state(),
                voter => voter.map_or_else(HardState::default, |voter| voter.disk.hard),
            })?;
        }
        leader_completeness(self.agreed()?.required_entries(leader), leader)
    }

    /// A leader has committed entries: a majority must have them on disk.
    fn committed(&mut self, leader: &Node<S>) -> Check {
        self.counts.commits += 1;
        if !self.may_count(leader.log().members()) {
            return Ok(());
        }
        committed_by_a_majority(leader, |id| self.speaker(id).map_or(&self.nothing, |server| &server.disk.log))
    }

    /// Whether a majority of these members can be counted.
    fn may_count(&mut self, members: &Members) -> bool {
        let known = self.feed.sees_all_servers || members.voters().all(|id| self.speaker(id).is_some());
        let known = known && !self.has_made_up;
        self.counts.uncounted += u64::from(!known);
        known
    }

    /// The server that communicates under this ID.
    fn speaker(&self, id: NodeId) -> Option<&Server<S>> {
        self.numbers.get(&id).and_then(|slot| self.servers.get(slot))
    }

    /// A node's clock may have moved past the stamp of its log's last entry by at most the entry's
    /// age.
    fn time_never_runs_ahead(&self, node: &Node<S>) -> Check {
        let (last, Stamp(stamp)) = (node.log().last(), node.log().last_stamp());
        let Some((born, now)) = self.written.born(last).zip(self.now) else { return Ok(()) };
        let (age, moved) = (now.saturating_sub(born), u128::from(node.clock().0 - stamp));
        require!(
            Property::ClusterTimeNeverRunsAhead,
            moved <= (self.feed.most)(age).as_millis(),
            "the clock of node {} moved on by {moved} ms from {last:?}, written {age:?} ago",
            node.id()
        )
    }

    fn compare_now_and_then(&mut self, slot: Slot, node: &Node<S>) -> Check {
        let every = self.feed.commits_between_comparisons;
        let server = self.server(slot)?;
        let is_due = node.commit() >= Index(server.compared.0.saturating_add(every));
        if !is_due || server.released < node.commit() || self.is_unknown(node.commit()) {
            return Ok(());
        }
        let server = self.server(slot)?;
        server.compared = node.commit();
        self.counts.states += 1;
        self.agreed()?.compare_machine(node.commit(), node.machine())
    }
}

/// Each entry that a node commits has an `Applied`, unless it is in an installed snapshot.
fn every_commit_is_applied<S: Checked>(commit: Index, outputs: &[Output<S>], after: &Node<S>) -> Check {
    let applied = outputs.iter().filter_map(|output| match output {
        Output::Applied { index, .. } => Some(*index),
        Output::Persist(Persist::Snapshot(snapshot)) => Some(snapshot.last.index),
        _ => None,
    });
    let (last, is) = (applied.max().unwrap_or(commit), after.commit());
    let id = after.id();
    require!(Property::RepliesNameEntries, is <= last, "node {id} committed up to {is}, and applied up to {last}")
}
