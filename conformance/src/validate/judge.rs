//! The judge: sees all nodes of a cluster at once, and of each what its disk has.
//!
//! Where a property is about all entries of all logs, it is looked at where something is new: an entry when it is written, a
//! vote when it elects, a commit when it happens. By induction that is all of it. Wherever the recording has a digest of a
//! node's whole state, that node is also compared with all that is known as a whole, so that the induction is not taken on
//! trust.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use palisade::recording::{Digest, Record};
use palisade_spec::invariants::{
    Check, Committed, Leaders, Violation, committed_by_a_majority, elected_by_a_majority, election_safety,
    leader_completeness, log_matching, members_follow_the_log, members_survive_compaction, node_is_sound,
    one_change_at_a_time, removed_leader_steps_down, state_machine_safety, table_is_sound,
};
use palisade_spec::lock::{Command, LockTable};
use palisade_spec::raft::{
    Body, Config, Durable, Entry, HardState, Input, Log, Members, Message, Node, NodeId, Output, Payload, Persist,
    Position, Role, Term,
};

use super::replica::{Before, Replica};
use super::table::Agreed;
use super::{Options, broken, require, restart};
use crate::panics;

/// Everything that is known of a cluster.
#[derive(Debug)]
pub(super) struct Judge {
    options: Options,
    slots: Vec<NodeSlot>,
    /// Who goes by a number: of several directories that were started under it, the one that others talk to.
    numbers: BTreeMap<NodeId, usize>,
    agreed: Option<Agreed>,
    leaders: Leaders,
    /// Every entry that was ever in a log, with the term of the one before it, as a digest.
    written: HashMap<Position, (Digest, Option<Term>)>,
    /// What was sent: by which run, and how many of its writes had to be done first.
    sent: HashMap<Digest, Promise>,
    /// Who was to be sent a snapshot: by whom, to whom, in which term.
    snapshots: BTreeSet<(NodeId, NodeId, Term)>,
    outputs: Vec<Output<LockTable>>,
    pub(super) seen: Seen,
}

/// What a message waited for, if it did not go before.
#[derive(Clone, Copy, Debug)]
struct Promise {
    slot: usize,
    run: usize,
    writes: u64,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) checks: u64,
    pub(super) messages: u64,
    pub(super) elections: u64,
    pub(super) commits: u64,
    pub(super) restarts: u64,
    pub(super) snapshots: u64,
    pub(super) states: u64,
    /// Majorities that could not be counted, for somebody of them was not recorded.
    pub(super) uncounted: u64,
}

#[derive(Debug)]
struct NodeSlot {
    id: NodeId,
    /// What the present run was configured with, and when its recording began.
    config: Option<Config>,
    began: u64,
    replica: Option<Replica>,
    /// How many writes each earlier run had done.
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

    /// One more node; seats are numbered in this order.
    pub(super) fn slot(&mut self, id: NodeId) {
        self.numbers.entry(id).or_insert(self.slots.len());
        self.slots.push(NodeSlot { id, config: None, began: 0, replica: None, earlier: Vec::new() });
    }

