//! Clients that speak the protocol themselves, one request a connection, and record all that they do.
//!
//! Each has one session at a time, under a name that the record knows. It numbers its operations, and says again what was not
//! answered, under the same number, to whoever may lead by now. So of each of its claims the record has everything that may end
//! it, and when a read shows its session in a queue, checkers know who came first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::wire::{self, Code, Consistency, Failure, LockView, Op, SessionId};
use palisade_client::{Error, ask, margin};
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::sleep;

use super::{Field, KEYS, any_key, more};
use crate::history::{self, Answer, Call, Holder, Note, Pending, Refusal, Session};

/// How long an answer may take, beside the wait that was asked for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the same is said again.
const INSISTS: Duration = Duration::from_secs(4);
/// The pause before it is.
const PAUSE: Duration = Duration::from_millis(20);

/// What came of saying something, perhaps several times.
enum Said {
    Done(wire::Answer),
    /// Refused, and never done.
    Refused(Failure),
    /// Nobody knows.
    Unknown(String),
}

/// How one talks to the cluster.
struct Voice<'f> {
    field: &'f Field,
    random: SmallRng,
    name: history::Client,
    /// Who is thought to lead.
    leader: Option<String>,
}

impl<'f> Voice<'f> {
    fn new(field: &'f Field, random: SmallRng, name: &str) -> Voice<'f> {
        Voice { field, random, name: name.into(), leader: None }
    }

    fn anybody(&mut self) -> String {
        let endpoints = self.field.endpoints.lock();
        endpoints[self.random.random_range(0..endpoints.len())].clone()
    }

    /// Says something until it is answered or no use any more. What waits loses its place with its connection.
    async fn say(&mut self, op: Op, pending: &Pending, wait: Duration) -> Said {
        let begun = Instant::now();
        // What was once sent and not answered may still be done.
        let mut doubt = None;
        loop {
            let endpoint = self.leader.take().unwrap_or_else(|| self.anybody());
            let left = wait.saturating_sub(begun.elapsed());
            let why = match ask(&endpoint, op.clone(), left + PATIENCE).await {
                Ok(answer) => {
                    self.leader = Some(endpoint);
                    return Said::Done(answer);
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
                        doubt.insert(failure.message).clone()
                    }
                    _ => {
                        self.leader = Some(endpoint);
                        // What was said before may have been done: a session that is gone by now is told no more than that.
                        return if doubt.is_some() { Said::Unknown(failure.message) } else { Said::Refused(failure) };
                    }
                },
                Err(error) => {
                    if let Op::Acquire { .. } = op {
                        pending.note(Note::Disconnected);
                    }
                    doubt.insert(error.to_string()).clone()
                }
            };
            if begun.elapsed() > wait + INSISTS {
                return doubt.map_or(Said::Refused(Failure::new(Code::NoLeader, why)), Said::Unknown);
            }
            more(&self.field.counts.repeated);
            sleep(PAUSE).await;
        }
    }

