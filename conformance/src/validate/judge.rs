//! The judge: sees all nodes of a cluster at once, and of each what its disk has.
//!
//! A property about all entries of all logs is checked where something is new: an entry when it is
//! written, a vote when it elects, a commit when it happens. By induction that covers everything.
//! Where the recording has a digest of a node's whole state, the node is also compared as a whole
//! with everything known, so that the induction itself is tested.

use palisade_spec::{require, violated};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use palisade::recording::{Digest, Record};
use palisade_spec::invariants::{
    Check, Committed, Leaders, Property, Violation, committed_by_a_majority, elected_by_a_majority, election_safety,
    leader_completeness, log_matching, members_follow_the_log, members_survive_compaction, node_is_sound,
    one_change_at_a_time, removed_leader_steps_down, state_machine_safety, table_is_sound,
};
use palisade_spec::lock::{Command, LockTable};
use palisade_spec::raft::{
    Body, Config, Durable, Entry, HardState, Input, Log, Members, Message, Node, NodeId, Output, Payload, Persist,
    Position, Role, Term,
};

use super::replica::{Before, Replica};
use super::table::CommittedState;
use super::{Options, restart};
use crate::panics;

/// The observed state of a cluster.
#[derive(Debug)]
pub(super) struct Judge {
    options: Options,
    slots: Vec<NodeSlot>,
    /// The slot of each node ID: of several data directories with the same ID, the one that
    /// communicates.
    numbers: BTreeMap<NodeId, usize>,
    agreed: Option<CommittedState>,
    leaders: Leaders,
    /// Digest of every entry that was ever in a log, with the term of its predecessor.
    written: HashMap<Position, (Digest, Option<Term>)>,
    /// Messages sent: by which run, and how many of its writes had to be done first.
    sent: HashMap<Digest, Promise>,
    /// Snapshots that were to be sent: sender, receiver, term.
    snapshots: BTreeSet<(NodeId, NodeId, Term)>,
    outputs: Vec<Output<LockTable>>,
    pub(super) seen: Seen,
}

/// The writes that had to be done before a message was sent.
#[derive(Clone, Copy, Debug)]
struct Promise {
    slot: usize,
    run: usize,
    writes: u64,
}

/// Counts of what was checked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) checks: u64,
    pub(super) messages: u64,
    pub(super) elections: u64,
    pub(super) commits: u64,
    pub(super) restarts: u64,
    pub(super) snapshots: u64,
    pub(super) states: u64,
    /// Majorities that could not be counted, because a node of them was not recorded.
    pub(super) uncounted: u64,
}

#[derive(Debug)]
struct NodeSlot {
    id: NodeId,
    /// The present run's configuration, and the start of its recording.
    config: Option<Config>,
    began: u64,
    replica: Option<Replica>,
    /// Number of writes that each earlier run had done.
    earlier: Vec<u64>,
}

