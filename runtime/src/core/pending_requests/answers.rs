//! The outcomes of proposals: answers to their requesters, and to the waiters that they concern.

use std::time::{Duration, Instant};

use palisade_client::wire::{Answer, Broken, Code, Failure, HeldBy, SessionLease, waiters};
use palisade_spec::lock::{
    Claim, Command, Event, Holder, Key, Keys, LockTable, Owner, Principal, Reply, Right, Rules, Sequence, SessionId,
    Token,
};
use palisade_spec::raft::Node;
use tracing::warn;

use super::PendingRequests;
use super::requester::{Renewer, Requester};
use crate::core::admission::present;
use crate::core::credential::Secret;
use crate::core::respond::Responder;
use crate::core::sessions::{acquired, grant_lost, no_session, not_holder, wrong_secret};
use crate::core::{access, transactions};
use crate::stopwatch::Stopwatch;

impl PendingRequests {
    /// The entry of a proposal is applied: answers its requester.
    pub(super) fn answer(
        &mut self,
        node: &Node<LockTable>,
        requester: Requester,
        reply: Option<Reply>,
        events: &[Event],
    ) {
        match (requester, reply) {
            (Requester::Client { command, secret, wait, responder }, Some(reply)) => {
                self.answer_client(node.machine(), command, secret, wait, responder, reply, events);
            }
            (Requester::KeepAlive(keepalives), Some(Reply::KeptAlive { missing })) => {
                kept_alive(node.machine(), keepalives, &missing);
            }
            (Requester::Change(_, responder), None) => self.changed.push(responder),
            (Requester::Withdraw(_) | Requester::CloseUnclaimed(_), _) => {}
            (requester, reply) => unreachable!("{requester:?} was answered with {reply:?}"),
        }
    }

    /// A client's command has this reply.
    #[expect(clippy::too_many_arguments, reason = "one caller, which has them in this form")]
    fn answer_client(
        &mut self,
        table: &LockTable,
        command: Command,
        secret: Secret,
        wait: Duration,
        responder: Responder,
        reply: Reply,
        events: &[Event],
    ) {
        match (command, reply) {
            (Command::Open { opening }, Reply::Opened { session }) => {
                self.count_session(session, &responder);
                let lease = SessionLease { session: secret.credential(session.number), ttl_ms: opening.ttl.0 };
                responder.answer(Ok(Answer::Session(lease)));
            }
            (Command::Close { session }, _) => {
                responder.answer(wrong_secret(table, session).map_or(Ok(Answer::SessionClosed), Err));
            }
            (Command::Acquire { request, session, .. }, reply) => {
                self.count_acquire(&request.keys, &reply, events, &responder);
                self.acquire_answered(table, request.keys, Acquirer::Session(session), secret, wait, responder, reply);
            }
            (Command::AcquireOnce { request, opening }, reply) => {
                self.count_acquire(&request.keys, &reply, events, &responder);
                if let Reply::Granted { session, .. } | Reply::Queued { session, .. } = &reply {
                    self.count_session(*session, &responder);
                }
                let acquirer = Acquirer::Once(opening.principal);
                self.acquire_answered(table, request.keys, acquirer, secret, wait, responder, reply);
            }
            (Command::Release { session, sequence, keys, claim }, reply) => {
                if matches!(claim, Claim::Held(_)) && matches!(reply, Reply::NotHolder | Reply::NoSession) {
                    self.metrics.releases_by_non_owner.inc();
                }
                responder.answer(released(table, (session, sequence), &keys, claim, &reply));
            }
            (Command::Proclaim { session, .. }, reply) => {
                responder.answer(proclaimed(table, session, &reply));
            }
            (Command::Break { key, token, .. }, Reply::Broken { session, principal }) => {
                let (key, principal) = (key.to_string(), principal.to_string());
                let broken = Broken { key, token: token.0, session: session.number, principal };
                responder.answer(Ok(Answer::Broken(broken)));
            }
            (Command::Break { key, token, .. }, Reply::NotHolder) => {
                responder.answer(Err(not_held_by(table, &key, token)));
            }
            (Command::Break { key, token, principal }, Reply::Denied) => {
                responder.answer(Err(break_denied(table, &principal, &key, token)));
            }
            (Command::SetAccess { principal, rules, .. }, reply) => {
                responder.answer(access_set(table, &principal, rules.as_deref(), &reply));
            }
            (Command::Transact { writer, transaction }, reply) => {
                responder.answer(transactions::answer(table, &writer, &transaction, reply));
            }
            (command, reply) => unreachable!("{command:?} was answered with {reply:?}"),
        }
    }