    /// A session of its own. Opening one twice would make two, so it is asked for once.
    async fn open(&mut self, ttl: Duration) -> Option<SessionId> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let pending = self.field.recorder.invoke(&self.name, Call::OpenSession { ttl_ms });
        let endpoint = self.leader.clone().unwrap_or_else(|| self.anybody());
        let op = Op::OpenSession(wire::OpenSession { ttl_ms, owner: self.name.to_string() });
        match ask(&endpoint, op, PATIENCE).await {
            Ok(wire::Answer::Session(lease)) => {
                self.leader = Some(endpoint);
                pending.ok(Answer::Opened { session: named(lease.session) });
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

    /// Takes a lock, uses it, and gives it back. `false` if the session is of no use any more.
    async fn lock_once(&mut self, session: SessionId, ttl: Duration, number: &mut u64) -> bool {
        let key = any_key(&mut self.random);
        let wait_ms = if self.random.random_bool(0.2) { 0 } else { self.random.random_range(50..2_500) };
        let Some((token, good_until)) = self.acquire(&key, session, ttl, wait_ms, number).await else { return false };
        let Some(token) = token else { return true };
        let (field, name) = (self.field, self.name.clone());
        let write = || field.write(&key, token, &name, || Instant::now() < good_until);
        write();
        if self.random.random_bool(0.03) {
            more(&field.counts.pauses);
            std::thread::sleep(ttl * 2);
        } else {
            sleep(Duration::from_millis(self.random.random_range(0..15))).await;
        }
        write();
        self.release(&key, session, token, number).await
    }

    /// `None` if the session is of no use any more; else the token, if there is one, and until when the lease is relied on.
    async fn acquire(
        &mut self,
        key: &str,
        session: SessionId,
        ttl: Duration,
        wait_ms: u64,
        number: &mut u64,
    ) -> Option<(Option<u64>, Instant)> {
        *number += 1;
        let call = Call::Acquire {
            key: key.into(),
            session: Some(named(session)),
            number: Some(*number),
            wait_ms,
            ttl_ms: None,
        };
        let pending = self.field.recorder.invoke(&self.name, call);
        // As the Rust client does.
        let good_until = Instant::now() + ttl.saturating_sub(margin(ttl));
        let options = wire::Acquire { session: Some(session), wait_ms, ..wire::Acquire::default() };
        let op = Op::Acquire { key: key.to_owned(), options, number: Some(*number) };
        let counts = &self.field.counts;
        match self.say(op, &pending, Duration::from_millis(wait_ms)).await {
            Said::Done(wire::Answer::Acquired(acquired)) => {
                more(&counts.grants);
                pending.ok(Answer::Granted { session: named(session), token: acquired.token });
                Some((Some(acquired.token), good_until))
            }
            Said::Done(other) => {
                self.unexpected(&other);
                None
            }
            Said::Refused(failure) => {
                let refusal = match (failure.error, failure.holder) {
                    (Code::Held, Some(holder)) => {
                        more(&counts.held);
                        Refusal::Held { token: holder.token }
                    }
                    (Code::Timeout, _) => {
                        more(&counts.timed_out);
                        Refusal::Timeout
                    }
                    (Code::NoLeader, _) => {
                        more(&counts.unreachable);
                        Refusal::NotTaken { message: failure.message }
                    }
                    (Code::NoSession, _) => {
                        more(&counts.lost);
                        pending.fail(Refusal::NoSession);
                        return None;
                    }
                    // Gone, withdrawn: something was done, and what is not for sure.
                    _ => {
                        pending.info(failure.message);
                        return Some((None, good_until));
                    }
                };
                pending.fail(refusal);
                Some((None, good_until))
            }
            Said::Unknown(why) => {
                more(&counts.unreachable);
                pending.info(why);
                // It may have the lock and not know it: nobody but its end frees it.
                None
            }
        }
    }

    /// `false` if the session is of no use any more.
    async fn release(&mut self, key: &str, session: SessionId, token: u64, number: &mut u64) -> bool {
        *number += 1;
        let call = Call::Release { key: key.into(), session: named(session), token, number: Some(*number) };
        let pending = self.field.recorder.invoke(&self.name, call);
        let grant = wire::Release { session, token };
        let op = Op::Release { key: key.to_owned(), grant, number: Some(*number) };
        let counts = &self.field.counts;
        match self.say(op, &pending, Duration::ZERO).await {
            Said::Done(wire::Answer::Released) => {
                more(&counts.releases);
                pending.ok(Answer::Released);
                true
            }
            Said::Done(other) => {
                self.unexpected(&other);
                false
            }
            Said::Refused(failure) => {
                more(&counts.lost);
                match failure.error {
                    Code::NotHolder => pending.fail(Refusal::NotHolder),
                    Code::NoSession => pending.fail(Refusal::NoSession),
                    Code::NoLeader => pending.fail(Refusal::NotTaken { message: failure.message }),
                    _ => pending.info(failure.message),
                }
                false
            }
            Said::Unknown(why) => {
                more(&counts.unreachable);
                pending.info(why);
                false
            }
        }
    }

    /// Closes a session. Said again it does no harm.
    async fn close(&mut self, session: SessionId) {
        let pending = self.field.recorder.invoke(&self.name, Call::CloseSession { session: named(session) });
        match self.say(Op::CloseSession { session }, &pending, Duration::ZERO).await {
            Said::Done(wire::Answer::SessionClosed) => pending.ok(Answer::Closed),
            Said::Done(other) => self.unexpected(&other),
            Said::Refused(failure) => pending.fail(Refusal::NotTaken { message: failure.message }),
            Said::Unknown(why) => pending.info(why),
        }
    }

    /// Looks at a lock, as it is: whoever leads answers.
    async fn look(&mut self, key: &str) {
        let pending = self.field.recorder.invoke(&self.name, Call::Read { key: key.into(), stale: false });
        let op = Op::ShowLock { key: key.to_owned(), consistency: Consistency::Linearizable };
        match self.say(op, &pending, Duration::ZERO).await {
            Said::Done(wire::Answer::Lock(lock)) => pending.ok(seen(&lock, None)),
            Said::Done(other) => self.unexpected(&other),
            Said::Refused(failure) => pending.fail(Refusal::NotTaken { message: failure.message }),
            Said::Unknown(why) => pending.info(why),
        }
    }

    /// Looks at a lock as some node has it.
    async fn glance(&mut self, key: &str) {
        let endpoint = self.anybody();
        let pending = self.field.recorder.invoke(&self.name, Call::Read { key: key.into(), stale: true });
        let op = Op::ShowLock { key: key.to_owned(), consistency: Consistency::Stale };
        match ask(&endpoint, op, PATIENCE).await {
            Ok(wire::Answer::StaleLock(stale)) => pending.ok(seen(&stale.view, stale.age_ms)),
            Ok(other) => self.unexpected(&other),
            Err(error) => pending.info(error.to_string()),
        }
    }

    fn unexpected(&self, answer: &wire::Answer) {
        let complaint = format!("{} was answered something else than it asked for: {answer:?}", self.name);
        self.field.complaints.lock().push(complaint);
    }
}

fn named(session: SessionId) -> Session {
    session.to_string().as_str().into()
}

fn seen(lock: &LockView, age_ms: Option<u64>) -> Answer {
    let holder = lock.holder.as_ref().map(|holder| Holder { session: named(holder.session), token: holder.token });
    let queue = lock.queue.iter().map(|waiter| named(waiter.session)).collect();
    Answer::Lock { holder, queue, age_ms }
}

/// A plain client.
pub(super) async fn work(field: &Arc<Field>, random: SmallRng, number: u64) {
    let mut voice = Voice::new(field, random, &format!("plain-{number}"));
    while !field.stops() {
        let ttl = Duration::from_millis(voice.random.random_range(1_000..5_000));
        let Some(session) = voice.open(ttl).await else {
            sleep(PAUSE).await;
            continue;
        };
        let (mut numbers, mut useful) = (0, true);
        for _ in 0..voice.random.random_range(5..40) {
            useful = useful && !field.stops() && voice.lock_once(session, ttl, &mut numbers).await;
            if !useful {
                break;
            }
            sleep(Duration::from_millis(voice.random.random_range(0..20))).await;
        }
        // Some forget to say goodbye. Whoever does not know what it holds has to.
        if !useful || voice.random.random_bool(0.8) {
            voice.close(session).await;
        }
    }
}

/// A reader.
pub(super) async fn read(field: &Arc<Field>, random: SmallRng, number: u64) {
    let mut voice = Voice::new(field, random, &format!("reader-{number}"));
    while !field.stops() {
        let key = any_key(&mut voice.random);
        if voice.random.random_bool(0.7) {
            voice.look(&key).await
        } else {
            voice.glance(&key).await
        }
        sleep(Duration::from_millis(voice.random.random_range(0..30))).await;
    }
}

/// Looks at every key.
pub(super) async fn read_all(field: &Arc<Field>) {
    let random = <SmallRng as rand::SeedableRng>::seed_from_u64(0);
    let mut voice = Voice::new(field, random, "last-reader");
    for key in 0..KEYS {
        voice.look(&format!("key-{key}")).await;
    }
}
