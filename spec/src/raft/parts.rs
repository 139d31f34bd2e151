//! A node's parts, for tests that put it into states that no step leads to.

use alloc::vec::Vec;

use super::{Clock, Entry, HardState, Index, Node, Role, StateMachine};

/// What [`node_is_sound`](crate::invariants::node_is_sound) holds together.
pub(crate) struct Parts<'a, S: StateMachine> {
    pub(crate) hard: &'a mut HardState,
    pub(crate) role: &'a mut Role,
    pub(crate) entries: &'a mut Vec<Entry<S::Command>>,
    pub(crate) commit: &'a mut Index,
    pub(crate) clock: &'a mut Clock,
}

impl<S: StateMachine> Node<S> {
    pub(crate) fn parts(&mut self) -> Parts<'_, S> {
        let Node { hard, role, log, commit, clock, .. } = self;
        Parts { hard, role, entries: log.entries_mut(), commit, clock }
    }
}
