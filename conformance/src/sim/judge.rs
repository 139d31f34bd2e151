//! The judge: looks at every step of every node, at everything that is sent and at every write that is done, and knows
//! what must hold.
//!
//! It sees what no node sees: all of them at once, and of each disk what was reported durable (its **shadow**). Where a
//! property is about all entries of all logs, it is checked of what is new: an entry when it is written, a commit when it
//! happens; from time to time all states are compared as a whole ([`Judge::look_around`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use palisade::core::Observer;
use palisade::recording::Digest;
use palisade_spec::invariants::{
    Check, Leaders, Violation, clock_monotonicity, committed_by_a_majority, elected_by_a_majority, election_safety,
    leader_completeness, log_matching, members_follow_the_log, node_is_sound, one_change_at_a_time,
    removed_leader_steps_down, table_is_sound,
};
use palisade_spec::lock::{Command, LockTable};
use palisade_spec::raft::{
    Body, Durable, Entry, HardState, Index, Input, Log, Members, Message, Node, NodeId, Output, Payload, Persist,
    Position, Role, Stamp, Term,
};
use parking_lot::Mutex;

use super::clock;
use super::reference_state::{ReferenceState, broken};

/// So many commits of a node lie between two comparisons of its whole state.
const COMPARED: u64 = 64;
/// So many entries of terms are remembered for log matching.
const REMEMBERED: usize = 32_768;

/// The judge, as everybody has it who has something to show.
pub(super) type SharedJudge = Arc<Mutex<Judge>>;

/// Everything that is known of the cluster.
#[derive(Debug)]
pub(super) struct Judge {
    /// What is agreed on.
    pub(super) reference: ReferenceState,
    nodes: BTreeMap<NodeId, ObservedNode>,
    leaders: Leaders,
    /// Every entry that was ever written, with the term of the one before it, and when the first of its kind was.
    written: BTreeMap<(Index, Term), Written>,
    nothing: Log<Command>,
    /// The moment.
    pub(super) now: Duration,
    /// The first promise that was broken.
    pub(super) violation: Option<Violation>,
    pub(super) seen: Seen,
}

/// What the judge has looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) steps: u64,
    pub(super) sent: u64,
    pub(super) elections: u64,
    pub(super) recoveries: u64,
    pub(super) installed: u64,
    pub(super) changes: u64,
    pub(super) states: u64,
}

#[derive(Debug)]
struct Written {
    entry: Entry<Command>,
    before: Option<Term>,
    born: Duration,
}

/// One node, as it was last seen.
#[derive(Debug)]
struct ObservedNode {
    /// What its disk has, as far as it was told that it has it.
    shadow: Durable<LockTable>,
    /// What it has asked for and was not told of.
    pending: Vec<Persist<LockTable>>,
    /// How many writes it was told of.
    done: u64,
    /// What it is to say, in order.
    to_say: VecDeque<ToSay>,
    leads: Option<Term>,
    last: Index,
    commit: Index,
    hard: HardState,
    clock: Option<(Stamp, Position)>,
    compared: Index,
    members: Arc<Members>,
    commanded: Option<Commanded>,
}

/// The latest command that a leader took from its clients and has committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commanded {
    /// The term that it leads.
    pub(super) term: Term,
    /// When it took the command.
    pub(super) born: Duration,
}

/// A message, or the offer of a snapshot, that a node has asked for and that has not left.
#[derive(Clone, Copy, Debug)]
struct ToSay {
    words: Digest,
    /// So many writes stand before it.
    writes: u64,
}

impl Judge {
    pub(super) fn new(founders: Members) -> Judge {
        Judge {
            reference: ReferenceState::new(founders),
            nodes: BTreeMap::new(),
            leaders: Leaders::new(),
            written: BTreeMap::new(),
            nothing: Log::default(),
            now: Duration::ZERO,
            violation: None,
            seen: Seen::default(),
        }
    }

    /// Keeps the first violation.
    pub(super) fn note(&mut self, check: Check) {
        if let Err(violation) = check {
            self.violation.get_or_insert(violation);
        }
    }

    /// A node begins from this: it must be what its disk was told to keep, with the write that was under way done or not.
    fn recovered(&mut self, id: NodeId, durable: &Durable<LockTable>) -> Check {
        self.seen.recoveries += 1;
        let known = self.nodes.get(&id).map(|observed| (&observed.shadow, observed.pending.as_slice()));
        if let Some((shadow, pending)) = known
            && !possible(shadow, pending).any(|disk| is_kept(&disk, durable))
        {
            let (hard, last) = (shadow.hard, shadow.log.last());
            let detail = format!(
                "node {id} had {hard:?} and a log up to {last:?}, snapshot {:?}, and {} writes under way; it comes back with {:?}, {:?}, {:?}",
                shadow.snapshot.last,
                pending.len(),
                durable.hard,
                durable.log.last(),
                durable.snapshot.last
            );
            return broken("acknowledged writes survive", detail);
        }
        self.reference.compare_snapshot(&durable.snapshot)?;
        let observed = ObservedNode {
            shadow: durable.clone(),
            pending: Vec::new(),
            done: 0,
            to_say: VecDeque::new(),
            leads: None,
            last: durable.log.last().index,
            commit: durable.snapshot.last.index,
            hard: durable.hard,
            clock: None,
            compared: durable.snapshot.last.index,
            members: Arc::clone(durable.log.members()),
            commanded: None,
        };
        self.nodes.insert(id, observed);
        Ok(())
    }

