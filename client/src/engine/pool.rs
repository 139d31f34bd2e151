//! Idle sessions, for reuse: opening one costs a round through the log, so ten locks in a row should open one session.
//!
//! An idle session is not kept alive. It is reused while at least half of its lease is left by the client's own
//! reckoning, so that the acquire that is about to refresh it cannot come too late; after that it is forgotten, and
//! expires.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::BootInstant;
use crate::lease::Session;
use crate::wire::SessionId;

/// How often idle sessions are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

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
            if is_reusable(&session, now) {
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
                sessions.retain(|session| is_reusable(session, now));
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

fn is_reusable(session: &Session, now: BootInstant) -> bool {
    session.good_until.saturating_duration_since(now) > session.ttl / 2
}
