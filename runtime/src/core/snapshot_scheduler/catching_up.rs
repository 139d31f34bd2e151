//! The log that followers need behind the snapshots they are sent.
//!
//! A follower that lacks what is gone from the leader's log is sent a snapshot, and then the entries behind it. To send
//! and to load a snapshot may take longer than to write the log that makes the next one due. If the log lost the entries
//! behind the first snapshot then, the follower would need the second one too, and so on for ever. So the leader keeps
//! them: from the moment at which it sends the snapshot until the follower has acknowledged it and is no further behind
//! than any other follower may be.
//!
//! That is bounded, for a follower may die on the way, or receive more slowly than the cluster writes: a follower that
//! shows no progress for [`limits::SNAPSHOT_RESUMED_WITHIN`], or for whose sake too much log was kept
//! ([`limits::CATCH_UP_LOG_BYTES`]), is kept nothing for any longer. If it comes back it is sent the newest snapshot.
//!
//! Only when the log is shortened is decided here, and never that it is: safety depends on nothing of it.

use std::collections::BTreeMap;
use std::time::Instant;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Index, Node, NodeId, Role};

use crate::limits;

/// The followers that are sent a snapshot or catch up behind one, and what the log keeps for each.
#[derive(Debug, Default)]
pub(super) struct CatchingUp {
    followers: BTreeMap<NodeId, Kept>,
    /// How many bytes were written to the log since the process began.
    written: u64,
}

#[derive(Debug)]
struct Kept {
    /// The entries after this one: the last that the snapshot includes, or that the follower has acknowledged.
    after: Index,
    /// When the follower was last sent a snapshot or acknowledged an entry.
    progressed: Instant,
    /// How many bytes had been written when it was first sent the snapshot.
    since: u64,
}

impl CatchingUp {
    /// So much was written to the log.
    pub(super) fn count(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// A snapshot is on its way to a follower: the newest, which ends here, or one that was begun earlier. What was kept
    /// for that one is kept on.
    pub(super) fn sends(&mut self, to: NodeId, newest: Index, now: Instant) {
        let first = Kept { after: newest, progressed: now, since: self.written };
        self.followers.entry(to).or_insert(first).progressed = now;
    }

    /// Looks how far the followers are. A follower that is at most `margin` entries behind needs nothing of its own any
    /// more.
    pub(super) fn look(&mut self, node: &Node<LockTable>, margin: u64, newest_bytes: u64, now: Instant) {
        let Role::Leader(leadership) = node.role() else { return self.followers.clear() };
        let (last, written) = (node.log().last().index, self.written);
        let most = limits::CATCH_UP_LOG_BYTES.max(newest_bytes.saturating_mul(2));
        self.followers.retain(|id, kept| {
            let Some(progress) = leadership.progress.get(id) else { return false };
            if progress.matched > kept.after {
                (kept.after, kept.progressed) = (progress.matched, now);
            }
            let has_caught_up = progress.matched == kept.after && last.0 - kept.after.0 <= margin;
            let is_silent = now.saturating_duration_since(kept.progressed) >= limits::SNAPSHOT_RESUMED_WITHIN;
            !has_caught_up && !is_silent && written - kept.since < most
        });
    }

    /// The last entry that the log may lose, as far as followers are concerned that catch up.
    pub(super) fn allow(&self) -> Option<Index> {
        self.followers.values().map(|kept| kept.after).min()
    }
}
