//! The judge: feeds a [`ClusterChecker`] with every step of every node, every message and every
//! write, and judges what clients were told ([`ClientFacts`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use palisade::core::Observer;
use palisade_spec::checker::{ANY_SIZE, ClusterChecker, Feed, Slot};
use palisade_spec::invariants::{Check, Violation};
use palisade_spec::lock::{Keys, LockTable, SessionId};
use palisade_spec::raft::{Durable, Index, Input, Message, Node, NodeId, Output, Payload, Persist, Snapshot, Term};
use parking_lot::Mutex;

use super::client_facts::{ClientFacts, WINDOW};
use super::clock;

/// Number of commits of a node between two comparisons of its whole state.
const COMPARED: u64 = 64;
/// Number of written entries kept for log matching.
const REMEMBERED: usize = 32_768;

/// The judge, shared by the world and the nodes' observers.
pub(super) type SharedJudge = Arc<Mutex<Judge>>;

/// The observed state of a cluster.
#[derive(Debug)]
pub(super) struct Judge {
    pub(super) checker: ClusterChecker<LockTable>,
    /// What clients were told.
    pub(super) clients: ClientFacts,
    nodes: BTreeMap<NodeId, ObservedNode>,
    /// The present time.
    pub(super) now: Duration,
    /// The first violation.
    pub(super) violation: Option<Violation>,
}

/// One node, after its last step.
#[derive(Clone, Copy, Debug, Default)]
struct ObservedNode {
    leads: Option<Term>,
    commit: Index,
    commanded: Option<Commanded>,
}

/// The latest command that a leader took from its clients and has committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commanded {
    /// The leader's term.
    pub(super) term: Term,
    /// When the leader took the command.
    pub(super) born: Duration,
}

impl Judge {
    pub(super) fn new() -> Judge {
        let feed = Feed {
            batches_are_atomic: true,
            reports_snapshots: true,
            reports_sends: true,
            fingerprint: None,
            sees_all_servers: true,
            most: clock::most,
            entries_kept: WINDOW,
            states_kept: WINDOW,
            written_kept: REMEMBERED,
            commits_between_comparisons: COMPARED,
            checked_whole_up_to: ANY_SIZE,
        };
        Judge {
            checker: ClusterChecker::new(feed),
            clients: ClientFacts::default(),
            nodes: BTreeMap::new(),
            now: Duration::ZERO,
            violation: None,
        }
    }

    /// Keeps the first violation.
    pub(super) fn note(&mut self, check: Check) {
        if let Err(violation) = check {
            self.violation.get_or_insert(violation);
        }
    }

    /// The last entry that any node has committed.
    pub(super) fn last(&self) -> Index {
        self.checker.reference().map_or(Index(0), |agreed| agreed.last())
    }

    /// Number of waiters at all locks.
    pub(super) fn waiters(&self) -> usize {
        let locks = self.checker.reference().into_iter().flat_map(|agreed| agreed.machine().locks().values());
        locks.map(|lock| lock.queue.len()).sum()
    }

    /// A client was told that its session lives: see [`ClientFacts::client_leased`].
    pub(super) fn client_leased(&mut self, session: SessionId, asked: Duration, ttl: Duration) {
        self.clients.client_leased(self.checker.reference(), session, asked, ttl);
    }

    /// A client was told that it withdrew its claim: see [`ClientFacts::client_withdrew`].
    pub(super) fn client_withdrew(&self, keys: &Keys, session: SessionId) -> Check {
        self.clients.client_withdrew(self.checker.reference(), keys, session)
    }

    /// A client was told that its session is closed.
    pub(super) fn client_closed(&self, session: SessionId) -> Check {
        ClientFacts::client_closed(self.checker.reference(), session)
    }

    /// The latest command that a node took as leader and has committed.
    pub(super) fn commanded(&self, id: NodeId) -> Option<Commanded> {
        self.nodes.get(&id)?.commanded
    }

    /// A node's own snapshot is durable.
    pub(super) fn snapshot_taken(&mut self, id: NodeId, snapshot: Snapshot<LockTable>) {
        let check = self.checker.snapshot_taken(slot(id), snapshot);
        self.note(check);
    }

    /// A message leaves.
    pub(super) fn sent(&mut self, message: &Message<LockTable>) {
        let check = self.checker.sent(slot(message.from), message);
        self.note(check);
    }

    /// A snapshot is offered.
    pub(super) fn offered(&mut self, from: NodeId, to: NodeId, term: Term) {
        let check = self.checker.offered(slot(from), to, term);
        self.note(check);
    }

    /// Compares the running nodes with one another, with their disks and with the reference state.
    pub(super) fn compare_nodes(&mut self, nodes: &[&Node<LockTable>]) {
        for (position, node) in nodes.iter().enumerate() {
            let check = self.checker.compare(slot(node.id()), node, nodes[..position].iter().copied());
            self.note(check);
        }
    }

    fn stepped(&mut self, node: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]) -> Check {
        self.checker.set_time(Some(self.now));
        self.checker.stepped(slot(node.id()), node, input, outputs)?;
        self.observe_command(node);
        self.observe_clients()
    }

    /// Records the last command that the node took as leader and has committed by now.
    fn observe_command(&mut self, node: &Node<LockTable>) {
        let observed = self.nodes.entry(node.id()).or_default();
        let leads = node.is_leader().then(|| node.term());
        // A leader that commits its own removal has stepped down by now.
        let led = leads.or(observed.leads) == Some(node.term());
        let new = (observed.commit.0 + 1..=node.commit().0).rev().map_while(|index| node.log().get(Index(index)));
        let own = |entry: &&palisade_spec::raft::Entry<_>| {
            led && entry.term == node.term() && matches!(entry.payload, Payload::Command(_))
        };
        if let Some(entry) = { new }.find(own) {
            let born = self.checker.born(entry.position()).unwrap_or(self.now);
            observed.commanded = Some(Commanded { term: entry.term, born });
        }
        (observed.leads, observed.commit) = (leads, node.commit());
    }

    fn observe_clients(&mut self) -> Check {
        let Some(agreed) = self.checker.reference() else { return Ok(()) };
        self.clients.observe(agreed, self.now)
    }
}

/// The checker's name of a node: a node that lost its disk comes back under another ID.
fn slot(id: NodeId) -> Slot {
    Slot(id.0.into())
}

/// The observer of one node's driver.
pub(super) struct JudgeObserver {
    pub(super) node: NodeId,
    pub(super) judge: SharedJudge,
}

impl Observer for JudgeObserver {
    fn recovered(&mut self, durable: &Durable<LockTable>) {
        let mut judge = self.judge.lock();
        let observed = ObservedNode { commit: durable.snapshot.last.index, ..ObservedNode::default() };
        judge.nodes.insert(self.node, observed);
        let check = judge.checker.recovered(slot(self.node), self.node, durable);
        judge.note(check);
    }

    fn stepped(&mut self, node: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]) {
        let mut judge = self.judge.lock();
        let check = judge.stepped(node, input, outputs);
        judge.note(check);
    }

    fn written(&mut self, writes: &[Persist<LockTable>]) {
        let mut judge = self.judge.lock();
        let check = judge.checker.written(slot(self.node), writes).and_then(|()| judge.observe_clients());
        judge.note(check);
    }
}