    /// Counts a session that this client has opened.
    fn count_session(&mut self, session: SessionId, responder: &Responder) {
        if let Some(client) = responder.client.as_ref().filter(|_| self.quotas.limit_sessions_of_clients()) {
            self.openers.opened(session, client);
        }
    }

    /// Counts an acquire once, however often it is repeated: a repetition finds the wait or the
    /// grant of the first, or an error if that claim is gone.
    fn count_acquire(&self, keys: &Keys, reply: &Reply, events: &[Event], responder: &Responder) {
        let is_first = match reply {
            Reply::Granted { session, token } => {
                let is_it = |event: &Event| match event {
                    Event::Granted { key: granted, session: to, token: with, .. } => {
                        (granted, to, with) == (keys.first(), session, token)
                    }
                    _ => false,
                };
                let is_first = events.iter().any(is_it);
                if is_first {
                    self.count_grant(responder.arrived);
                }
                is_first
            }
            Reply::Queued { session, .. } => !self.waits.contains(*session, keys),
            Reply::Gone => false,
            _ => true,
        };
        if is_first {
            self.metrics.acquire_attempts.inc();
        }
    }

    fn count_grant(&self, arrived: Instant) {
        Stopwatch::since(arrived).observe(&self.metrics.acquire_seconds);
        self.metrics.grants.inc();
    }

    /// An acquire has this reply.
    #[expect(clippy::too_many_arguments, reason = "two callers, which have them in this form")]
    fn acquire_answered(
        &mut self,
        table: &LockTable,
        keys: Keys,
        acquirer: Acquirer,
        secret: Secret,
        wait: Duration,
        responder: Responder,
        reply: Reply,
    ) {
        let once = matches!(acquirer, Acquirer::Once(_));
        match reply {
            Reply::Granted { session, token } => {
                self.grant(responder, session, once, acquired(table, &keys, session, secret, token));
            }
            Reply::Queued { session, .. } => {
                // A once-session is known to this node only, so this node renews it.
                let ttl = table.session(session).map(|session| Duration::from_millis(session.ttl.0));
                let renew_every = ttl.filter(|_| once).map(|ttl| ttl / 3);
                let gone = responder.is_gone();
                let (connection, arrived) = (responder.connection, responder.arrived);
                self.waits.add(session, keys, secret, responder, arrived + wait, renew_every);
                if gone {
                    self.disconnected(connection, arrived);
                }
            }
            Reply::Held { key, owner, token, queue, .. } => {
                responder.answer(Err(held(&key, &owner, token, queue)));
            }
            Reply::Gone => {
                let message = "this acquire was done before, and its claim is gone; acquire again with a new number";
                responder.answer(Err(Failure::new(Code::Gone, message)));
            }
            Reply::NoSession => {
                let Acquirer::Session(session) = acquirer else {
                    unreachable!("an acquire that opens a session has one");
                };
                responder.answer(Err(no_session(table, session)));
            }
            Reply::Denied => {
                let principal = match acquirer {
                    Acquirer::Once(principal) => Some(principal),
                    Acquirer::Session(id) => table.session(id).map(|session| session.principal.clone()),
                };
                responder.answer(Err(acquire_denied(table, principal.as_ref(), &keys)));
            }
            Reply::OtherSize { key, mode } => {
                let is =
                    mode.as_semaphore().map_or("no semaphore".into(), |(_, of)| format!("a semaphore of {of} permits"));
                let message =
                    format!("{key} is {is} while it is held or waited for; acquire it so, or when it is free");
                responder.answer(Err(Failure::new(Code::Invalid, message)));
            }
            Reply::OtherClaim { key } => {
                let message = format!(
                    "the session has a claim on {key} already, in another mode or together with other keys; release it first"
                );
                responder.answer(Err(Failure::new(Code::Invalid, message)));
            }
            Reply::Opened { .. }
            | Reply::Closed
            | Reply::KeptAlive { .. }
            | Reply::Released
            | Reply::StillHeld { .. }
            | Reply::Proclaimed
            | Reply::NotHolder
            | Reply::Broken { .. }
            | Reply::AccessSet { .. }
            | Reply::AccessChanged { .. }
            | Reply::Written { .. }
            | Reply::NotHeld { .. }
            | Reply::OtherVersion { .. }
            | Reply::Fenced { .. }
            | Reply::RecordTooLarge { .. }
            | Reply::StoreFull { .. } => {
                unreachable!("an acquire was answered with {reply:?}")
            }
        }
    }

