//! Clients that propose one entry after the other.

use palisade_spec::raft::{Index, NodeId, Payload};
use serde::Serialize;

use super::Tape;
use crate::world::{Ref, Replica, ServerRequest};

/// Clients that propose distinct entries, each to any server that believes it leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proposers {
    /// The number of entries proposed.
    pub made: u8,
    /// The maximum number of entries proposed.
    pub most: u8,
    /// The maximum length of a log, in entries.
    pub log: u64,
}

impl Proposers {
    /// Creates clients that propose `most` entries, as long as a leader's log has room.
    pub fn new(most: u8, log: u64) -> Proposers {
        Proposers { made: 0, most, log }
    }

    /// The servers to which the next entry may be proposed.
    pub(crate) fn choices(&self, servers: &[Ref<Replica<Tape>>]) -> impl Iterator<Item = NodeId> {
        let may = self.made < self.most;
        let leads = move |replica: &&Ref<Replica<Tape>>| may && replica.node.is_leader();
        let has_room = move |replica: &&Ref<Replica<Tape>>| replica.node.log().last().index < Index(self.log);
        servers.iter().filter(leads).filter(has_room).map(|replica| replica.node.id())
    }

    /// Proposes the next entry to this server.
    pub(crate) fn propose(&mut self, server: NodeId) -> ServerRequest<Tape> {
        self.made += 1;
        ServerRequest::Propose(server, vec![Payload::Command(self.made)])
    }
}
