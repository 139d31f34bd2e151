//! Clients that speak the protocol themselves, one request a connection, and record all their
//! operations.
//!
//! Each has one session at a time, whose ID the history shows. It numbers its operations, and
//! repeats an unanswered one under the same number at whatever node may be the leader. So the
//! history has every event that may end one of its claims, and when a read shows its session in a
//! queue, checkers know the order of the waiters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::wire::{self, Code, Consistency, Failure, LockView, Op, SessionId};
use palisade_client::{Error, margin};
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::sleep;

use super::Load;
use super::counts::increment;
use super::lock_spec::{KEYS, LockSpec, any_key, key};
use super::records::COMPARES;
use crate::{shown, transactions};
use palisade_history::{self as history, Answer, Call, Note, Pending, Refusal};

/// Time that an answer may take beyond the requested wait.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a request is repeated.
const RETRY_BOUND: Duration = Duration::from_secs(4);
/// How many of the grants that a reader reads it breaks.
const BREAKS: f64 = 0.15;
/// Bound for all of the last reads, which begin after the faults.
const LAST_READS: Duration = Duration::from_secs(30);
/// Pause before a repetition.
const PAUSE: Duration = Duration::from_millis(20);

/// Outcome of a request, which may have been sent several times.
enum Attempted {
    Done(wire::Answer),
    /// Refused, and never done.
    Refused(Failure),
    /// The outcome is unknown.
    Unknown(String),
}

/// An acquire of a session with this time-to-live.
#[derive(Clone, Copy)]
struct Acquire<'a> {
    spec: &'a LockSpec,
    session: SessionId,
    ttl: Duration,
    wait_ms: u64,
    reentrant: bool,
    value: Option<&'a str>,
}

/// A client's connection to the cluster.
struct Connection<'f> {
    load: &'f Load,
    random: SmallRng,
    name: history::Client,
    /// Address of the presumed leader.
    leader: Option<String>,
}

impl<'f> Connection<'f> {
    fn new(load: &'f Load, random: SmallRng, name: &str) -> Connection<'f> {
        Connection { load, random, name: name.into(), leader: None }
    }

    fn any_endpoint(&mut self) -> String {
        let endpoints = self.load.endpoints.lock();
        endpoints[self.random.random_range(0..endpoints.len())].clone()
    }

    /// Sends a request until it is answered, or the time is over. A waiter loses its queue position
    /// with its connection.
    async fn send_until_answered(&mut self, op: Op, pending: &Pending, wait: Duration) -> Attempted {
        let started = Instant::now();
        // A request that was sent and not answered may still be done.
        let mut in_doubt = None;
        loop {
            let endpoint = self.leader.take().unwrap_or_else(|| self.any_endpoint());
            let left = wait.saturating_sub(started.elapsed());
            let why = match self.load.security.ask(&endpoint, op.clone(), left + PATIENCE).await {
                Ok(answer) => {
                    self.leader = Some(endpoint);
                    return Attempted::Done(answer);
                }
                Err(Error::Refused(failure)) => match failure.error {
                    Code::NotLeader => {
                        self.leader = failure.leader.and_then(|leader| leader.client_addr);
                        failure.message
                    }
                    // A leader without disk space has done nothing either.
                    Code::NoLeader | Code::NoSpace => failure.message,
                    Code::LeadershipLost | Code::ShuttingDown | Code::Overloaded => {
                        if let Op::Acquire { .. } = op {
                            pending.note(Note::Disconnected);
                        }
                        in_doubt.insert(failure.message).clone()
                    }
                    _ => {
                        self.leader = Some(endpoint);
                        // An earlier attempt may have been done, and ended the session: then this
                        // refusal proves nothing.
                        return if in_doubt.is_some() {
                            Attempted::Unknown(failure.message)
                        } else {
                            Attempted::Refused(failure)
                        };
                    }
                },
                Err(error) => {
                    if let Op::Acquire { .. } = op {
                        pending.note(Note::Disconnected);
                    }
                    in_doubt.insert(error.to_string()).clone()
                }
            };
            if started.elapsed() > wait + RETRY_BOUND {
                return in_doubt.map_or(Attempted::Refused(Failure::new(Code::NoLeader, why)), Attempted::Unknown);
            }
            increment(&self.load.counts.repeated);
            sleep(PAUSE).await;
        }
    }

    /// Opens a session. Repeating the request could open two, so it is sent once.
    async fn open(&mut self, ttl: Duration) -> Option<SessionId> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let pending = self.load.recorder.invoke(&self.name, Call::OpenSession { ttl_ms });
        let endpoint = self.leader.clone().unwrap_or_else(|| self.any_endpoint());
        let op = Op::OpenSession(wire::OpenSession { ttl_ms, owner: self.name.to_string() });
        match self.load.security.ask(&endpoint, op, PATIENCE).await {
            Ok(wire::Answer::Session(lease)) => {
                self.leader = Some(endpoint);
                pending.ok(Answer::Opened { session: shown::session(lease.session) });
                Some(lease.session)
            }
            Ok(other) => {
                self.unexpected(&other);
                None
            }
            Err(Error::Refused(failure))
                if matches!(failure.error, Code::NotLeader | Code::NoLeader | Code::NoSpace) =>
            {
                self.leader = failure.leader.and_then(|leader| leader.client_addr);
                pending.fail(Refusal::NotTaken { message: failure.message });
                None
            }
            Err(error) => {
                self.leader = None;
                pending.info(error.to_string());
                None
            }
        }
    }

