//! The service of a generated history: the lock table of `spec`, which applies the requests.

use palisade_history::{self as history, Answer, Call, Change, Holder, Key, Keys, Note, Refusal};
use palisade_spec::lock::{
    self, Claim, Command, Condition, LockRequest, Mode, Opening, Outcome, Owner, Principal, Proof, Reply, Revision,
    SessionId, Token, Transaction, Ttl, Value, Version, Writer,
};
use palisade_spec::raft::StateMachine;
use rand::Rng;

use super::{RequestState, World, name, principal, session_name};

impl World {
    pub(super) fn apply(&mut self, index: usize) {
        let request = &self.requests[index];
        let (session, sequence, copy) = (request.session, request.sequence, request.copy);
        let principal = principal(request.client);
        let opening = |ttl_ms| Opening {
            proof: Proof::default(),
            owner: Owner::from(""),
            principal: principal.clone(),
            ttl: Ttl(ttl_ms),
        };
        let of = |key: &Key| lock::Key::from(&*key.0);
        let all =
            |keys: &Keys| lock::Keys::new(keys.as_slice().iter().map(of).collect()).expect("each key occurs once");
        let (command, waits) = match request.call.clone() {
            Call::OpenSession { ttl_ms } => (Command::Open { opening: opening(ttl_ms) }, false),
            Call::KeepAlive { .. } => (Command::KeepAlive { sessions: session.into_iter().collect() }, false),
            Call::CloseSession { .. } => (Command::Close { session: session.unwrap() }, false),
            Call::Acquire { keys, wait_ms, ttl_ms, mode, max_queue, reentrant, value, .. } => {
                let wait = wait_ms > 0;
                let max_queue = if wait { max_queue.unwrap_or(LockRequest::ANY_QUEUE) } else { 0 };
                let (keys, mode, value) = (all(&keys), table_mode(mode), value.as_deref().map(Value::from));
                let request = LockRequest { keys, mode, max_queue, reentrant, value };
                let command = match session {
                    Some(session) => Command::Acquire { session, sequence, request },
                    None => Command::AcquireOnce { opening: opening(ttl_ms.unwrap()), request },
                };
                (command, wait)
            }
            Call::Withdraw { keys, .. } => {
                let (session, keys) = (session.unwrap(), all(&keys));
                (Command::Release { session, sequence, keys, claim: Claim::Either }, false)
            }
            Call::Release { keys, token, .. } => {
                let (session, keys) = (session.unwrap(), all(&keys));
                (Command::Release { session, sequence, keys, claim: Claim::Held(Token(token)) }, false)
            }
            Call::Proclaim { key, token, value, .. } => {
                let (session, key, value) = (session.unwrap(), of(&key), Value::from(&*value));
                (Command::Proclaim { session, sequence, key, token: Token(token), value }, false)
            }
            Call::Break { key, token } => {
                (Command::Break { key: of(&key), token: Token(token), principal: principal.clone() }, false)
            }
            Call::SetAccess { revision } => {
                let (principal, revision) = (Principal::from("admin/root"), Revision(revision));
                (Command::SetAccess { principal, revision, rules: self.rules() }, false)
            }
            Call::Read { key, stale } => {
                let past = self.past.get(&key).map_or(&[][..], Vec::as_slice);
                let old = stale && !past.is_empty();
                let view = if old { past[self.random.random_range(0..past.len())].clone() } else { self.view(&key) };
                self.requests[index].state = RequestState::Answered(Ok(view));
                return;
            }
            Call::Access { key, token, reads } => {
                let (of_all, of_writes) = self.highest.entry(key).or_default();
                let passes = token >= if reads { *of_writes } else { *of_all };
                *of_all = token.max(*of_all);
                if !reads {
                    *of_writes = token.max(*of_writes);
                }
                self.requests[index].state =
                    RequestState::Answered(if passes { Ok(Answer::Accepted) } else { Err(Refusal::Refused) });
                return;
            }
            call @ Call::WriteRecord { .. } => {
                let writer = match session {
                    Some(session) => Writer::Session { session, sequence },
                    None => Writer::Client(principal.clone()),
                };
                let bytes = |text: &str| lock::Bytes::from(text);
                let held =
                    call.must_hold().map(|(lock, token)| Condition::Held { lock: of(lock), token: Token(token) });
                let compared = call.must_have().map(|(record, version)| {
                    let version = (version > 0).then_some(Version(version));
                    Condition::Version { record: of(record), version }
                });
                let changes = call.changes().map(|(record, change)| match (of(record), change) {
                    (record, Change::Put(text)) => lock::Change::Put { record, bytes: bytes(text) },
                    (record, Change::Append(text)) => lock::Change::Append { record, bytes: bytes(text) },
                    (record, Change::Delete) => lock::Change::Delete { record },
                });
                let (conditions, changes) = (held.chain(compared).collect(), changes.collect());
                let transaction = Transaction { conditions, changes, limit: u64::MAX };
                (Command::Transact { writer, transaction }, false)
            }
            Call::ReadRecord { record, .. } => {
                let view = self.table.record(&of(&record)).map_or(Answer::NoRecord, |record| {
                    let value = std::str::from_utf8(record.bytes.as_slice()).expect("texts are written").into();
                    Answer::Record { version: record.version.0, value }
                });
                self.requests[index].state = RequestState::Answered(Ok(view));
                return;
            }
            Call::NoteLoss { .. } => unreachable!("generated clients make no notes"),
        };
        let outcome = self.table.apply(self.stamp(), &command);
        let state = self.state(index, outcome.reply.clone().unwrap());
        if !copy {
            if waits
                && matches!(state, RequestState::Waits(_))
                && self.random.random_bool(0.6)
                && !self.requests[index].lost
            {
                let ahead = match outcome.reply {
                    Some(Reply::Queued { ahead, .. }) if self.random.random_bool(0.5) => Some(ahead),
                    _ => None,
                };
                self.note(index, Note::Queued { ahead });
            }
            self.requests[index].state = state;
        } else {
            self.requests[index].state = RequestState::Unknown;
        }
        self.notify_waiters(outcome);
        self.remember();
        // A request with a number may arrive again.
        if sequence.is_some() && !copy && self.random.random_bool(0.1) {
            self.copy(index);
        }
    }

