//! The history of one window of the hot lock, which is judged and not measured: to record takes processor time.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_history::{Answer, Call, Client, Key, Pending, Recorder, Session};

use super::{TTL, WAIT};
use crate::contend;
use crate::dlock::Backend;
use crate::event::millis;
use crate::history::{self, Judgement};

/// Clients of that window.
pub(super) const CLIENTS: usize = 50;

/// Records what the clients do.
pub struct Record {
    recorder: Recorder,
    /// Numbers the grants, if the system has no tokens that order them.
    numbers: Option<AtomicU64>,
}

/// A grant in the history.
pub struct Granted {
    session: Session,
    token: u64,
}

impl Record {
    /// An empty record.
    #[must_use]
    pub fn new(backend: Backend) -> Record {
        let recorder = history::in_memory();
        Record { recorder, numbers: contend::numbers(backend) }
    }

    fn client(client: usize) -> Client {
        Client::from(format!("client-{client}").as_str())
    }

    /// A client is about to ask for a lock.
    pub fn acquire(&self, client: usize, key: &str) -> Pending {
        let call = Call::acquire_one(Key::from(key), millis(WAIT), Some(millis(TTL)));
        self.recorder.invoke(&Record::client(client), call)
    }

    /// It was granted. Each grant is a session of its own.
    #[must_use]
    pub fn grant(&self, acquire: Pending, client: usize, token: u64) -> Granted {
        let token = self.numbers.as_ref().map_or(token, |numbers| numbers.fetch_add(1, Ordering::Relaxed));
        let session = Session::from(format!("client-{client}-{token}").as_str());
        acquire.ok(Answer::Granted { session: session.clone(), token });
        Granted { session, token }
    }

    /// The client is about to release it.
    pub fn release(&self, granted: Granted, client: usize, key: &str) -> Pending {
        let Granted { session, token } = granted;
        let call = Call::Release { keys: Key::from(key).into(), session, token, number: None };
        self.recorder.invoke(&Record::client(client), call)
    }

    /// What the checkers say.
    ///
    /// # Errors
    /// The history is not well-formed, which is a bug of the lab.
    pub fn judge(&self) -> Result<Judgement, String> {
        Ok(Judgement::of(&self.recorder.history().map_err(|error| error.to_string())?))
    }
}

/// Ends a release.
pub(super) fn released(pending: Option<Pending>, done: &Result<(), String>) {
    let Some(pending) = pending else { return };
    match done {
        Ok(()) => pending.ok(Answer::Released),
        Err(error) => pending.info(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clients_that_hold_the_hot_lock_are_found() {
        let judged = |overlap: bool| {
            let record = Record::new(Backend::Redis);
            let one = record.grant(record.acquire(1, "hot"), 1, 1);
            let release = |granted, client| record.release(granted, client, "hot").ok(Answer::Released);
            if overlap {
                let two = record.grant(record.acquire(2, "hot"), 2, 2);
                release(one, 1);
                release(two, 2);
            } else {
                release(one, 1);
                release(record.grant(record.acquire(2, "hot"), 2, 2), 2);
            }
            let judgement = record.judge().unwrap();
            (judgement.operations, judgement.service.is_empty())
        };
        assert_eq!(judged(false), (4, true));
        assert_eq!(judged(true), (4, false));
    }

    #[test]
    fn grants_of_redlock_are_numbered() {
        let record = Record::new(Backend::Redlock);
        let tokens = [7, 7].map(|token| record.grant(record.acquire(1, "hot"), 1, token).token);
        assert_eq!(tokens, [1, 2]);
    }
}
