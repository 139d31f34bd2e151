//! Counts of what the clients did, for the report of a run.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_history::{self as history, Call};

use super::lock_spec::LockSpec;

/// Counts of operations and outcomes.
#[derive(Debug, Default)]
pub(in crate::torture) struct Counts {
    pub(in crate::torture) grants: AtomicU64,
    /// Of the grants: shared ones, permits of a semaphore, and grants of several keys.
    pub(in crate::torture) shared: AtomicU64,
    pub(in crate::torture) permits: AtomicU64,
    pub(in crate::torture) several: AtomicU64,
    /// Holds that were added to grants.
    pub(in crate::torture) holds: AtomicU64,
    /// Of them, those of guards.
    pub(in crate::torture) held_again: AtomicU64,
    /// Acquires refused because of a long queue.
    pub(in crate::torture) short_queues: AtomicU64,
    pub(in crate::torture) releases: AtomicU64,
    pub(in crate::torture) held: AtomicU64,
    pub(in crate::torture) timed_out: AtomicU64,
    pub(in crate::torture) unreachable: AtomicU64,
    pub(in crate::torture) lost: AtomicU64,
    pub(in crate::torture) abandoned: AtomicU64,
    pub(in crate::torture) pauses: AtomicU64,
    pub(in crate::torture) writes: AtomicU64,
    pub(in crate::torture) reads: AtomicU64,
    pub(in crate::torture) stale: AtomicU64,
    /// Transactions, and those that were refused or not answered.
    pub(in crate::torture) changes: AtomicU64,
    pub(in crate::torture) not_changed: AtomicU64,
    /// Of the transactions: those that changed two records, those that compared a version.
    pub(in crate::torture) of_two_records: AtomicU64,
    pub(in crate::torture) compared: AtomicU64,
    /// Of those that were refused: those that compared another version than the record's.
    pub(in crate::torture) other_version: AtomicU64,
    /// Reads of records.
    pub(in crate::torture) record_reads: AtomicU64,
    /// Values that replaced those of grants.
    pub(in crate::torture) proclaimed: AtomicU64,
    /// Of them, by guards.
    pub(in crate::torture) proclaimed_by_guards: AtomicU64,
    /// Breaks of grants.
    pub(in crate::torture) broken: AtomicU64,
    /// Breaks whose grant had ended, or was never made.
    pub(in crate::torture) not_broken: AtomicU64,
    /// Events that watchers were told of.
    pub(in crate::torture) events: AtomicU64,
    /// Listings with which they began, or went on behind a gap.
    pub(in crate::torture) listings: AtomicU64,
    /// Requests that plain clients repeated.
    pub(in crate::torture) repeated: AtomicU64,
}

pub(super) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    pub(super) fn count_grant(&self, spec: &LockSpec) {
        increment(&self.grants);
        match spec.mode {
            history::Mode::Exclusive => {}
            history::Mode::Shared => increment(&self.shared),
            history::Mode::Semaphore { .. } => increment(&self.permits),
        }
        if spec.keys.len() > 1 {
            increment(&self.several);
        }
    }

    pub(super) fn count_change(&self, transaction: &Call) {
        increment(&self.changes);
        if transaction.changes().count() > 1 {
            increment(&self.of_two_records);
        }
        if transaction.must_have().next().is_some() {
            increment(&self.compared);
        }
    }

    /// The acquire was refused without a wait, or because of its bound on the queue.
    pub(super) fn count_held(&self, waits: bool) {
        increment(if waits { &self.short_queues } else { &self.held });
    }
}
