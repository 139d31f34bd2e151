//! The desk: what clients asked for, on its way into the log and back.
//!
//! In one round the core takes many requests; the desk turns them into one list of proposals (all keepalives are one
//! command, all reads are one), remembers who asked at which index, and answers when the entry is applied.
//! Nothing here can break safety: an entry means the same whoever is told of it. What the desk must not do is answer
//! before the entry is applied, or answer for an entry of another term; both stand in [`Desk::applied`].

mod operator;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::wire::{Acquired, Answer, Code, Consistency, Failure, HeldBy, LeaderView, SessionLease};
use palisade_spec::lock::{Claim, Command, Event, Key, LockTable, Outcome, Reply, SessionId, Token};
use palisade_spec::raft::{Change, Index, Input, Node, NodeId, Payload, ReadId, Term};
use tokio::sync::oneshot;

use super::ask::{Ask, Asker, Query, wire_session};
use super::bounds::within_limits;
use super::read::{self, Age};
use super::respond::{ConnectionId, Responder};
use super::waits::{Due, Place, Waits};
use crate::limits;
use crate::metrics::Metrics;

/// Everything that clients of this node wait for.
#[derive(Debug)]
pub(super) struct Desk {
    /// What is to be proposed, in order.
    payloads: Vec<Payload<Command>>,
    /// Who asked for it.
    origins: Vec<Origin>,
    /// Who asked for what has been proposed in this round, one list for each input. Apart from `origins`, for while the
    /// round is carried out, the desk itself may ask for something: that belongs to the next round.
    proposed: VecDeque<Vec<Origin>>,
    /// The round's keepalives, to become one proposal.
    keepalives: Vec<(SessionId, Option<Responder>)>,
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
}

#[derive(Debug)]
struct Inflight {
    index: Index,
    term: Term,
    proposed: Instant,
    origin: Origin,
}

/// Who made a proposal, and what the answer needs to know.
#[derive(Debug)]
enum Origin {
    Open {
        ttl_ms: u64,
        responder: Responder,
    },
    Close(Responder),
    KeepAlive(Vec<(SessionId, Option<Responder>)>),
    Acquire {
        /// `None`: one that is opened for this lock.
        session: Option<SessionId>,
        key: Key,
        wait: Duration,
        responder: Responder,
    },
    Release {
        claim: Claim,
        responder: Responder,
    },
    Change {
        change: Change,
        responder: Responder,
    },
    /// The desk itself.
    Own,
}

impl Desk {
    pub(super) fn new(metrics: Arc<Metrics>, max_sessions: usize) -> Desk {
        Desk {
            payloads: Vec::new(),
            origins: Vec::new(),
            proposed: VecDeque::new(),
            keepalives: Vec::new(),
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
        }
    }

    /// How many clients wait in a queue.
    pub(super) fn waits(&self) -> usize {
        self.waits.len()
    }