    fn stepped(&mut self, node: &Node<LockTable>, outputs: &[Output<LockTable>]) -> Check {
        self.seen.steps += 1;
        node_is_sound(node)?;
        removed_leader_steps_down(node)?;
        let id = node.id();
        let observed = self.nodes.get(&id).expect("it has begun");
        let (led, commit, last) = (observed.leads, observed.commit, observed.last);
        let leads = node.is_leader().then(|| node.term());
        let (hard, was) = (node.hard_state(), observed.hard);
        let revotes = hard.term == was.term && was.vote.is_some() && hard.vote != was.vote;
        if node.commit() < commit || hard.term < was.term || revotes {
            return broken("monotonic state", format!("node {id} went back from {commit} or {was:?}"));
        }
        observed.clock.map_or(Ok(()), |before| clock_monotonicity(before, node))?;
        for output in outputs {
            let observed = self.nodes.get_mut(&id).expect("it has begun");
            let writes = observed.done + observed.pending.len() as u64;
            let write = match output {
                Output::Persist(write) => write,
                Output::Send(message) => {
                    observed.to_say.push_back(ToSay { words: Digest::of(message), writes });
                    continue;
                }
                Output::SendSnapshot { to, term } => {
                    observed.to_say.push_back(ToSay { words: Digest::of(&(to, term)), writes });
                    continue;
                }
                _ => continue,
            };
            match write {
                Persist::Entries(entries) => {
                    let first = entries[0].index;
                    if led.is_some() && led == leads && first <= last {
                        return broken("leader append-only", format!("leader {id} wrote {first} again"));
                    }
                    self.entries_written(node, entries)?;
                }
                Persist::Snapshot(snapshot) => {
                    self.seen.installed += 1;
                    self.reference.compare_snapshot(snapshot)?;
                }
                Persist::HardState(_) | Persist::Compact(_) => {}
            }
            self.nodes.get_mut(&id).expect("it has begun").pending.push(write.clone());
        }
        if leads.is_some() && leads != led {
            self.elected(node)?;
        }
        if node.commit() > commit {
            self.committed(node, commit, outputs)?;
        }
        self.never_ahead(node)?;
        let observed = self.nodes.get_mut(&id).expect("it has begun");
        (observed.leads, observed.last) = (leads, node.log().last().index);
        (observed.commit, observed.hard, observed.clock) =
            (node.commit(), node.hard_state(), Some((node.clock(), node.log().last())));
        if !Arc::ptr_eq(&observed.members, node.log().members()) {
            observed.members = Arc::clone(node.log().members());
            self.seen.changes += 1;
            members_follow_the_log(node.log())?;
            // What is committed counts, whether this node has heard of it or not.
            one_change_at_a_time(node.log(), node.commit().max(self.reference.last()))?;
        }
        Ok(())
    }

    /// A node's clock has moved on from the stamp of its log's last entry by no more than the entry's age.
    fn never_ahead(&self, node: &Node<LockTable>) -> Check {
        let last = node.log().last();
        let Some(Written { entry, born, .. }) = self.written.get(&(last.index, last.term)) else { return Ok(()) };
        let (age, moved) = (self.now - *born, u128::from(node.clock().0 - entry.stamp.0));
        if moved <= clock::most(age).as_millis() {
            return Ok(());
        }
        let detail =
            format!("the clock of node {} moved on by {moved} ms from {last:?}, written {age:?} ago", node.id());
        broken("cluster time never runs ahead", detail)
    }

    /// Log matching, of what is new: an entry is the same wherever it stands, and so is the term of the one before.
    fn entries_written(&mut self, node: &Node<LockTable>, entries: &[Entry<Command>]) -> Check {
        let mut before = entries[0].index.0.checked_sub(1).and_then(|index| node.log().term_at(Index(index)));
        for entry in entries {
            let new = || Written { entry: entry.clone(), before, born: self.now };
            let known = self.written.entry((entry.index, entry.term)).or_insert_with(new);
            let differs = known.before.is_some() && before.is_some() && known.before != before;
            if known.entry != *entry || differs {
                return broken("log matching", format!("node {} has {entry:?} where {known:?} is", node.id()));
            }
            before = Some(entry.term);
        }
        while self.written.len() > REMEMBERED {
            self.written.pop_first();
        }
        Ok(())
    }

