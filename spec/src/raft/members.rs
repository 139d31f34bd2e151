//! The cluster's members (§4): set by a log entry like any other, but in force as soon as a log has
//! the entry.
//!
//! A server that replicates, learns or votes is a member. Members change one server at a time (see
//! `Node::on_change` in [`membership`](super::membership)), so that any majority before the change
//! overlaps any majority after it: two disjoint sets can never elect two leaders (§4.1).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::fmt;

use serde::{Deserialize, Serialize};

use super::NodeId;

/// The address at which the other nodes reach a member. The protocol does not interpret it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address(Arc<str>);

impl Address {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        Address(Arc::from(text))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The function of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// Receives everything and does not count: neither commits nor elections depend on it (§4.2.1).
    Learner,
    /// Votes, and counts towards the majority that commits entries.
    Voter,
    /// Replaces a voter that has lost its disk: a learner that the leader promotes automatically
    /// once it has caught up.
    Returning,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Its function.
    pub standing: Standing,
    /// Its address.
    pub address: Address,
}

/// A cluster's configuration. Empty on the disk of a server that has not heard from its cluster
/// yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Members {
    servers: BTreeMap<NodeId, Member>,
    /// The members that were removed or replaced. Identities are never reused: a new disk would not
    /// hold the old one's votes.
    removed: BTreeSet<NodeId>,
}

/// A membership change of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Change {
    /// Adds a new server as a learner.
    Add {
        /// Its identity, which no member had before.
        id: NodeId,
        /// Its address.
        address: Address,
    },
    /// Makes a learner that has caught up a voter.
    Promote(NodeId),
    /// Removes a member permanently because its disk is lost, and adds its server with a new disk
    /// and a new identity. The new member starts as a learner; if the old one was a voter, the new
    /// one becomes a voter once it has caught up.
    Replace {
        /// The member that has lost its disk.
        lost: NodeId,
        /// The new identity of its server, which no member had before.
        by: NodeId,
        /// Its address.
        address: Address,
    },
    /// Removes a member permanently.
    Remove(NodeId),
}

/// Why a change was rejected. A rejected change has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// This node does not lead. Names the leader, as far as this node knows.
    NotLeader(Option<NodeId>),
    /// The leader has not committed an entry of its term yet (Ongaro's correction of §4.1), or the
    /// previous change is not committed, or a leadership transfer is in progress. A later attempt
    /// may succeed.
    TooEarly,
    /// The learner lacks too much of the log.
    NotCaughtUp,
    /// The server is already a member, or already a voter.
    AlreadyThere,
    /// The server is not a member, or not a learner.
    NotThere,
    /// The identity is that of a removed or replaced member; identities are never reused.
    WasRemoved,
    /// The change would remove the last voter.
    LastVoter,
}

impl Members {
    /// Voters without addresses, for tests and models.
    pub fn of(voters: impl IntoIterator<Item = NodeId>) -> Members {
        Members::founding(voters.into_iter().map(|id| (id, Address::from(""))))
    }

    /// The voters of a new cluster.
    pub fn founding(voters: impl IntoIterator<Item = (NodeId, Address)>) -> Members {
        let voter = |(id, address)| (id, Member { standing: Standing::Voter, address });
        Members { servers: voters.into_iter().map(voter).collect(), removed: BTreeSet::new() }
    }