    /// Answers a client that holds a lock. If the client is gone and no other client can know the
    /// session, the session is closed and the next waiter gets the lock.
    fn grant(&mut self, responder: Responder, session: SessionId, once: bool, acquired: Result<Answer, Failure>) {
        let delivered = responder.answer(acquired);
        if !delivered && once {
            self.unclaimed.push(session);
        }
    }

    /// Handles an event that waits of this node's clients may depend on.
    pub(super) fn handle_event(&mut self, node: &Node<LockTable>, event: &Event) {
        let table = node.machine();
        match event {
            Event::Granted { key, session, token, .. } => {
                // The first of the keys answers for all.
                let Some(wait) = self.waits.remove(*session, key) else { return };
                // A once-session whose client has been told of it may have further claims, and its wait for one of
                // them ends as every other.
                let once = wait.is_of_unknown_session();
                let acquired = acquired(table, wait.keys(), *session, wait.secret(), *token);
                if !wait.is_deserted() {
                    self.count_grant(wait.arrived);
                } else if once {
                    self.unclaimed.push(*session);
                }
                for responder in wait.into_responders() {
                    self.grant(responder, *session, once, acquired.clone());
                }
            }
            Event::Withdrawn { key, session } => {
                let Some(wait) = self.waits.remove(*session, key) else { return };
                let ran_out = wait.ran_out();
                // A due session counts as ended, although the sweep that ends it may still be to
                // come.
                let lives = table.session(*session).is_some_and(|session| !session.is_due(node.clock()));
                if ran_out && !wait.is_deserted() {
                    self.metrics.acquire_timeouts.inc();
                }
                for responder in wait.into_responders() {
                    let failure = if ran_out {
                        Failure::new(Code::Timeout, "the wait ended before the lock was free")
                    } else if !lives {
                        no_session(table, *session)
                    } else {
                        Failure::new(Code::Withdrawn, "another request for the same session and key withdrew this wait")
                    };
                    responder.answer(Err(failure));
                }
            }
            // The withdrawal of this waiter follows, and finds no wait.
            Event::Denied { key, session, principal } => {
                let denied = access::denied(table.access(), principal, Right::Acquire, key.as_str());
                let Some(wait) = self.waits.remove(*session, key) else { return };
                for responder in wait.into_responders() {
                    responder.answer(Err(denied.clone()));
                }
            }
            Event::Expired { session, .. } => {
                self.openers.ended(*session);
                self.metrics.expiries.inc();
            }
            Event::Closed { session } => self.openers.ended(*session),
            Event::Broken { .. }
            | Event::Released { .. }
            | Event::Proclaimed { .. }
            | Event::Put { .. }
            | Event::Deleted { .. }
            | Event::Queued { .. }
            | Event::Overdue { .. } => {}
        }
    }
}

