//! What the adversary can do.

use std::fmt;

use palisade_spec::raft::{Message, NodeId};

use super::environment::Environment;
use super::intern::Ref;
use super::seat::Stimulus;
use super::state::CommandOf;

/// What the adversary does.
pub enum Action<E: Environment> {
    /// Something happens to a server.
    Step {
        /// To which.
        server: NodeId,
        /// What.
        stimulus: Stimulus<CommandOf<E>>,
        /// Whether the message stays on its way, to arrive again.
        again: bool,
        /// Whether its answer is lost, where answers do not travel by themselves.
        unheard: bool,
        /// Where the server crashes on the way, if it does: the how-manieth of the possible places.
        crash: Option<usize>,
    },
    /// A server crashes and comes back.
    Crash(NodeId),
    /// A message is lost, to make room.
    Lose(Ref<Message<CommandOf<E>>>),
    /// The environment moves.
    Move {
        /// How.
        chosen: E::Move,
        /// Where the server that is asked for something crashes, if it does.
        crash: Option<usize>,
    },
}

impl<E: Environment> Clone for Action<E> {
    fn clone(&self) -> Action<E> {
        match self {
            Action::Step { server, stimulus, again, unheard, crash } => {
                Action::Step { server: *server, stimulus: *stimulus, again: *again, unheard: *unheard, crash: *crash }
            }
            Action::Crash(server) => Action::Crash(*server),
            Action::Lose(message) => Action::Lose(*message),
            Action::Move { chosen, crash } => Action::Move { chosen: chosen.clone(), crash: *crash },
        }
    }
}

impl<E: Environment> PartialEq for Action<E> {
    fn eq(&self, other: &Action<E>) -> bool {
        match (self, other) {
            (
                Action::Step { server: a, stimulus: b, again: c, unheard: d, crash: e },
                Action::Step { server: v, stimulus: w, again: x, unheard: y, crash: z },
            ) => (a, b, c, d, e) == (v, w, x, y, z),
            (Action::Crash(a), Action::Crash(b)) => a == b,
            (Action::Lose(a), Action::Lose(b)) => a == b,
            (Action::Move { chosen: a, crash: x }, Action::Move { chosen: b, crash: y }) => (a, x) == (b, y),
            _ => false,
        }
    }
}

impl<E: Environment> fmt::Debug for Action<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Step { server, stimulus, again, unheard, crash } => {
                write!(f, "Step {server} {:?} {again} {unheard} {crash:?}", stimulus)
            }
            Action::Crash(server) => write!(f, "Crash {server}"),
            Action::Lose(message) => write!(f, "Lose {message:?}"),
            Action::Move { chosen, crash } => write!(f, "Move {chosen:?} {crash:?}"),
        }
    }
}
