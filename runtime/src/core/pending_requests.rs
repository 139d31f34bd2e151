//! Client requests on their way into the log and back.
//!
//! An iteration takes many requests. `PendingRequests` turns them into one list of proposals (one
//! command for up to [`limits::KEEPALIVES`] keepalives, one ReadIndex for all reads), remembers the
//! requester of each index, and answers when the entry is applied. Nothing here can break the
//! safety of the replicated state: an entry means the same to every requester. The two rules that
//! it must keep are not to answer before the entry is applied, and not to answer for an entry of
//! another term; both are in [`PendingRequests::applied`].

mod answers;
mod operator;
mod reads;
mod requester;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use palisade_client::wire::{Code, Consistency, Failure, LeaderView};
use palisade_spec::lock::{Claim, Command, Event, LockTable, Outcome, Principal, SessionId};
use palisade_spec::raft::{Change, Index, Input, Node, NodeId, Payload, RequestId, Role, Term};

use self::reads::PendingRead;
use self::requester::{Inflight, Renewer, Requester};
use super::admission::{Quotas, Rejection, within_limits};
use super::openers::Openers;
use super::request::Request;
use super::respond::{ConnectionId, Responder};
use super::waits::{Due, QueueSlot, Waits};
use crate::addresses::RemoteAddress;
use crate::audit;
use crate::limits;
use crate::metrics::Metrics;
use crate::stopwatch::Stopwatch;
use crate::storage::Space;

/// All requests of this node's clients that are not answered yet.
#[derive(Debug)]
pub(super) struct PendingRequests {
    /// The next proposals, in order.
    payloads: Vec<Payload<Command>>,
    /// The requesters of `payloads`, in the same order.
    requesters: Vec<Requester>,
    /// The id of the last request to the node.
    last_id: RequestId,
    /// The requesters of the proposals that the node has not answered yet. Separate from
    /// `requesters`, which may grow while the outputs are executed: those proposals belong to
    /// the next iteration.
    proposed: BTreeMap<RequestId, Vec<Requester>>,
    /// The iteration's keepalives, to become one proposal.
    keepalives: Vec<(SessionId, Renewer)>,
    /// Once-sessions whose grant reached no client: they are to be closed, so that the next waiter
    /// gets the lock.
    unclaimed: Vec<SessionId>,
    /// The iteration's reads, to become one ReadIndex request.
    reads: Vec<PendingRead>,
    /// Reads that a majority has not confirmed yet.
    unconfirmed: BTreeMap<RequestId, Vec<PendingRead>>,
    /// Reads that can be answered, and whether they may be stale.
    ready: VecDeque<(PendingRead, Consistency)>,
    /// The iteration's membership changes, each with its operator.
    changes: VecDeque<(Change, Principal, Responder)>,
    /// The changes that were executed in this iteration.
    changed: Vec<Responder>,
    /// The changes that the node has not answered yet.
    changing: BTreeMap<RequestId, (Change, Principal, Responder)>,
    /// The iteration's transfer requests, each with its target if one is named.
    transfers: VecDeque<(Option<NodeId>, Responder)>,
    /// The requests that wait for the leadership transfer in progress, each with its target.
    transferring: BTreeMap<RequestId, (Option<NodeId>, Responder)>,
    /// Proposals in the log that are not applied yet, in the order of their indexes.
    inflight: VecDeque<Inflight>,
    waits: Waits,
    metrics: Arc<Metrics>,
    quotas: Quotas,
    openers: Openers,
    /// When a client may request a transfer of leadership again.
    next_transfer: Option<Instant>,
    space: Arc<Space>,
}

impl PendingRequests {
    pub(super) fn new(metrics: Arc<Metrics>, quotas: Quotas, space: Arc<Space>) -> PendingRequests {
        PendingRequests {
            payloads: Vec::new(),
            requesters: Vec::new(),
            last_id: RequestId(0),
            proposed: BTreeMap::new(),
            keepalives: Vec::new(),
            unclaimed: Vec::new(),
            reads: Vec::new(),
            unconfirmed: BTreeMap::new(),
            ready: VecDeque::new(),
            changes: VecDeque::new(),
            changed: Vec::new(),
            changing: BTreeMap::new(),
            transfers: VecDeque::new(),
            transferring: BTreeMap::new(),
            inflight: VecDeque::new(),
            waits: Waits::default(),
            metrics,
            quotas,
            openers: Openers::default(),
            next_transfer: None,
            space,
        }
    }

