//! Checks every invariant of the spec over a running cluster, and three of the harness: a node
//! sends only what its disk already holds, every node that applies an entry gets the same outcome,
//! and between two entries cluster time advances by no more than real time.

use palisade_spec::require;
use std::collections::BTreeMap;

use palisade_spec::invariants::{
    Check, Committed, Leaders, Property, election_safety, leader_append_only, leader_completeness, log_matching,
    node_is_sound, state_machine_safety,
};
use palisade_spec::raft::{Body, Durable, Entry, Index, Log, Message, Node, NodeId, Stamp, Term};

use super::machine::{Applied, Scripted};

/// The history that the checks need.
pub(crate) struct Checker<S: Scripted> {
    leaders: Leaders,
    /// The entries that any node has applied: recorded when the output is carried out.
    committed: Committed<S::Command>,
    /// The term of the leader that committed each index. Leader completeness is about *later* terms
    /// only.
    committed_in: BTreeMap<Index, Term>,
    /// The initial state of the state machine and the state after each entry of `committed`, with
    /// the entries' outcomes.
    states: Vec<S>,
    outcomes: Vec<S::Outcome>,
    /// The real time at which each entry's leader appended it, where known, and that of the last
    /// applied entry.
    appended_at: BTreeMap<(Index, Term), u64>,
    last_appended_at: u64,
    last_stamp: Stamp,
    watch: S::Watch,
}

impl<S: Scripted> Default for Checker<S> {
    fn default() -> Self {
        Checker {
            leaders: Leaders::new(),
            committed: Committed::new(),
            committed_in: BTreeMap::new(),
            states: vec![S::default()],
            outcomes: Vec::new(),
            appended_at: BTreeMap::new(),
            last_appended_at: 0,
            last_stamp: Stamp(0),
            watch: S::Watch::default(),
        }
    }
}

impl<S: Scripted> Checker<S> {
    /// The entries that any node has applied.
    pub(crate) fn committed(&self) -> &Committed<S::Command> {
        &self.committed
    }

    /// The index of the last entry in [`committed`](Self::committed).
    pub(crate) fn last_committed(&self) -> Index {
        self.committed.last_key_value().map_or(Index(0), |(&index, _)| index)
    }

    /// The state machine after the last committed entry.
    pub(crate) fn reference(&self) -> &S {
        self.states.last().expect("there is a first state")
    }

    /// Checks one step of a node.
    pub(crate) fn check_step(&mut self, before: &Node<S>, after: &Node<S>, real: Option<u64>) -> Check {
        node_is_sound(after)?;
        leader_append_only(before, after)?;
        require!(Property::TermsOnlyGrow, before.term() <= after.term(), "n{}'s term went back", after.id())?;
        if !after.is_leader() {
            return Ok(());
        }
        election_safety(&mut self.leaders, after.term(), after.id())?;
        if let Some(real) = real {
            for entry in after.log().entries().iter().rev().take_while(|entry| entry.term == after.term()) {
                self.appended_at.entry((entry.index, entry.term)).or_insert(real);
            }
        }
        for index in (before.commit().0 + 1..=after.commit().0).map(Index) {
            if !self.committed.contains_key(&index) {
                self.committed_in.insert(index, after.term());
            }
        }
        if before.is_leader() {
            return Ok(());
        }
        let earlier = |index: &Index| self.committed_in.get(index).is_none_or(|term| *term < after.term());
        let committed = self.committed.iter().filter(|(index, _)| earlier(index));
        leader_completeness(&committed.map(|(index, entry)| (*index, entry.clone())).collect(), after)
    }

    /// Compares the logs of two nodes, in memory or on disk.
    pub(crate) fn check_log_pair(&self, a: &Log<S::Command>, b: &Log<S::Command>) -> Check {
        log_matching(a, b)
    }

    /// Checks a message when it is sent: its sender's disk must hold what it promises. (The disk
    /// may be ahead of the message if several steps were written with one sync.)
    pub(crate) fn check_message(&self, message: &Message<S>, disk: &Durable<S>) -> Check {
        let Message { from, to, term, body } = message;
        let durable = match body {
            _ if disk.hard.term > *term => true,
            _ if disk.hard.term < *term => false,
            Body::RequestVote { .. } => disk.hard.vote == Some(*from),
            Body::RequestVoteReply { granted: true } => disk.hard.vote == Some(*to),
            Body::AppendAccepted { matched, .. } => disk.log.last().index >= *matched,
            _ => true,
        };
        require!(Property::PersistBeforeSend, durable, "n{from} says {} to n{to} too early", body.name())
    }

    /// Checks an `Applied` when it is carried out.
    pub(crate) fn check_applied(&mut self, id: NodeId, entry: &Entry<S::Command>, outcome: &S::Outcome) -> Check {
        let known = self.committed.entry(entry.index).or_insert_with(|| entry.clone());
        require!(Property::StateMachineSafety, known == entry, "n{id} applied another entry at {}", entry.index)?;
        let offset = usize::try_from(entry.index.0 - 1).expect("a test's log is short");
        require!(Property::CommitsFollowOneAnother, offset <= self.outcomes.len(), "n{id} skipped to {}", entry.index)?;
        if offset == self.outcomes.len() {
            require!(
                Property::StampsOnlyGrow,
                self.last_stamp <= entry.stamp,
                "the stamp went back at {}",
                entry.index
            )?;
            if let Some(&appended_at) = self.appended_at.get(&(entry.index, entry.term)) {
                let (passed, really) =
                    (entry.stamp.0 - self.last_stamp.0, appended_at.saturating_sub(self.last_appended_at));
                require!(
                    Property::ClusterTimeNeverRunsAhead,
                    passed <= really,
                    "{passed} ms of cluster time passed before {} in {really} ms",
                    entry.index
                )?;
                self.last_appended_at = appended_at;
            }
            self.last_stamp = entry.stamp;
            let before = self.states.last().expect("there is a first state");
            let mut after = before.clone();
            let outcome = after.apply_payload(entry.stamp, &entry.payload);
            let applied =
                Applied { before, at: entry.stamp, payload: &entry.payload, outcome: &outcome, after: &after };
            S::watch(&mut self.watch, &applied)?;
            self.outcomes.push(outcome);
            self.states.push(after);
        }
        let same = self.outcomes[offset] == *outcome;
        require!(Property::ReplicaAgreement, same, "n{id} got another outcome at {}", entry.index)
    }

    /// Checks a node whose outputs are all carried out: memory matches disk, and its state matches
    /// the reference.
    pub(crate) fn check_settled(&mut self, node: &Node<S>, disk: &Durable<S>) -> Check {
        let written = node.hard_state() == disk.hard && node.log() == &disk.log;
        require!(Property::MemoryMatchesDisk, written, "n{}'s disk differs from its memory", node.id())?;
        state_machine_safety(&mut self.committed, node)?;
        let commit = usize::try_from(node.commit().0).expect("a test's log is short");
        let same = self.states.get(commit).is_none_or(|state| state == node.machine());
        require!(Property::ReplicaAgreement, same, "n{} has another state", node.id())
    }
}