/// The refusal of an acquire that does not wait, or not in so long a queue.
fn held(key: &Key, owner: &Owner, token: Option<Token>, queue: u64) -> Failure {
    let by = if owner.as_str().is_empty() { String::new() } else { format!(" by {owner}") };
    let message = match token {
        Some(token) => format!("{key} is held{by} (token {token}); {}", waiters(queue)),
        None => format!("{key} is waited for{by}; {}", waiters(queue)),
    };
    let holder = token.map(|token| HeldBy { owner: owner.to_string(), token: token.0 });
    Failure { holder, queue: Some(queue), ..Failure::new(Code::Held, message) }
}

/// The refusal of a break. The table keeps no grants that have ended, so it cannot tell whether an
/// earlier attempt of this break ended the grant, or whether the token was that of another lock.
fn not_held_by(table: &LockTable, key: &Key, token: Token) -> Failure {
    let holder = table.lock(key).map_or_else(
        || "no session holds it".to_owned(),
        |lock| match &lock.holders[..] {
            [] => "no session holds it".to_owned(),
            [holder] => format!("it is held with token {}", holder.token),
            [first, others @ ..] => format!("it is held with token {} and {} others", first.token, others.len()),
        },
    );
    let rest = if token < table.next_token() {
        "if the lock had a grant with that token, the grant has ended: it may have been broken by an earlier attempt, \
         released, or ended with its session"
    } else {
        "no grant has had that token yet; nothing was broken"
    };
    Failure::new(Code::NotHolder, format!("{key} is not held with token {token}: {holder}; {rest}"))
}

/// The session that acquires.
enum Acquirer {
    /// A session that exists.
    Session(SessionId),
    /// A session that the acquire opens for itself, of this principal.
    Once(Principal),
}

/// The failure of an acquire that the access rules denied. The session of the principal may have ended
/// since; then its client learns nothing of the rules.
fn acquire_denied(table: &LockTable, principal: Option<&Principal>, keys: &Keys) -> Failure {
    match principal {
        Some(principal) => {
            let key = first_denied(table, principal, Right::Acquire, keys);
            access::denied(table.access(), principal, Right::Acquire, key.as_str())
        }
        None => Failure::new(Code::Denied, format!("the access rules do not permit this client to acquire {keys}")),
    }
}

/// The first of the keys that the access rules deny.
fn first_denied<'a>(table: &LockTable, principal: &Principal, right: Right, keys: &'a Keys) -> &'a Key {
    let is_denied = |key: &&Key| !table.access().permits(principal, right, key.as_str());
    keys.iter().find(is_denied).unwrap_or(keys.first())
}

/// The failure of a break that the access rules denied. It names the key of the request, or another key of
/// the grant that the client may read: of the others the client learns only that there are some.
fn break_denied(table: &LockTable, principal: &Principal, key: &Key, token: Token) -> Failure {
    let permits = |right, key: &Key| table.access().permits(principal, right, key.as_str());
    let held = table.lock(key).and_then(|lock| lock.holder_with(token));
    let keys = held.filter(|_| permits(Right::Break, key)).map(|holder| holder.keys(key));
    let denied: Vec<&Key> = keys.iter().flat_map(Keys::iter).filter(|key| !permits(Right::Break, key)).collect();
    match denied.iter().find(|key| permits(Right::Read, key)) {
        None if !denied.is_empty() => access::other_keys_denied(principal, Right::Break, key.as_str()),
        named => access::denied(table.access(), principal, Right::Break, named.copied().unwrap_or(key).as_str()),
    }
}

