//! What the adversary can do.

use std::fmt;

use palisade_spec::raft::{Message, NodeId};

use super::environment::Environment;
use super::intern::Ref;
use super::replica::Stimulus;

/// What the adversary does.
pub enum Action<E: Environment> {
    /// Something happens to a server.
    Step {
        /// To which.
        server: NodeId,
        /// What.
        stimulus: Stimulus<E::Machine>,
        /// Whether the message stays on its way, to arrive again.
        again: bool,
        /// What goes wrong, if anything does.
        fault: Option<Fault>,
    },
    /// The environment moves.
    Move {
        /// How.
        chosen: E::Move,
        /// What goes wrong, if it asks a server for something.
        fault: Option<Fault>,
    },
    /// A server crashes and comes back.
    Crash(NodeId),
    /// A server's driver takes a snapshot of what is applied. The server does not know of it yet.
    Snapshot(NodeId),
    /// A message is lost, to make room.
    Lose(Ref<Message<E::Machine>>),
    /// A server is cut off from all others.
    Cut(NodeId),
    /// It is connected again.
    Heal(NodeId),
}

/// What goes wrong within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A server crashes at this one of all the places of the step where one could, and is back at once.
    Crash(usize),
    /// So it does, but it stays away: it is cut off until it is connected again.
    Leave(usize),
    /// This one of the messages that would arrive within the step is lost.
    Lose(usize),
    /// This one of them is late: it stays on its way.
    Delay(usize),
    /// This one of them arrives, and stays on its way as well, to arrive once more.
    Repeat(usize),
}

impl Fault {
    /// At which place a server crashes.
    pub(super) fn crash(self) -> Option<usize> {
        match self {
            Fault::Crash(place) | Fault::Leave(place) => Some(place),
            Fault::Lose(_) | Fault::Delay(_) | Fault::Repeat(_) => None,
        }
    }
}

impl<E: Environment> Action<E> {
    /// How likely it is in a random walk: what brings a cluster on is likelier than what disturbs it.
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

    /// Whether a heartbeat timer runs out.
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
