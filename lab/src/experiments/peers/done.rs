//! A client's work in a window: pairs, and errors.

use std::time::{Duration, Instant};

/// A pair that was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) client: usize,
    pub(super) end: Instant,
    pub(super) latency: Duration,
}

/// What a client did.
#[derive(Default)]
pub(super) struct Done {
    pub(super) pairs: Vec<Pair>,
    pub(super) errors: u64,
    pub(super) error: Option<String>,
}

impl Done {
    /// Counts a pair that failed.
    pub(super) fn fail(&mut self, error: String) {
        self.errors += 1;
        self.error.get_or_insert(error);
    }
}