/// The answer to a change of the access rules; a change that was made is logged.
fn access_set(
    table: &LockTable,
    principal: &Principal,
    rules: Option<&Rules>,
    reply: &Reply,
) -> Result<Answer, Failure> {
    match reply {
        Reply::AccessSet { revision } => {
            let (operator, enabled, count) =
                (principal.as_str(), rules.is_some(), rules.map_or(0, |rules| rules.rules().len()));
            warn!(operator, revision = revision.0, enabled, rules = count, "the access rules were set");
            Ok(Answer::Access(access::show(*revision, rules)))
        }
        Reply::AccessChanged { revision } => Err(access::changed(*revision)),
        Reply::Denied => Err(access::change_denied(table.access(), principal, rules)),
        reply => unreachable!("a change of the access rules was answered with {reply:?}"),
    }
}

fn released(
    table: &LockTable,
    (id, sequence): (SessionId, Option<Sequence>),
    keys: &Keys,
    claim: Claim,
    reply: &Reply,
) -> Result<Answer, Failure> {
    if *reply == Reply::NoSession
        && let Some(failure) = wrong_secret(table, id)
    {
        return Err(failure);
    }
    let done = if claim == Claim::Either { Answer::Withdrawn } else { Answer::Released };
    match reply {
        Reply::Released => Ok(done),
        Reply::StillHeld { holds } => Ok(Answer::StillHeld { holds: *holds }),
        Reply::Gone | Reply::NotHolder if claim == Claim::Either && has_other_claim(table, id, sequence, keys) => {
            let message = format!(
                "the session's claim is not on exactly {keys}: name all keys of the acquire, which are withdrawn together"
            );
            Err(Failure::new(Code::Invalid, message))
        }
        // A repetition: the first one has dropped the claim, as requested.
        Reply::Gone => Ok(done),
        // A withdrawal asks for no claim, and the session has none.
        Reply::NotHolder | Reply::NoSession if claim == Claim::Either => Ok(done),
        _ => Err(not_holder()),
    }
}

/// Whether a withdrawal, which has found no claim on exactly these keys, has met one on some of them. A claim that a later
/// operation with a number has made is none of its business.
fn has_other_claim(table: &LockTable, id: SessionId, sequence: Option<Sequence>, keys: &Keys) -> bool {
    let is_last = table.session(id).is_some_and(|session| sequence.is_none() || session.last == sequence);
    let is_other = |key| present(table, id, key).is_some_and(|claim| claim.keys != keys.as_slice());
    is_last && keys.iter().any(is_other)
}

fn proclaimed(table: &LockTable, id: SessionId, reply: &Reply) -> Result<Answer, Failure> {
    match reply {
        Reply::Proclaimed => Ok(Answer::Proclaimed),
        Reply::NoSession => Err(wrong_secret(table, id).unwrap_or_else(not_holder)),
        _ => Err(not_holder()),
    }
}

/// Whether the session holds the lock with this token. The holders are in the order of their grants, and so of their
/// tokens: a semaphore may have many, and each renews.
fn has_grant(table: &LockTable, id: SessionId, key: &Key, token: Token) -> bool {
    let holders = table.lock(key).map(|lock| &lock.holders);
    let found = |holders: &[Holder]| holders.binary_search_by_key(&token, |holder| holder.token).ok();
    holders.is_some_and(|holders| found(holders).is_some_and(|index| holders[index].session == id))
}

fn kept_alive(table: &LockTable, keepalives: Vec<(SessionId, Renewer)>, missing: &[SessionId]) {
    for (id, renewer) in keepalives {
        let Renewer::Client { secret, grant, responder } = renewer else { continue };
        let alive = table.session(id).filter(|_| !missing.contains(&id));
        let lease = alive.map(|session| SessionLease { session: secret.credential(id.number), ttl_ms: session.ttl.0 });
        let answer = lease.map(Answer::Session).ok_or_else(|| no_session(table, id));
        // A grant never returns: if the table, which may be ahead of the renewal, has it, the renewal found it.
        let lost = grant.filter(|(key, token)| !has_grant(table, id, key, *token));
        responder
            .answer(answer.and_then(|answer| lost.map_or(Ok(answer), |(key, token)| Err(grant_lost(&key, token)))));
    }
}
