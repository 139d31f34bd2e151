//! The state of this layer's cluster.

use std::hash::{Hash, Hasher};

use palisade_spec::invariants::{Committed, Violation};
use palisade_spec::lock::{Command, LockTable};
use palisade_spec::raft::{Body, Entry, Index, Message, NodeId, Position};
use serde::Serialize;
use smallvec::SmallVec;

use super::{Action, LockNode};
use crate::cluster::Client;
use crate::world::Ref;

/// A server.
#[derive(Clone, Copy, PartialEq)]
pub struct Server {
    /// The node.
    pub node: Ref<LockNode>,
    /// When the leader last read its clock, in ticks; 0 for other servers.
    pub looked: u64,
}

/// The real time at which an entry was stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// The entry's position.
    pub entry: Position,
    /// The real time, in ticks.
    pub at: u64,
}

/// The committed entries, and the state machine after them.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Truth {
    /// Every entry that a server applied.
    pub committed: Committed<Command>,
    /// The table after the last of them.
    pub table: LockTable,
}

/// A cluster, its clients and real time.
#[derive(Clone)]
pub struct State {
    /// The servers, sorted by number.
    pub servers: SmallVec<[Server; 3]>,
    /// The delayed AppendEntries, sorted by digest.
    pub delayed: SmallVec<[Ref<Message<LockTable>>; 1]>,
    /// The clients. Client `i` has session `i + 1`.
    pub clients: Ref<Vec<Client>>,
    /// The committed history.
    pub truth: Ref<Truth>,
    /// The births of the entries in a log or a delayed message.
    pub births: SmallVec<[Birth; 12]>,
    /// The TTL of the first client's session, in ticks.
    pub ttl: u64,
    /// Real time, in ticks.
    pub now: u64,
    /// The elections left.
    pub elections: u8,
    /// The crashes left.
    pub crashes: u8,
    /// The delays of AppendEntries left.
    pub delays: u8,
    /// The first violation. A state with a violation has no successors.
    pub violation: Option<&'static Violation>,
    /// The canonical digest.
    pub(super) digest: u64,
}

impl State {
    /// The server with this number.
    pub fn server(&self, id: NodeId) -> Server {
        self.servers[server_index(id)]
    }

    pub(super) fn set(&mut self, node: Ref<LockNode>) {
        self.servers[server_index(node.id())].node = node;
    }

    /// The leader of the latest term, unless it has lost its leadership.
    pub fn leader(&self) -> Option<Server> {
        let latest = self.servers.iter().map(|server| server.node.term()).max();
        self.servers.iter().find(|server| server.node.is_leader() && Some(server.node.term()) == latest).copied()
    }

    /// The canonical digest: states with equal digests count as one.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether a client may still rely on its lease. Clients are counted from 0.
    pub fn relies(&self, client: usize) -> bool {
        self.clients[client].relies(self.now, self.ttl + client as u64)
    }

    /// An entry's age in real time, in ticks.
    pub fn age(&self, entry: Position) -> u64 {
        let birth = self.births.iter().find(|birth| birth.entry == entry).expect("every entry has a birth");
        self.now - birth.at
    }

    pub(super) fn delay(&mut self, message: Ref<Message<LockTable>>) {
        let index = self.delayed.partition_point(|other| other.digest(0) <= message.digest(0));
        self.delayed.insert(index, message);
    }

    /// Removes a delayed message.
    pub(super) fn forget(&mut self, message: Ref<Message<LockTable>>) {
        let index = self.delayed.iter().position(|other| *other == message);
        self.delayed.remove(index.expect("only a delayed message arrives"));
    }

    /// The last entry that an AppendEntries confirms: one with all entries, or a heartbeat.
    pub(super) fn through(&self, leader: NodeId, follower: NodeId, full: bool) -> Index {
        if full { self.server(leader).node.log().last().index } else { self.common(leader, follower) }
    }

    /// Subtracts a step from its budget.
    pub(super) fn spend(&mut self, action: &Action) {
        match action {
            Action::Elect { .. } => self.elections -= 1,
            Action::Crash { .. } => self.crashes -= 1,
            Action::Delay { .. } => self.delays -= 1,
            Action::Tick | Action::Look { .. } | Action::Send { .. } | Action::Arrive(_) | Action::Ask { .. } => return,
        }
        self.digest = self.canonical();
    }

    /// Drops delayed messages and births that no longer matter, and computes the digest. Each step
    /// ends with this.
    pub(super) fn settle(&mut self) {
        let servers = &self.servers;
        self.delayed.retain(|message| message.term >= servers[server_index(message.to)].node.term());
        let logs = self.servers.iter().map(|server| server.node.log().entries());
        let known: SmallVec<[&[Entry<Command>]; 5]> =
            logs.chain(self.delayed.iter().map(|late| entries(late))).collect();
        let is_known = |birth: &mut Birth| known.iter().copied().flatten().any(|entry| entry.position() == birth.entry);
        self.births.retain(is_known);
        self.digest = self.canonical();
    }

    /// The elections, crashes and delays left.
    pub(super) fn budgets(&self) -> [u8; 3] {
        [self.elections, self.crashes, self.delays]
    }

    /// Whether two states have equal digests.
    pub(super) fn is_like(&self, other: &State) -> bool {
        self.digest == other.digest
    }

    /// The last index of the longest common prefix of two servers' logs.
    pub(super) fn common(&self, one: NodeId, other: NodeId) -> Index {
        let (one, other) = (self.server(one).node, self.server(other).node);
        let pairs = one.log().entries().iter().zip(other.log().entries());
        Index(pairs.take_while(|(one, other)| one.term == other.term).count() as u64)
    }
}

/// The entries of an AppendEntries.
pub(super) fn entries(message: &Message<LockTable>) -> &[Entry<Command>] {
    match &message.body {
        Body::AppendEntries { entries, .. } => entries,
        _ => &[],
    }
}

/// A server's index in `servers`.
pub(super) fn server_index(id: NodeId) -> usize {
    usize::from(id.number()) - 1
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        self.servers == other.servers
            && self.delayed == other.delayed
            && (self.clients, self.truth) == (other.clients, other.truth)
            && self.births == other.births
            && (self.now, self.budgets()) == (other.now, other.budgets())
            && self.violation == other.violation
    }
}

/// States with equal digests hash alike.
impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}
