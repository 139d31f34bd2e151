//! A cluster at one moment.

use std::fmt;
use std::hash::{Hash, Hasher};

use palisade_spec::invariants::Violation;
use palisade_spec::raft::{Message, NodeId, StateMachine};
use smallvec::SmallVec;

use super::digest::{digest, mix};
use super::environment::Environment;
use super::ghost::Ghost;
use super::intern::Ref;
use super::replica::Replica;
use super::show::table;

/// The messages on their way, in the order of their digests: a message's age plays no part.
pub type Network<S> = SmallVec<[Ref<Message<S>>; 6]>;

/// What a server replicates in the environment `E`.
pub type CommandOf<E> = <<E as Environment>::Machine as StateMachine>::Command;

/// A cluster and its surroundings.
pub struct State<E: Environment> {
    /// The servers, in the order of their numbers.
    pub servers: SmallVec<[Ref<Replica<E::Machine>>; 3]>,
    /// What is on its way.
    pub network: Network<E::Machine>,
    /// What was.
    pub ghost: Ref<Ghost<E::Machine>>,
    /// What is around.
    pub environment: Ref<E>,
    /// How many more crashes there may be.
    pub crashes: u8,
    /// How many more snapshots there may be.
    pub snapshots: u8,
    /// How many more messages may arrive again.
    pub repeats: u8,
    /// How many more messages may be lost, where they are prompt.
    pub losses: u8,
    /// How often a server may still be cut off.
    pub cuts: u8,
    /// How many more messages may be late, where they are prompt.
    pub late: u8,
    /// How many more heartbeats there may be, if they are counted.
    pub heartbeats: u8,
    /// What went wrong. Nothing happens after that.
    pub violation: Option<&'static Violation>,
    /// The representative's digest, if this state stands for all that can be renamed into it.
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
            && self.ghost == other.ghost
            && self.environment == other.environment
            && self.budgets() == other.budgets()
            && self.violation == other.violation
    }
}

/// A state's hash is its digest: the sum of its parts' digests, which are 64 bits each and well spread.
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

    /// The state's digest under a renaming. A server's digest has its own number in it, so the sum forgets nothing.
    pub fn digest(&self, renaming: usize) -> u64 {
        let servers = self.servers.iter().map(|replica| replica.digest(renaming));
        let network = self.network.iter().map(|message| message.digest(renaming));
        let parts = servers.chain(network).fold(0, u64::wrapping_add);
        let rest = self.ghost.digest(renaming).wrapping_add(self.environment.digest(renaming));
        parts
            .wrapping_add(rest)
            .wrapping_add(mix(self.budgets(), self.violation.map_or(0, |violation| digest(violation.property, &[]))))
    }

    /// Puts a message on its way.
    pub fn send(&mut self, message: Ref<Message<E::Machine>>) {
        let digest = message.digest(0);
        let place = self.network.partition_point(|other| other.digest(0) <= digest);
        self.network.insert(place, message);
    }
}

/// A table, for people.
impl<E: Environment> fmt::Debug for State<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&table(self), f)
    }
}
