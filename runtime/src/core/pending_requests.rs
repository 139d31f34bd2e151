//! The desk: what clients asked for, on its way into the log and back.
//!
//! In one round the core takes many requests; the desk turns them into one list of proposals (all keepalives are one
//! command, all reads are one), remembers who asked at which index, and answers when the entry is applied.
//! Nothing here can break safety: an entry means the same whoever is told of it. What the desk must not do is answer
//! before the entry is applied, or answer for an entry of another term; both stand in [`PendingRequests::applied`].

mod answers;
mod operator;
mod reads;
mod requester;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::wire::{Code, Consistency, Failure, LeaderView};
use palisade_spec::lock::{Claim, Command, Key, LockTable, Outcome, SessionId};
use palisade_spec::raft::{Change, Index, Input, Node, NodeId, Payload, ReadId, Role, Term};
use tokio::sync::oneshot;

use self::requester::{Inflight, Renewer, Requester};
use super::admission::within_limits;
use super::request::{Acquirer, Query, Request};
use super::respond::{ConnectionId, Responder};
use super::waits::{Due, QueueSlot, Waits};
use crate::limits;
use crate::metrics::Metrics;
use crate::storage::Space;

/// Everything that clients of this node wait for.
#[derive(Debug)]
pub(super) struct PendingRequests {
    /// What is to be proposed, in order.
    payloads: Vec<Payload<Command>>,
    /// Who asked for it.
    requesters: Vec<Requester>,
    /// Who asked for what has been proposed in this round, one list for each input. Apart from `origins`, for while the
    /// round is carried out, the desk itself may ask for something: that belongs to the next round.
    proposed: VecDeque<Vec<Requester>>,
    /// The round's keepalives, to become one proposal.
    keepalives: Vec<(SessionId, Renewer)>,
    /// Once-sessions whose grant nobody received: they are to be closed, so that the lock goes on to the next.
    unclaimed: Vec<SessionId>,
    /// The round's reads, to be asked for as one.
    reads: Vec<(Query, Responder)>,
    /// Those that were asked for and not confirmed yet, in the order of their numbers.
    unconfirmed: VecDeque<(ReadId, Vec<(Query, Responder)>)>,
    next_read: ReadId,
    /// Reads that can be answered, from now on; and whether they may be stale.
    ready: VecDeque<(Query, Responder, Consistency)>,
    /// The round's changes of the members.
    changes: VecDeque<(Change, Responder)>,
    /// The round's wishes that this node hand over, and to whom.
    wishes: VecDeque<(Option<NodeId>, Responder)>,
    /// Who waits for the handover that was asked for.
    handover: Vec<Responder>,
    /// Proposals in the log that are not applied yet, in the order of their indexes.
    inflight: VecDeque<Inflight>,
    waits: Waits,
    metrics: Arc<Metrics>,
    max_sessions: usize,
    space: Arc<Space>,
}

impl PendingRequests {
    pub(super) fn new(metrics: Arc<Metrics>, max_sessions: usize, space: Arc<Space>) -> PendingRequests {
        PendingRequests {
            payloads: Vec::new(),
            requesters: Vec::new(),
            proposed: VecDeque::new(),
            keepalives: Vec::new(),
            unclaimed: Vec::new(),
            reads: Vec::new(),
            unconfirmed: VecDeque::new(),
            next_read: ReadId(0),
            ready: VecDeque::new(),
            changes: VecDeque::new(),
            wishes: VecDeque::new(),
            handover: Vec::new(),
            inflight: VecDeque::new(),
            waits: Waits::default(),
            metrics,
            max_sessions,
            space,
        }
    }

    /// How many clients wait in a queue.
    pub(super) fn waits(&self) -> usize {
        self.waits.len()
    }

    /// When the desk has something to do by itself. A leader that takes no proposals at the moment need not be woken for
    /// waits: whatever makes it take them again is a round of its own.
    pub(super) fn next(&self, node: &Node<LockTable>, now: Instant) -> Option<Instant> {
        if self.ready.is_empty() { self.waits.next().filter(|_| takes_proposals(node)) } else { Some(now) }
    }

