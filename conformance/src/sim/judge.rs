//! The judge: checks every step of every node, every message and every write against the
//! properties.
//!
//! The judge sees what no node sees: all nodes at once, and of each disk what was reported durable
//! (its **shadow**). A property about all entries of all logs is checked where something is new: an
//! entry when it is written, a commit when it happens. From time to time whole states are compared
//! ([`Judge::compare_nodes`]).

use palisade_spec::{require, violated};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use palisade::core::Observer;
use palisade::recording::Digest;
use palisade_spec::invariants::{
    Check, Leaders, Property, Violation, clock_monotonicity, committed_by_a_majority, elected_by_a_majority,
    election_safety, leader_completeness, log_matching, members_follow_the_log, node_is_sound, one_change_at_a_time,
    removed_leader_steps_down, replies_name_requests, table_is_sound,
};
use palisade_spec::lock::{Command, LockTable};
use palisade_spec::raft::{
    Body, Durable, Entry, HardState, Index, Input, Log, Members, Message, Node, NodeId, Output, Payload, Persist,
    Position, RequestId, Role, Stamp, Term,
};
use parking_lot::Mutex;

use super::clock;
use super::reference_state::ReferenceState;

/// Number of commits of a node between two comparisons of its whole state.
const COMPARED: u64 = 64;
/// Number of entries kept for log matching.
const REMEMBERED: usize = 32_768;

/// The judge, shared by the world and the nodes' observers.
pub(super) type SharedJudge = Arc<Mutex<Judge>>;

/// The observed state of a cluster.
#[derive(Debug)]
pub(super) struct Judge {
    /// The committed state.
    pub(super) reference: ReferenceState,
    nodes: BTreeMap<NodeId, ObservedNode>,
    leaders: Leaders,
    /// The entries that were written, each with the term of its predecessor and the time of its
    /// first write.
    written: BTreeMap<(Index, Term), Written>,
    nothing: Log<Command>,
    /// The present time.
    pub(super) now: Duration,
    /// The first violation.
    pub(super) violation: Option<Violation>,
    pub(super) seen: Seen,
}

/// Counts of what the judge has checked.
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

/// One node, as last observed.
#[derive(Debug)]
struct ObservedNode {
    /// What the node's disk has reported durable.
    shadow: Durable<LockTable>,
    /// Requested writes that are not reported durable yet.
    pending: Vec<Persist<LockTable>>,
    /// Number of writes reported durable.
    done: u64,
    /// The node's open reads.
    open: Vec<RequestId>,
    /// Requested sends that have not left, in order.
    pending_sends: VecDeque<PendingSend>,
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
    /// The leader's term.
    pub(super) term: Term,
    /// When the leader took the command.
    pub(super) born: Duration,
}

/// A requested message or snapshot offer that has not left.
#[derive(Clone, Copy, Debug)]
struct PendingSend {
    digest: Digest,
    /// Number of writes that must be durable before it.
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

