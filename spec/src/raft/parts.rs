//! For tests: a node's parts, so that they can put it into states that no step leads to, and something to replicate.

use alloc::vec::Vec;

use super::{Entry, HardState, Index, Node, Role, Stamp, StateMachine};

/// What [`node_is_sound`](crate::invariants::node_is_sound) holds together.
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

    /// Puts an entry at the end of its log, and does nothing else.
    pub(crate) fn push(&mut self, entry: Entry<S::Command>) {
        self.log.push(entry);
    }
}

/// A state machine that has no state.
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
