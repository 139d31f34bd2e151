//! Consensus under membership changes: operators request changes from any server that believes it
//! leads.
//!
//! The servers are the founders of the cluster, and those that join later with blank disks. An
//! operator may request any change from any leader, even a partitioned one, so several leaders can
//! each have an uncommitted change. A rejected request leaves the state as it was.

pub(crate) mod properties;
mod show;

use palisade_spec::raft::{Address, Change, Index, NodeId, Payload, Standing, Term};
use serde::Serialize;
use stateright::Property;

use crate::raft::Tape;
use crate::world::{Environment, Machine, Ref, Replica, ServerRequest, World};

/// Operators, and a client that proposes entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Operators {
    /// The changes that may still be made.
    pub left: Changes,
    /// The number of changes made.
    pub changed: u8,
    /// The number of entries that the client has proposed.
    pub made: u8,
    /// The maximum number of entries that the client proposes.
    pub most: u8,
    /// The maximum length of a log, in entries.
    pub log: u64,
}

/// A number of changes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// Servers that join as learners.
    pub additions: u8,
    /// Learners that become voters.
    pub promotions: u8,
    /// Members that are removed. With elections at will, two voters must remain: the driver lets a leader's
    /// timers run out until it is deposed, and a leader that is a majority by itself never is.
    pub removals: u8,
    /// Members that lose their disks and return under new identities. A server with the old
    /// identity may still take steps; that it takes none is one of the explored behaviours. Two
    /// voters remain.
    pub replacements: u8,
}

impl Operators {
    /// Creates operators that have made no change.
    pub fn new(left: Changes, most: u8, log: u64) -> Operators {
        Operators { left, changed: 0, made: 0, most, log }
    }

    /// Lists the possible requests to each leader.
    pub(crate) fn choices<S: Machine>(&self, servers: &[Ref<Replica<S>>], moves: &mut Vec<Move>) {
        let room =
            |replica: &&Ref<Replica<S>>| replica.node.is_leader() && replica.node.log().last().index < Index(self.log);
        for leader in servers.iter().filter(room) {
            let (id, members) = (leader.node.id(), leader.node.members());
            if self.made < self.most {
                moves.push(Move::Propose(id));
            }
            for server in servers.iter().map(|replica| replica.node.id()) {
                match members.get(server).map(|member| member.standing) {
                    None if self.left.additions > 0 => moves.push(Move::Add(id, server)),
                    Some(Standing::Learner) if self.left.promotions > 0 => moves.push(Move::Promote(id, server)),
                    _ => {}
                }
                if members.get(server).is_some() && self.left.removals > 0 {
                    moves.push(Move::Remove(id, server));
                }
                let leaves_two = !members.is_voter(server) || members.voters().count() > 2;
                if members.get(server).is_some() && leaves_two && self.left.replacements > 0 {
                    let by =
                        servers.iter().find(|replica| replica.node.term() == Term(0)).map(|replica| replica.node.id());
                    moves.extend(by.map(|by| Move::Replace { leader: id, lost: server, by }));
                }
            }
        }
    }

    /// Counts a change, and returns it with the leader that it is requested from; `None` if the
    /// move proposes an entry.
    pub(crate) fn change(&mut self, chosen: &Move) -> Option<(NodeId, Change)> {
        let request = match *chosen {
            Move::Propose(_) => return None,
            Move::Add(leader, server) => {
                self.left.additions -= 1;
                (leader, addition(server))
            }
            Move::Promote(leader, server) => {
                self.left.promotions -= 1;
                (leader, Change::Promote(server))
            }
            Move::Remove(leader, server) => {
                self.left.removals -= 1;
                (leader, Change::Remove(server))
            }
            Move::Replace { leader, lost, by } => {
                self.left.replacements -= 1;
                (leader, Change::Replace { lost, by, address: Address::from("") })
            }
        };
        self.changed += 1;
        Some(request)
    }
}

/// A move of the environment, each at a server that believes it leads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Move {
    /// A client proposes an entry.
    Propose(NodeId),
    /// An operator adds a server.
    Add(NodeId, NodeId),
    /// An operator promotes a learner.
    Promote(NodeId, NodeId),
    /// An operator removes a member.
    Remove(NodeId, NodeId),
    /// A member that lost its disk returns under a new identity.
    Replace {
        /// The leader that receives the request.
        leader: NodeId,
        /// The member that lost its disk.
        lost: NodeId,
        /// Its new identity: a server with a blank disk.
        by: NodeId,
    },
}

/// The change that adds a server.
pub(crate) fn addition(id: NodeId) -> Change {
    Change::Add { id, address: Address::from("") }
}

impl Environment for Operators {
    type Machine = Tape;
    type Move = Move;

    const CHANGES_MEMBERS: bool = true;

    fn properties(world: &World<Operators>) -> Vec<Property<World<Operators>>> {
        properties::properties(world)
    }

    fn moves(&self, servers: &[Ref<Replica<Tape>>], moves: &mut Vec<Move>) {
        self.choices(servers, moves);
    }

    fn key(chosen: &Move) -> u64 {
        let number = |id: NodeId| u64::from(id.0);
        let (kind, leader, server) = match *chosen {
            Move::Propose(leader) => (0, leader, leader),
            Move::Add(leader, server) => (1, leader, server),
            Move::Promote(leader, server) => (2, leader, server),
            Move::Remove(leader, server) => (3, leader, server),
            Move::Replace { leader, lost, by } => {
                return 4 | number(leader) << 3 | number(lost) << 19 | number(by) << 35;
            }
        };
        kind | number(leader) << 3 | number(server) << 19
    }

    fn play(&mut self, chosen: &Move) -> Option<ServerRequest<Tape>> {
        if let Move::Propose(leader) = *chosen {
            self.made += 1;
            return Some(ServerRequest::Propose(leader, vec![Payload::Command(self.made)]));
        }
        let (leader, change) = self.change(chosen)?;
        Some(ServerRequest::Change(leader, change))
    }
}

#[cfg(test)]
mod tests {
    use super::Changes;
    use crate::check::{Effort, explore};
    use crate::layers::{JOINED, membership, prompt};
    use crate::presentation::Presentation;
    use crate::world::Bounds;

    #[test]
    fn restart_with_blank_disk_under_old_identity_breaks_safety() {
        let bounds = Bounds { crashes: 1, forgets: true, log: 3, delivery: prompt(0, 1), ..JOINED };
        let world = membership(Changes::default(), 1, bounds);
        let verdict = explore(world, crate::world::World::REPRESENTATIVE, &Effort { threads: 1, ..Effort::default() });
        assert_eq!(verdict.violated, ["election safety", "leader completeness"]);
    }
}