    /// A node recovers. Its state must be what its disk reported durable, with the batch in flight
    /// done or not.
    fn recovered(&mut self, id: NodeId, durable: &Durable<LockTable>) -> Check {
        self.seen.recoveries += 1;
        let known = self.nodes.get(&id).map(|observed| (&observed.shadow, observed.pending.as_slice()));
        if let Some((shadow, pending)) = known
            && !possible(shadow, pending).any(|disk| is_kept(&disk, durable))
        {
            let (hard, last) = (shadow.hard, shadow.log.last());
            let detail = format!(
                "node {id} had {hard:?} and a log up to {last:?}, snapshot {:?}, and {} writes under way; it recovered {:?}, {:?}, {:?}",
                shadow.snapshot.last,
                pending.len(),
                durable.hard,
                durable.log.last(),
                durable.snapshot.last
            );
            return violated!(Property::AcknowledgedWritesSurvive, "{detail}");
        }
        self.reference.compare_snapshot(&durable.snapshot)?;
        let observed = ObservedNode {
            shadow: durable.clone(),
            pending: Vec::new(),
            done: 0,
            open: Vec::new(),
            pending_sends: VecDeque::new(),
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

    fn stepped(&mut self, node: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]) -> Check {
        self.seen.steps += 1;
        node_is_sound(node)?;
        removed_leader_steps_down(node)?;
        let id = node.id();
        let observed = self.nodes.get_mut(&id).expect("it has begun");
        replies_name_requests(&mut observed.open, input, outputs, node)?;
        let (led, commit, last) = (observed.leads, observed.commit, observed.last);
        let leads = node.is_leader().then(|| node.term());
        let (hard, was) = (node.hard_state(), observed.hard);
        require!(Property::CommitOnlyGrows, node.commit() >= commit, "node {id} went back from commit {commit}")?;
        require!(Property::TermsOnlyGrow, hard.term >= was.term, "node {id} went back from {was:?}")?;
        let stands = hard.term > was.term || was.vote.is_none() || hard.vote == was.vote;
        require!(Property::OneVotePerTerm, stands, "node {id} changed its vote {was:?}")?;
        observed.clock.map_or(Ok(()), |before| clock_monotonicity(before, node))?;
        for output in outputs {
            let observed = self.nodes.get_mut(&id).expect("it has begun");
            let writes = observed.done + observed.pending.len() as u64;
            let write = match output {
                Output::Persist(write) => write,
                Output::Send(message) => {
                    observed.pending_sends.push_back(PendingSend { digest: Digest::of(message), writes });
                    continue;
                }
                Output::SendSnapshot { to, term } => {
                    observed.pending_sends.push_back(PendingSend { digest: Digest::of(&(to, term)), writes });
                    continue;
                }
                _ => continue,
            };
            match write {
                Persist::Entries(entries) => {
                    let first = entries[0].index;
                    if led.is_some() && led == leads && first <= last {
                        return violated!(Property::LeaderAppendOnly, "leader {id} wrote entry {first} again");
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
        self.clock_not_ahead(node)?;
        let observed = self.nodes.get_mut(&id).expect("it has begun");
        (observed.leads, observed.last) = (leads, node.log().last().index);
        (observed.commit, observed.hard, observed.clock) =
            (node.commit(), node.hard_state(), Some((node.clock(), node.log().last())));
        if !Arc::ptr_eq(&observed.members, node.log().members()) {
            observed.members = Arc::clone(node.log().members());
            self.seen.changes += 1;
            members_follow_the_log(node.log())?;
            // What is committed counts, whether this node knows of the commit or not.
            one_change_at_a_time(node.log(), node.commit().max(self.reference.last()))?;
        }
        Ok(())
    }

    /// A node's clock may have moved past the stamp of its log's last entry by at most the entry's
    /// age.
    fn clock_not_ahead(&self, node: &Node<LockTable>) -> Check {
        let last = node.log().last();
        let Some(Written { entry, born, .. }) = self.written.get(&(last.index, last.term)) else { return Ok(()) };
        let (age, moved) = (self.now - *born, u128::from(node.clock().0 - entry.stamp.0));
        if moved <= clock::most(age).as_millis() {
            return Ok(());
        }
        let detail =
            format!("the clock of node {} moved on by {moved} ms from {last:?}, written {age:?} ago", node.id());
        violated!(Property::ClusterTimeNeverRunsAhead, "{detail}")
    }

    /// Log matching, of new entries: equal position means equal entry and equal predecessor term.
    fn entries_written(&mut self, node: &Node<LockTable>, entries: &[Entry<Command>]) -> Check {
        let mut before = entries[0].index.0.checked_sub(1).and_then(|index| node.log().term_at(Index(index)));
        for entry in entries {
            let new = || Written { entry: entry.clone(), before, born: self.now };
            let known = self.written.entry((entry.index, entry.term)).or_insert_with(new);
            let differs = known.before.is_some() && before.is_some() && known.before != before;
            if known.entry != *entry || differs {
                return violated!(
                    Property::LogMatching,
                    "node {} writes {entry:?} where {known:?} was written before",
                    node.id()
                );
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
        leader_completeness(self.reference.required_entries(leader).values(), leader)
    }

    fn committed(&mut self, node: &Node<LockTable>, before: Index, outputs: &[Output<LockTable>]) -> Check {
        // A leader that commits its own removal has stepped down by now.
        let leads = node.is_leader() || self.nodes[&node.id()].leads == Some(node.term());
        let own = leads && node.log().term_at(node.commit()) == Some(node.term());
        if own {
            let (nodes, nothing) = (&self.nodes, &self.nothing);
            // Of the other nodes, only what is durable counts.
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
                    return violated!(
                        Property::StateMachineSafety,
                        "entry {index} is in a snapshot, and is not committed"
                    );
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

    /// The disk reports writes durable.
    fn written(&mut self, id: NodeId, writes: &[Persist<LockTable>]) -> Check {
        let observed = self.nodes.get_mut(&id).expect("it has begun");
        if observed.pending.get(..writes.len()) != Some(writes) {
            return violated!(
                Property::MemoryMatchesDisk,
                "node {id} wrote {writes:?}, and its outputs asked for {:?}",
                observed.pending
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

    /// A message leaves: it must be the next requested send, and all writes that precede it in the
    /// outputs must be durable.
    pub(super) fn sent(&mut self, message: &Message<LockTable>) {
        self.seen.sent += 1;
        let check = self.check_send(message);
        self.note(check);
    }

    fn check_send(&mut self, message: &Message<LockTable>) -> Check {
        let Message { from, to, term, body } = message;
        let (to, what) = (*to, body.name());
        self.next_send(*from, Digest::of(message), || format!("node {from} sends {what} to {to}"))?;
        let Durable { hard, .. } = self.nodes[from].shadow;
        // The outputs' order has made that durable already; any correct order must.
        let lacks = match body {
            _ if hard.term < *term => "its term",
            Body::RequestVoteReply { granted: true } if hard.term == *term && hard.vote != Some(to) => "its vote",
            Body::RequestVote { .. } if hard.term == *term && hard.vote != Some(*from) => "its own vote",
            _ => return Ok(()),
        };
        violated!(Property::PersistBeforeSend, "node {from} sends {what} to {to}, and {lacks} is not durable")
    }

    /// A snapshot is offered: it must be the next requested send, too.
    pub(super) fn offered(&mut self, from: NodeId, to: NodeId, term: Term) {
        let digest = Digest::of(&(&to, &term));
        let check = self.next_send(from, digest, || format!("node {from} offers {to} a snapshot in {term}"));
        self.note(check);
    }

    fn next_send(&mut self, from: NodeId, digest: Digest, does: impl Fn() -> String) -> Check {
        let observed = self.nodes.get_mut(&from).expect("it has begun");
        match observed.pending_sends.pop_front() {
            Some(asked) if asked.digest != digest => {
                violated!(Property::SendsMatchOutputs, "{}, and its next output is another message", does())
            }
            Some(asked) if observed.done < asked.writes => {
                violated!(Property::PersistBeforeSend, "{}, and the writes before it are not durable", does())
            }
            Some(_) => Ok(()),
            None => violated!(Property::SendsMatchOutputs, "{}, and no output asked for it", does()),
        }
    }

    /// The latest command that a node took as leader and has committed.
    pub(super) fn commanded(&self, id: NodeId) -> Option<Commanded> {
        self.nodes.get(&id)?.commanded
    }

    /// Compares the running nodes with one another, with their disks and with the reference state.
    pub(super) fn compare_nodes(&mut self, nodes: &[&Node<LockTable>]) {
        let check = self.compare_all(nodes);
        self.note(check);
    }

    fn compare_all(&mut self, nodes: &[&Node<LockTable>]) -> Check {
        for (position, node) in nodes.iter().enumerate() {
            self.seen.states += 1;
            let ObservedNode { shadow, pending, .. } = &self.nodes[&node.id()];
            if pending.is_empty() && (node.hard_state(), node.log()) != (shadow.hard, &shadow.log) {
                return violated!(
                    Property::MemoryMatchesDisk,
                    "the memory of node {} differs from its disk",
                    node.id()
                );
            }
            members_follow_the_log(node.log())?;
            one_change_at_a_time(node.log(), node.commit().max(self.reference.last()))?;
            table_is_sound(node.machine())?;
            self.reference.compare_machine(node.commit(), node.machine())?;
            for entry in node.log().entries().iter().take_while(|entry| entry.index <= node.commit()) {
                self.reference.commit(entry, node.term(), self.now)?;
            }
            for other in &nodes[..position] {
                log_matching(node.log(), other.log())?;
            }
            if let Role::Leader(_) = node.role() {
                leader_completeness(self.reference.required_entries(node).values(), node)?;
            }
        }
        Ok(())
    }
}

/// The states in which a crash may leave a disk that was writing this batch.
fn possible<'a>(
    shadow: &'a Durable<LockTable>,
    pending: &'a [Persist<LockTable>],
) -> impl Iterator<Item = Durable<LockTable>> + 'a {
    let mut disk = shadow.clone();
    let mut nodes = vec![disk.clone()];
    for (position, write) in pending.iter().enumerate() {
        if let Persist::Snapshot(snapshot) = write {
            // The preceding writes are a frame of their own, and the snapshot file has its name
            // before the log refers to it.
            nodes.push(disk.clone());
            let mut torn = disk.clone();
            torn.snapshot = (**snapshot).clone();
            torn.settle();
            nodes.push(torn);
        }
        disk.apply(write);
        if position + 1 == pending.len() || matches!(write, Persist::Snapshot(_)) {
            nodes.push(disk.clone());
        }
    }
    nodes.into_iter()
}

/// Whether the recovered state is the durable one. The snapshot may be later, if it was durable
/// before the judge learned of it. The log may begin elsewhere, as long as the snapshot includes
/// the entries before.
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

/// The observer of one node's driver.
pub(super) struct JudgeObserver {
    pub(super) node: NodeId,
    pub(super) judge: SharedJudge,
}

impl Observer for JudgeObserver {
    fn recovered(&mut self, durable: &Durable<LockTable>) {
        let mut judge = self.judge.lock();
        let check = judge.recovered(self.node, durable);
        judge.note(check);
    }

    fn stepped(&mut self, node: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]) {
        let mut judge = self.judge.lock();
        let check = judge.stepped(node, input, outputs);
        judge.note(check);
    }

    fn written(&mut self, writes: &[Persist<LockTable>]) {
        let mut judge = self.judge.lock();
        let check = judge.written(self.node, writes);
        judge.note(check);
    }
}