    fn elected(&mut self, leader: &Node<LockTable>) -> Check {
        self.seen.elections += 1;
        election_safety(&mut self.leaders, leader.term(), leader.id())?;
        let nodes = &self.nodes;
        elected_by_a_majority(leader, |id| {
            if id == leader.id() {
                leader.hard_state()
            } else {
                nodes.get(&id).map_or_else(HardState::default, |observed| observed.shadow.hard)
            }
        })?;
        leader_completeness(&self.reference.due(leader), leader)
    }

    fn committed(&mut self, node: &Node<LockTable>, before: Index, outputs: &[Output<LockTable>]) -> Check {
        // A leader that commits its own removal leads no more after that.
        let leads = node.is_leader() || self.nodes[&node.id()].leads == Some(node.term());
        let own = leads && node.log().term_at(node.commit()) == Some(node.term());
        if own {
            let (nodes, nothing) = (&self.nodes, &self.nothing);
            // What counts of the others is what is durable.
            committed_by_a_majority(node, |id| nodes.get(&id).map_or(nothing, |observed| &observed.shadow.log))?;
        }
        let mut commanded = None;
        let mut index = before.next();
        while index <= node.commit() {
            match node.log().get(index) {
                Some(entry) => {
                    let born = self.written.get(&(entry.index, entry.term)).map_or(self.now, |written| written.born);
                    self.reference.commit(entry, node.term(), born)?;
                    if leads && entry.term == node.term() && matches!(entry.payload, Payload::Command(_)) {
                        commanded = Some(Commanded { term: entry.term, born });
                    }
                }
                None if index > self.reference.last() => {
                    return broken("observed machine safety", format!("{index} is in a snapshot, and not committed"));
                }
                None => {}
            }
            index = index.next();
        }
        for output in outputs {
            if let Output::Applied { index, outcome, .. } = output {
                self.reference.compare_outcome(*index, outcome)?;
            }
        }
        let observed = self.nodes.get_mut(&node.id()).expect("it has begun");
        observed.commanded = commanded.or(observed.commanded);
        if node.commit().0 >= observed.compared.0 + COMPARED {
            observed.compared = node.commit();
            self.seen.states += 1;
            self.reference.compare_machine(node.commit(), node.machine())?;
        }
        Ok(())
    }

    /// Writes are durable, says the disk.
    fn written(&mut self, id: NodeId, writes: &[Persist<LockTable>]) -> Check {
        let observed = self.nodes.get_mut(&id).expect("it has begun");
        if observed.pending.get(..writes.len()) != Some(writes) {
            return broken(
                "memory matches disk",
                format!("node {id} wrote {writes:?} and had asked for {:?}", observed.pending),
            );
        }
        observed.pending.drain(..writes.len());
        observed.done += writes.len() as u64;
        writes.iter().for_each(|write| observed.shadow.apply(write));
        Ok(())
    }

    /// A node's own snapshot is durable.
    pub(super) fn snapshot_taken(&mut self, id: NodeId, snapshot: palisade_spec::raft::Snapshot<LockTable>) {
        let check = self.reference.compare_snapshot(&snapshot);
        self.note(check);
        let observed = self.nodes.get_mut(&id).expect("it has begun");
        if snapshot.last.index > observed.shadow.snapshot.last.index {
            observed.shadow.snapshot = snapshot;
        }
    }

    /// A message leaves: the next that its node has asked for, and whatever stands before it in the outputs is durable.
    pub(super) fn sent(&mut self, message: &Message<LockTable>) {
        self.seen.sent += 1;
        let check = self.promise(message);
        self.note(check);
    }

    fn promise(&mut self, message: &Message<LockTable>) -> Check {
        let Message { from, to, term, body } = message;
        let (to, what) = (*to, body.name());
        self.next_to_say(*from, Digest::of(message), || format!("node {from} sends {what} to {to}"))?;
        let Durable { hard, .. } = self.nodes[from].shadow;
        // By the outputs' order that is durable already; in any order it would have to be.
        let lacks = match body {
            _ if hard.term < *term => "its term",
            Body::RequestVoteReply { granted: true } if hard.term == *term && hard.vote != Some(to) => "its vote",
            Body::RequestVote { .. } if hard.term == *term && hard.vote != Some(*from) => "its own vote",
            _ => return Ok(()),
        };
        broken("persist before send", format!("node {from} sends {what} to {to}, and {lacks} is not durable"))
    }

    /// A snapshot is offered: that too is the next that its node has asked for.
    pub(super) fn offered(&mut self, from: NodeId, to: NodeId, term: Term) {
        let words = Digest::of(&(&to, &term));
        let check = self.next_to_say(from, words, || format!("node {from} offers {to} a snapshot in {term}"));
        self.note(check);
    }