    /// Acquires a lock, or several together, uses it, and releases it. `false` if the session is no longer
    /// usable.
    async fn lock_once(&mut self, session: SessionId, ttl: Duration, number: &mut u64) -> bool {
        let wait_ms = if self.random.random_bool(0.2) { 0 } else { self.random.random_range(50..2_500) };
        let spec = LockSpec::draw(&mut self.random, wait_ms > 0);
        let reentrant = self.random.random_bool(0.3);
        let value = self.random.random_bool(0.4).then(|| self.load.new_text());
        let request = Acquire { spec: &spec, session, ttl, wait_ms, reentrant, value: value.as_deref() };
        let Some((token, mut good_until)) = self.acquire(request, number).await else { return false };
        let Some(token) = token else { return true };
        let mut holds = 1;
        if reentrant {
            let request = Acquire { wait_ms: 0, ..request };
            let Some((again, until)) = self.acquire(request, number).await else { return false };
            match again {
                Some(again) if again == token => {
                    increment(&self.load.counts.holds);
                    (holds, good_until) = (2, until);
                }
                // An operator has broken the grant meanwhile; its successor is given up with the session.
                Some(_) => return false,
                None => {}
            }
        }
        let (load, name) = (self.load, self.name.clone());
        let key = spec.keys[self.random.random_range(0..spec.keys.len())].clone();
        let access = || load.access(&key, &spec, token, &name, || Instant::now() < good_until);
        access();
        if self.random.random_bool(0.3) {
            self.proclaim(&key, session, token, number).await;
        }
        if self.random.random_bool(0.03) {
            increment(&load.counts.pauses);
            std::thread::sleep(ttl * 2);
        } else {
            sleep(Duration::from_millis(self.random.random_range(0..15))).await;
        }
        access();
        if self.random.random_bool(0.4) {
            self.write_record(&key, &spec, session, token, number).await;
        }
        for left in (0..holds).rev() {
            if !self.release(&spec, session, token, number, left).await {
                return false;
            }
        }
        true
    }