    /// What is agreed on, if the cluster has begun.
    pub(super) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// The next record of a node. The spec's own assertions count as properties: a recording of what cannot have happened
    /// may run into them.
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
        observed.unwrap_or_else(|panic| broken("the spec's own assertions", panics::words(&*panic)))
    }

    fn replica(&mut self, slot: usize) -> Result<&mut Replica, Violation> {
        let unknown = || Violation { property: "recorded in order", detail: "it has not begun".into() };
        self.slots[slot].replica.as_mut().ok_or_else(unknown)
    }

    /// A node begins from this: with nothing the first time, and later with what its disk was told to keep.
    fn recovered(&mut self, place: usize, durable: Durable<LockTable>) -> Check {
        let slot = &mut self.slots[place];
        match slot.replica.take() {
            None => {
                let blank = durable.hard == HardState::default() && durable.log.last() == durable.snapshot.last;
                require("recorded from the first start on", blank, || {
                    format!("node {} has a past of which there is no recording", slot.id)
                })?;
                if durable.snapshot.members.iter().next().is_some() {
                    let agreed = self.agreed.get_or_insert_with(|| Agreed::new(&durable.snapshot));
                    let alike = agreed.founders == *durable.snapshot.members;
                    require("founders begin alike", alike, || format!("node {} has other members", slot.id))?;
                    agreed.is_everybodys(durable.snapshot.last.index, &durable.snapshot.machine)?;
                }
            }
            Some(was) => {
                self.seen.restarts += 1;
                require("acknowledged writes survive", restart::may_find(&was, &durable), || {
                    let (hard, last, snapshot) = (was.disk.hard, was.disk.log.last(), was.disk.snapshot.last);
                    let (hard_now, last_now, snapshot_now) = (durable.hard, durable.log.last(), durable.snapshot.last);
                    format!(
                        "node {} had {hard:?}, a log up to {last:?}, a snapshot at {snapshot:?} or later and {} writes under way; it comes \
                         back with {hard_now:?}, {last_now:?}, {snapshot_now:?}",
                        slot.id,
                        was.pending.len()
                    )
                })?;
                slot.earlier.push(was.done);
                if let Some(agreed) = &self.agreed {
                    agreed.is_everybodys(durable.snapshot.last.index, &durable.snapshot.machine)?;
                }
            }
        }
        let config = slot.config.clone().expect("a recording begins with its header");
        slot.replica = Some(Replica::new(Node::recover(config, durable.clone()), durable, slot.began));
        Ok(())
    }

    fn stepped(
        &mut self,
        place: usize,
        at: u64,
        input: Input<LockTable>,
        recorded: Digest,
        words: Option<&str>,
    ) -> Check {
        if let Input::Receive(message) = &input {
            self.received(place, message)?;
        }
        let rate = self.options.clock_rate;
        let replica = self.replica(place)?;
        let before = replica.before();
        match input {
            Input::ClockAdvanced(milliseconds) => replica.clock_advanced(milliseconds, at, rate)?,
            Input::Compact(through) => require("compacted after it is told", through <= replica.released, || {
                format!("the log loses entries up to {through}, and {} are applied", replica.released)
            })?,
            _ => {}
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        let replica = self.replica(place)?;
        replica.step(input, recorded, words, &mut outputs)?;
        let judged = self.judge(place, before, &outputs);
        self.outputs = outputs;
        judged?;
        self.replica(place)?.settled();
        Ok(())
    }

    /// What a node is told must have been said, and what stood before it must have been durable by then.
    fn received(&mut self, place: usize, message: &Message<LockTable>) -> Check {
        self.seen.messages += 1;
        self.numbers.insert(self.slots[place].id, place);
        let Message { from, to, term, body } = message;
        let (name, is_known) = (body.name(), self.numbers.contains_key(from));
        if let Body::InstallSnapshot { snapshot } = body {
            self.seen.snapshots += 1;
            let asked = self.snapshots.contains(&(*from, *to, *term));
            require("no spurious message", asked || !is_known, || {
                format!("node {from} was to send no {name} in term {term}")
            })?;
            let agreed = self.agreed.as_ref().ok_or_else(nobody)?;
            return agreed.is_everybodys(snapshot.last.index, &snapshot.machine);
        }
        if !is_known {
            self.seen.uncounted += 1;
            return Ok(());
        }
        let Some(promise) = self.sent.get(&Digest::of(message)) else {
            return broken("no spurious message", format!("node {from} never said this {name}: {message:?}"));
        };
        let slot = &self.slots[promise.slot];
        let done = slot.earlier.get(promise.run).copied();
        let done = done.or(slot.replica.as_ref().map(|replica| replica.done)).unwrap_or(0);
        require("persist before send", promise.writes <= done, || {
            format!("node {from} has sent {name}, and what stood before it was not durable: {message:?}")
        })
    }

    /// What must hold of a step.
    fn judge(&mut self, place: usize, before: Before, outputs: &[Output<LockTable>]) -> Check {
        self.seen.checks += 1;
        let NodeSlot { replica, earlier, .. } = &mut self.slots[place];
        let (run, replica) = (earlier.len(), replica.as_mut().expect("it has stepped"));
        replica.keeps_its_word(before)?;
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
                        require("leader append-only", appends || leads.is_none() || leads != before.leads, || {
                            format!("leader {} wrote {first} again", node.id())
                        })?;
                        rewritten |=
                            !appends || entries.iter().any(|entry| matches!(entry.payload, Payload::Members(_)));
                        entries_match(&mut self.written, node.log(), entries)?;
                    }
                    if let Persist::Snapshot(snapshot) = write {
                        rewritten = true;
                        let agreed = self.agreed.as_ref().ok_or_else(nobody)?;
                        agreed.is_everybodys(snapshot.last.index, &snapshot.machine)?;
                    }
                    replica.asked += 1;
                    replica.pending.push_back(write.clone());
                }
                Output::Send(message) => {
                    let promise = Promise { slot: place, run, writes: replica.asked };
                    let said = self.sent.entry(Digest::of(message)).or_insert(promise);
                    // What a run had not written when it ended it never sent; the same was said anew.
                    if said.slot == place && earlier.get(said.run).is_some_and(|&done| said.writes > done) {
                        *said = promise;
                    }
                }
                Output::SendSnapshot { to, term } => {
                    self.snapshots.insert((node.id(), *to, *term));
                }
                Output::Applied { index, outcome, .. } => {
                    let agreed = self.agreed.as_mut().ok_or_else(nobody)?;
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
            self.elected(place)?;
        }
        self.committed(place, before)
    }

    /// A node leads from here on.
    fn elected(&mut self, place: usize) -> Check {
        self.seen.elections += 1;
        let leader = &self.slots[place].replica.as_ref().expect("it leads").node;
        election_safety(&mut self.leaders, leader.term(), leader.id())?;
        if self.all_known(leader.log().members()) {
            // Of the others what counts is what their disks have.
            elected_by_a_majority(leader, |id| match self.known(id) {
                Some(voter) if id != leader.id() => voter.disk.hard,
                _ => leader.hard_state(),
            })?;
        } else {
            self.seen.uncounted += 1;
        }
        let leader = &self.slots[place].replica.as_ref().expect("it leads").node;
        let Some(agreed) = &self.agreed else { return Ok(()) };
        leader_completeness(&due(agreed, leader), leader)
    }

    /// If a leader has committed something: a majority has it, on disk.
    fn committed(&mut self, place: usize, before: Before) -> Check {
        let node = &self.slots[place].replica.as_ref().expect("it has stepped").node;
        // One that commits its own removal leads no more when the step is done.
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
        self.numbers.get(&id).and_then(|&place| self.slots[place].replica.as_ref())
    }

    fn all_known(&self, members: &Members) -> bool {
        members.voters().all(|id| self.known(id).is_some())
    }

    /// Compares a node as a whole with its recording, its disk, all other nodes and what is agreed on.
    fn compare(&mut self, place: usize, state: Option<Digest>) -> Check {
        self.seen.states += 1;
        let replica = self.slots[place].replica.as_ref().expect("it has stepped");
        let node = &replica.node;
        if let Some(state) = state {
            require("same state", Digest::of(node) == state, || format!("node {} is in another state", node.id()))?;
        }
        replica.is_written()?;
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
        require("commits follow one another", more == 0, || format!("node {} knows of {more} more", node.id()))?;
        agreed.is_everybodys(node.commit(), node.machine())?;
        if let Role::Leader(_) = node.role() {
            leader_completeness(&due(agreed, node), node)?;
        }
        Ok(())
    }

    /// Compares all nodes with one another, at the end.
    pub(super) fn look_around(&mut self) -> Check {
        for place in 0..self.slots.len() {
            if self.slots[place].replica.is_some() {
                self.compare(place, None)?;
            }
        }
        Ok(())
    }
}

