//! The interface of a node: its inputs and its outputs.
//!
//! # Obligations of the driver
//!
//! Hand each input to [`Node::step`](super::Node::step), then execute its outputs **in order**:
//!
//! 1. [`Output::Persist`] is a barrier: the outputs after it wait until it is durable. The outputs
//!    before it need not wait, which is why a leader's AppendEntries leave before its own fsync.
//! 2. Several steps may be taken before any output is executed. Their lists are then
//!    concatenated, and one sync at the position of the first write may make all their writes
//!    durable: that only delays the outputs in between.
//! 3. A write that fails, or may have failed, ends the process. No output after it is ever
//!    executed.
//! 4. The driver may write a snapshot at any time: the previous snapshot with the durable entries
//!    after it applied ([`Durable::snapshot_at`](super::Durable::snapshot_at)), up to an entry
//!    whose [`Output::Applied`] it has executed. It must not include entries that the node may
//!    have committed since: until the write before the `Applied` is done, the disk may hold other
//!    entries at these indexes. The driver reports the snapshot ([`Input::Compact`]) only when it
//!    is durable.
//! 5. A request carries a [`RequestId`], which the driver chooses and the node's answers repeat. The
//!    requests to a node that are not answered yet have different ids; a node forgets them when it
//!    stops.
//! 6. Messages may be delayed, repeated, reordered or dropped, timers may fire early, late or
//!    never, and inputs may come in any order: this can prevent progress, but never break safety.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Change, Index, Message, NodeId, Payload, Persist, Refusal, RequestId, Stamp, StateMachine, Term};

/// The inputs of a node. They carry everything that is not deterministic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub enum Input<S: StateMachine> {
    /// A message from a peer.
    Receive(Message<S>),
    /// Clients propose these entries, in this order. Answered in this step by exactly one
    /// [`Output::Accepted`] or [`Output::Refused`].
    Propose {
        /// The request.
        id: RequestId,
        /// The content of the entries.
        payloads: Vec<Payload<S::Command>>,
    },
    /// A client requests a linearizable read (§6.4). Answered once, in this step or later, by
    /// [`Output::ReadReady`]; or in this step by [`Output::ReadRefused`]; not answered if the node
    /// stops leading first.
    Read(RequestId),
    /// An operator requests a membership change (§4). Answered in this step by exactly one
    /// [`Output::Accepted`] or [`Output::ChangeRefused`]. The change is complete when its entry is
    /// committed.
    Change {
        /// The request.
        id: RequestId,
        /// The change.
        change: Change,
    },
    /// An operator requests a leadership transfer (§3.10). Answered in this step by
    /// [`Output::TransferRefused`], or not at all: complete when another node leads, abandoned
    /// after an election timeout.
    Transfer {
        /// The request.
        id: RequestId,
        /// The successor, a voter; or the most up-to-date voter if none is named.
        to: Option<NodeId>,
    },
    /// The election timer ran out. A leader then checks whether a quorum still answers.
    ElectionTimeout,
    /// The heartbeat timer ran out. Ignored unless the node leads.
    HeartbeatTimeout,
    /// The node's monotonic clock advanced by this many milliseconds since its last report. Rounded
    /// down, never up.
    ClockAdvanced(u64),
    /// A durable snapshot includes everything up to this index, or more: the log need not hold
    /// these entries any longer. The index must be committed here, and included in the snapshot.
    Compact(Index),
}

/// The outputs of a node. The order of a list of outputs is a contract: see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output<S: StateMachine> {
    /// Make this write durable before the next output.
    Persist(Persist<S>),
    /// Send this message to its recipient. At most once; it may be lost.
    Send(Message<S>),
    /// The proposals are in the log from `first` on, one entry each. They are committed when
    /// [`Output::Applied`] names their index *with this term*; if it names another term, they are
    /// lost.
    Accepted {
        /// The request: an [`Input::Propose`] or [`Input::Change`].
        id: RequestId,
        /// The first proposal's index.
        first: Index,
        /// The term of all of them.
        term: Term,
    },
    /// The proposals were rejected: this node does not lead, or is transferring its leadership.
    Refused {
        /// The rejected [`Input::Propose`].
        id: RequestId,
        /// The current or next leader, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// The membership change was rejected.
    ChangeRefused {
        /// The rejected [`Input::Change`].
        id: RequestId,
        /// The reason.
        refusal: Refusal,
    },
    /// The transfer was rejected: this node does not lead, or there is no such voter.
    TransferRefused {
        /// The rejected [`Input::Transfer`].
        id: RequestId,
        /// The leader, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// The state machine of this node includes everything that was acknowledged before the read was
    /// requested.
    ReadReady(RequestId),
    /// This node does not lead: its state may be stale.
    ReadRefused {
        /// The rejected read.
        id: RequestId,
        /// The leader, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// An entry is committed and was applied. Output once per index, in order; after a restart
    /// again from the snapshot on. Entries covered by an [installed](Persist::Snapshot) snapshot
    /// are skipped.
    Applied {
        /// The entry's index.
        index: Index,
        /// The entry's term.
        term: Term,
        /// The cluster time at which it happened.
        stamp: Stamp,
        /// The effect of the entry.
        outcome: S::Outcome,
    },
    /// Send the newest durable snapshot to this follower
    /// ([`Body::InstallSnapshot`](super::Body::InstallSnapshot)): the log no longer has the entries
    /// that the follower lacks. Repeated with each heartbeat until the follower has it, so the
    /// driver may ignore it while a snapshot is in flight.
    SendSnapshot {
        /// The recipient.
        to: NodeId,
        /// The leader's term.
        term: Term,
    },
    /// A follower rejected the last entry that it had acknowledged in this term, also when probed
    /// again: its disk seems to have lost data.
    /// The follower does not count until it acknowledges again, and is sent what it lacks. To be
    /// reported to the operator.
    LostEntries {
        /// The follower.
        follower: NodeId,
        /// The last index that it had acknowledged.
        acknowledged: Index,
    },
    /// Restart the election timer with a new random duration. It fires once.
    ArmElectionTimer,
    /// Restart the heartbeat timer. It fires once.
    ArmHeartbeatTimer,
    /// A message was dropped. For metrics and logs.
    Dropped {
        /// The sender.
        from: NodeId,
        /// The reason.
        reason: DropReason,
    },
}

/// Why a message was dropped. All reasons but [`Malformed`](DropReason::Malformed) and
/// [`UnknownPeer`](DropReason::UnknownPeer) are normal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DropReason {
    /// The message is not for this node, or is from this node itself, or is a follower's reply from
    /// a server that is not among the leader's members.
    UnknownPeer,
    /// A reply from an earlier term, or to a request that is no longer open.
    Stale,
    /// A request for a vote while this node hears from a leader, or is one (§4.2.3).
    LeaderKnown,
    /// No correct node would have sent it.
    Malformed,
}

impl DropReason {
    /// The reason as metrics show it. Metrics are stable, and a replay compares the names of the variants with
    /// those of the version before: so two words differ from them.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::UnknownPeer => "stranger",
            DropReason::Stale => "stale",
            DropReason::LeaderKnown => "leader_is_alive",
            DropReason::Malformed => "malformed",
        }
    }
}