    /// `None` if the session is no longer usable; otherwise the token, if granted, and the time
    /// until which the client relies on the lease.
    async fn acquire(&mut self, request: Acquire<'_>, number: &mut u64) -> Option<(Option<u64>, Instant)> {
        let Acquire { spec, session, ttl, wait_ms, reentrant, value } = request;
        *number += 1;
        let call = Call::Acquire {
            keys: spec.history_keys(),
            session: Some(shown::session(session)),
            number: Some(*number),
            wait_ms,
            ttl_ms: None,
            mode: spec.mode,
            max_queue: spec.max_queue,
            reentrant,
            value: value.map(Into::into),
        };
        let pending = self.load.recorder.invoke(&self.name, call);
        // The same margin as in the Rust client.
        let good_until = Instant::now() + ttl.saturating_sub(margin(ttl));
        let options = spec.wire_options(session, wait_ms, reentrant);
        let options = wire::Acquire { value: value.map(str::to_owned), ..options };
        let op = Op::Acquire { keys: spec.keys[..].into(), options, number: Some(*number) };
        let counts = &self.load.counts;
        match self.send_until_answered(op, &pending, Duration::from_millis(wait_ms)).await {
            Attempted::Done(wire::Answer::Acquired(acquired)) => {
                counts.count_grant(spec);
                if acquired.keys.as_slice() != spec.keys {
                    let complaint = format!("{} asked for {:?}, and holds {}", self.name, spec.keys, acquired.keys);
                    self.load.complaints.lock().push(complaint);
                }
                pending.ok(Answer::Granted { session: shown::session(session), token: acquired.token });
                Some((Some(acquired.token), good_until))
            }
            Attempted::Done(other) => {
                self.unexpected(&other);
                None
            }
            Attempted::Refused(failure) => {
                let refusal = match (failure.error, failure.holder) {
                    (Code::Held, holder) => {
                        counts.count_held(wait_ms > 0);
                        Refusal::Held { token: holder.map(|holder| holder.token) }
                    }
                    (Code::Timeout, _) => {
                        increment(&counts.timed_out);
                        Refusal::Timeout
                    }
                    (Code::NoLeader, _) => {
                        increment(&counts.unreachable);
                        Refusal::NotTaken { message: failure.message }
                    }
                    (Code::NoSession, _) => {
                        increment(&counts.lost);
                        pending.fail(Refusal::NoSession);
                        return None;
                    }
                    // Gone, withdrawn: something was done, but it is not certain what.
                    _ => {
                        pending.info(failure.message);
                        return Some((None, good_until));
                    }
                };
                pending.fail(refusal);
                Some((None, good_until))
            }
            Attempted::Unknown(why) => {
                increment(&counts.unreachable);
                pending.info(why);
                // The session may hold the lock without knowing it: only the session's end frees
                // it.
                None
            }
        }
    }

    /// Gives a grant that the session holds, or held, another value.
    async fn proclaim(&mut self, key: &str, session: SessionId, token: u64, number: &mut u64) {
        *number += 1;
        let value = self.load.new_text();
        let (holder, given) = (shown::session(session), value.as_str().into());
        let call = Call::Proclaim { key: key.into(), session: holder, token, value: given, number: Some(*number) };
        let pending = self.load.recorder.invoke(&self.name, call);
        let proclamation = wire::Proclaim { session, token, value };
        let op = Op::Proclaim { key: key.to_owned(), proclamation, number: Some(*number) };
        match self.send_until_answered(op, &pending, Duration::ZERO).await {
            Attempted::Done(wire::Answer::Proclaimed) => {
                increment(&self.load.counts.proclaimed);
                pending.ok(Answer::Proclaimed);
            }
            Attempted::Done(other) => self.unexpected(&other),
            Attempted::Refused(failure) => match failure.error {
                Code::NotHolder => pending.fail(Refusal::NotHolder),
                Code::NoSession => pending.fail(Refusal::NoSession),
                Code::NoLeader => pending.fail(Refusal::NotTaken { message: failure.message }),
                _ => pending.info(failure.message),
            },
            Attempted::Unknown(why) => pending.info(why),
        }
    }

    /// Changes the record of a lock that the session holds, or held.
    async fn write_record(&mut self, key: &str, spec: &LockSpec, session: SessionId, token: u64, number: &mut u64) {
        let read = if self.random.random_bool(COMPARES) { self.read_record(key).await } else { None };
        *number += 1;
        let mut call = self.load.draw_transaction(key, spec, token, read, &mut self.random);
        if let Call::WriteRecord { token: held, session: writer, number: given, .. } = &mut call {
            (*held, *writer, *given) = (Some(token), Some(shown::session(session)), Some(*number));
        }
        let pending = self.load.recorder.invoke(&self.name, call.clone());
        let transaction = wire::Transaction { session: Some(session), ..transactions::on_wire(&call) };
        let op = Op::Transact { transaction, number: Some(*number) };
        let counts = &self.load.counts;
        match self.send_until_answered(op, &pending, Duration::ZERO).await {
            Attempted::Done(wire::Answer::Written { version }) => {
                counts.count_change(&call);
                return pending.ok(Answer::Written { version });
            }
            Attempted::Done(other) => self.unexpected(&other),
            Attempted::Refused(failure) => match failure.error {
                Code::StaleToken => pending.fail(Refusal::StaleToken),
                Code::OtherVersion => self.load.end_by_other_version(pending, &self.name, failure),
                Code::NoSession => pending.fail(Refusal::NoSession),
                Code::NoLeader => pending.fail(Refusal::NotTaken { message: failure.message }),
                _ => pending.info(failure.message),
            },
            Attempted::Unknown(why) => pending.info(why),
        }
        increment(&counts.not_changed);
    }

