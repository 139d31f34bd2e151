//! What a node is in its term (§3.3), with the data that only this role has. Leaving a role drops its data, so a
//! stale vote count or a stale match index cannot be written down.

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
        /// The leader of this term, from its first AppendEntries until the election timer runs out: as long as this
        /// is known, the node grants nobody its vote (§4.2.3).
        leader: Option<NodeId>,
    },
    /// Asks whether an election could be won, before it disturbs anybody with a new term (§9.6).
    PreCandidate {
        /// Who would vote for it, itself included.
        grants: BTreeSet<NodeId>,
    },
    /// Asks for votes (§3.4).
    Candidate {
        /// Who voted for it, itself included.
        votes: BTreeSet<NodeId>,
    },
    /// Decides what enters the log.
    Leader(Leadership),
}

/// What a leader knows of its followers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leadership {
    /// How far each of the other members is.
    pub progress: BTreeMap<NodeId, Progress>,
    /// To whom it is handing over, if it is (§3.10).
    pub successor: Option<NodeId>,
    /// Who waits for it to be confirmed.
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
    /// The highest index that a majority of the voters has; whoever is not tracked is the leader itself, whose log ends at
    /// `own_last`.
    pub(crate) fn quorum_index(&self, own_last: Index, members: &Members) -> Index {
        let matched = |voter| self.progress.get(&voter).map_or(own_last, |progress| progress.matched);
        let mut matched: Vec<Index> = members.voters().map(matched).collect();
        matched.sort_unstable_by(|a, b| b.cmp(a));
        matched[members.majority() - 1]
    }
}