/// What was committed in terms before the leader's: it must have all that.
fn due(agreed: &Agreed, leader: &Node<LockTable>) -> Committed<Command> {
    let begins = leader.log().base().index.next();
    let entries = agreed.entries.range(begins..);
    let before = |index| agreed.committed_in.get(index).is_some_and(|&term| term < leader.term());
    entries.filter(|(index, _)| before(*index)).map(|(&index, entry)| (index, entry.clone())).collect()
}

/// Log matching, of what is new: whoever has an entry of this term at this index has this entry, after the same one.
fn entries_match(
    written: &mut HashMap<Position, (Digest, Option<Term>)>,
    log: &Log<Command>,
    entries: &[Entry<Command>],
) -> Check {
    let mut before = entries[0].index.0.checked_sub(1).and_then(|index| log.term_at(palisade_spec::raft::Index(index)));
    for entry in entries {
        let (digest, term) = *written.entry(entry.position()).or_insert_with(|| (Digest::of(entry), before));
        let same = digest == Digest::of(entry) && (term == before || term.is_none() || before.is_none());
        require("log matching", same, || format!("{entry:?} is another entry elsewhere, or follows another one"))?;
        before = Some(entry.term);
    }
    Ok(())
}

fn nobody() -> Violation {
    Violation { property: "a cluster has founders", detail: "nobody founded the cluster, as far as is recorded".into() }
}