impl Judge {
    pub(super) fn new(options: Options) -> Judge {
        Judge {
            options,
            slots: Vec::new(),
            numbers: BTreeMap::new(),
            agreed: None,
            leaders: Leaders::new(),
            written: HashMap::new(),
            sent: HashMap::new(),
            snapshots: BTreeSet::new(),
            outputs: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Adds a node; slots are numbered in this order.
    pub(super) fn slot(&mut self, id: NodeId) {
        self.numbers.entry(id).or_insert(self.slots.len());
        self.slots.push(NodeSlot { id, config: None, began: 0, replica: None, earlier: Vec::new() });
    }

    /// The committed state, once the cluster has started.
    pub(super) fn agreed(&self) -> Option<&CommittedState> {
        self.agreed.as_ref()
    }

    /// The next record of a node. Panics of the spec's own assertions count as violations: a
    /// recording of something impossible may cause them.
    pub(super) fn observe(&mut self, slot: usize, at: u64, record: Record) -> Check {
        let observed = catch_unwind(AssertUnwindSafe(|| match record {
            Record::Began(header) => {
                (self.slots[slot].config, self.slots[slot].began) = (Some(header.config), header.began);
                Ok(())
            }
            Record::Recovered { durable, .. } => self.recovered(slot, durable),
            Record::Stepped { input, outputs, state, words, .. } => {
                self.stepped(slot, at, input, outputs, words.as_deref())?;
                state.map_or(Ok(()), |state| self.compare(slot, Some(state)))
            }
            Record::Written { writes, digest, .. } => self.replica(slot)?.written(writes, digest),
        }));
        observed.unwrap_or_else(|panic| violated!(Property::Assertions, "{}", panics::words(&*panic)))
    }

    fn replica(&mut self, slot: usize) -> Result<&mut Replica, Violation> {
        let unknown = || Violation {
            property: Property::RecordedInOrder,
            detail: "the recording has a record before the node's recovery".into(),
        };
        self.slots[slot].replica.as_mut().ok_or_else(unknown)
    }

    /// A node recovers: the first time it must be blank, later it must have what its disk reported
    /// durable.
    fn recovered(&mut self, slot_index: usize, durable: Durable<LockTable>) -> Check {
        let slot = &mut self.slots[slot_index];
        match slot.replica.take() {
            None => {
                let blank = durable.hard == HardState::default() && durable.log.last() == durable.snapshot.last;
                require!(Property::RecordedFromFirstStart, blank, "node {} has a past that is not recorded", slot.id)?;
                if durable.snapshot.members.iter().next().is_some() {
                    let agreed = self.agreed.get_or_insert_with(|| CommittedState::new(&durable.snapshot));
                    let same_members = agreed.founders == *durable.snapshot.members;
                    require!(Property::FoundersAgree, same_members, "node {} was founded with other members", slot.id)?;
                    agreed.check_state(durable.snapshot.last.index, &durable.snapshot.machine)?;
                }
            }
            Some(was) => {
                self.seen.restarts += 1;
                let (hard, last, snapshot) = (was.disk.hard, was.disk.log.last(), was.disk.snapshot.last);
                let (hard_now, last_now, snapshot_now) = (durable.hard, durable.log.last(), durable.snapshot.last);
                require!(
                    Property::AcknowledgedWritesSurvive,
                    restart::may_recover(&was, &durable),
                    "node {} had {hard:?}, a log up to {last:?}, a snapshot at {snapshot:?} or later and {} writes \
                     under way; it recovered {hard_now:?}, {last_now:?}, {snapshot_now:?}",
                    slot.id,
                    was.pending.len()
                )?;
                slot.earlier.push(was.done);
                if let Some(agreed) = &self.agreed {
                    agreed.check_state(durable.snapshot.last.index, &durable.snapshot.machine)?;
                }
            }
        }
        let config = slot.config.clone().expect("a recording begins with its header");
        slot.replica = Some(Replica::new(Node::recover(config, durable.clone()), durable, slot.began));
        Ok(())
    }

    fn stepped(
        &mut self,
        slot_index: usize,
        at: u64,
        input: Input<LockTable>,
        recorded: Digest,
        words: Option<&str>,
    ) -> Check {
        if let Input::Receive(message) = &input {
            self.received(slot_index, message)?;
        }
        let rate = self.options.clock_rate;
        let replica = self.replica(slot_index)?;
        let before = replica.before();
        match input {
            Input::ClockAdvanced(milliseconds) => replica.clock_advanced(milliseconds, at, rate)?,
            Input::Compact(through) => require!(
                Property::CompactedAfterRelease,
                through <= replica.released,
                "the log is compacted up to {through}, and only entries up to {} are released",
                replica.released
            )?,
            _ => {}
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        let replica = self.replica(slot_index)?;
        replica.step(input, recorded, words, &mut outputs)?;
        let judged = self.check_step(slot_index, before, &outputs);
        self.outputs = outputs;
        judged?;
        self.replica(slot_index)?.release_if_idle();
        Ok(())
    }

    /// A received message must have been sent, and the writes before it must have been durable by
    /// then.
    fn received(&mut self, slot_index: usize, message: &Message<LockTable>) -> Check {
        self.seen.messages += 1;
        self.numbers.insert(self.slots[slot_index].id, slot_index);
        let Message { from, to, term, body } = message;
        let (name, is_known) = (body.name(), self.numbers.contains_key(from));
        if let Body::InstallSnapshot { snapshot } = body {
            self.seen.snapshots += 1;
            let asked = self.snapshots.contains(&(*from, *to, *term));
            require!(
                Property::NoSpuriousMessage,
                asked || !is_known,
                "node {from} had no output that sends {name} to {to} in term {term}"
            )?;
            let agreed = self.agreed.as_ref().ok_or_else(no_founders)?;
            return agreed.check_state(snapshot.last.index, &snapshot.machine);
        }
        if !is_known {
            self.seen.uncounted += 1;
            return Ok(());
        }
        let Some(promise) = self.sent.get(&Digest::of(message)) else {
            return violated!(Property::NoSpuriousMessage, "node {from} never sent this {name}: {message:?}");
        };
        let slot = &self.slots[promise.slot];
        let done = slot.earlier.get(promise.run).copied();
        let done = done.or(slot.replica.as_ref().map(|replica| replica.done)).unwrap_or(0);
        require!(
            Property::PersistBeforeSend,
            promise.writes <= done,
            "node {from} sent {name} before the preceding writes were durable: {message:?}"
        )
    }

    /// Checks the properties of a step.
    fn check_step(&mut self, slot_index: usize, before: Before, outputs: &[Output<LockTable>]) -> Check {
        self.seen.checks += 1;
        let NodeSlot { replica, earlier, .. } = &mut self.slots[slot_index];
        let (run, replica) = (earlier.len(), replica.as_mut().expect("it has stepped"));
        replica.check_transition(before)?;
        let node = &replica.node;
        node_is_sound(node)?;
        removed_leader_steps_down(node)?;
        let leads = node.is_leader().then(|| node.term());
        let mut rewritten = node.log().base().index != before.base;
        for output in outputs {
            match output {
                Output::Persist(write) => {
                    if let Persist::Entries(entries) = write {
                        let first = entries[0].index;
                        let appends = first == before.last.index.next();
                        require!(
                            Property::LeaderAppendOnly,
                            appends || leads.is_none() || leads != before.leads,
                            "leader {} wrote entry {first} again",
                            node.id()
                        )?;
                        rewritten |=
                            !appends || entries.iter().any(|entry| matches!(entry.payload, Payload::Members(_)));
                        entries_match(&mut self.written, node.log(), entries)?;
                    }
                    if let Persist::Snapshot(snapshot) = write {
                        rewritten = true;
                        let agreed = self.agreed.as_ref().ok_or_else(no_founders)?;
                        agreed.check_state(snapshot.last.index, &snapshot.machine)?;
                    }
                    replica.asked += 1;
                    replica.pending.push_back(write.clone());
                }
                Output::Send(message) => {
                    let promise = Promise { slot: slot_index, run, writes: replica.asked };
                    let sent = self.sent.entry(Digest::of(message)).or_insert(promise);
                    // A run that ended before its preceding writes were done never sent the
                    // message; the later run sent it again.
                    if sent.slot == slot_index && earlier.get(sent.run).is_some_and(|&done| sent.writes > done) {
                        *sent = promise;
                    }
                }
                Output::SendSnapshot { to, term } => {
                    self.snapshots.insert((node.id(), *to, *term));
                }
                Output::Applied { index, outcome, .. } => {
                    let agreed = self.agreed.as_mut().ok_or_else(no_founders)?;
                    let entry = node.log().get(*index).expect("what was just applied is in the log");
                    agreed.applied(entry, node.term(), outcome)?;
                }
                _ => {}
            }
        }
        if rewritten && let Some(agreed) = &self.agreed {
            let (log, base) = (node.log(), node.log().base().index);
            members_follow_the_log(log)?;
            one_change_at_a_time(log, agreed.last())?;
            members_survive_compaction(base, log.members_at(base), &agreed.founders, &agreed.changes)?;
        }
        if leads.is_some() && leads != before.leads {
            self.elected(slot_index)?;
        }
        self.committed(slot_index, before)
    }

    /// A node has become leader.
    fn elected(&mut self, slot_index: usize) -> Check {
        self.seen.elections += 1;
        let leader = &self.slots[slot_index].replica.as_ref().expect("it leads").node;
        election_safety(&mut self.leaders, leader.term(), leader.id())?;
        if self.all_known(leader.log().members()) {
            // Of the other nodes, only what is on disk counts.
            elected_by_a_majority(leader, |id| match self.known(id) {
                Some(voter) if id != leader.id() => voter.disk.hard,
                _ => leader.hard_state(),
            })?;
        } else {
            self.seen.uncounted += 1;
        }
        let leader = &self.slots[slot_index].replica.as_ref().expect("it leads").node;
        let Some(agreed) = &self.agreed else { return Ok(()) };
        leader_completeness(required_entries(agreed, leader).values(), leader)
    }

    /// When a leader has committed entries, a majority must have them on disk.
    fn committed(&mut self, slot_index: usize, before: Before) -> Check {
        let node = &self.slots[slot_index].replica.as_ref().expect("it has stepped").node;
        // A leader that commits its own removal has stepped down at the end of the step.
        let leads = node.is_leader() || before.leads == Some(node.term());
        if !leads || node.commit() == before.commit {
            return Ok(());
        }
        self.seen.commits += 1;
        if !self.all_known(node.log().members()) {
            self.seen.uncounted += 1;
            return Ok(());
        }
        committed_by_a_majority(node, |id| &self.known(id).expect("all are known").disk.log)
    }

    fn known(&self, id: NodeId) -> Option<&Replica> {
        self.numbers.get(&id).and_then(|&slot_index| self.slots[slot_index].replica.as_ref())
    }

    fn all_known(&self, members: &Members) -> bool {
        members.voters().all(|id| self.known(id).is_some())
    }

    /// Compares a whole node with its recording, its disk, all other nodes and the committed state.
    fn compare(&mut self, slot_index: usize, state: Option<Digest>) -> Check {
        self.seen.states += 1;
        let replica = self.slots[slot_index].replica.as_ref().expect("it has stepped");
        let node = &replica.node;
        if let Some(state) = state {
            require!(
                Property::SameState,
                Digest::of(node) == state,
                "the replica of node {} has another state than was recorded",
                node.id()
            )?;
        }
        replica.memory_matches_disk()?;
        table_is_sound(node.machine())?;
        members_follow_the_log(node.log())?;
        for other in self.slots.iter().filter_map(|slot| slot.replica.as_ref()) {
            log_matching(node.log(), other.node.log())?;
            log_matching(node.log(), &other.disk.log)?;
        }
        let Some(agreed) = &mut self.agreed else { return Ok(()) };
        one_change_at_a_time(node.log(), agreed.last())?;
        let known = agreed.entries.len();
        state_machine_safety(&mut agreed.entries, node)?;
        let more = agreed.entries.len() - known;
        require!(
            Property::CommitsFollowOneAnother,
            more == 0,
            "node {} has {more} committed entries that no node has applied",
            node.id()
        )?;
        agreed.check_state(node.commit(), node.machine())?;
        if let Role::Leader(_) = node.role() {
            leader_completeness(required_entries(agreed, node).values(), node)?;
        }
        Ok(())
    }

    /// Compares all nodes with one another, at the end.
    pub(super) fn compare_nodes(&mut self) -> Check {
        for slot_index in 0..self.slots.len() {
            if self.slots[slot_index].replica.is_some() {
                self.compare(slot_index, None)?;
            }
        }
        Ok(())
    }
}

/// The entries that were committed in terms before the leader's: the leader must have them all.
fn required_entries(agreed: &CommittedState, leader: &Node<LockTable>) -> Committed<Command> {
    let begins = leader.log().base().index.next();
    let entries = agreed.entries.range(begins..);
    let before = |index| agreed.committed_in.get(index).is_some_and(|&term| term < leader.term());
    entries.filter(|(index, _)| before(*index)).map(|(&index, entry)| (index, entry.clone())).collect()
}

/// Log matching, of new entries: equal position means equal entry and equal predecessor.
fn entries_match(
    written: &mut HashMap<Position, (Digest, Option<Term>)>,
    log: &Log<Command>,
    entries: &[Entry<Command>],
) -> Check {
    let mut before = entries[0].index.0.checked_sub(1).and_then(|index| log.term_at(palisade_spec::raft::Index(index)));
    for entry in entries {
        let (digest, term) = *written.entry(entry.position()).or_insert_with(|| (Digest::of(entry), before));
        let same = digest == Digest::of(entry) && (term == before || term.is_none() || before.is_none());
        require!(
            Property::LogMatching,
            same,
            "{entry:?} differs from the entry at this position in another log, or in its predecessor"
        )?;
        before = Some(entry.term);
    }
    Ok(())
}

fn no_founders() -> Violation {
    Violation { property: Property::ClusterHasFounders, detail: "no recorded node founded the cluster".into() }
}