    /// When the desk has something to do by itself.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        if self.ready.is_empty() { self.waits.next() } else { Some(now) }
    }

    /// Answers the reads that can be answered. To be called when everything that the state says is durable. A round
    /// shows so much and leaves the rest to the next, so that heartbeats do not wait for those who read long lists; a
    /// later state serves a read as well.
    pub(super) fn answer_reads(&mut self, node: &Node<LockTable>, age: Age) {
        let mut shown = 0;
        while shown < limits::ROUND_CLAIMS
            && let Some((query, responder, consistency)) = self.ready.pop_front()
        {
            if !responder.is_gone() {
                let answer = read::answer(node, &query, (consistency == Consistency::Stale).then_some(age));
                shown += answer.as_ref().map_or(1, read::claims);
                responder.answer(answer);
            }
        }
    }

    /// Takes a request in. What cannot be proposed is answered here.
    pub(super) fn take(&mut self, node: &Node<LockTable>, ask: Ask, responder: Responder) {
        if responder.is_gone() {
            return;
        }
        // Only a leader's table counts; who follows will say who leads.
        let within = || within_limits(node, &self.waits, self.max_sessions, &ask, responder.connection);
        if let Some(failure) = if node.is_leader() { within().err() } else { None } {
            responder.answer(Err(failure));
            return;
        }
        match ask {
            Ask::Open(opening) => {
                let ttl_ms = opening.ttl.0;
                self.propose(Command::Open { opening }, Origin::Open { ttl_ms, responder });
            }
            Ask::KeepAlive(session) => self.keepalives.push((session, Some(responder))),
            Ask::Close(session) => self.propose(Command::Close { session }, Origin::Close(responder)),
            Ask::Acquire { session, key, wait } => self.acquire(session, key, wait, responder),
            Ask::Release { session, sequence, key, claim } => {
                let command = Command::Release { session, sequence, key, claim };
                self.propose(command, Origin::Release { claim, responder });
            }
            Ask::Read(query, Consistency::Linearizable) => self.reads.push((query, responder)),
            Ask::Read(query, Consistency::Stale) => self.ready.push_back((query, responder, Consistency::Stale)),
            Ask::Change(change) => self.changes.push_back((change, responder)),
            Ask::Transfer(to) => self.wishes.push_back((to, responder)),
        }
    }

    fn acquire(&mut self, session: Asker, key: Key, wait: Duration, responder: Responder) {
        let waits = !wait.is_zero();
        let existing = match session {
            Asker::Session(session, _) => Some(session),
            Asker::Once(_) => None,
        };
        let origin = Origin::Acquire { session: existing, key: key.clone(), wait, responder };
        let command = match session {
            Asker::Session(session, sequence) => Command::Acquire { session, sequence, key, wait: waits },
            Asker::Once(opening) => Command::AcquireOnce { opening, key, wait: waits },
        };
        self.propose(command, origin);
    }

    fn propose(&mut self, command: Command, origin: Origin) {
        self.payloads.push(Payload::Command(command));
        self.origins.push(origin);
    }

    /// A connection is gone, and with it its waits. Where the same request is under way again, from elsewhere, its
    /// place is kept for it.
    pub(super) fn disconnected(&mut self, connection: ConnectionId) {
        let deserted = self.waits.disconnect(connection);
        if deserted.is_empty() {
            return;
        }
        let inflight = self.inflight.iter().map(|inflight| &inflight.origin);
        let under_way = self.origins.iter().chain(self.proposed.iter().flatten()).chain(inflight);
        let asked: HashSet<Place> = under_way.filter_map(Origin::place).collect();
        for place in deserted {
            if asked.contains(&place) {
                self.waits.keep(place);
            } else {
                self.withdraw(place);
            }
        }
    }

    /// Waits that ran out, and sessions that the desk keeps alive.
    pub(super) fn tick(&mut self, now: Instant) {
        for due in self.waits.due(now) {
            match due {
                Due::Renew(session) => self.keepalives.push((session, None)),
                Due::Withdraw(place) => self.withdraw(place),
            }
        }
    }

    fn withdraw(&mut self, (session, key): Place) {
        let command = Command::Release { session, sequence: None, key, claim: Claim::Waiting };
        self.propose(command, Origin::Own);
    }

    /// The round's proposals. To be followed by [`Desk::accepted`] or [`Desk::refused`].
    pub(super) fn proposals(&mut self) -> Vec<Payload<Command>> {
        let mut rest = std::mem::take(&mut self.keepalives).into_iter();
        loop {
            let keepalives: Vec<_> = rest.by_ref().take(limits::KEEPALIVES).collect();
            if keepalives.is_empty() {
                break;
            }
            let sessions = keepalives.iter().map(|(session, _)| *session).collect();
            self.propose(Command::KeepAlive { sessions }, Origin::KeepAlive(keepalives));
        }
        assert!(self.proposed.is_empty(), "every round's proposals are accepted or refused in it");
        if !self.origins.is_empty() {
            self.proposed.push_back(std::mem::take(&mut self.origins));
        }
        std::mem::take(&mut self.payloads)
    }

    /// This input comes from nobody who waits for an answer. To be followed as what clients ask for is.
    pub(super) fn nobody_asks(&mut self, input: &Input<LockTable>) {
        match input {
            Input::Propose(payloads) => self.proposed.push_back(payloads.iter().map(|_| Origin::Own).collect()),
            Input::Change(change) => {
                let (nobody, _) = oneshot::channel();
                let responder = Responder::once(ConnectionId(0), nobody);
                self.proposed.push_back(vec![Origin::Change { change: change.clone(), responder }]);
            }
            _ => {}
        }
    }

    /// The round's reads, as one. To be followed, some time, by [`Desk::read_ready`] or [`Desk::read_refused`], unless the
    /// node stops leading.
    pub(super) fn read(&mut self) -> Option<ReadId> {
        if self.reads.is_empty() {
            return None;
        }
        self.next_read.0 += 1;
        self.unconfirmed.push_back((self.next_read, std::mem::take(&mut self.reads)));
        Some(self.next_read)
    }

    /// Reads up to this one can be answered.
    pub(super) fn read_ready(&mut self, id: ReadId) {
        while let Some((_, reads)) = self.unconfirmed.pop_front_if(|(asked, _)| *asked <= id) {
            let ready = reads.into_iter().map(|(query, responder)| (query, responder, Consistency::Linearizable));
            self.ready.extend(ready);
        }
    }

    /// This node does not lead: reads up to this one are another's to answer.
    pub(super) fn read_refused(&mut self, id: ReadId, leader: Option<LeaderView>) {
        let failure = not_leading(leader);
        while let Some((_, reads)) = self.unconfirmed.pop_front_if(|(asked, _)| *asked <= id) {
            for (_, responder) in reads {
                responder.answer(Err(failure.clone()));
            }
        }
    }

    /// The proposals stand in the log.
    pub(super) fn accepted(&mut self, first: Index, term: Term) {
        let proposed = Instant::now();
        let origins = self.proposed.pop_front().expect("what is accepted was proposed");
        for (index, origin) in (first.0..).zip(origins) {
            self.inflight.push_back(Inflight { index: Index(index), term, proposed, origin });
        }
    }

    /// The proposals were not taken: another node leads, or none.
    pub(super) fn refused(&mut self, leader: Option<LeaderView>) {
        let failure = not_leading(leader);
        for origin in self.proposed.pop_front().expect("what is refused was proposed") {
            origin.fail(&failure);
        }
    }

    /// This node does not lead any more: nobody here will learn what became of what is under way.
    pub(super) fn lost_leadership(&mut self) {
        let message = "the leader lost its office before the outcome was known; ask again, at the new leader";
        self.fail_everything(&Failure::new(Code::LeadershipLost, message));
    }

    /// The node stops.
    pub(super) fn shut_down(&mut self) {
        let failure = Failure::new(Code::ShuttingDown, "this node is stopping; ask another one");
        self.fail_everything(&failure);
        for (_, responder, _) in self.ready.drain(..) {
            responder.answer(Err(failure.clone()));
        }
        for responder in self.handover.drain(..) {
            responder.answer(Err(failure.clone()));
        }
    }

    fn fail_everything(&mut self, failure: &Failure) {
        for inflight in std::mem::take(&mut self.inflight) {
            inflight.origin.fail(failure);
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
                self.answer(node, inflight.origin, outcome.reply.clone(), &outcome.events);
            } else {
                // Another leader's entry took the place of ours.
                inflight.origin.fail(&not_leading(None));
            }
        }
        for event in outcome.events {
            self.tell(node, event);
        }
    }

    fn answer(&mut self, node: &Node<LockTable>, origin: Origin, reply: Option<Reply>, events: &[Event]) {
        match (origin, reply) {
            (Origin::Open { ttl_ms, responder }, Some(Reply::Opened { session })) => {
                let lease = SessionLease { session: wire_session(session), ttl_ms };
                responder.answer(Ok(Answer::Session(lease)));
            }
            (Origin::Close(responder), _) => {
                responder.answer(Ok(Answer::SessionClosed));
            }
            (Origin::KeepAlive(keepalives), Some(Reply::KeptAlive { missing })) => {
                kept_alive(node.machine(), keepalives, &missing);
            }
            (Origin::Acquire { session, key, wait, responder }, Some(reply)) => {
                self.count_acquire(&key, &reply, events, &responder);
                self.acquire_answered(node.machine(), key, session.is_none(), wait, responder, reply);
            }
            (Origin::Release { claim, responder }, Some(reply)) => {
                if matches!(claim, Claim::Held(_)) && matches!(reply, Reply::NotHolder | Reply::NoSession) {
                    self.metrics.releases_by_non_owner.inc();
                }
                responder.answer(released(&reply, claim));
            }
            (Origin::Change { responder, .. }, None) => {
                responder.answer(Ok(Answer::Members(operator::members_view(node))));
            }
            (Origin::Own, _) => {}
            (origin, reply) => unreachable!("{origin:?} was answered with {reply:?}"),
        }
    }

    /// Counts an acquire once, however often it is repeated: a repetition finds the wait or the grant of the first, or
    /// what is left of it.
    fn count_acquire(&self, key: &Key, reply: &Reply, events: &[Event], responder: &Responder) {
        let is_first = match reply {
            Reply::Granted { session, token } => {
                let granted = Event::Granted { key: key.clone(), session: *session, token: *token };
                let is_first = events.contains(&granted);
                if is_first {
                    self.count_grant(responder.asked);
                }
                is_first
            }
            Reply::Queued { session, .. } => !self.waits.stands(&(*session, key.clone())),
            Reply::Gone => false,
            _ => true,
        };
        if is_first {
            self.metrics.acquire_attempts.inc();
        }
    }

    fn count_grant(&self, asked: Instant) {
        self.metrics.acquire_seconds.observe(asked.elapsed().as_secs_f64());
        self.metrics.grants.inc();
    }

    fn acquire_answered(
        &mut self,
        table: &LockTable,
        key: Key,
        once: bool,
        wait: Duration,
        responder: Responder,
        reply: Reply,
    ) {
        match reply {
            Reply::Granted { session, token } => {
                self.grant(responder, session, once, acquired(table, &key, session, token));
            }
            Reply::Queued { session, .. } => {
                // An acquire without a session of its own cannot be kept alive by anybody else.
                let ttl = table.session(session).map(|session| Duration::from_millis(session.ttl.0));
                let renew_every = ttl.filter(|_| once).map(|ttl| ttl / 3);
                let gone = responder.is_gone();
                let (connection, ends) = (responder.connection, responder.asked + wait);
                self.waits.add((session, key), responder, ends, renew_every);
                if gone {
                    self.disconnected(connection);
                }
            }
            Reply::Held { owner, token, queue, .. } => {
                let who = if owner.as_str().is_empty() { String::new() } else { format!(" by {owner}") };
                let message = format!("{key} is held{who} (token {token}); {queue} wait for it");
                let holder = HeldBy { owner: owner.to_string(), token: token.0 };
                let failure = Failure { holder: Some(holder), queue: Some(queue), ..Failure::new(Code::Held, message) };
                responder.answer(Err(failure));
            }
            Reply::Gone => {
                let message = "this acquire was done before, and its claim is gone; acquire again under a new number";
                responder.answer(Err(Failure::new(Code::Gone, message)));
            }
            Reply::NoSession => {
                responder.answer(Err(no_session()));
            }
            Reply::Opened { .. } | Reply::Closed | Reply::KeptAlive { .. } | Reply::Released | Reply::NotHolder => {
                unreachable!("an acquire was answered with {reply:?}")
            }
        }
    }

    /// Tells a client that it holds a lock. If nobody is there any more to hear it, and nobody else can know the
    /// session, the lock goes on to the next.
    fn grant(&mut self, responder: Responder, session: SessionId, once: bool, acquired: Result<Answer, Failure>) {
        let delivered = responder.answer(acquired);
        if !delivered && once {
            self.propose(Command::Close { session }, Origin::Own);
        }
    }

    /// Something changed that a client of this node may be waiting for.
    fn tell(&mut self, node: &Node<LockTable>, event: Event) {
        let table = node.machine();
        match event {
            Event::Granted { key, session, token } => {
                let place = (session, key);
                let Some(wait) = self.waits.remove(&place) else { return };
                let once = table.session(session).is_some_and(|session| session.once);
                let acquired = acquired(table, &place.1, session, token);
                if !wait.responders.is_empty() {
                    self.count_grant(wait.asked);
                } else if once {
                    self.propose(Command::Close { session }, Origin::Own);
                }
                for responder in wait.responders {
                    self.grant(responder, session, once, acquired.clone());
                }
            }
            Event::Withdrawn { key, session } => {
                let Some(wait) = self.waits.remove(&(session, key)) else { return };
                let ran_out = wait.ran_out();
                // Whoever is due is as good as gone, although a sweep may still be to come.
                let lives = table.session(session).is_some_and(|session| !session.is_due(node.clock().now));
                if ran_out && !wait.responders.is_empty() {
                    self.metrics.acquire_timeouts.inc();
                }
                for responder in wait.responders {
                    let failure = if ran_out {
                        Failure::new(Code::Timeout, "the wait ended before the lock was free")
                    } else if !lives {
                        no_session()
                    } else {
                        Failure::new(Code::Withdrawn, "the place in the queue was given up by another request")
                    };
                    responder.answer(Err(failure));
                }
            }
            Event::Expired { .. } => {
                self.metrics.expiries.inc();
            }
            Event::Released { .. } | Event::Closed { .. } => {}
        }
    }
}

