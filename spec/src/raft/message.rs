//! The messages between nodes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Entry, Index, NodeId, Position, ReadRound, Snapshot, Stamp, StateMachine, Term, in_range};

/// A message between two nodes. It may arrive late, twice, out of order or never.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub struct Message<S: StateMachine> {
    /// The sender.
    pub from: NodeId,
    /// The recipient.
    pub to: NodeId,
    /// The sender's current term. In a [`PreVote`](Body::PreVote), too: the sender would campaign
    /// in the next term.
    pub term: Term,
    /// The content.
    pub body: Body<S>,
}

/// The content of a message. Requests and replies are separate messages; no node blocks on a reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub enum Body<S: StateMachine> {
    /// Asks for a vote in the next term. Starts no term and binds neither side (§9.6).
    PreVote {
        /// The end of the sender's log.
        last: Position,
    },
    /// The reply to a [`PreVote`](Body::PreVote).
    PreVoteReply {
        /// Whether the vote would be granted.
        granted: bool,
    },
    /// Asks for a vote in this term (§3.4).
    RequestVote {
        /// The end of the candidate's log.
        last: Position,
        /// Whether the leader requested the campaign (§3.10): if so, a live leader is no reason to
        /// refuse.
        transfer: bool,
    },
    /// The reply to a [`RequestVote`](Body::RequestVote). A granted vote is durable before it is
    /// sent.
    RequestVoteReply {
        /// Whether the vote is granted.
        granted: bool,
    },
    /// The leader's entries, its commit index and its clock; a heartbeat when there are no entries
    /// (§3.5).
    AppendEntries {
        /// The position right before the first entry.
        prev: Position,
        /// The entries, in order; may be empty.
        entries: Vec<Entry<S::Command>>,
        /// The leader's commit index.
        commit: Index,
        /// The leader's current cluster time.
        stamp: Stamp,
        /// The leader's current ReadIndex round (§6.4).
        round: ReadRound,
    },
    /// The follower's log equals the leader's up to `matched`, durable before it is sent.
    AppendAccepted {
        /// The last index known to be equal.
        matched: Index,
        /// The round of the message that this answers.
        round: ReadRound,
    },
    /// The follower has no entry at `prev`, or a different one, with a hint for the next attempt
    /// (§3.5, the fast backup).
    AppendRejected {
        /// The index of the rejected `prev`: it distinguishes a stale reply from a current one.
        prev: Index,
        /// The follower's log at `prev`.
        hint: Hint,
        /// The round of the message that this answers.
        round: ReadRound,
    },
    /// Tells the recipient to campaign at once (§3.10): the leader transfers its leadership.
    TimeoutNow,
    /// Replaces the follower's state: the entries that the follower lacks are no longer in the
    /// leader's log (§5.1). The driver sends it when the node [requests
    /// it](super::Output::SendSnapshot). Answered like AppendEntries.
    InstallSnapshot {
        /// The newest snapshot on the leader's disk.
        snapshot: Arc<Snapshot<S>>,
    },
}

/// What a follower's log holds where the leader's entries did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Hint {
    /// The follower's log ends before `prev`.
    Short {
        /// The index after its last entry.
        next: Index,
    },
    /// The follower's entry at `prev` has a different term.
    Conflict {
        /// That entry's term.
        term: Term,
        /// The first index of that term in the follower's log.
        first: Index,
    },
}

impl<S: StateMachine> Message<S> {
    /// Whether no number in it is greater than [`MAX_NUMBER`](super::MAX_NUMBER). The numbers
    /// around the entries bound the entries' numbers: a follower drops entries that do not follow
    /// `prev`, or have a later term or stamp than the message.
    pub(crate) fn in_range(&self) -> bool {
        let body = match &self.body {
            Body::PreVote { last } | Body::RequestVote { last, .. } => last.in_range(),
            Body::AppendEntries { prev, commit, stamp, round, .. } => {
                prev.in_range() && in_range([commit.0, stamp.0, round.0])
            }
            Body::AppendAccepted { matched, round } => in_range([matched.0, round.0]),
            Body::AppendRejected { prev, hint: Hint::Short { next }, round } => in_range([prev.0, next.0, round.0]),
            Body::AppendRejected { prev, hint: Hint::Conflict { term, first }, round } => {
                in_range([prev.0, term.0, first.0, round.0])
            }
            Body::InstallSnapshot { snapshot } => snapshot.in_range(),
            Body::PreVoteReply { .. } | Body::RequestVoteReply { .. } | Body::TimeoutNow => true,
        };
        body && in_range([self.term.0])
    }
}

impl<S: StateMachine> Body<S> {
    /// The message's name, as logs, metrics and traces show it.
    pub fn name(&self) -> &'static str {
        match self {
            Body::PreVote { .. } => "PreVote",
            Body::PreVoteReply { .. } => "PreVoteReply",
            Body::RequestVote { .. } => "RequestVote",
            Body::RequestVoteReply { .. } => "RequestVoteReply",
            Body::AppendEntries { .. } => "AppendEntries",
            Body::AppendAccepted { .. } => "AppendAccepted",
            Body::AppendRejected { .. } => "AppendRejected",
            Body::TimeoutNow => "TimeoutNow",
            Body::InstallSnapshot { .. } => "InstallSnapshot",
        }
    }
}