    /// Reads a record from the leader (linearizable). Returns its version, and 0 if it does not exist, if the read was
    /// answered.
    async fn read_record(&mut self, key: &str) -> Option<u64> {
        let pending = self.load.recorder.invoke(&self.name, Call::ReadRecord { record: key.into(), stale: false });
        let op = Op::ShowRecord { key: key.to_owned(), consistency: Consistency::Linearizable };
        let record = match self.send_until_answered(op, &pending, Duration::ZERO).await {
            Attempted::Done(wire::Answer::Record(record)) => Some(record),
            Attempted::Refused(failure) if failure.error == Code::NoRecord => None,
            Attempted::Done(other) => {
                self.unexpected(&other);
                return None;
            }
            Attempted::Refused(failure) => {
                pending.fail(Refusal::NotTaken { message: failure.message });
                return None;
            }
            Attempted::Unknown(why) => {
                pending.info(why);
                return None;
            }
        };
        increment(&self.load.counts.record_reads);
        pending.ok(record.as_ref().map_or(Answer::NoRecord, shown::record));
        Some(record.map_or(0, |record| record.version))
    }

    /// Releases a lock, so that it is held so many times still. `false` if the session is no longer usable.
    async fn release(&mut self, spec: &LockSpec, session: SessionId, token: u64, number: &mut u64, left: u32) -> bool {
        *number += 1;
        let (keys, holder) = (spec.history_keys(), shown::session(session));
        let call = Call::Release { keys, session: holder, token, number: Some(*number) };
        let pending = self.load.recorder.invoke(&self.name, call);
        let grant = wire::Release { session, token };
        let op = Op::Release { keys: spec.keys[..].into(), grant, number: Some(*number) };
        let counts = &self.load.counts;
        match self.send_until_answered(op, &pending, Duration::ZERO).await {
            Attempted::Done(wire::Answer::Released) if left == 0 => {
                increment(&counts.releases);
                pending.ok(Answer::Released);
                true
            }
            Attempted::Done(wire::Answer::StillHeld { holds }) if holds == left => {
                pending.ok(Answer::StillHeld { holds });
                true
            }
            Attempted::Done(other) => {
                self.unexpected(&other);
                false
            }
            Attempted::Refused(failure) => {
                increment(&counts.lost);
                match failure.error {
                    Code::NotHolder => pending.fail(Refusal::NotHolder),
                    Code::NoSession => pending.fail(Refusal::NoSession),
                    Code::NoLeader => pending.fail(Refusal::NotTaken { message: failure.message }),
                    _ => pending.info(failure.message),
                }
                false
            }
            Attempted::Unknown(why) => {
                increment(&counts.unreachable);
                pending.info(why);
                false
            }
        }
    }

    /// Closes a session. Repeating the request is harmless.
    async fn close(&mut self, session: SessionId) {
        let pending = self.load.recorder.invoke(&self.name, Call::CloseSession { session: shown::session(session) });
        match self.send_until_answered(Op::CloseSession { session }, &pending, Duration::ZERO).await {
            Attempted::Done(wire::Answer::SessionClosed) => pending.ok(Answer::Closed),
            Attempted::Done(other) => self.unexpected(&other),
            Attempted::Refused(failure) => pending.fail(Refusal::NotTaken { message: failure.message }),
            Attempted::Unknown(why) => pending.info(why),
        }
    }

    /// Reads a lock from the leader (linearizable). Returns it, if the read was answered.
    async fn read_linearizable(&mut self, key: &str) -> Option<LockView> {
        let pending = self.load.recorder.invoke(&self.name, Call::Read { key: key.into(), stale: false });
        let op = Op::ShowLock { key: key.to_owned(), consistency: Consistency::Linearizable };
        match self.send_until_answered(op, &pending, Duration::ZERO).await {
            Attempted::Done(wire::Answer::Lock(lock)) => {
                pending.ok(shown::lock(&lock, None));
                return Some(lock);
            }
            Attempted::Done(other) => self.unexpected(&other),
            Attempted::Refused(failure) => pending.fail(Refusal::NotTaken { message: failure.message }),
            Attempted::Unknown(why) => pending.info(why),
        }
        None
    }

