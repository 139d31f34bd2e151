//! The environment of the servers: clients, clocks, resources.

use std::fmt::Debug;

use palisade_spec::invariants::Check;
use palisade_spec::raft::{Change, Index, Node, NodeId, Payload, RequestId, StateMachine};
use serde::Serialize;
use stateright::Property;

use super::World;
use super::describe::{DescribeEnvironment, DescribeMove};
use super::driver::{Answer, Applied};
use super::history::History;
use super::intern::Ref;
use super::notation::Notation;
use super::replica::Replica;

/// The environment of a model's servers, as a part of its state.
pub trait Environment: Clone + Eq + Debug + DescribeEnvironment + Serialize + Send + Sync + 'static {
    /// The replicated state machine.
    type Machine: Machine;
    /// The environment's moves.
    type Move: Clone + Debug + PartialEq + DescribeMove + Send + Sync + 'static;

    /// Whether the membership changes in this environment; if it does, the model checks the
    /// membership properties.
    const CHANGES_MEMBERS: bool = false;

    /// The properties of the cluster: what must always hold, and what must be reachable within the
    /// bounds of `world`.
    fn properties(world: &World<Self>) -> Vec<Property<World<Self>>>;

    /// Lists all moves that are possible now, in an order that depends on nothing but the state.
    fn moves(&self, servers: &[Ref<Replica<Self::Machine>>], moves: &mut Vec<Self::Move>);

    /// A number that identifies a move.
    fn key(chosen: &Self::Move) -> u64;

    /// Makes a move. Returns its request to a server, if it has one.
    fn play(&mut self, chosen: &Self::Move) -> Option<ServerRequest<Self::Machine>>;

    /// Whether the environment observes a server's step.
    fn watches(_old: &Node<Self::Machine>, _new: &Node<Self::Machine>, _answers: &[Answer<Self::Machine>]) -> bool {
        false
    }

    /// Observes an entry that a server applied, in a step that the environment
    /// [watches](Environment::watches).
    ///
    /// # Errors
    /// If an observer in the environment must not see this.
    fn see(&mut self, _node: &Node<Self::Machine>, _applied: &Applied<Self::Machine>) -> Check {
        Ok(())
    }

    /// Observes a server that reports a read as ready, in a step that the environment
    /// [watches](Environment::watches).
    ///
    /// # Errors
    /// If the state that the read would return is too old.
    fn ready(&mut self, _node: &Node<Self::Machine>, _read: RequestId) -> Check {
        Ok(())
    }

    /// Observes a server after a step that the environment watches.
    fn stepped(&mut self, _node: &Node<Self::Machine>) {}

    /// Checks an entry that was committed for the first time.
    ///
    /// # Errors
    /// If the entry's effect breaks a property.
    fn committed(_history: &History<Self::Machine>, _index: Index) -> Check {
        Ok(())
    }

    /// Checks the environment against the committed history.
    ///
    /// # Errors
    /// If they contradict each other.
    fn judge(&self, _history: &History<Self::Machine>) -> Check {
        Ok(())
    }

    /// A coarse abstraction of the environment, for [guided search](crate::guided).
    fn outline(&self) -> u64 {
        0
    }

    /// The move that must come before any step of this server, if there is one: a leader reads its
    /// clock first.
    fn before(&self, _node: &Node<Self::Machine>) -> Option<Self::Move> {
        None
    }
}

/// A request of the environment to a server.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerRequest<S: StateMachine> {
    /// To append these payloads to the log.
    Propose(NodeId, Vec<Payload<S::Command>>),
    /// To change the membership.
    Change(NodeId, Change),
    /// To report when this read can be answered.
    Read(NodeId, RequestId),
    /// To transfer leadership to this server, or to the most up-to-date one.
    Transfer(NodeId, Option<NodeId>),
    /// To read its clock: this many milliseconds have passed since the last reading.
    Clock(NodeId, u64),
}

/// A state machine whose states can be compared, digested, and sent between threads.
pub trait Machine:
    Notation<Command: Serialize + Send + Sync, Outcome: Send + Sync> + Serialize + Send + Sync + 'static
{
}

impl<S> Machine for S where
    S: Notation<Command: Serialize + Send + Sync, Outcome: Send + Sync> + Serialize + Send + Sync + 'static
{
}
