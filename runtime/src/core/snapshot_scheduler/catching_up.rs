//! The log entries that followers need after the snapshots they are sent.
//!
//! A follower that needs entries which the leader's log has lost is sent a snapshot, and then the
//! entries after it. Sending and loading a snapshot may take longer than writing the log that makes
//! the next snapshot due. If the log then lost the entries after the first snapshot, the follower
//! would need the second one too, and so on forever. So the leader keeps those entries: from the
//! moment at which it sends the snapshot until the follower has acknowledged it and is no further
//! behind than any other follower may be.
//!
//! The time and the size are bounded, because a follower may fail during the transfer, or receive
//! more slowly than the cluster writes: the leader stops keeping entries for a follower that makes
//! no progress for [`limits::SNAPSHOT_RESUMED_WITHIN`], or for which it has kept too much log
//! ([`limits::CATCH_UP_LOG_BYTES`], or more if the newest snapshot is large). If that follower
//! continues later, it is sent the newest snapshot.
//!
//! This module can only delay the removal of entries from the log, never cause it: safety does not
//! depend on it.

use std::collections::BTreeMap;
use std::time::Instant;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Index, Node, NodeId, Role};

use crate::limits;

/// The followers that are sent a snapshot or catch up after one, and the first entries that the log
/// keeps for each.
#[derive(Debug, Default)]
pub(super) struct CatchingUp {
    followers: BTreeMap<NodeId, RetainedEntries>,
    /// Bytes written to the log since the process started.
    written: u64,
}

#[derive(Debug)]
struct RetainedEntries {
    /// The log keeps the entries after this one: the last that the snapshot includes, or that the
    /// follower has acknowledged.
    after: Index,
    /// When the follower was last sent a snapshot or acknowledged an entry.
    progressed: Instant,
    /// The value of `written` when the follower was first sent the snapshot.
    since: u64,
}

impl CatchingUp {
    /// Counts bytes written to the log.
    pub(super) fn count(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// A snapshot transfer to a follower has started: of the newest snapshot, which ends at
    /// `newest`, or of an earlier one. The entries kept for an earlier one stay kept.
    pub(super) fn sends(&mut self, to: NodeId, newest: Index, now: Instant) {
        let first = RetainedEntries { after: newest, progressed: now, since: self.written };
        self.followers.entry(to).or_insert(first).progressed = now;
    }

    /// Updates the followers' progress. A follower that is at most `margin` entries behind needs no
    /// kept entries any more.
    pub(super) fn update(&mut self, node: &Node<LockTable>, margin: u64, newest_bytes: u64, now: Instant) {
        let Role::Leader(leadership) = node.role() else { return self.followers.clear() };
        let (last, written) = (node.log().last().index, self.written);
        let most = limits::CATCH_UP_LOG_BYTES.max(newest_bytes.saturating_mul(2));
        self.followers.retain(|id, retained| {
            let Some(progress) = leadership.progress.get(id) else { return false };
            if progress.matched > retained.after {
                (retained.after, retained.progressed) = (progress.matched, now);
            }
            let has_caught_up = progress.matched == retained.after && last.0 - retained.after.0 <= margin;
            let is_silent = now.saturating_duration_since(retained.progressed) >= limits::SNAPSHOT_RESUMED_WITHIN;
            !has_caught_up && !is_silent && written - retained.since < most
        });
    }

    /// The last entry that the log may lose as far as these followers are concerned.
    pub(super) fn allow(&self) -> Option<Index> {
        self.followers.values().map(|retained| retained.after).min()
    }
}