    /// Number of waits in queues.
    pub(super) fn waits(&self) -> usize {
        self.waits.len()
    }

    /// When [`PendingRequests::tick`], [`PendingRequests::answer_reads`] or
    /// [`PendingRequests::recount_sessions`] has work. A leader that takes no proposals at the moment is
    /// not woken for waits: the input that makes it take proposals again starts an iteration.
    pub(super) fn next(&self, node: &Node<LockTable>, now: Instant) -> Option<Instant> {
        if !self.ready.is_empty() || self.may_recount(node) {
            return Some(now);
        }
        self.waits.next().filter(|_| takes_proposals(node))
    }

    /// Takes a request. A request that cannot be proposed is answered here.
    pub(super) fn take(&mut self, node: &Node<LockTable>, request: Request, responder: Responder) {
        if responder.is_gone() {
            return;
        }
        // Only a leader's table is current; a follower redirects the client to the leader.
        let within = || {
            within_limits(node, &self.waits, &self.quotas, &self.openers, &self.space, &request, &responder)?;
            self.may_transfer(node, &request, &responder).map_err(Rejection::from)
        };
        let rejection = if node.is_leader() { within().err() } else { None };
        if let Some(Rejection { failure, limit_of_client }) = rejection {
            if let Some(limit) = limit_of_client {
                self.metrics.limit_reached(limit);
            }
            if failure.error == Code::NoSpace {
                self.metrics.refused_no_space.inc();
            }
            responder.answer(Err(*failure));
            return;
        }
        match request {
            Request::Propose { mut command, secret, wait } => {
                if let Command::Transact { transaction, .. } = &mut command {
                    transaction.limit = self.quotas.max_store_bytes;
                }
                self.propose(command.clone(), Requester::Client { command, secret, wait, responder });
            }
            Request::KeepAlive { session, secret, grant } => {
                self.keepalives.push((session, Renewer::Client { secret, grant, responder }));
            }
            Request::Read(query, consistency, reader) => {
                let read = PendingRead { query, reader, responder };
                match consistency {
                    Consistency::Linearizable => self.reads.push(read),
                    Consistency::Stale => self.ready.push_back((read, consistency)),
                }
            }
            Request::Change(change, operator) => self.changes.push_back((change, operator, responder)),
            Request::Transfer(to, _) => {
                self.pause_transfers(responder.arrived);
                self.transfers.push_back((to, responder));
            }
        }
    }

    fn propose(&mut self, command: Command, requester: Requester) {
        self.payloads.push(Payload::Command(command));
        self.requesters.push(requester);
    }

    /// A connection has ended. The next [`PendingRequests::tick`] withdraws the waits that it
    /// leaves without a connection.
    pub(super) fn disconnected(&mut self, connection: ConnectionId, now: Instant) {
        self.waits.disconnect(connection, now);
    }

    /// Proposes the node's own commands: it withdraws waits that timed out or have no connection
    /// left, renews the sessions of waits, and closes once-sessions whose grant reached no client.
    /// A leader that is transferring leadership would reject them all; so they stay due until the
    /// transfer fails, or until this node loses leadership and answers every request.
    pub(super) fn tick(&mut self, node: &Node<LockTable>, now: Instant) {
        if !takes_proposals(node) {
            return;
        }
        let due = self.waits.due(now);
        let withdraws = due.iter().any(|due| matches!(due, Due::Withdraw(_)));
        let requested = if withdraws { self.requested_again() } else { HashSet::new() };
        for due in due {
            match due {
                Due::Renew((session, key)) => self.keepalives.push((session, Renewer::Wait(key))),
                Due::Withdraw(slot) if requested.contains(&slot) => {
                    self.waits.withdraw_again(&slot, now + limits::OWN_PROPOSAL_RETRY);
                }
                Due::Withdraw(slot) => {
                    let (session, keys, claim) = (slot.0, self.waits.keys(&slot), Claim::Waiting);
                    let command = Command::Release { session, sequence: None, keys, claim };
                    self.propose(command, Requester::Withdraw(slot));
                }
            }
        }
        for session in std::mem::take(&mut self.unclaimed) {
            self.propose(Command::Close { session }, Requester::CloseUnclaimed(session));
        }
    }