    fn next_to_say(&mut self, from: NodeId, words: Digest, does: impl Fn() -> String) -> Check {
        let observed = self.nodes.get_mut(&from).expect("it has begun");
        match observed.to_say.pop_front() {
            Some(asked) if asked.words != words => {
                broken("sends match outputs", format!("{}, where it has asked for something else", does()))
            }
            Some(asked) if observed.done < asked.writes => {
                broken("persist before send", format!("{}, and what stood before it is not durable", does()))
            }
            Some(_) => Ok(()),
            None => broken("sends match outputs", format!("{}, and has not asked for it", does())),
        }
    }

    /// The latest command that a node took as leader and has committed.
    pub(super) fn commanded(&self, id: NodeId) -> Option<Commanded> {
        self.nodes.get(&id)?.commanded
    }

    /// Compares everything with everything: the running nodes as they are now.
    pub(super) fn look_around(&mut self, nodes: &[&Node<LockTable>]) {
        let check = self.compare_all(nodes);
        self.note(check);
    }

    fn compare_all(&mut self, nodes: &[&Node<LockTable>]) -> Check {
        for (place, node) in nodes.iter().enumerate() {
            self.seen.states += 1;
            let ObservedNode { shadow, pending, .. } = &self.nodes[&node.id()];
            if pending.is_empty() && (node.hard_state(), node.log()) != (shadow.hard, &shadow.log) {
                return broken("memory matches disk", format!("node {} has what its disk does not have", node.id()));
            }
            members_follow_the_log(node.log())?;
            one_change_at_a_time(node.log(), node.commit().max(self.reference.last()))?;
            table_is_sound(node.machine())?;
            self.reference.compare_machine(node.commit(), node.machine())?;
            for entry in node.log().entries().iter().take_while(|entry| entry.index <= node.commit()) {
                self.reference.commit(entry, node.term(), self.now)?;
            }
            for other in &nodes[..place] {
                log_matching(node.log(), other.log())?;
            }
            if let Role::Leader(_) = node.role() {
                leader_completeness(&self.reference.due(node), node)?;
            }
        }
        Ok(())
    }
}

/// The states in which a crash may have left a disk that was told to make these writes, as one batch.
fn possible<'a>(
    shadow: &'a Durable<LockTable>,
    pending: &'a [Persist<LockTable>],
) -> impl Iterator<Item = Durable<LockTable>> + 'a {
    let mut disk = shadow.clone();
    let mut nodes = vec![disk.clone()];
    for (place, write) in pending.iter().enumerate() {
        if let Persist::Snapshot(snapshot) = write {
            // What stands before it is a frame of its own, and the snapshot has its name before the log knows of it.
            nodes.push(disk.clone());
            let mut torn = disk.clone();
            torn.snapshot = (**snapshot).clone();
            torn.settle();
            nodes.push(torn);
        }
        disk.apply(write);
        if place + 1 == pending.len() || matches!(write, Persist::Snapshot(_)) {
            nodes.push(disk.clone());
        }
    }
    nodes.into_iter()
}

/// Whether what was found is what was to be kept. A snapshot may be later: one that was durable before anybody was told.
/// The log may begin elsewhere, as long as the snapshot includes what is before.
fn is_kept(kept: &Durable<LockTable>, found: &Durable<LockTable>) -> bool {
    let (begins, snapshot) = (found.log.base().index.max(kept.log.base().index), found.snapshot.last);
    let after = |disk: &Durable<LockTable>| {
        let entries = disk.log.entries();
        entries[entries.partition_point(|entry| entry.index <= begins)..].to_vec()
    };
    kept.hard == found.hard
        && kept.log.last() == found.log.last()
        && kept.log.last_stamp() == found.log.last_stamp()
        && snapshot.index >= kept.snapshot.last.index
        && found.log.base().index <= snapshot.index
        && after(kept) == after(found)
}

/// What the judge is shown by one node's driver.
pub(super) struct Eye {
    pub(super) node: NodeId,
    pub(super) judge: SharedJudge,
}

impl Observer for Eye {
    fn recovered(&mut self, durable: &Durable<LockTable>) {
        let mut judge = self.judge.lock();
        let check = judge.recovered(self.node, durable);
        judge.note(check);
    }

    fn stepped(&mut self, node: &Node<LockTable>, _: &Input<LockTable>, outputs: &[Output<LockTable>]) {
        let mut judge = self.judge.lock();
        let check = judge.stepped(node, outputs);
        judge.note(check);
    }

    fn written(&mut self, writes: &[Persist<LockTable>]) {
        let mut judge = self.judge.lock();
        let check = judge.written(self.node, writes);
        judge.note(check);
    }
}
