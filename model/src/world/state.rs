//! The state of a cluster.

use std::hash::{Hash, Hasher};

use palisade_spec::invariants::Violation;
use palisade_spec::raft::{Message, NodeId, StateMachine};
use smallvec::SmallVec;

use super::digest::{digest, mix};
use super::environment::Environment;
use super::history::History;
use super::intern::Ref;
use super::replica::Replica;

/// The messages in flight, sorted by digest: a message's age plays no part.
pub type Network<S> = SmallVec<[Ref<Message<S>>; 6]>;

/// The command type of the environment `E`.
pub type CommandOf<E> = <<E as Environment>::Machine as StateMachine>::Command;

/// A cluster and its environment.
pub struct State<E: Environment> {
    /// The servers, sorted by number.
    pub servers: SmallVec<[Ref<Replica<E::Machine>>; 3]>,
    /// The messages in flight.
    pub network: Network<E::Machine>,
    /// The history so far.
    pub history: Ref<History<E::Machine>>,
    /// The environment.
    pub environment: Ref<E>,
    /// The crashes left.
    pub crashes: u8,
    /// The snapshots left.
    pub snapshots: u8,
    /// The repeated deliveries left.
    pub repeats: u8,
    /// The message losses left, with prompt delivery.
    pub losses: u8,
    /// The number of times that a server may still be partitioned.
    pub cuts: u8,
    /// The delayed messages left, with prompt delivery.
    pub late: u8,
    /// The heartbeats left, if they are limited.
    pub heartbeats: u8,
    /// The first violation. A state with a violation has no successors.
    pub violation: Option<&'static Violation>,
    /// The least digest over all renamings, if this state represents all its renamings.
    pub canonical: Option<u64>,
}

impl<E: Environment> Clone for State<E> {
    fn clone(&self) -> State<E> {
        State { servers: self.servers.clone(), network: self.network.clone(), ..*self }
    }
}

impl<E: Environment> PartialEq for State<E> {
    fn eq(&self, other: &State<E>) -> bool {
        self.servers == other.servers
            && self.network == other.network
            && self.history == other.history
            && self.environment == other.environment
            && self.budgets() == other.budgets()
            && self.violation == other.violation
    }
}

/// A state's hash is its digest: the sum of its parts' digests, which are 64 bits each and well
/// distributed.
impl<E: Environment> Hash for State<E> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.canonical.unwrap_or_else(|| self.digest(0)));
    }
}

impl<E: Environment> State<E> {
    /// The server with this number.
    pub fn server(&self, id: NodeId) -> Ref<Replica<E::Machine>> {
        self.servers[usize::from(id.number()) - 1]
    }

    fn budgets(&self) -> u64 {
        let State { crashes, repeats, losses, cuts, heartbeats, snapshots, late, .. } = *self;
        u64::from_le_bytes([crashes, repeats, losses, cuts, heartbeats, snapshots, late, 0])
    }

    /// The state's digest under a renaming. A server's digest includes its own number, so the sum
    /// loses no information.
    pub fn digest(&self, renaming: usize) -> u64 {
        let servers = self.servers.iter().map(|replica| replica.digest(renaming));
        let network = self.network.iter().map(|message| message.digest(renaming));
        let parts = servers.chain(network).fold(0, u64::wrapping_add);
        let rest = self.history.digest(renaming).wrapping_add(self.environment.digest(renaming));
        parts.wrapping_add(rest).wrapping_add(mix(
            self.budgets(),
            self.violation.map_or(0, |violation| digest(violation.property.name(), &[])),
        ))
    }

    /// Adds a message to the network.
    pub fn send(&mut self, message: Ref<Message<E::Machine>>) {
        let digest = message.digest(0);
        let index = self.network.partition_point(|other| other.digest(0) <= digest);
        self.network.insert(index, message);
    }
}