    /// Breaks the grant of a lock, as an operator does. A repetition names the same grant, so it can
    /// break no other.
    async fn break_grant(&mut self, key: &str, token: u64) {
        self.load.broken.lock().insert(token);
        let pending = self.load.recorder.invoke(&self.name, Call::Break { key: key.into(), token });
        let order = wire::Break { token, reason: "torture".to_owned() };
        let op = Op::Break { key: key.to_owned(), order };
        let counts = &self.load.counts;
        match self.send_until_answered(op, &pending, Duration::ZERO).await {
            Attempted::Done(wire::Answer::Broken(broken)) => {
                increment(&counts.broken);
                pending.ok(Answer::Broken { session: shown::numbered_session(broken.session) });
            }
            Attempted::Done(other) => self.unexpected(&other),
            Attempted::Refused(failure) if failure.error == Code::NotHolder => {
                increment(&counts.not_broken);
                pending.fail(Refusal::NotHolder);
            }
            Attempted::Refused(failure) => pending.fail(Refusal::NotTaken { message: failure.message }),
            Attempted::Unknown(why) => pending.info(why),
        }
    }

    /// Reads a lock from any node (stale).
    async fn read_stale(&mut self, key: &str) {
        let endpoint = self.any_endpoint();
        let pending = self.load.recorder.invoke(&self.name, Call::Read { key: key.into(), stale: true });
        let op = Op::ShowLock { key: key.to_owned(), consistency: Consistency::Stale };
        match self.load.security.ask(&endpoint, op, PATIENCE).await {
            Ok(wire::Answer::StaleLock(stale)) => pending.ok(shown::lock(&stale.view, stale.age_ms)),
            Ok(other) => self.unexpected(&other),
            Err(error) => pending.info(error.to_string()),
        }
    }

    fn unexpected(&self, answer: &wire::Answer) {
        let complaint = format!("{} got an answer of the wrong kind: {answer:?}", self.name);
        self.load.complaints.lock().push(complaint);
    }
}

/// Runs a plain client.
pub(super) async fn run_client(load: &Arc<Load>, random: SmallRng, number: u64) {
    let mut connection = Connection::new(load, random, &format!("plain-{number}"));
    while !load.stops() {
        let ttl = Duration::from_millis(connection.random.random_range(1_000..5_000));
        let Some(session) = connection.open(ttl).await else {
            sleep(PAUSE).await;
            continue;
        };
        let (mut numbers, mut usable) = (0, true);
        for _ in 0..connection.random.random_range(5..40) {
            usable = usable && !load.stops() && connection.lock_once(session, ttl, &mut numbers).await;
            if !usable {
                break;
            }
            sleep(Duration::from_millis(connection.random.random_range(0..20))).await;
        }
        // Some clients leave their session open. A client that does not know what it holds must
        // close it.
        if !usable || connection.random.random_bool(0.8) {
            connection.close(session).await;
        }
    }
}

/// Runs a reader.
pub(super) async fn run_reader(load: &Arc<Load>, random: SmallRng, number: u64) {
    let mut connection = Connection::new(load, random, &format!("reader-{number}"));
    while !load.stops() {
        let key = any_key(&mut connection.random);
        if connection.random.random_bool(0.7) {
            let shown = connection.read_linearizable(&key).await.unwrap_or_default().holders;
            let held = (!shown.is_empty()).then(|| shown[connection.random.random_range(0..shown.len())].token);
            if let Some(token) = held.filter(|_| connection.random.random_bool(BREAKS)) {
                // Some operators mistake the token: that of the grant before, or of the next one.
                let mistake = connection.random.random_range(0..8);
                let token = [token - 1, token + 1].get(mistake).copied().unwrap_or(token);
                connection.break_grant(&key, token).await;
            }
        } else if connection.random.random_bool(0.4) {
            connection.read_record(&key).await;
        } else {
            connection.read_stale(&key).await;
        }
        sleep(Duration::from_millis(connection.random.random_range(0..30))).await;
    }
}

/// Reads every lock and every record. Each read is repeated until it is answered: without its answer the history may
/// lack what would show that an acknowledged change is lost.
pub(super) async fn read_all(load: &Arc<Load>) {
    let random = <SmallRng as rand::SeedableRng>::seed_from_u64(0);
    let mut connection = Connection::new(load, random, "last-reader");
    let end = Instant::now() + LAST_READS;
    for key in (0..KEYS).map(key) {
        let (mut of_lock, mut of_record) = (false, false);
        while !(of_lock && of_record) {
            if Instant::now() > end {
                let complaint = format!("the last reads of {key} are not answered within {LAST_READS:?}");
                return load.complaints.lock().push(complaint);
            }
            of_lock = of_lock || connection.read_linearizable(&key).await.is_some();
            of_record = of_record || connection.read_record(&key).await.is_some();
            sleep(PAUSE).await;
        }
    }
}
