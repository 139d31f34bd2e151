//! All layers in one, for random walks and guided search: clients with leases and a resource,
//! operators that request membership changes and leadership transfers, and clients that read
//! without a log entry.
//!
//! Each part is the environment of its own layer. Only this layer shows how they affect one
//! another.

mod show;

use palisade_spec::invariants;
use palisade_spec::invariants::Check;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Index, Node, NodeId, Payload, RequestId};
use serde::Serialize;
use stateright::Property;

use crate::cluster::properties::locks_and_leases;
use crate::cluster::{self, Surroundings};
use crate::membership::properties::memberships;
use crate::membership::{self, Operators};
use crate::raft::{consensus, transfer_pairs};
use crate::reads::Readers;
use crate::reads::properties::answers_to_reads;
use crate::world::{Answer, Applied, Environment, History, Ref, Replica, ServerRequest, State, World};

/// The environments of all layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AllLayers {
    /// The clients that hold locks, the time, and the resources.
    pub clients: Surroundings,
    /// The operators that change the members. They propose no entries.
    pub operators: Operators,
    /// The number of leadership transfers that may still be requested.
    pub transfers: u8,
    /// The clients that read.
    pub readers: Readers,
}

/// A move of the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Move {
    /// A client's move, or a tick.
    Client(cluster::Move),
    /// An operator requests a membership change.
    Change(membership::Move),
    /// An operator asks a leader to transfer leadership to this server.
    Transfer(NodeId, NodeId),
    /// A client requests a read from a server.
    Read(NodeId),
}

type S = State<AllLayers>;

impl Environment for AllLayers {
    type Machine = LockTable;
    type Move = Move;

    const CHANGES_MEMBERS: bool = true;

    fn properties(_: &World<AllLayers>) -> Vec<Property<World<AllLayers>>> {
        let mut all = consensus();
        all.extend(locks_and_leases());
        all.extend(memberships());
        all.extend(answers_to_reads());
        all.extend([
            Property::always(invariants::Property::ClusterTimeNeverRunsAhead.name(), |_, state: &S| {
                !state.environment.clients.runs_ahead(&state.servers)
            }),
            Property::sometimes("a client is told of its grant", |_, state: &S| {
                state.environment.clients.clients.iter().any(|client| client.token.is_some())
            }),
            Property::sometimes("a change is committed", |_, state: &S| {
                state.history.committed.values().any(|entry| matches!(entry.payload, Payload::Members(_)))
            }),
            Property::sometimes("a read is answered", |_, state: &S| state.environment.readers.open.contains(&None)),
        ]);
        all
    }

    fn moves(&self, servers: &[Ref<Replica<LockTable>>], moves: &mut Vec<Move>) {
        let (mut clients, mut changes) = (Vec::new(), Vec::new());
        self.clients.moves(servers, &mut clients);
        self.operators.choices(servers, &mut changes);
        moves.extend(clients.into_iter().map(Move::Client));
        moves.extend(changes.into_iter().map(Move::Change));
        if self.transfers > 0 {
            moves.extend(transfer_pairs(servers).map(|(leader, to)| Move::Transfer(leader, to)));
        }
        moves.extend(self.readers.choices(servers).map(Move::Read));
    }

    fn key(chosen: &Move) -> u64 {
        match *chosen {
            Move::Client(ref chosen) => Surroundings::key(chosen) << 2,
            Move::Change(ref chosen) => Operators::key(chosen) << 2 | 1,
            Move::Transfer(server, to) => u64::from(server.0) << 2 | 2 | u64::from(to.0) << 18,
            Move::Read(server) => u64::from(server.0) << 2 | 3,
        }
    }

    fn play(&mut self, chosen: &Move) -> Option<ServerRequest<LockTable>> {
        match *chosen {
            Move::Client(ref chosen) => self.clients.play(chosen),
            Move::Change(ref chosen) => {
                self.operators.change(chosen).map(|(leader, change)| ServerRequest::Change(leader, change))
            }
            Move::Transfer(server, to) => {
                self.transfers -= 1;
                Some(ServerRequest::Transfer(server, Some(to)))
            }
            Move::Read(server) => Some(self.readers.ask(server)),
        }
    }

    fn watches(old: &Node<LockTable>, new: &Node<LockTable>, answers: &[Answer<LockTable>]) -> bool {
        Surroundings::watches(old, new, answers)
    }

    fn see(&mut self, node: &Node<LockTable>, applied: &Applied<LockTable>) -> Check {
        self.readers.acknowledge(applied.index);
        self.clients.see(node, applied)
    }

    fn ready(&mut self, node: &Node<LockTable>, read: RequestId) -> Check {
        self.readers.answered(node, read)
    }

    fn stepped(&mut self, node: &Node<LockTable>) {
        self.clients.stepped(node);
    }

    fn committed(history: &History<LockTable>, index: Index) -> Check {
        Surroundings::committed(history, index)
    }

    fn judge(&self, history: &History<LockTable>) -> Check {
        self.clients.judge(history)
    }

    fn outline(&self) -> u64 {
        self.clients.outline()
    }

    fn before(&self, node: &Node<LockTable>) -> Option<Move> {
        self.clients.before(node).map(Move::Client)
    }
}
