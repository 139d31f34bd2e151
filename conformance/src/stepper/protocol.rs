//! The protocol of a stepped node on standard input and output: one JSON value on each line.
//!
//! The first line is a [`Setting`], answered by [`Answer::Ready`]; every later line is a
//! [`Request`], answered by one [`Answer`]. After [`Answer::Halted`] the node reads no more
//! requests: it waits to be killed.

use std::collections::BTreeMap;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, Input, Node, NodeId};
use serde::{Deserialize, Serialize};

/// The node's identity and configuration, and the first state of its cluster. The same at each of
/// its starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The node ID.
    pub node: NodeId,
    /// The cluster ID.
    pub cluster: u64,
    /// The incarnation of the node's directory.
    pub incarnation: u64,
    /// The address at which other nodes reach this one: that of the proxy between them.
    pub peer_addr: String,
    /// The founders and their peer addresses; empty for a server that joins.
    pub founders: BTreeMap<NodeId, String>,
    /// The state before the first entry.
    pub machine: LockTable,
    /// Maximum number of entries in an AppendEntries.
    pub max_batch: usize,
    /// Maximum number of entries sent to a follower and not yet acknowledged.
    pub max_inflight: u64,
    /// Maximum number of entries committed in one step.
    pub max_commits: u64,
    /// Length of a log segment, in bytes.
    pub segment_bytes: u64,
}

/// A request to a stepped node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Step the node with this input.
    Give {
        /// The input. Not a message: those come from peers.
        input: Input<LockTable>,
        /// The point at which to halt, if any.
        stop: Option<Stop>,
    },
    /// Step the node with the next message, which must be from this peer.
    Receive {
        /// The peer.
        from: NodeId,
        /// The point at which to halt, if any.
        stop: Option<Stop>,
    },
    /// Take a snapshot of the applied state, without an input to the node.
    TakeSnapshot,
}

/// The point at which a stepped node halts, to be killed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// Before this message (or request to send a snapshot) of the step is handed to the
    /// connections, counted from 0.
    Send(usize),
    /// At this frame that the step writes to the log.
    Write {
        /// The frame, counted from 0.
        nth: usize,
        /// The point in its write.
        at: WritePoint,
    },
    /// Before a leader's snapshot is renamed to its final name.
    Name,
}

/// A point in the write of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WritePoint {
    /// Nothing is written.
    Before,
    /// This many bytes are written; at most all but one.
    Within(usize),
    /// The whole frame is written, and not synced.
    Unsynced,
    /// The frame is durable, and the step has not continued.
    Synced,
}

/// An answer of a stepped node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The node has recovered, and listens for peers.
    Ready {
        /// The address it listens on.
        peer_addr: String,
        /// Its state.
        self_now: Box<Now>,
    },
    /// The node took a step, and its outputs are executed.
    Stepped(Box<Stepped>),
    /// The snapshot is durable.
    Taken(Box<Now>),
    /// The process has halted at the requested point.
    Halted {
        /// The effects since the request.
        effects: Vec<Effect>,
    },
    /// The request cannot be executed, for this reason.
    Cannot(String),
}

/// The state of a stepped node: in memory, and on the disk as a restart would recover it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Now {
    /// The node's complete state.
    pub node: Node<LockTable>,
    /// The disk, read back by the code that recovers it.
    pub disk: Durable<LockTable>,
}

/// A step of a stepped node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stepped {
    /// The node's input.
    pub input: Input<LockTable>,
    /// The node's outputs, each as `Debug` formats it.
    pub outputs: Vec<String>,
    /// The effects of executing the outputs, in order.
    pub effects: Vec<Effect>,
    /// The state after the step.
    pub now: Now,
}

/// An effect of a driver that is visible outside of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// A message was handed to the connections.
    Send(NodeId),
    /// The connections were asked to send the newest snapshot to a peer.
    SendSnapshot(NodeId),
    /// A frame was written to the log.
    Write,
    /// The log was synced.
    Sync,
    /// A snapshot was renamed to its final name, and is the newest one.
    Name,
}