    /// The queue slots that pending acquires ask for. If an earlier wait for the slot timed out or
    /// lost its connection, the slot is kept for the later acquire: a withdrawal would be applied
    /// after that acquire and remove its claim.
    fn requested_again(&self) -> HashSet<QueueSlot> {
        let inflight = self.inflight.iter().map(|inflight| &inflight.requester);
        let under_way = self.requesters.iter().chain(self.proposed.values().flatten()).chain(inflight);
        under_way.filter_map(Requester::slot).collect()
    }

    /// An id for a request to the node. If no requester here waits for its reply, the reply is dropped.
    pub(super) fn next_id(&mut self) -> RequestId {
        self.last_id.0 += 1;
        self.last_id
    }

    /// The iteration's proposals, if there are any. The node answers them with
    /// [`PendingRequests::accepted`] or [`PendingRequests::refused`].
    pub(super) fn proposals(&mut self) -> Option<Input<LockTable>> {
        let mut rest = std::mem::take(&mut self.keepalives).into_iter();
        loop {
            let keepalives: Vec<_> = rest.by_ref().take(limits::KEEPALIVES).collect();
            if keepalives.is_empty() {
                break;
            }
            let sessions = keepalives.iter().map(|(session, _)| *session).collect();
            self.propose(Command::KeepAlive { sessions }, Requester::KeepAlive(keepalives));
        }
        if self.payloads.is_empty() {
            return None;
        }
        let id = self.next_id();
        self.proposed.insert(id, std::mem::take(&mut self.requesters));
        Some(Input::Propose { id, payloads: std::mem::take(&mut self.payloads) })
    }

    /// The proposals or the change are in the log.
    pub(super) fn accepted(&mut self, id: RequestId, first: Index, term: Term) {
        let proposed = Stopwatch::start();
        let change = self.changing.remove(&id);
        let change = change.map(|(_, operator, responder)| Requester::Change(operator, responder));
        let requesters = self.proposed.remove(&id).into_iter().flatten().chain(change);
        for (index, requester) in (first.0..).zip(requesters) {
            self.inflight.push_back(Inflight { index: Index(index), term, proposed, requester });
        }
    }

    /// The node rejected the proposals: another node leads, leadership is being transferred, or no
    /// leader is known. Clients get an error. The node's own proposals have no client that would
    /// repeat them, so they become due again; if this node has lost leadership, they end with the
    /// iteration.
    pub(super) fn refused(&mut self, id: RequestId, leader: Option<LeaderView>, now: Instant) {
        let failure = not_leading(leader);
        let again = now + limits::OWN_PROPOSAL_RETRY;
        for requester in self.proposed.remove(&id).into_iter().flatten() {
            match requester {
                Requester::Withdraw(slot) => self.waits.withdraw_again(&slot, again),
                Requester::CloseUnclaimed(session) => self.unclaimed.push(session),
                Requester::KeepAlive(keepalives) => {
                    for (session, renewer) in keepalives {
                        match renewer {
                            Renewer::Client { responder, .. } => drop(responder.answer(Err(failure.clone()))),
                            Renewer::Wait(key) => self.waits.renew_again(&(session, key), again),
                        }
                    }
                }
                other => other.fail(&failure),
            }
        }
    }

    /// This node has lost leadership: it will not learn the outcomes of pending requests.
    pub(super) fn lost_leadership(&mut self) {
        self.openers.lost_leadership();
        self.fail_everything(&outcome_unknown());
    }

    /// A snapshot has replaced the table: sessions have ended without an event.
    pub(super) fn snapshot_installed(&mut self) {
        self.openers.forget();
    }