impl Origin {
    /// The place in a queue that somebody who is there is asking for.
    fn place(&self) -> Option<Place> {
        match self {
            Origin::Acquire { session, key, wait, responder } if !wait.is_zero() && !responder.is_gone() => {
                Some(((*session)?, key.clone()))
            }
            _ => None,
        }
    }

    fn fail(self, failure: &Failure) {
        let responders: Vec<Responder> = match self {
            Origin::Open { responder, .. }
            | Origin::Close(responder)
            | Origin::Acquire { responder, .. }
            | Origin::Release { responder, .. }
            | Origin::Change { responder, .. } => vec![responder],
            Origin::KeepAlive(keepalives) => keepalives.into_iter().filter_map(|(_, responder)| responder).collect(),
            Origin::Own => Vec::new(),
        };
        for responder in responders {
            responder.answer(Err(failure.clone()));
        }
    }
}

/// The answer to every request that only a leader can serve.
pub(super) fn not_leading(leader: Option<LeaderView>) -> Failure {
    match &leader {
        Some(LeaderView { id, client_addr: Some(addr) }) => {
            let message = format!("node {id} leads; ask it at {addr}");
            Failure { leader, ..Failure::new(Code::NotLeader, message) }
        }
        _ => Failure::new(Code::NoLeader, "no leader is known at the moment; try again"),
    }
}

