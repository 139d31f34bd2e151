//! A server with its disk, and the events that can happen to it.

use palisade_spec::raft::{Change, Durable, Index, Message, Node, NodeId, Payload, RequestId, StateMachine};
use serde::Serialize;

use super::intern::Ref;

/// A server: the running node, and the disk that outlives it.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(bound(serialize = "S: Serialize, S::Command: Serialize"))]
pub struct Replica<S: StateMachine> {
    /// The running node.
    pub node: Node<S>,
    /// What survives a crash.
    pub disk: Durable<S>,
    /// Whether the server is partitioned: it neither receives messages nor sends any.
    pub cut: bool,
}

/// An event that happens to a server.
#[derive(Debug)]
pub enum Stimulus<S: StateMachine + 'static> {
    /// A message arrives. With [`Elections::AtWill`](super::Elections::AtWill), the receiver of a
    /// RequestVote has lost contact with its leader before.
    Deliver(Ref<Message<S>>),
    /// The election timer runs out, and every voter grants this server's PreVote. PreVote messages
    /// carry no promise, so the model loses nothing by not delivering them one by one. (The
    /// configuration `elections` does deliver them.)
    Campaign,
    /// The election timer runs out.
    ElectionTimeout,
    /// The heartbeat timer runs out.
    HeartbeatTimeout,
    /// Clients propose entries.
    Propose(Ref<Vec<Payload<S::Command>>>),
    /// An operator requests a membership change.
    Change(Ref<Change>),
    /// A client requests a read.
    Read(RequestId),
    /// An operator requests a leadership transfer, to this server or to the most up-to-date one.
    Transfer(Option<NodeId>),
    /// The monotonic clock advances by this many milliseconds.
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
    /// A number that identifies a stimulus within one run.
    pub(super) fn key(&self) -> u64 {
        match self {
            Stimulus::Campaign => 1,
            Stimulus::ElectionTimeout => 2,
            Stimulus::HeartbeatTimeout => 3,
            Stimulus::Clock(milliseconds) => 8 + (milliseconds << 3) + 4,
            Stimulus::Compact(through) => 8 + (through.0 << 3) + 5,
            Stimulus::Read(RequestId(id)) => 8 + (id << 3) + 6,
            Stimulus::Transfer(to) => 8 + (to.map_or(0, |NodeId(to)| u64::from(to)) << 3) + 7,
            // References point to distinct allocations, whatever their type; no address is near
            // zero.
            Stimulus::Deliver(message) => message.key(),
            Stimulus::Propose(payloads) => payloads.key(),
            Stimulus::Change(change) => change.key(),
        }
    }
}