    fn state(&mut self, index: usize, reply: Reply) -> RequestState {
        let request = &self.requests[index];
        let answered = match (&request.call, reply) {
            (_, Reply::Opened { session }) => Ok(Answer::Opened { session: session_name(session) }),
            (Call::KeepAlive { .. }, Reply::KeptAlive { missing }) if missing.is_empty() => Ok(Answer::KeptAlive),
            (Call::KeepAlive { .. }, _) => Err(Refusal::NoSession),
            (_, Reply::Closed) => Ok(Answer::Closed),
            (_, Reply::Granted { session, token }) => {
                Ok(Answer::Granted { session: session_name(session), token: token.0 })
            }
            (_, Reply::Queued { session, .. }) => return RequestState::Waits(session),
            (_, Reply::Held { token, .. }) => Err(Refusal::Held { token: token.map(|token| token.0) }),
            (_, Reply::OtherSize { .. } | Reply::OtherClaim { .. }) => {
                Err(Refusal::NotTaken { message: "another claim".to_owned() })
            }
            (_, Reply::StillHeld { holds }) => Ok(Answer::StillHeld { holds }),
            (Call::Withdraw { .. }, _) => Ok(Answer::Withdrawn),
            (Call::Release { .. }, Reply::Released | Reply::Gone) => Ok(Answer::Released),
            (Call::Release { .. }, _) => Err(Refusal::NotHolder),
            (Call::Acquire { .. } | Call::Proclaim { .. } | Call::WriteRecord { .. }, Reply::NoSession) => {
                Err(Refusal::NoSession)
            }
            (_, Reply::Written { version }) => Ok(Answer::Written { version: version.0 }),
            (_, Reply::NotHeld { .. } | Reply::Fenced { .. }) => Err(Refusal::StaleToken),
            (_, Reply::OtherVersion { version, .. }) => {
                Err(Refusal::OtherVersion { version: version.map_or(0, |version| version.0) })
            }
            (_, Reply::Broken { session, .. }) => Ok(Answer::Broken { session: session_name(session) }),
            (_, Reply::Proclaimed) => Ok(Answer::Proclaimed),
            (Call::Proclaim { .. } | Call::Break { .. }, Reply::NotHolder) => Err(Refusal::NotHolder),
            (_, Reply::AccessSet { revision }) => Ok(Answer::AccessSet { revision: revision.0 }),
            (_, Reply::Denied) => Err(Refusal::Denied),
            // A sending of this acquire was applied before, and its claim is gone: the outcome is
            // unknown.
            _ => return RequestState::Unknown,
        };
        RequestState::Answered(answered)
    }

