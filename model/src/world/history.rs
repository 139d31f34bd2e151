//! The history of a cluster, as an omniscient observer records it, to check states against it.
//!
//! It is a history (auxiliary) variable: it does not influence the cluster. Everything in it except
//! the leaders follows from the committed entries.

use std::collections::BTreeMap;

use palisade_spec::checker::execute;
use palisade_spec::invariants::{
    Check, Committed, Leaders, Property, election_safety, leader_completeness, state_machine_safety,
};
use palisade_spec::raft::{Index, Node, Stamp, StateMachine, Term};
use palisade_spec::require;
use serde::Serialize;

/// The history of a cluster.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(bound(serialize = "S: Serialize, S::Command: Serialize"))]
pub struct History<S: StateMachine> {
    /// The leader of each term.
    pub leaders: Leaders,
    /// Every entry that a leader considered committed.
    pub committed: Committed<S::Command>,
    /// The term in which each entry was committed.
    pub committed_in: BTreeMap<Index, Term>,
    /// The state machine before the first entry, and after each entry.
    pub machines: Vec<S>,
}

impl<S: StateMachine> History<S> {
    /// Creates an empty history.
    pub fn new(machine: S) -> History<S> {
        History {
            leaders: Leaders::new(),
            committed: Committed::new(),
            committed_in: BTreeMap::new(),
            machines: vec![machine],
        }
    }

    /// Records an elected leader. Checks that its term has no other leader, and that it has all
    /// entries committed in earlier terms.
    pub fn elected(&mut self, leader: &Node<S>) -> Check {
        election_safety(&mut self.leaders, leader.term(), leader.id())?;
        self.completeness(leader)
    }

    /// Checks that a leader has all entries committed in terms before its own.
    pub fn completeness(&self, leader: &Node<S>) -> Check {
        let before = |index: Index| self.committed_in.get(&index).is_some_and(|&term| term < leader.term());
        leader_completeness(self.committed.values().filter(|entry| before(entry.index)), leader)
    }

    /// Records the entries that a server applied. Checks that every server applies the same entries
    /// and reaches the same state.
    pub fn applied(&mut self, node: &Node<S>) -> Check {
        state_machine_safety(&mut self.committed, node)?;
        let mut stamp = Stamp(0);
        for (&index, entry) in &self.committed {
            require!(
                Property::StampsOnlyGrow,
                entry.stamp >= stamp,
                "entry {index} has stamp {}, after an entry with stamp {stamp}",
                entry.stamp
            )?;
            stamp = entry.stamp;
            self.committed_in.entry(index).or_insert(node.term());
            if self.machines.len() as u64 == index.0 {
                let mut machine = self.machines.last().expect("the history has an initial state").clone();
                execute(&mut machine, entry.stamp, &entry.payload);
                self.machines.push(machine);
            }
        }
        let position = usize::try_from(node.commit().0).expect("a log index fits in usize");
        require!(
            Property::ReplicaAgreement,
            self.machines.get(position) == Some(node.machine()),
            "the state machine of server {} after entry {} differs from that of other servers",
            node.id(),
            node.commit()
        )
    }
}