    /// All members.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Member)> {
        self.servers.iter().map(|(&id, member)| (id, member))
    }

    /// The members' identities, in order.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.servers.keys().copied()
    }

    /// The voters' identities, in order.
    pub fn voters(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.iter().filter(|(_, member)| member.standing == Standing::Voter).map(|(id, _)| id)
    }

    /// The members that return without their disks, in order.
    pub fn returning(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.iter().filter(|(_, member)| member.standing == Standing::Returning).map(|(id, _)| id)
    }

    /// The member with a number, in any generation.
    pub fn by_number(&self, number: u16) -> Option<NodeId> {
        self.ids().find(|id| id.number() == number)
    }

    /// The member with an identity.
    pub fn get(&self, id: NodeId) -> Option<&Member> {
        self.servers.get(&id)
    }

    /// Whether the node is a voter.
    pub fn is_voter(&self, id: NodeId) -> bool {
        self.get(id).is_some_and(|member| member.standing == Standing::Voter)
    }

    /// Whether a server with this identity was removed or replaced.
    pub fn was_removed(&self, id: NodeId) -> bool {
        self.removed.contains(&id)
    }

    /// The number of voters in a majority: more than half.
    pub fn majority(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// Whether the voters for which `agrees` holds are a majority.
    pub fn is_majority(&self, agrees: impl Fn(NodeId) -> bool) -> bool {
        self.voters().filter(|&id| agrees(id)).count() >= self.majority()
    }

    /// The members after `change`.
    ///
    /// # Errors
    /// If the change is invalid for these members.
    pub fn with(&self, change: &Change) -> Result<Members, Refusal> {
        let mut members = self.clone();
        match change {
            Change::Add { id, .. } | Change::Replace { by: id, .. } if self.was_removed(*id) => {
                return Err(Refusal::WasRemoved);
            }
            Change::Add { id, .. } | Change::Replace { by: id, .. } if self.get(*id).is_some() => {
                return Err(Refusal::AlreadyThere);
            }
            Change::Add { id, address } => {
                let member = Member { standing: Standing::Learner, address: address.clone() };
                members.servers.insert(*id, member);
            }
            Change::Promote(id) => {
                let member = members.servers.get_mut(id).ok_or(Refusal::NotThere)?;
                if member.standing == Standing::Voter {
                    return Err(Refusal::AlreadyThere);
                }
                member.standing = Standing::Voter;
            }
            Change::Remove(id) => {
                members.take_out(*id)?;
            }
            Change::Replace { lost, by, address } => {
                let standing = match members.take_out(*lost)?.standing {
                    Standing::Learner => Standing::Learner,
                    Standing::Returning | Standing::Voter => Standing::Returning,
                };
                members.servers.insert(*by, Member { standing, address: address.clone() });
            }
        }
        Ok(members)
    }

    /// Removes a member permanently.
    fn take_out(&mut self, id: NodeId) -> Result<Member, Refusal> {
        let member = self.servers.remove(&id).ok_or(Refusal::NotThere)?;
        if self.voters().next().is_none() {
            return Err(Refusal::LastVoter);
        }
        self.removed.insert(id);
        Ok(member)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{Address, Change, Members, Refusal, Standing};
    use crate::raft::NodeId;

    fn members(voters: &[u32]) -> Members {
        Members::of(voters.iter().copied().map(NodeId))
    }

    fn add(id: u32) -> Change {
        Change::Add { id: NodeId(id), address: Address::from("there") }
    }

    fn after(voters: &[u32], changes: &[Change]) -> Result<Members, Refusal> {
        changes.iter().try_fold(members(voters), |members, change| members.with(change))
    }

    #[test]
    fn an_address_is_shown_as_it_was_given() {
        assert_eq!(alloc::format!("{}", Address::from("there:7")), "there:7");
    }

    #[test]
    fn majority_is_more_than_half_of_the_voters() {
        let majorities = [1, 2, 3, 4, 5].map(|count| members(&(1..=count).collect::<Vec<_>>()).majority());
        assert_eq!(majorities, [1, 2, 2, 3, 3]);
        let learning = after(&[1, 2], &[add(3), add(4)]).unwrap();
        assert_eq!(learning.majority(), 2);
        assert!(learning.is_majority(|id| id <= NodeId(2)));
        assert!(!learning.is_majority(|id| id >= NodeId(2)), "learners do not count");
    }

    #[test]
    fn server_comes_as_a_learner_becomes_a_voter_and_goes() {
        let learning = after(&[1, 2], &[add(3)]).unwrap();
        assert_eq!(learning.get(NodeId(3)).unwrap().standing, Standing::Learner);
        assert_eq!(learning.get(NodeId(3)).unwrap().address.as_str(), "there");
        let voting = learning.with(&Change::Promote(NodeId(3))).unwrap();
        assert_eq!(voting.voters().collect::<Vec<_>>(), [1, 2, 3].map(NodeId));
        let gone = voting.with(&Change::Remove(NodeId(1))).unwrap();
        assert_eq!(gone.ids().collect::<Vec<_>>(), [2, 3].map(NodeId));
        assert!(gone.was_removed(NodeId(1)) && !gone.was_removed(NodeId(3)));
    }

    fn replace(lost: u32, by: u32) -> Change {
        Change::Replace { lost: NodeId(lost), by: NodeId(by), address: Address::from("there") }
    }

    #[test]
    fn a_number_names_its_member_in_any_generation() {
        let returned = NodeId::new(2, 3);
        let members = Members::of([NodeId::new(1, 0), returned]);
        assert_eq!(members.by_number(2), Some(returned));
        assert_eq!(members.by_number(3), None);
    }

    #[test]
    fn server_without_its_disk_comes_back_as_another_member() {
        let standing = |members: &Members, id| members.get(NodeId(id)).map(|member| member.standing);
        let voter = after(&[1, 2], &[replace(2, 5)]).unwrap();
        assert_eq!((standing(&voter, 2), standing(&voter, 5)), (None, Some(Standing::Returning)));
        assert!(voter.was_removed(NodeId(2)) && !voter.is_voter(NodeId(5)));
        assert_eq!(voter.majority(), 1, "it does not count before it has caught up");
        let again = voter.with(&replace(5, 6)).unwrap();
        assert_eq!(standing(&again, 6), Some(Standing::Returning), "it was to be a voter, and still is");
        assert!(again.with(&Change::Promote(NodeId(6))).unwrap().is_voter(NodeId(6)));
        let learner = after(&[1, 2], &[add(3), replace(3, 4)]).unwrap();
        assert_eq!(standing(&learner, 4), Some(Standing::Learner), "no change has promoted it");
    }

    #[test]
    fn invalid_replacement_is_refused() {
        assert_eq!(after(&[1, 2], &[replace(2, 2)]), Err(Refusal::AlreadyThere), "its old identity");
        assert_eq!(after(&[1, 2], &[replace(2, 1)]), Err(Refusal::AlreadyThere), "another member's");
        assert_eq!(after(&[1, 2], &[replace(2, 3), replace(3, 2)]), Err(Refusal::WasRemoved));
        assert_eq!(after(&[1, 2], &[replace(3, 4)]), Err(Refusal::NotThere));
        assert_eq!(after(&[1], &[replace(1, 2)]), Err(Refusal::LastVoter));
        assert_eq!(after(&[1], &[add(2), replace(1, 3)]), Err(Refusal::LastVoter), "a learner has no vote");
    }

    #[test]
    fn invalid_change_is_refused() {
        let (promote, remove) = (|id| Change::Promote(NodeId(id)), |id| Change::Remove(NodeId(id)));
        assert_eq!(after(&[1], &[add(1)]), Err(Refusal::AlreadyThere));
        assert_eq!(after(&[1], &[add(2), add(2)]), Err(Refusal::AlreadyThere));
        assert_eq!(after(&[1, 2], &[promote(2)]), Err(Refusal::AlreadyThere));
        assert_eq!(after(&[1], &[promote(2)]), Err(Refusal::NotThere));
        assert_eq!(after(&[1], &[remove(2)]), Err(Refusal::NotThere));
        assert_eq!(after(&[1], &[add(2), remove(1)]), Err(Refusal::LastVoter), "a learner is no voter");
        assert_eq!(after(&[1, 2], &[remove(2), add(2)]), Err(Refusal::WasRemoved));
    }
}
