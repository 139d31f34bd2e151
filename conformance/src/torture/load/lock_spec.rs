//! Draws the claims of the load's clients: locks as readers and as writers, permits of a semaphore,
//! several keys together, and short queues.

use palisade_client::{LockOptions, wire};
use palisade_history as history;
use rand::Rng;
use rand::rngs::SmallRng;

/// Number of keys of locks that have readers and writers; the last key is that of a semaphore.
const LOCKS: usize = 3;
/// Number of keys.
pub(super) const KEYS: usize = LOCKS + 1;
/// The permits of the semaphore.
const SIZE: u32 = 3;

/// What an acquire asks for.
#[derive(Clone, Debug)]
pub(super) struct LockSpec {
    pub(super) keys: Vec<String>,
    pub(super) mode: history::Mode,
    /// The longest queue that it joins.
    pub(super) max_queue: Option<u32>,
}

pub(super) fn key(number: usize) -> String {
    format!("key-{number}")
}

pub(super) fn any_key(random: &mut SmallRng) -> String {
    key(random.random_range(0..KEYS))
}

impl LockSpec {
    pub(super) fn draw(random: &mut SmallRng, waits: bool) -> LockSpec {
        let first = random.random_range(0..KEYS);
        let mut spec = LockSpec::of_key(first, random);
        if first < LOCKS && random.random_bool(0.2) {
            spec.keys.push(key((first + random.random_range(1..LOCKS)) % LOCKS));
            spec.keys.sort_unstable();
        }
        spec.max_queue = (waits && random.random_bool(0.2)).then(|| random.random_range(1..4));
        spec
    }

    /// One key, and any queue.
    pub(super) fn of_key(number: usize, random: &mut SmallRng) -> LockSpec {
        let mode = if number == LOCKS {
            history::Mode::Semaphore { permits: random.random_range(1..=SIZE), of: SIZE }
        } else if random.random_bool(0.4) {
            history::Mode::Shared
        } else {
            history::Mode::Exclusive
        };
        LockSpec { keys: vec![key(number)], mode, max_queue: None }
    }

    /// As the Rust client takes it.
    pub(super) fn options(&self) -> LockOptions {
        let options = match self.mode {
            history::Mode::Exclusive => LockOptions::default(),
            history::Mode::Shared => LockOptions::default().shared(),
            history::Mode::Semaphore { permits, of } => LockOptions::default().permits(permits, of),
        };
        match self.max_queue {
            Some(sessions) => options.max_queue(sessions),
            None => options,
        }
    }

    /// As the wire has it.
    pub(super) fn wire_options(&self, session: wire::SessionId, wait_ms: u64, reentrant: bool) -> wire::Acquire {
        let (mode, permits, of) = match self.mode {
            history::Mode::Exclusive => (wire::Mode::Exclusive, None, None),
            history::Mode::Shared => (wire::Mode::Shared, None, None),
            history::Mode::Semaphore { permits, of } => (wire::Mode::Exclusive, Some(permits), Some(of)),
        };
        let (session, max_queue) = (Some(session), self.max_queue);
        wire::Acquire { session, wait_ms, mode, permits, of, reentrant, max_queue, ..wire::Acquire::default() }
    }

    /// As a history has them.
    pub(super) fn history_keys(&self) -> history::Keys {
        let keys = self.keys.iter().map(|key| history::Key::from(key.as_str()));
        history::Keys::new(keys.collect()).expect("each key occurs once")
    }

    /// Whether an access with such a grant only reads; `None` with permits of a semaphore, which fence
    /// nothing.
    pub(super) fn access_reads(&self) -> Option<bool> {
        match self.mode {
            history::Mode::Exclusive => Some(false),
            history::Mode::Shared => Some(true),
            history::Mode::Semaphore { .. } => None,
        }
    }
}
