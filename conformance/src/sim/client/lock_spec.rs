//! Draws the claims of clients: locks in all modes, several keys together, bounded queues, and locks that the client
//! holds already.

use std::time::Duration;

use palisade_client::wire;
use palisade_history as history;
use palisade_spec::lock::{Key, Keys, Mode, Value};
use rand::Rng;
use rand::rngs::SmallRng;

use super::super::history_recorder;

/// Keys of locks that have readers and writers.
const LOCKS: [&str; 2] = ["ledger", "mailbox"];
/// The key of a semaphore, and its size.
const SEMAPHORE: &str = "printer";
const SIZE: u32 = 3;
/// The values that claims are given.
const VALUES: [&str; 3] = ["here", "there", ""];

/// What an acquire asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LockSpec {
    pub(super) keys: Keys,
    pub(super) mode: Mode,
    /// The length that a queue may reach with it.
    pub(super) max_queue: Option<u32>,
    /// Whether it adds a hold.
    pub(super) reentrant: bool,
    /// What others are to see beside it.
    pub(super) value: Option<Value>,
}

/// Draws a key.
pub(super) fn any_key(rng: &mut SmallRng) -> Key {
    let keys = [LOCKS[0], LOCKS[1], SEMAPHORE];
    Key::from(keys[rng.random_range(0..keys.len())])
}

fn any_value(rng: &mut SmallRng) -> Option<Value> {
    rng.random_bool(0.4).then(|| Value::from(VALUES[rng.random_range(0..VALUES.len())]))
}

impl LockSpec {
    /// Draws what to ask for: mostly a lock as a reader or a writer, or permits of the semaphore; sometimes
    /// both locks together; and now and then a key as what it is not, which is refused while it is used.
    pub(super) fn draw(rng: &mut SmallRng) -> LockSpec {
        let semaphore = |permits, of| Mode::semaphore(permits, of).expect("such a semaphore exists");
        let shared_or_exclusive = |rng: &mut SmallRng| [Mode::SHARED, Mode::EXCLUSIVE][rng.random_range(0..2)];
        let (keys, mode) = match rng.random_range(0..40) {
            0..7 => (LOCKS.to_vec(), shared_or_exclusive(rng)),
            7 => (vec![LOCKS[0], SEMAPHORE], Mode::EXCLUSIVE),
            8 => (vec![SEMAPHORE], semaphore(1, SIZE - 1)),
            9..20 => (vec![SEMAPHORE], semaphore(rng.random_range(1..=SIZE), SIZE)),
            _ => (vec![LOCKS[rng.random_range(0..LOCKS.len())]], shared_or_exclusive(rng)),
        };
        let keys = Keys::new(keys.into_iter().map(Key::from).collect()).expect("each key occurs once");
        let max_queue = rng.random_bool(0.25).then(|| rng.random_range(1..3));
        LockSpec { keys, mode, max_queue, reentrant: rng.random_bool(0.3), value: any_value(rng) }
    }

    /// The same with another value, or without one, which keeps the value.
    pub(super) fn with_any_value(&self, rng: &mut SmallRng) -> LockSpec {
        LockSpec { value: any_value(rng), ..self.clone() }
    }

    /// Whether both ask for the same, whatever the value.
    pub(super) fn is_same_claim(&self, other: &LockSpec) -> bool {
        *self == LockSpec { value: self.value.clone(), ..other.clone() }
    }

    /// Whether both ask for one of the keys.
    pub(super) fn shares_a_key(&self, other: &LockSpec) -> bool {
        self.keys.iter().any(|key| other.keys.iter().any(|its| its == key))
    }

    /// The first of these keys in another mode: the session that holds them may not ask for that.
    pub(super) fn conflicting(&self) -> LockSpec {
        let mode = if self.mode == Mode::SHARED { Mode::EXCLUSIVE } else { Mode::SHARED };
        LockSpec { keys: self.keys.first().clone().into(), mode, max_queue: None, reentrant: false, value: None }
    }

    /// A client that holds this lock makes accesses: only reads, where it shares the lock; none with permits
    /// of a semaphore, which fence nothing.
    pub(super) fn access_reads(&self) -> Option<bool> {
        self.mode.as_semaphore().is_none().then_some(self.mode == Mode::SHARED)
    }

    /// As clients write it.
    pub(super) fn options(&self, session: Option<wire::SessionId>, wait: Duration, ttl_ms: u64) -> wire::Acquire {
        let (mode, permits, of) = match self.mode.as_semaphore() {
            Some((permits, of)) => (wire::Mode::Exclusive, Some(permits), Some(of)),
            None if self.mode == Mode::SHARED => (wire::Mode::Shared, None, None),
            None => (wire::Mode::Exclusive, None, None),
        };
        let (max_queue, reentrant, owner) = (self.max_queue, self.reentrant, "client".to_owned());
        let wait_ms = u64::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        let value = self.value.as_ref().map(|value| value.as_str().to_owned());
        wire::Acquire { session, ttl_ms, wait_ms, owner, mode, permits, of, reentrant, max_queue, value }
    }

    /// As the history records it.
    pub(super) fn call(
        &self,
        session: Option<history::Session>,
        number: Option<u64>,
        wait: Duration,
        ttl_ms: Option<u64>,
    ) -> history::Call {
        history::Call::Acquire {
            keys: history_recorder::keys(&self.keys),
            session,
            number,
            wait_ms: history_recorder::milliseconds(wait),
            ttl_ms,
            mode: history_recorder::mode(self.mode),
            max_queue: self.max_queue,
            reentrant: self.reentrant,
            value: self.value.as_ref().map(|value| value.as_str().into()),
        }
    }
}

/// The keys as clients write them.
pub(super) fn wire_keys(keys: &Keys) -> wire::Keys {
    keys.iter().map(Key::to_string).collect::<Vec<String>>().into()
}
