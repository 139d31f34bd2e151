//! The role of a node in its term (§3.3), with the data that only this role has. Leaving a role
//! drops its data, so a stale vote count or a stale match index cannot exist.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::progress::Progress;
use super::read::Reads;
use super::{Index, Members, NodeId};

/// A node's role.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Answers candidates and the leader.
    Follower {
        /// The leader of this term, from its first AppendEntries until the election timer runs out:
        /// while it is known, the node grants no votes, except in a leadership transfer (§4.2.3,
        /// §3.10).
        leader: Option<NodeId>,
    },
    /// Asks whether it could win an election, before it starts a new term (§9.6).
    PreCandidate {
        /// The nodes that would vote for it, itself included.
        grants: BTreeSet<NodeId>,
    },
    /// Asks for votes (§3.4).
    Candidate {
        /// The nodes that voted for it, itself included.
        votes: BTreeSet<NodeId>,
    },
    /// Appends entries to the log and replicates them.
    Leader(Leadership),
}

/// What a leader knows of its followers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leadership {
    /// The progress of each of the other members.
    pub progress: BTreeMap<NodeId, Progress>,
    /// The target of a leadership transfer in progress (§3.10).
    pub successor: Option<NodeId>,
    /// The reads that wait for confirmation of the leader.
    pub reads: Reads,
}

impl Role {
    /// The role's name, as the status page, logs and metrics show it.
    pub fn name(&self) -> &'static str {
        match self {
            Role::Follower { .. } => "follower",
            Role::PreCandidate { .. } => "pre_candidate",
            Role::Candidate { .. } => "candidate",
            Role::Leader(_) => "leader",
        }
    }
}

impl Leadership {
    /// The highest index that a majority of the voters has. A voter without progress is the leader
    /// itself, whose log ends at `own_last`.
    pub(crate) fn quorum_index(&self, own_last: Index, members: &Members) -> Index {
        let matched = |voter| self.progress.get(&voter).map_or(own_last, |progress| progress.matched);
        let mut matched: Vec<Index> = members.voters().map(matched).collect();
        matched.sort_unstable_by(|a, b| b.cmp(a));
        matched[members.majority() - 1]
    }
}
