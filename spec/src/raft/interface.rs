//! The two doors of a node: everything that can happen to it, and everything it can ask for.
//!
//! # What the driver owes
//!
//! Hand each input to [`Node::step`](super::Node::step), then carry out its outputs **in order**:
//!
//! 1. [`Output::Persist`] is a barrier: what stands after it waits until it is durable. What stands before it need
//!    not wait, which is why a leader's AppendEntries leave before its own fsync.
//! 2. Several steps may be taken before any output is carried out. Their lists are then one list, and all the writes
//!    in it may be made durable by one sync at the place of the first: that only delays what stood between them.
//! 3. A write that fails, or may have failed, ends the process. Nothing after it is ever carried out.
//! 4. It may write a snapshot at any time: the last one with the durable entries after it applied
//!    ([`Durable::snapshot_at`](super::Durable::snapshot_at)), up to one whose [`Output::Applied`] it has carried out. Not
//!    up to one that the node may have committed since: the disk may have another in its place until the write that
//!    stands before the `Applied` is done. Only when the snapshot is durable the driver says so ([`Input::Compact`]).
//! 5. Messages may be delayed, repeated, reordered or dropped as the network pleases, timers may fire early, late or
//!    never, inputs may come in any order: none of it can break safety, only progress.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Change, Index, Message, NodeId, Payload, Persist, ReadId, Refusal, Stamp, StateMachine, Term};

/// Everything that can happen to a node. Whatever is not deterministic is here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub enum Input<S: StateMachine> {
    /// A message from a peer.
    Receive(Message<S>),
    /// Clients ask for these, in this order. Answered by exactly one [`Output::Accepted`] or [`Output::Refused`].
    Propose(Vec<Payload<S::Command>>),
    /// Somebody wants to read what is true now (§6.4). Answered by [`Output::ReadReady`] or [`Output::ReadRefused`]; not at all
    /// if the node stops leading first.
    Read(ReadId),
    /// An operator wants to change the members (§4). Answered by exactly one [`Output::Accepted`] or
    /// [`Output::ChangeRefused`]. It is done when its entry is committed.
    Change(Change),
    /// An operator wants the leader to hand over (§3.10): to this voter, or to the one that is most up to date. Done when
    /// another node leads; given up after an election timeout.
    Transfer(Option<NodeId>),
    /// The election timer ran out. For a leader this is the time to see whether a quorum still answers.
    ElectionTimeout,
    /// The heartbeat timer ran out. Means something to a leader only.
    HeartbeatTimeout,
    /// The node's monotonic clock advanced by so many milliseconds since it last said so. Rounded down, never up.
    ClockAdvanced(u64),
    /// A durable snapshot includes everything up to this index, perhaps more: the log need not have that any longer.
    /// Nothing that is not committed here, nothing that the snapshot does not include.
    Compact(Index),
}

/// Everything a node can ask for. The order of a list of outputs is a contract: see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output<S: StateMachine> {
    /// Make this durable before going on to the next output.
    Persist(Persist<S>),
    /// Send this to its recipient, once, perhaps.
    Send(Message<S>),
    /// The proposals stand in the log from `first` on, one entry each. They are committed when
    /// [`Output::Applied`] names their index *with this term*; if it names another term, they are lost.
    Accepted {
        /// The first proposal's index.
        first: Index,
        /// The term of all of them.
        term: Term,
    },
    /// The proposals were not taken: this node does not lead, or is about to hand over.
    Refused {
        /// Who does or will, as far as it knows.
        leader: Option<NodeId>,
    },
    /// The change of the members was not taken, and why.
    ChangeRefused(Refusal),
    /// The leadership is not handed over: this node does not lead, or there is no such voter to hand it to.
    TransferRefused {
        /// Who leads, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// The state machine, as it is here now, has everything that was acknowledged before the read was asked for.
    ReadReady(ReadId),
    /// This node does not lead: what it has may be old.
    ReadRefused {
        /// Which read.
        id: ReadId,
        /// Who leads, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// An entry is committed and was applied. Comes once for each index, in order; after a restart from the
    /// snapshot's on again. What a snapshot covers that was [installed](Persist::Snapshot) is left out.
    Applied {
        /// The entry's index.
        index: Index,
        /// The entry's term.
        term: Term,
        /// When it happened, in cluster time.
        stamp: Stamp,
        /// What it did.
        outcome: S::Outcome,
    },
    /// Send the newest durable snapshot to this follower ([`Body::InstallSnapshot`](super::Body::InstallSnapshot)): what
    /// it lacks is no longer in the log. Asked for again with each heartbeat until the follower has it, so one that is on its way
    /// already is enough.
    SendSnapshot {
        /// To whom.
        to: NodeId,
        /// In which term.
        term: Term,
    },
    /// A follower rejected an entry that it had acknowledged in this term: its disk has gone back. It counts for nothing until
    /// it acknowledges again, and is sent what it lacks. For an operator to hear of.
    LostEntries {
        /// Which follower.
        follower: NodeId,
        /// Up to where it had acknowledged the log.
        acknowledged: Index,
    },
    /// Start the election timer afresh, with a new random duration. It fires once.
    ArmElectionTimer,
    /// Start the heartbeat timer afresh. It fires once.
    ArmHeartbeatTimer,
    /// A message was dropped, and why. For metrics and logs.
    Dropped {
        /// Who sent it.
        from: NodeId,
        /// What was wrong with it.
        reason: DropReason,
    },
}

/// Why a message was dropped. Everything but [`Malformed`](DropReason::Malformed) and
/// [`UnknownPeer`](DropReason::UnknownPeer) is everyday.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DropReason {
    /// It is not for this node, or answers what was never asked of its sender.
    UnknownPeer,
    /// A reply from an earlier term, or to a question that is no longer open.
    Stale,
    /// A request for a vote while this node hears from a leader, or is one (§4.2.3).
    LeaderKnown,
    /// No correct node would have sent it.
    Malformed,
}

impl DropReason {
    /// The reason as metrics show it.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::UnknownPeer => "stranger",
            DropReason::Stale => "stale",
            DropReason::LeaderKnown => "leader_is_alive",
            DropReason::Malformed => "malformed",
        }
    }
}
