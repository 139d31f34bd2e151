//! Reads without a log entry: clients ask any server that believes it leads, while leaders change.
//!
//! A read is linearizable if it sees every entry that was acknowledged to any client before the
//! read was requested (§6.4). The environment records the acknowledged index at each request, and
//! compares it when the read is ready.

pub(crate) mod properties;
mod show;

use palisade_spec::invariants::{self, Check};
use palisade_spec::raft::{Index, Node, NodeId, RequestId};
use palisade_spec::{require, violated};
use serde::Serialize;
use stateright::Property;

use crate::raft::{Proposers, Tape};
use crate::world::{Answer, Applied, Environment, Machine, Ref, Replica, ServerRequest, World};

/// Clients that propose and read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readers {
    /// The number of reads that may still be requested.
    pub left: u8,
    /// The requested reads, by number: the index that was acknowledged at the request, or `None`
    /// once the read was answered.
    pub open: Vec<Option<Index>>,
    /// The acknowledged index: some server has reported the entries up to it as applied.
    pub acknowledged: Index,
    /// Whether a read was answered from less than was acknowledged at its answer. That is allowed:
    /// the read was requested before.
    pub overtaken: bool,
    /// The clients that propose.
    pub writers: Proposers,
}

impl Readers {
    /// Creates clients that read `reads` times and propose `most` entries.
    pub fn new(reads: u8, most: u8, log: u64) -> Readers {
        let acknowledged = Index::default();
        Readers { left: reads, open: Vec::new(), acknowledged, overtaken: false, writers: Proposers::new(most, log) }
    }

    /// The leaders that a client may ask.
    pub(crate) fn choices<S: Machine>(&self, servers: &[Ref<Replica<S>>]) -> impl Iterator<Item = NodeId> {
        let left = self.left > 0;
        servers.iter().filter(move |replica| left && replica.node.is_leader()).map(|replica| replica.node.id())
    }

    /// Requests a read from this server.
    pub(crate) fn ask<S: Machine>(&mut self, server: NodeId) -> ServerRequest<S> {
        self.left -= 1;
        let id = RequestId(self.open.len() as u64);
        self.open.push(Some(self.acknowledged));
        ServerRequest::Read(server, id)
    }

    /// Records an acknowledged entry.
    pub(crate) fn acknowledge(&mut self, index: Index) {
        self.acknowledged = self.acknowledged.max(index);
    }

    /// Records that a server reports a read as ready.
    pub(crate) fn answered<S: Machine>(&mut self, node: &Node<S>, read: RequestId) -> Check {
        let (id, commit) = (node.id(), node.commit());
        let position = usize::try_from(read.0).expect("a number of reads fits in usize");
        let Some(due) = self.open[position].take() else {
            return violated!(
                invariants::Property::ReadAnsweredOnce,
                "server {id} answers read {read}, which was already answered"
            );
        };
        require!(
            invariants::Property::LinearizableReads,
            commit >= due,
            "server {id} answers read {read} at index {commit}, but {due} was acknowledged before the read"
        )?;
        self.overtaken |= commit < self.acknowledged;
        Ok(())
    }
}

/// A move of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Move {
    /// A client proposes an entry to a server that believes it leads.
    Propose(NodeId),
    /// A client requests a read from a server that believes it leads.
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

    fn play(&mut self, chosen: &Move) -> Option<ServerRequest<Tape>> {
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

    fn ready(&mut self, node: &Node<Tape>, read: RequestId) -> Check {
        self.answered(node, read)
    }
}
