//! Clients that propose one entry after the other.

use palisade_spec::raft::{Index, NodeId, Payload};
use serde::Serialize;

use super::Tape;
use crate::world::{Asked, Ref, Replica};

/// Clients that propose entries, each another one, to any server that thinks it leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proposers {
    /// How many entries were proposed.
    pub made: u8,
    /// How many may be proposed.
    pub most: u8,
    /// How long a log may become.
    pub log: u64,
}

impl Proposers {
    /// Clients that propose so many entries, as long as there is room in a leader's log.
    pub fn new(most: u8, log: u64) -> Proposers {
        Proposers { made: 0, most, log }
    }

    /// To whom the next entry may be proposed.
    pub(crate) fn choices(&self, servers: &[Ref<Replica<Tape>>]) -> impl Iterator<Item = NodeId> {
        let may = self.made < self.most;
        let leads = move |replica: &&Ref<Replica<Tape>>| may && replica.node.is_leader();
        let has_room = move |replica: &&Ref<Replica<Tape>>| replica.node.log().last().index < Index(self.log);
        servers.iter().filter(leads).filter(has_room).map(|replica| replica.node.id())
    }

    /// Proposes the next entry to this server.
    pub(crate) fn propose(&mut self, server: NodeId) -> Asked<Tape> {
        self.made += 1;
        Asked::Propose(server, vec![Payload::Command(self.made)])
    }
}
