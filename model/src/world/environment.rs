//! Whatever is around the servers: clients, clocks, resources.

use std::fmt::Debug;

use palisade_spec::invariants::Check;
use palisade_spec::raft::{Change, Index, Node, NodeId, Payload, ReadId, StateMachine};
use serde::Serialize;
use stateright::Property;

use super::World;
use super::driver::{Answer, Applied};
use super::ghost::Ghost;
use super::intern::Ref;
use super::notation::Notation;
use super::replica::Replica;
use super::show::{DescribeEnvironment, DescribeMove};

/// What surrounds the servers of a model, as a part of its state.
pub trait Environment: Clone + Eq + Debug + DescribeEnvironment + Serialize + Send + Sync + 'static {
    /// What the servers replicate.
    type Machine: Machine;
    /// What the environment can do.
    type Move: Clone + Debug + PartialEq + DescribeMove + Send + Sync + 'static;

    /// Whether members come and go here, and what must hold then is looked at.
    const CHANGES_MEMBERS: bool = false;

    /// What must always hold of the cluster, and what must be possible within the bounds of `world`.
    fn properties(world: &World<Self>) -> Vec<Property<World<Self>>>;

    /// Everything it can do now, in an order that depends on nothing but the state.
    fn moves(&self, servers: &[Ref<Replica<Self::Machine>>], moves: &mut Vec<Self::Move>);

    /// A number that tells moves apart.
    fn key(chosen: &Self::Move) -> u64;

    /// Does it. What it asks of a server is returned.
    fn play(&mut self, chosen: &Self::Move) -> Option<Asked<Self::Machine>>;

    /// Whether it can see anything of a step that a server took.
    fn watches(_old: &Node<Self::Machine>, _new: &Node<Self::Machine>, _answers: &[Answer<Self::Machine>]) -> bool {
        false
    }

    /// Sees a server that applied an entry, in a step that it [watches](Environment::watches).
    ///
    /// # Errors
    /// If somebody in the environment must not see this.
    fn see(&mut self, _node: &Node<Self::Machine>, _applied: &Applied<Self::Machine>) -> Check {
        Ok(())
    }

    /// Sees a server that says that a read is ready, in a step that it [watches](Environment::watches).
    ///
    /// # Errors
    /// If what can be read there is too old.
    fn ready(&mut self, _node: &Node<Self::Machine>, _read: ReadId) -> Check {
        Ok(())
    }

    /// Sees a server after such a step.
    fn stepped(&mut self, _node: &Node<Self::Machine>) {}

    /// Judges an entry that was committed for the first time.
    ///
    /// # Errors
    /// If it must not do what it did.
    fn committed(_ghost: &Ghost<Self::Machine>, _index: Index) -> Check {
        Ok(())
    }

    /// Judges the environment by what was committed.
    ///
    /// # Errors
    /// If they do not agree.
    fn judge(&self, _ghost: &Ghost<Self::Machine>) -> Check {
        Ok(())
    }

    /// A coarse picture of it, for [guided search](crate::guided).
    fn outline(&self) -> u64 {
        0
    }

    /// What comes before a server does anything, if something does: a leader looks at its clock first.
    fn before(&self, _node: &Node<Self::Machine>) -> Option<Self::Move> {
        None
    }
}

/// What the environment asks of a server.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked<S: StateMachine> {
    /// To append these to the log.
    Propose(NodeId, Vec<Payload<S::Command>>),
    /// To change the members.
    Change(NodeId, Change),
    /// To say when this read can be answered.
    Read(NodeId, ReadId),
    /// To hand over, to this server or to whichever is most up to date.
    Transfer(NodeId, Option<NodeId>),
    /// To look at its clock: so many milliseconds have passed since it last did.
    Clock(NodeId, u64),
}

/// A state machine whose states can be told apart, kept, and moved between threads.
pub trait Machine:
    Notation<Command: Serialize + Send + Sync, Outcome: Send + Sync> + Serialize + Send + Sync + 'static
{
}

impl<S> Machine for S where
    S: Notation<Command: Serialize + Send + Sync, Outcome: Send + Sync> + Serialize + Send + Sync + 'static
{
}
