//! Consensus by itself: the nodes of `palisade_spec::raft` over a state machine that only remembers.

mod properties;
mod show;

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

/// Clients that propose one entry after the other, each to any server that thinks it leads; clocks; operators who ask
/// leaders to hand over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proposals {
    /// How many were made.
    pub made: u8,
    /// How many may be made.
    pub most: u8,
    /// How often a leader's clock may still advance, by a millisecond each.
    pub ticks: u8,
    /// How often a leader may still be asked to hand over.
    pub transfers: u8,
    /// How long a log may become.
    pub log: u64,
}

impl Proposals {
    /// Clients that propose until the log is full, and so many ticks of leaders' clocks. Nobody hands over.
    pub fn new(log: u64, ticks: u8) -> Proposals {
        Proposals { made: 0, most: u8::try_from(log).expect("logs are short"), ticks, transfers: 0, log }
    }
}

/// What happens around the servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Move {
    /// A client proposes an entry to a leader.
    Propose(NodeId),
    /// A leader's clock advances.
    Tick(NodeId),
    /// An operator asks a leader to hand over to this server.
    Transfer(NodeId, NodeId),
}

impl Environment for Proposals {
    type Machine = Tape;
    type Move = Move;

    fn properties(world: &World<Proposals>) -> Vec<Property<World<Proposals>>> {
        properties::properties(world)
    }

    fn moves(&self, servers: &[Ref<Seat<Tape>>], moves: &mut Vec<Move>) {
        let leaders = servers.iter().filter(|seat| seat.node.is_leader());
        if self.made < self.most {
            let open = leaders.clone().filter(|seat| seat.node.log().last().index < Index(self.log));
            moves.extend(open.map(|seat| Move::Propose(seat.node.id())));
        }
        if self.ticks > 0 {
            moves.extend(leaders.clone().map(|seat| Move::Tick(seat.node.id())));
        }
        if self.transfers > 0 {
            for leader in leaders.map(|seat| &seat.node) {
                let others = leader.members().voters().filter(|&voter| voter != leader.id());
                moves.extend(others.map(|voter| Move::Transfer(leader.id(), voter)));
            }
        }
    }

    fn key(chosen: &Move) -> u64 {
        match *chosen {
            Move::Propose(server) => u64::from(server.0) << 2,
            Move::Tick(server) => u64::from(server.0) << 2 | 1,
            Move::Transfer(server, to) => u64::from(server.0) << 2 | 2 | u64::from(to.0) << 18,
        }
    }

    fn play(&mut self, chosen: &Move) -> Option<Asked<Tape>> {
        Some(match *chosen {
            Move::Propose(server) => {
                self.made += 1;
                Asked::Propose(server, vec![Payload::Command(self.made)])
            }
            Move::Tick(server) => {
                self.ticks -= 1;
                Asked::Clock(server, 1)
            }
            Move::Transfer(server, to) => {
                self.transfers -= 1;
                Asked::Transfer(server, Some(to))
            }
        })
    }
}
