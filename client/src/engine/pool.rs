//! Idle sessions, for reuse: opening one costs a round through the log, so ten locks in a row should open one session.
//!
//! An idle session is not kept alive. It is reused while at least half of its lease is left by the client's own
//! reckoning, so that the acquire that is about to refresh it cannot come too late; after that it is forgotten, and
//! expires.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::BootInstant;
use crate::lease::margin;
use crate::wire::SessionId;

/// How often idle sessions are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// A session, used by one claim at a time.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) ttl: Duration,
    /// The number of the last operation that was begun.
    pub(super) number: u64,
    /// The session certainly lives until then.
    pub(super) good_until: BootInstant,
}

impl Session {
    /// An attempt that renewed the session was sent at `sent`.
    pub(super) fn renewed(&mut self, sent: BootInstant) {
        self.good_until = self.good_until.max(sent + self.ttl);
    }

    /// When a guard of the session counts as lost, unless the session is renewed.
    pub(super) fn trusted_until(&self) -> BootInstant {
        self.good_until.saturating_sub(margin(self.ttl))
    }

    fn is_reusable(&self, now: BootInstant) -> bool {
        self.good_until.saturating_duration_since(now) > self.ttl / 2
    }
}

/// What sessions must have in common to be interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) ttl_ms: u64,
    pub(super) owner: String,
}

/// The idle sessions of each kind, the one used last at the end.
pub(super) struct Pool {
    idle: HashMap<Kind, Vec<Session>>,
    sweep_at: BootInstant,
}

impl Pool {
    pub(super) fn new(now: BootInstant) -> Pool {
        Pool { idle: HashMap::new(), sweep_at: now + SWEEP_EVERY }
    }

    pub(super) fn take(&mut self, now: BootInstant, kind: &Kind) -> Option<Session> {
        let sessions = self.idle.get_mut(kind)?;
        while let Some(session) = sessions.pop() {
            if session.is_reusable(now) {
                return Some(session);
            }
        }
        self.idle.remove(kind);
        None
    }

    pub(super) fn put(&mut self, now: BootInstant, kind: Kind, session: Session) {
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            self.idle.retain(|_, sessions| {
                sessions.retain(|session| session.is_reusable(now));
                !sessions.is_empty()
            });
        }
        self.idle.entry(kind).or_default().push(session);
    }

    /// Takes all sessions out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = SessionId> + use<> {
        std::mem::take(&mut self.idle).into_values().flatten().map(|session| session.id)
    }
}
