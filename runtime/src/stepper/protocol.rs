//! The strings: what a puppet is told, and what it answers, a JSON value on a line each.
//!
//! The first line is a [`Setting`], answered by [`Answer::Ready`]; every later one a [`Request`], answered by one
//! [`Answer`]. After [`Answer::Halted`] nothing is heard any more: the puppet waits to be killed.

use std::collections::BTreeMap;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, Input, Node, NodeId};
use serde::{Deserialize, Serialize};

/// Who the puppet is, and how its cluster began. The same at each of its starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Its number.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: u64,
    /// The number of its directory.
    pub incarnation: u64,
    /// Where other nodes reach it: not itself, but whoever stands between them.
    pub peer_addr: String,
    /// The founders and where they are reached; nobody for a server that joins.
    pub founders: BTreeMap<NodeId, String>,
    /// The state before the first entry.
    pub machine: LockTable,
    /// At most so many entries in an AppendEntries.
    pub max_batch: usize,
    /// At most so many entries sent to a follower and not yet acknowledged.
    pub max_inflight: u64,
    /// At most so many entries committed in one step.
    pub max_commits: u64,
    /// The length of a segment of the log.
    pub segment_bytes: u64,
}

/// What a puppet is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Step the node with this input.
    Give {
        /// The input. No message: those come from peers.
        input: Input<LockTable>,
        /// Where to stand still, if it is to.
        stop: Option<Stop>,
    },
    /// Step the node with the next message, which must be this peer's.
    Receive {
        /// Whose.
        from: NodeId,
        /// Where to stand still, if it is to.
        stop: Option<Stop>,
    },
    /// Take a snapshot of what is applied, and say nothing of it to the node.
    TakeSnapshot,
}

/// Where a puppet stands still, to be killed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// Before it hands this message (or request for a snapshot) of the step over to the connections, counted from 0.
    Send(usize),
    /// At this frame of the step that goes to the log, counted from 0.
    Write {
        /// Which.
        nth: usize,
        /// Where in it.
        at: WritePoint,
    },
    /// Before a leader's snapshot gets its name.
    Name,
}

/// Where in a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WritePoint {
    /// Nothing of it is written.
    Before,
    /// So many bytes of it are; if that is all or more, all but one.
    Within(usize),
    /// All of it is, and not synced.
    Unsynced,
    /// It is durable, and nothing has come of that yet.
    Synced,
}

/// What a puppet answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It has recovered, and listens.
    Ready {
        /// Where.
        peer_addr: String,
        /// What it is.
        self_now: Box<Now>,
    },
    /// The node took a step, and what it asked for is done.
    Stepped(Box<Stepped>),
    /// The snapshot is durable.
    Taken(Box<Now>),
    /// It stands still.
    Halted {
        /// What it did since the pull.
        effects: Vec<Effect>,
    },
    /// It was told something that it cannot do.
    Cannot(String),
}

/// What a puppet is: its node, and its disk as a start would find it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Now {
    /// The node's complete state.
    pub node: Node<LockTable>,
    /// The disk, read back by the code that recovers it.
    pub disk: Durable<LockTable>,
}

/// A step that a puppet took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stepped {
    /// What the node was given.
    pub input: Input<LockTable>,
    /// What it asked for, each output as `Debug` shows it.
    pub outputs: Vec<String>,
    /// What the driver did for that, in order.
    pub effects: Vec<Effect>,
    /// What the puppet is now.
    pub now: Now,
}

/// Something that a driver does, and that others can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// A message went to the connections.
    Send(NodeId),
    /// The newest snapshot is to be sent to a peer.
    SendSnapshot(NodeId),
    /// A frame was written to the log.
    Write,
    /// It was made durable.
    Sync,
    /// A snapshot became the newest.
    Name,
}
