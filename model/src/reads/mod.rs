//! Reads without a log entry: clients ask any server that thinks it leads, while leaders come and go.
//!
//! A read is linearizable if what it sees has everything that was acknowledged to anybody before it was asked (§6.4). So
//! the environment remembers how far entries were acknowledged when each read was asked, and compares when it is ready.

pub(crate) mod properties;
mod show;

use palisade_spec::invariants::{Check, Violation};
use palisade_spec::raft::{Index, Node, NodeId, ReadId};
use serde::Serialize;
use stateright::Property;

use crate::raft::{Proposers, Tape};
use crate::world::{Answer, Applied, Asked, Environment, Machine, Ref, Replica, World};

/// Clients that propose and read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readers {
    /// How many more reads may be asked.
    pub left: u8,
    /// The reads that were asked, by their numbers: how far entries had been acknowledged then, as long as it is open.
    pub open: Vec<Option<Index>>,
    /// How far entries are acknowledged: some server has said of them that they are applied.
    pub acknowledged: Index,
    /// Whether a read was answered from less than had been acknowledged by then, as it may be: it was asked before.
    pub overtaken: bool,
    /// Those who propose.
    pub writers: Proposers,
}

impl Readers {
    /// Clients that read so many times, and propose so many entries.
    pub fn new(reads: u8, most: u8, log: u64) -> Readers {
        let acknowledged = Index::default();
        Readers { left: reads, open: Vec::new(), acknowledged, overtaken: false, writers: Proposers::new(most, log) }
    }

    /// The leaders that they may ask.
    pub(crate) fn choices<S: Machine>(&self, servers: &[Ref<Replica<S>>]) -> impl Iterator<Item = NodeId> {
        let left = self.left > 0;
        servers.iter().filter(move |replica| left && replica.node.is_leader()).map(|replica| replica.node.id())
    }

    /// Asks this server to read.
    pub(crate) fn ask<S: Machine>(&mut self, server: NodeId) -> Asked<S> {
        self.left -= 1;
        let id = ReadId(self.open.len() as u64);
        self.open.push(Some(self.acknowledged));
        Asked::Read(server, id)
    }

    /// An entry was acknowledged.
    pub(crate) fn acknowledge(&mut self, index: Index) {
        self.acknowledged = self.acknowledged.max(index);
    }

    /// A server says that a read is ready.
    pub(crate) fn answered<S: Machine>(&mut self, node: &Node<S>, read: ReadId) -> Check {
        let (id, commit) = (node.id(), node.commit());
        let place = usize::try_from(read.0).expect("reads are few");
        let Some(due) = self.open[place].take() else {
            let detail = format!("server {id} answers read {read}, which was answered before");
            return Err(Violation { property: "a read is answered once", detail });
        };
        if commit < due {
            let detail = format!("server {id} answers read {read} from {commit}, and {due} was acknowledged before it");
            return Err(Violation { property: "linearizable reads", detail });
        }
        self.overtaken |= commit < self.acknowledged;
        Ok(())
    }
}

/// What happens around the servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Move {
    /// A client proposes an entry to a server that thinks it leads.
    Propose(NodeId),
    /// A client asks one to read.
    Read(NodeId),
}

impl Environment for Readers {
    type Machine = Tape;
    type Move = Move;

    fn properties(world: &World<Readers>) -> Vec<Property<World<Readers>>> {
        properties::properties(world)
    }

    fn moves(&self, servers: &[Ref<Replica<Tape>>], moves: &mut Vec<Move>) {
        moves.extend(self.writers.choices(servers).map(Move::Propose));
        moves.extend(self.choices(servers).map(Move::Read));
    }

    fn key(chosen: &Move) -> u64 {
        match *chosen {
            Move::Propose(server) => u64::from(server.0) << 1,
            Move::Read(server) => u64::from(server.0) << 1 | 1,
        }
    }

    fn play(&mut self, chosen: &Move) -> Option<Asked<Tape>> {
        Some(match *chosen {
            Move::Propose(server) => self.writers.propose(server),
            Move::Read(server) => self.ask(server),
        })
    }

    fn watches(_: &Node<Tape>, _: &Node<Tape>, answers: &[Answer<Tape>]) -> bool {
        !answers.is_empty()
    }

    fn see(&mut self, _: &Node<Tape>, applied: &Applied<Tape>) -> Check {
        self.acknowledge(applied.index);
        Ok(())
    }

    fn ready(&mut self, node: &Node<Tape>, read: ReadId) -> Check {
        self.answered(node, read)
    }
}
