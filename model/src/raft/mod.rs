//! Consensus by itself: the nodes of `palisade_spec::raft` over a state machine that only remembers.

mod properties;

use palisade_spec::raft::{Index, NodeId, Payload, Stamp, StateMachine};
use serde::{Deserialize, Serialize};
use stateright::Property;

pub use self::properties::consensus;
use crate::world::{Asked, Environment, Ref, Seat, World};

/// A state machine that remembers what it was told, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tape(pub Vec<u8>);

impl StateMachine for Tape {
    type Command = u8;
    type Outcome = ();

    fn apply(&mut self, _: Stamp, command: &u8) {
        self.0.push(*command);
    }

    fn advance(&mut self, _: Stamp) {}

    fn next_deadline(&self) -> Option<Stamp> {
        None
    }
}

/// Clients who propose one entry after the other, each to any server that thinks it leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proposals {
    /// How many were made.
    pub made: u8,
    /// How many may be made.
    pub most: u8,
    /// How long a log may become.
    pub log: u64,
}

impl Environment for Proposals {
    type Machine = Tape;
    type Move = NodeId;

    fn properties() -> Vec<Property<World<Proposals>>> {
        properties::properties()
    }

    fn moves(&self, servers: &[Ref<Seat<Tape>>], moves: &mut Vec<NodeId>) {
        if self.made < self.most {
            let open =
                servers.iter().filter(|seat| seat.node.is_leader() && seat.node.log().last().index < Index(self.log));
            moves.extend(open.map(|seat| seat.node.id()));
        }
    }

    fn key(server: &NodeId) -> u64 {
        server.0.into()
    }

    fn play(&mut self, &server: &NodeId) -> Option<Asked<Tape>> {
        self.made += 1;
        Some(Asked::Propose(server, vec![Payload::Command(self.made)]))
    }
}