    /// Counts the sessions of principals that began under other leaders, some in each iteration.
    pub(super) fn recount_sessions(&mut self, node: &Node<LockTable>) {
        if self.may_recount(node) {
            self.openers.recount(node.machine());
        }
    }

    /// Whether there are sessions to recount. A new leader's table may lack sessions of earlier terms until
    /// an entry of its own term is committed.
    fn may_recount(&self, node: &Node<LockTable>) -> bool {
        self.openers.is_recounting() && node.log().term_at(node.commit()) == Some(node.term())
    }

    /// Fails every request: the node stops.
    pub(super) fn shut_down(&mut self) {
        let failure = Failure::new(Code::ShuttingDown, "this node is stopping; send the request to another node");
        self.fail_everything(&failure);
        for (read, _) in self.ready.drain(..) {
            read.responder.answer(Err(failure.clone()));
        }
        for (_, responder) in std::mem::take(&mut self.transferring).into_values() {
            responder.answer(Err(failure.clone()));
        }
    }

    fn fail_everything(&mut self, failure: &Failure) {
        self.unclaimed.clear();
        for inflight in std::mem::take(&mut self.inflight) {
            inflight.requester.fail(failure);
        }
        for read in std::mem::take(&mut self.unconfirmed).into_values().flatten() {
            read.responder.answer(Err(failure.clone()));
        }
        for responder in self.waits.drain() {
            responder.answer(Err(failure.clone()));
        }
    }

    /// An entry is committed and applied: answers its requester, and the waiters that its outcome
    /// concerns. Returns the events of the entry.
    pub(super) fn applied(&mut self, node: &Node<LockTable>, index: Index, term: Term, outcome: Outcome) -> Vec<Event> {
        let mut own = None;
        while self.inflight.front().is_some_and(|inflight| inflight.index <= index) {
            let Some(inflight) = self.inflight.pop_front() else { break };
            if inflight.index == index && inflight.term == term {
                inflight.proposed.observe(&self.metrics.commit_seconds);
                own = Some(inflight.requester);
            } else if inflight.index == index {
                // Another leader's entry replaced the proposal, which is lost.
                inflight.requester.fail(&not_leading(None));
            } else {
                // A snapshot includes the entry at this index: the proposal, or another leader's
                // entry.
                inflight.requester.fail(&outcome_unknown());
            }
        }
        // First what the entry did to earlier waits: a wait that begins with this entry has no part in that.
        for event in &outcome.events {
            self.handle_event(node, event);
        }
        if let Some(requester) = own {
            self.answer(node, requester, outcome.reply, &outcome.events);
        }
        outcome.events
    }
}

impl audit::Clients for PendingRequests {
    fn requester(&self, index: Index, term: Term) -> audit::Client {
        let inflight = self.inflight.iter().find(|inflight| inflight.index >= index);
        let own = inflight.filter(|inflight| inflight.index == index && inflight.term == term);
        own.map(|own| own.requester.client()).unwrap_or_default()
    }

    fn waiter(&self, event: &Event) -> Option<RemoteAddress> {
        match event {
            Event::Granted { key, session, .. }
            | Event::Withdrawn { key, session }
            | Event::Denied { key, session, .. } => self.waits.remote(*session, key),
            _ => None,
        }
    }
}

/// The error for a request whose entry may be committed, now or later, by another leader.
fn outcome_unknown() -> Failure {
    let message = "the leader lost leadership before the outcome was known; repeat the request at the new leader";
    Failure::new(Code::LeadershipLost, message)
}

/// Whether the node takes proposals now: it leads, and is not transferring leadership.
fn takes_proposals(node: &Node<LockTable>) -> bool {
    matches!(node.role(), Role::Leader(leadership) if leadership.successor.is_none())
}

/// The error for a request that only a leader can serve.
pub fn not_leading(leader: Option<LeaderView>) -> Failure {
    match &leader {
        Some(LeaderView { id, client_addr: Some(addr) }) => {
            let message = format!("node {id} leads; send the request to {addr}");
            Failure { leader, ..Failure::new(Code::NotLeader, message) }
        }
        _ => Failure::new(Code::NoLeader, "no leader is known at the moment; try again"),
    }
}

#[cfg(test)]
mod tests;
