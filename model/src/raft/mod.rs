//! Consensus alone: the nodes of `palisade_spec::raft` with a state machine that records its
//! commands.

mod properties;
mod proposers;
mod show;

use palisade_spec::raft::{NodeId, Stamp, StateMachine};
use serde::{Deserialize, Serialize};
use stateright::Property;

pub use self::properties::consensus;
pub use self::proposers::Proposers;
use crate::world::{Environment, Machine, Ref, Replica, ServerRequest, World};

/// A state machine that records its commands in order.
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

/// Clients that propose one entry after the other, each to any server that believes it leads;
/// leaders' clocks; operators that request leadership transfers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proposals {
    /// The clients.
    pub clients: Proposers,
    /// The number of times that a leader's clock may still advance, by one millisecond each.
    pub ticks: u8,
    /// The number of leadership transfers that may still be requested.
    pub transfers: u8,
}

impl Proposals {
    /// Creates clients that propose until the log is full, with `ticks` advances of leaders' clocks
    /// and no transfers.
    pub fn new(log: u64, ticks: u8) -> Proposals {
        let clients = Proposers::new(u8::try_from(log).expect("a log length fits in u8"), log);
        Proposals { clients, ticks, transfers: 0 }
    }
}

/// All pairs of a leader and a voter to which it may transfer leadership.
pub(crate) fn transfer_pairs<S: Machine>(servers: &[Ref<Replica<S>>]) -> impl Iterator<Item = (NodeId, NodeId)> {
    servers.iter().map(|replica| &replica.node).filter(|node| node.is_leader()).flat_map(|leader| {
        let others = leader.members().voters().filter(|&voter| voter != leader.id());
        others.map(|voter| (leader.id(), voter))
    })
}

/// A move of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Move {
    /// A client proposes an entry to a leader.
    Propose(NodeId),
    /// A leader's clock advances.
    Tick(NodeId),
    /// An operator asks a leader to transfer leadership to this server.
    Transfer(NodeId, NodeId),
}

impl Environment for Proposals {
    type Machine = Tape;
    type Move = Move;

    fn properties(world: &World<Proposals>) -> Vec<Property<World<Proposals>>> {
        properties::properties(world)
    }

    fn moves(&self, servers: &[Ref<Replica<Tape>>], moves: &mut Vec<Move>) {
        moves.extend(self.clients.choices(servers).map(Move::Propose));
        if self.ticks > 0 {
            let leaders = servers.iter().filter(|replica| replica.node.is_leader());
            moves.extend(leaders.map(|replica| Move::Tick(replica.node.id())));
        }
        if self.transfers > 0 {
            moves.extend(transfer_pairs(servers).map(|(leader, to)| Move::Transfer(leader, to)));
        }
    }

    fn key(chosen: &Move) -> u64 {
        match *chosen {
            Move::Propose(server) => u64::from(server.0) << 2,
            Move::Tick(server) => u64::from(server.0) << 2 | 1,
            Move::Transfer(server, to) => u64::from(server.0) << 2 | 2 | u64::from(to.0) << 18,
        }
    }

    fn play(&mut self, chosen: &Move) -> Option<ServerRequest<Tape>> {
        Some(match *chosen {
            Move::Propose(server) => self.clients.propose(server),
            Move::Tick(server) => {
                self.ticks -= 1;
                ServerRequest::Clock(server, 1)
            }
            Move::Transfer(server, to) => {
                self.transfers -= 1;
                ServerRequest::Transfer(server, Some(to))
            }
        })
    }
}
