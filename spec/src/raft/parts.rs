//! For tests: mutable access to a node's parts, to build states that no step reaches, and a trivial
//! state machine.

use alloc::vec::Vec;

use super::{Entry, HardState, Index, Node, Role, Stamp, StateMachine};

/// The parts that [`node_is_sound`](crate::invariants::node_is_sound) compares.
pub(crate) struct Parts<'a, S: StateMachine> {
    pub(crate) hard: &'a mut HardState,
    pub(crate) role: &'a mut Role,
    pub(crate) entries: &'a mut Vec<Entry<S::Command>>,
    pub(crate) commit: &'a mut Index,
    pub(crate) clock: &'a mut Stamp,
}

impl<S: StateMachine> Node<S> {
    pub(crate) fn parts(&mut self) -> Parts<'_, S> {
        let Node { hard, role, log, commit, clock, .. } = self;
        Parts { hard, role, entries: log.entries_mut(), commit, clock }
    }

    /// Appends an entry to the node's log, without any other effect.
    pub(crate) fn push(&mut self, entry: Entry<S::Command>) {
        self.log.push(entry);
    }
}

/// A state machine without state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Idle;

impl StateMachine for Idle {
    type Command = ();
    type Outcome = ();

    fn apply(&mut self, _: Stamp, (): &()) {}

    fn advance(&mut self, _: Stamp) {}

    fn next_deadline(&self) -> Option<Stamp> {
        None
    }
}
