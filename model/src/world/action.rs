//! The adversary's actions.

use std::fmt;

use palisade_spec::raft::{Message, NodeId};

use super::environment::Environment;
use super::intern::Ref;
use super::replica::Stimulus;

/// One action of the adversary.
pub enum Action<E: Environment> {
    /// A server takes a step.
    Step {
        /// The server.
        server: NodeId,
        /// What happens to it.
        stimulus: Stimulus<E::Machine>,
        /// Whether a copy of the delivered message stays in the network, to arrive again.
        again: bool,
        /// The fault within the step, if there is one.
        fault: Option<Fault>,
    },
    /// The environment moves.
    Move {
        /// The chosen move.
        chosen: E::Move,
        /// The fault within the step, if the move sends a request to a server.
        fault: Option<Fault>,
    },
    /// A server crashes between two steps and restarts at once.
    Crash(NodeId),
    /// A server's driver takes a snapshot of the applied state. The node does not know of the
    /// snapshot until it gets `Compact`.
    Snapshot(NodeId),
    /// A message is lost, which makes room in the network.
    Lose(Ref<Message<E::Machine>>),
    /// A server is partitioned from all others.
    Cut(NodeId),
    /// A partitioned server is connected again.
    Heal(NodeId),
}

/// A fault within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A server crashes at this crash point, counted from 0 over the step, and restarts at once.
    Crash(usize),
    /// A server crashes at this crash point and stays away: it is partitioned until it heals.
    Leave(usize),
    /// This one of the messages that would arrive within the step is lost.
    Lose(usize),
    /// This one of those messages is delayed: it stays in the network.
    Delay(usize),
    /// This one of those messages arrives, and a copy stays in the network, to arrive once more.
    Repeat(usize),
}

impl Fault {
    /// The crash point of a fault that crashes a server.
    pub(super) fn crash(self) -> Option<usize> {
        match self {
            Fault::Crash(index) | Fault::Leave(index) => Some(index),
            Fault::Lose(_) | Fault::Delay(_) | Fault::Repeat(_) => None,
        }
    }
}

impl<E: Environment> Action<E> {
    /// The weight in a random walk. Actions that make progress weigh more than faults.
    pub fn weight(&self) -> u32 {
        match self {
            Action::Step { fault: Some(_), .. } | Action::Move { fault: Some(_), .. } | Action::Crash(_) => 1,
            Action::Step { again: true, .. } | Action::Lose(_) | Action::Cut(_) => 2,
            Action::Step { stimulus: Stimulus::Campaign | Stimulus::ElectionTimeout, .. } => 2,
            Action::Heal(_) | Action::Snapshot(_) => 6,
            Action::Step { stimulus: Stimulus::HeartbeatTimeout, .. } => 12,
            Action::Move { .. } => 30,
            Action::Step { .. } => 60,
        }
    }

    /// Whether the action is an expiry of a heartbeat timer.
    pub fn is_heartbeat(&self) -> bool {
        matches!(self, Action::Step { stimulus: Stimulus::HeartbeatTimeout, .. })
    }
}

impl<E: Environment> Clone for Action<E> {
    fn clone(&self) -> Action<E> {
        match self {
            Action::Step { server, stimulus, again, fault } => {
                Action::Step { server: *server, stimulus: *stimulus, again: *again, fault: *fault }
            }
            Action::Move { chosen, fault } => Action::Move { chosen: chosen.clone(), fault: *fault },
            Action::Crash(server) => Action::Crash(*server),
            Action::Snapshot(server) => Action::Snapshot(*server),
            Action::Lose(message) => Action::Lose(*message),
            Action::Cut(server) => Action::Cut(*server),
            Action::Heal(server) => Action::Heal(*server),
        }
    }
}

impl<E: Environment> PartialEq for Action<E> {
    fn eq(&self, other: &Action<E>) -> bool {
        match (self, other) {
            (
                Action::Step { server: a, stimulus: b, again: c, fault: d },
                Action::Step { server: v, stimulus: w, again: x, fault: y },
            ) => (a, b, c, d) == (v, w, x, y),
            (Action::Move { chosen: a, fault: b }, Action::Move { chosen: v, fault: w }) => (a, b) == (v, w),
            (Action::Crash(a), Action::Crash(b))
            | (Action::Snapshot(a), Action::Snapshot(b))
            | (Action::Cut(a), Action::Cut(b))
            | (Action::Heal(a), Action::Heal(b)) => a == b,
            (Action::Lose(a), Action::Lose(b)) => a == b,
            _ => false,
        }
    }
}

impl<E: Environment> fmt::Debug for Action<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Step { server, stimulus, again, fault } => {
                write!(f, "Step {server} {stimulus:?} {again} {fault:?}")
            }
            Action::Move { chosen, fault } => write!(f, "Move {chosen:?} {fault:?}"),
            Action::Crash(server) => write!(f, "Crash {server}"),
            Action::Snapshot(server) => write!(f, "Snapshot {server}"),
            Action::Lose(message) => write!(f, "Lose {message:?}"),
            Action::Cut(server) => write!(f, "Cut {server}"),
            Action::Heal(server) => write!(f, "Heal {server}"),
        }
    }
}
