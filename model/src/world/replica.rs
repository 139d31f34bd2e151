//! One server's place: the running node, and the disk that outlives it. And what can happen to it.

use palisade_spec::raft::{Change, Durable, Index, Message, Node, NodeId, Payload, ReadId, StateMachine};
use serde::Serialize;

use super::intern::Ref;

/// A server: what it remembers, and what its disk does.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(bound(serialize = "S: Serialize, S::Command: Serialize"))]
pub struct Replica<S: StateMachine> {
    /// The running node.
    pub node: Node<S>,
    /// What a crash leaves.
    pub disk: Durable<S>,
    /// Whether it neither hears the others nor is heard.
    pub cut: bool,
}

/// Something that happens to a server.
#[derive(Debug)]
pub enum Stimulus<S: StateMachine + 'static> {
    /// A message arrives. Where elections are held at will, whoever is asked for a vote has stopped hearing from its
    /// leader before.
    Deliver(Ref<Message<S>>),
    /// The election timer runs out, and whoever is asked would vote for this server: PreVote's messages carry no
    /// promise, so nothing is lost by not following them one by one. (The configuration `elections` does.)
    Campaign,
    /// The election timer runs out.
    ElectionTimeout,
    /// The heartbeat timer runs out.
    HeartbeatTimeout,
    /// Clients ask for entries.
    Propose(Ref<Vec<Payload<S::Command>>>),
    /// An operator asks for a change of the members.
    Change(Ref<Change>),
    /// A client asks to read.
    Read(ReadId),
    /// An operator asks the leader to hand over to this server, or to the one that is most up to date.
    Transfer(Option<NodeId>),
    /// The monotonic clock advances.
    Clock(u64),
    /// A durable snapshot includes everything up to this index.
    Compact(Index),
}

impl<S: StateMachine> Clone for Stimulus<S> {
    fn clone(&self) -> Stimulus<S> {
        *self
    }
}

impl<S: StateMachine> Copy for Stimulus<S> {}

impl<S: StateMachine> PartialEq for Stimulus<S> {
    fn eq(&self, other: &Stimulus<S>) -> bool {
        self.key() == other.key()
    }
}

impl<S: StateMachine> Stimulus<S> {
    /// A number that tells stimuli of one run apart.
    pub(super) fn key(&self) -> u64 {
        match self {
            Stimulus::Campaign => 1,
            Stimulus::ElectionTimeout => 2,
            Stimulus::HeartbeatTimeout => 3,
            Stimulus::Clock(milliseconds) => 8 + (milliseconds << 3) + 4,
            Stimulus::Compact(through) => 8 + (through.0 << 3) + 5,
            Stimulus::Read(ReadId(id)) => 8 + (id << 3) + 6,
            Stimulus::Transfer(to) => 8 + (to.map_or(0, |NodeId(to)| u64::from(to)) << 3) + 7,
            // References are to different allocations, whatever they refer to; none is near zero.
            Stimulus::Deliver(message) => message.key(),
            Stimulus::Propose(payloads) => payloads.key(),
            Stimulus::Change(change) => change.key(),
        }
    }
}