fn no_session() -> Failure {
    Failure::new(Code::NoSession, "the session does not exist: it expired, was closed, or never was")
}

/// A grant, as its client hears of it. The table may be some entries ahead of the grant; if the session has ended in
/// them, so has the grant.
fn acquired(table: &LockTable, key: &Key, id: SessionId, token: Token) -> Result<Answer, Failure> {
    let ttl_ms = table.session(id).ok_or_else(no_session)?.ttl.0;
    Ok(Answer::Acquired(Acquired { key: key.to_string(), token: token.0, session: wire_session(id), ttl_ms }))
}

fn released(reply: &Reply, claim: Claim) -> Result<Answer, Failure> {
    let done = if claim == Claim::Either { Answer::Withdrawn } else { Answer::Released };
    match reply {
        // A repetition: the claim that it dropped the first time is gone, as it was asked for.
        Reply::Released | Reply::Gone => Ok(done),
        // Whoever withdraws wants to have no claim, and has none.
        Reply::NotHolder | Reply::NoSession if claim == Claim::Either => Ok(done),
        _ => {
            let message = "the session does not hold the lock with this token; it was released before, or expired";
            Err(Failure::new(Code::NotHolder, message))
        }
    }
}

fn kept_alive(table: &LockTable, keepalives: Vec<(SessionId, Option<Responder>)>, missing: &[SessionId]) {
    for (id, responder) in keepalives {
        let Some(responder) = responder else { continue };
        let alive = table.session(id).filter(|_| !missing.contains(&id));
        let lease = alive.map(|session| SessionLease { session: wire_session(id), ttl_ms: session.ttl.0 });
        responder.answer(lease.map(Answer::Session).ok_or_else(no_session));
    }
}

#[cfg(test)]
mod tests;