    /// Takes a request in. What cannot be proposed is answered here.
    pub(super) fn take(&mut self, node: &Node<LockTable>, request: Request, responder: Responder) {
        if responder.is_gone() {
            return;
        }
        // Only a leader's table counts; who follows will say who leads.
        let within =
            || within_limits(node, &self.waits, self.max_sessions, &self.space, &request, responder.connection);
        if let Some(failure) = if node.is_leader() { within().err() } else { None } {
            if failure.error == Code::NoSpace {
                self.metrics.refused_no_space.inc();
            }
            responder.answer(Err(failure));
            return;
        }
        match request {
            Request::Open(opening) => {
                let ttl_ms = opening.ttl.0;
                self.propose(Command::Open { opening }, Requester::Open { ttl_ms, responder });
            }
            Request::KeepAlive(session) => self.keepalives.push((session, Renewer::Client(responder))),
            Request::Close(session) => self.propose(Command::Close { session }, Requester::Close(responder)),
            Request::Acquire { session, key, wait } => self.acquire(session, key, wait, responder),
            Request::Release { session, sequence, key, claim } => {
                let command = Command::Release { session, sequence, key, claim };
                self.propose(command, Requester::Release { claim, responder });
            }
            Request::Read(query, Consistency::Linearizable) => self.reads.push((query, responder)),
            Request::Read(query, Consistency::Stale) => self.ready.push_back((query, responder, Consistency::Stale)),
            Request::Change(change) => self.changes.push_back((change, responder)),
            Request::Transfer(to) => self.wishes.push_back((to, responder)),
        }
    }

    fn acquire(&mut self, session: Acquirer, key: Key, wait: Duration, responder: Responder) {
        let waits = !wait.is_zero();
        let existing = match session {
            Acquirer::Session(session, _) => Some(session),
            Acquirer::Once(_) => None,
        };
        let requester = Requester::Acquire { session: existing, key: key.clone(), wait, responder };
        let command = match session {
            Acquirer::Session(session, sequence) => Command::Acquire { session, sequence, key, wait: waits },
            Acquirer::Once(opening) => Command::AcquireOnce { opening, key, wait: waits },
        };
        self.propose(command, requester);
    }

    fn propose(&mut self, command: Command, requester: Requester) {
        self.payloads.push(Payload::Command(command));
        self.requesters.push(requester);
    }

    /// A connection is gone, and with it its waits. The next [`PendingRequests::tick`] withdraws them.
    pub(super) fn disconnected(&mut self, connection: ConnectionId, now: Instant) {
        self.waits.disconnect(connection, now);
    }

    /// Proposes what the desk does by itself: it withdraws waits that ran out or that no connection is left for, keeps
    /// sessions alive, and closes those whose grant nobody received. A leader that is handing over would refuse all of it;
    /// so it stays due until the leader goes on, or until this node leads no more and answers everybody.
    pub(super) fn tick(&mut self, node: &Node<LockTable>, now: Instant) {
        if !takes_proposals(node) {
            return;
        }
        let due = self.waits.due(now);
        let withdraws = due.iter().any(|due| matches!(due, Due::Withdraw(_)));
        let asked = if withdraws { self.requested_again() } else { HashSet::new() };
        for due in due {
            match due {
                Due::Renew((session, key)) => self.keepalives.push((session, Renewer::Wait(key))),
                Due::Withdraw(place) if asked.contains(&place) => {
                    self.waits.withdraw_again(&place, now + limits::OWN_PROPOSAL_RETRY);
                }
                Due::Withdraw((session, key)) => {
                    let command = Command::Release { session, sequence: None, key: key.clone(), claim: Claim::Waiting };
                    self.propose(command, Requester::Withdraw((session, key)));
                }
            }
        }
        for session in std::mem::take(&mut self.unclaimed) {
            self.propose(Command::Close { session }, Requester::CloseUnclaimed(session));
        }
    }

    /// The queue places that requests on their way ask for. The place of an earlier request that ran out, or whose
    /// connection is gone, is kept for the later one: a withdrawal would be applied after it, and take it along.
    fn requested_again(&self) -> HashSet<QueueSlot> {
        let inflight = self.inflight.iter().map(|inflight| &inflight.requester);
        let under_way = self.requesters.iter().chain(self.proposed.iter().flatten()).chain(inflight);
        under_way.filter_map(Requester::place).collect()
    }

    /// The round's proposals. To be followed by [`PendingRequests::accepted`] or [`PendingRequests::refused`].
    pub(super) fn proposals(&mut self) -> Vec<Payload<Command>> {
        let mut rest = std::mem::take(&mut self.keepalives).into_iter();
        loop {
            let keepalives: Vec<_> = rest.by_ref().take(limits::KEEPALIVES).collect();
            if keepalives.is_empty() {
                break;
            }
            let sessions = keepalives.iter().map(|(session, _)| *session).collect();
            self.propose(Command::KeepAlive { sessions }, Requester::KeepAlive(keepalives));
        }
        assert!(self.proposed.is_empty(), "every round's proposals are accepted or refused in it");
        if !self.requesters.is_empty() {
            self.proposed.push_back(std::mem::take(&mut self.requesters));
        }
        std::mem::take(&mut self.payloads)
    }

