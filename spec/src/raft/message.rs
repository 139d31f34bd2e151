//! What nodes say to one another.

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
    /// Who says it.
    pub from: NodeId,
    /// To whom.
    pub to: NodeId,
    /// The sender's current term. Also in a [`PreVote`](Body::PreVote): the term it would campaign in is the next.
    pub term: Term,
    /// What is said.
    pub body: Body<S>,
}

/// What a message says. Requests and replies are separate messages; nobody waits for one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub enum Body<S: StateMachine> {
    /// "Would you vote for me in the next term?" Begins no term, and promises nothing (§9.6).
    PreVote {
        /// The end of the asker's log.
        last: Position,
    },
    /// The answer to a [`PreVote`](Body::PreVote).
    PreVoteReply {
        /// Whether the vote would be granted.
        granted: bool,
    },
    /// "Vote for me in this term" (§3.4).
    RequestVote {
        /// The end of the candidate's log.
        last: Position,
        /// Whether the leader asked it to campaign (§3.10): then it is not in the way that the leader is alive.
        transfer: bool,
    },
    /// The answer to a [`RequestVote`](Body::RequestVote). A granted vote is durable before it is sent.
    RequestVoteReply {
        /// Whether the vote is granted.
        granted: bool,
    },
    /// The leader's entries, its commit index and its clock; a heartbeat when there are no entries (§3.5).
    AppendEntries {
        /// The position right before the first entry.
        prev: Position,
        /// The entries, in order; may be empty.
        entries: Vec<Entry<S::Command>>,
        /// The leader's commit index.
        commit: Index,
        /// The leader's current cluster time.
        stamp: Stamp,
        /// The round of confirmation that the leader is in (§6.4).
        round: ReadRound,
    },
    /// "My log equals yours up to here", durable before it is sent.
    AppendAccepted {
        /// The last index that is known to be equal.
        matched: Index,
        /// The round of the message that is answered.
        round: ReadRound,
    },
    /// "I have no entry at `prev`, or another one", with where to try next (§3.5, the fast backup).
    AppendRejected {
        /// The index of the `prev` that was refused: it tells a late reply from a current one.
        prev: Index,
        /// What the follower has there.
        hint: Hint,
        /// The round of the message that is answered.
        round: ReadRound,
    },
    /// "Campaign at once" (§3.10): the leader hands over.
    TimeoutNow,
    /// "Go on from this state": the entries that the follower lacks are no longer in the leader's log (§5.1). Sent by
    /// the driver, when the node [asks for it](super::Output::SendSnapshot). Answered like AppendEntries.
    InstallSnapshot {
        /// The newest snapshot on the leader's disk.
        snapshot: Arc<Snapshot<S>>,
    },
}

/// What a follower tells a leader whose entries did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Hint {
    /// The follower's log ends before `prev`.
    Short {
        /// The index after its last entry.
        next: Index,
    },
    /// The follower's entry at `prev` is of another term.
    Conflict {
        /// That entry's term.
        term: Term,
        /// The first index of that term in the follower's log.
        first: Index,
    },
}

impl<S: StateMachine> Message<S> {
    /// Whether it names no number beyond [`MAX_NUMBER`](super::MAX_NUMBER). The entries' numbers are bounded by those around them:
    /// a follower drops entries that do not follow `prev`, or have a later term or stamp than the message.
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