    /// Tells waiters of changes to their claims.
    fn notify_waiters(&mut self, outcome: Outcome) {
        for event in outcome.events {
            let (key, session, answer) = match event {
                lock::Event::Granted { key, session, token, .. } => {
                    let name = session_name(session);
                    (Some(key), session, Ok(Answer::Granted { session: name, token: token.0 }))
                }
                lock::Event::Withdrawn { key, session } => {
                    let lives = self.table.session(session).is_some();
                    (Some(key), session, Err(if lives { Refusal::Withdrawn } else { Refusal::NoSession }))
                }
                lock::Event::Expired { session, .. } | lock::Event::Closed { session } => {
                    (None, session, Err(Refusal::NoSession))
                }
                // The withdrawal of this waiter follows, and finds no request that waits.
                lock::Event::Denied { key, session, .. } => (Some(key), session, Err(Refusal::Denied)),
                lock::Event::Released { .. }
                | lock::Event::Broken { .. }
                | lock::Event::Proclaimed { .. }
                | lock::Event::Put { .. }
                | lock::Event::Deleted { .. }
                | lock::Event::Queued { .. }
                | lock::Event::Overdue { .. } => continue,
            };
            for request in &mut self.requests {
                let waits = matches!(request.state, RequestState::Waits(waiting) if waiting == session);
                let same = key.as_ref().is_none_or(|key| request.call.keys().iter().any(|of| &*of.0 == key.as_str()));
                if waits && same {
                    // An acquire without a known session can only learn that its claim is gone.
                    let answer = match &answer {
                        Err(Refusal::NoSession) if request.session.is_none() => Err(Refusal::Withdrawn),
                        answer => answer.clone(),
                    };
                    request.state = RequestState::Answered(answer);
                }
            }
        }
    }

    pub(super) fn give_up(&mut self, session: SessionId, index: usize) {
        let keys = self.requests[index].call.keys().iter().map(|key| lock::Key::from(&*key.0)).collect();
        let keys = lock::Keys::new(keys).expect("each key occurs once");
        let command = Command::Release { session, sequence: None, keys, claim: Claim::Waiting };
        let outcome = self.table.apply(self.stamp(), &command);
        self.notify_waiters(outcome);
        self.remember();
    }

    pub(super) fn sweep(&mut self) {
        let outcome = self.table.advance(self.stamp());
        self.notify_waiters(outcome);
        self.remember();
    }

    fn view(&self, key: &Key) -> Answer {
        let (mut holders, mut queue) = (Vec::new(), Vec::new());
        if let Some(lock) = self.table.lock(&lock::Key::from(&*key.0)) {
            let shown = |holder: &lock::Holder| {
                let (session, token) = (session_name(holder.session), holder.token.0);
                let value = holder.value().map(|value| value.as_str().into());
                Holder { session, token, mode: history_mode(holder.mode), value }
            };
            holders = lock.holders.iter().map(shown).collect();
            queue = lock.queue.iter().map(|waiter| session_name(waiter.session)).collect();
        }
        Answer::Lock { holders, queue, age_ms: None }
    }

    fn remember(&mut self) {
        if self.size.resource && self.past.values().map(Vec::len).sum::<usize>() < 1_000 {
            for key in (0..self.size.keys).map(name) {
                let view = self.view(&key);
                self.past.entry(key).or_default().push(view);
            }
        }
    }
}

fn table_mode(mode: history::Mode) -> Mode {
    match mode {
        history::Mode::Exclusive => Mode::EXCLUSIVE,
        history::Mode::Shared => Mode::SHARED,
        history::Mode::Semaphore { permits, of } => {
            Mode::semaphore(permits, of).expect("the clients' semaphores exist")
        }
    }
}

fn history_mode(mode: Mode) -> history::Mode {
    match mode.as_semaphore() {
        Some((permits, of)) => history::Mode::Semaphore { permits, of },
        None if mode == Mode::SHARED => history::Mode::Shared,
        None => history::Mode::Exclusive,
    }
}