    /// This input comes from nobody who waits for an answer. To be followed as what clients ask for is.
    pub(super) fn nobody_asks(&mut self, input: &Input<LockTable>) {
        match input {
            Input::Propose(payloads) => self.proposed.push_back(payloads.iter().map(|_| Requester::Nobody).collect()),
            Input::Change(change) => {
                let (nobody, _) = oneshot::channel();
                let responder = Responder::once(ConnectionId(0), nobody);
                self.proposed.push_back(vec![Requester::Change { change: change.clone(), responder }]);
            }
            _ => {}
        }
    }

    /// The proposals stand in the log.
    pub(super) fn accepted(&mut self, first: Index, term: Term) {
        let proposed = Instant::now();
        let requesters = self.proposed.pop_front().expect("what is accepted was proposed");
        for (index, requester) in (first.0..).zip(requesters) {
            self.inflight.push_back(Inflight { index: Index(index), term, proposed, requester });
        }
    }

    /// The proposals were not taken: another node leads, or is to lead, or none does. Clients are told. What the desk
    /// proposed by itself has nobody who would ask again, so it is due again; if this node leads no more, it ends with
    /// the round.
    pub(super) fn refused(&mut self, leader: Option<LeaderView>, now: Instant) {
        let failure = not_leading(leader);
        let again = now + limits::OWN_PROPOSAL_RETRY;
        for requester in self.proposed.pop_front().expect("what is refused was proposed") {
            match requester {
                Requester::Withdraw(place) => self.waits.withdraw_again(&place, again),
                Requester::CloseUnclaimed(session) => self.unclaimed.push(session),
                Requester::KeepAlive(keepalives) => {
                    for (session, renewer) in keepalives {
                        match renewer {
                            Renewer::Client(responder) => drop(responder.answer(Err(failure.clone()))),
                            Renewer::Wait(key) => self.waits.renew_again(&(session, key), again),
                        }
                    }
                }
                other => other.fail(&failure),
            }
        }
    }

    /// This node does not lead any more: nobody here will learn what became of what is under way.
    pub(super) fn lost_leadership(&mut self) {
        self.fail_everything(&outcome_unknown());
    }

    /// The node stops.
    pub(super) fn shut_down(&mut self) {
        let failure = Failure::new(Code::ShuttingDown, "this node is stopping; request another one");
        self.fail_everything(&failure);
        for (_, responder, _) in self.ready.drain(..) {
            responder.answer(Err(failure.clone()));
        }
        for responder in self.handover.drain(..) {
            responder.answer(Err(failure.clone()));
        }
    }

    fn fail_everything(&mut self, failure: &Failure) {
        self.unclaimed.clear();
        for inflight in std::mem::take(&mut self.inflight) {
            inflight.requester.fail(failure);
        }
        for (_, responder) in std::mem::take(&mut self.unconfirmed).into_iter().flat_map(|(_, reads)| reads) {
            responder.answer(Err(failure.clone()));
        }
        for responder in self.waits.drain() {
            responder.answer(Err(failure.clone()));
        }
    }

    /// An entry is committed and applied: whoever proposed it, and whoever waited for what it did, is answered.
    pub(super) fn applied(&mut self, node: &Node<LockTable>, index: Index, term: Term, outcome: Outcome) {
        while self.inflight.front().is_some_and(|inflight| inflight.index <= index) {
            let Some(inflight) = self.inflight.pop_front() else { break };
            if inflight.index == index && inflight.term == term {
                self.metrics.commit_seconds.observe(inflight.proposed.elapsed().as_secs_f64());
                self.answer(node, inflight.requester, outcome.reply.clone(), &outcome.events);
            } else if inflight.index == index {
                // Another leader's entry took the place of ours, which is lost.
                inflight.requester.fail(&not_leading(None));
            } else {
                // A snapshot covers the entry at this index: ours, or another leader's.
                inflight.requester.fail(&outcome_unknown());
            }
        }
        for event in outcome.events {
            self.tell(node, event);
        }
    }
}

/// The answer to a request whose entry may have been committed, or may be yet, by another leader.
fn outcome_unknown() -> Failure {
    let message = "the leader lost its office before the outcome was known; request again, at the new leader";
    Failure::new(Code::LeadershipLost, message)
}

/// Whether the node takes proposals now: it leads, and is not handing over.
fn takes_proposals(node: &Node<LockTable>) -> bool {
    matches!(node.role(), Role::Leader(leadership) if leadership.successor.is_none())
}

/// The answer to every request that only a leader can serve.
pub(super) fn not_leading(leader: Option<LeaderView>) -> Failure {
    match &leader {
        Some(LeaderView { id, client_addr: Some(addr) }) => {
            let message = format!("node {id} leads; request it at {addr}");
            Failure { leader, ..Failure::new(Code::NotLeader, message) }
        }
        _ => Failure::new(Code::NoLeader, "no leader is known at the moment; try again"),
    }
}

#[cfg(test)]
mod tests;
