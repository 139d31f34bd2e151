//! A leader's view of one follower's log (figure 3.1's `nextIndex` and `matchIndex`).

use serde::{Deserialize, Serialize};

use super::{Index, ReadRound};

/// How far a follower's log matches, and how the leader sends to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Progress {
    /// The highest index that the follower has acknowledged in this term. Decreases only if the
    /// follower turns out to have lost entries.
    pub matched: Index,
    /// The next index to send. Always above `matched`.
    pub next: Index,
    /// Whether the logs are known to match up to where `next` begins.
    pub state: ProgressState,
    /// Whether the follower has answered since the last quorum check (CheckQuorum, §6.2).
    pub active: bool,
    /// The latest ReadIndex round that the follower has answered (§6.4).
    pub round: ReadRound,
}

/// How a leader sends entries to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProgressState {
    /// The leader does not know up to where the logs match. It sends one AppendEntries and waits
    /// for the answer; heartbeats repeat the probe.
    Probe,
    /// The logs match. Entries are sent as they come, up to the limit in flight, without waiting
    /// for answers (§10.2.1).
    Replicate,
}

/// The meaning of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// It answers an earlier attempt, and is ignored.
    Stale,
    /// The follower's log does not match the leader's at `prev`.
    Current,
    /// The follower rejected, also when probed again, the last entry that it has acknowledged: it
    /// seems to have lost entries.
    LostEntries,
}

impl Progress {
    /// The progress of a follower of which the leader knows nothing yet, at the start of its term
    /// or when the follower becomes a member: the leader assumes that the follower's log ends where
    /// its own does.
    pub(crate) fn unknown(leader_last: Index) -> Progress {
        Progress {
            matched: Index(0),
            next: leader_last.next(),
            state: ProgressState::Probe,
            active: false,
            round: ReadRound(0),
        }
    }

    /// Records that the follower's log equals the leader's up to `matched`.
    pub(crate) fn accepted(&mut self, matched: Index) {
        self.matched = self.matched.max(matched);
        self.next = self.next.max(self.matched.next());
        if self.state == ProgressState::Probe {
            self.state = ProgressState::Replicate;
            self.next = self.matched.next();
        }
    }

    /// Records that the follower rejected the entries after `prev`; the leader should retry from
    /// `next`.
    ///
    /// A rejection of the entry that the follower acknowledged last is either older than the
    /// acknowledgement, or the follower's disk has lost data. So the leader probes that entry once
    /// more. If the follower rejects it again, `matched` becomes 0 until the follower acknowledges
    /// again, and the leader trusts the follower's hint. (If that rejection was old, too, the next
    /// answer corrects it.)
    pub(crate) fn rejected(&mut self, prev: Index, next: Index) -> Rejection {
        let current = match self.state {
            ProgressState::Probe => prev.next() == self.next,
            ProgressState::Replicate => prev >= self.matched && prev < self.next,
        };
        // Every log has the position before the first entry.
        if !current || prev == Index(0) {
            return Rejection::Stale;
        }
        let lost = self.state == ProgressState::Probe && prev == self.matched;
        if lost {
            self.matched = Index(0);
        }
        self.state = ProgressState::Probe;
        self.next = next.min(prev).max(self.matched.next());
        if lost { Rejection::LostEntries } else { Rejection::Current }
    }

    /// How many more entries may be sent now, if at most `limit` may be in flight.
    pub(crate) fn window(&self, limit: u64) -> u64 {
        match self.state {
            ProgressState::Probe => 0,
            ProgressState::Replicate => limit.saturating_sub(self.next.0 - self.matched.0 - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Index, Progress, ProgressState, ReadRound, Rejection};

    fn probe(matched: u64, next: u64) -> Progress {
        Progress {
            matched: Index(matched),
            next: Index(next),
            state: ProgressState::Probe,
            active: false,
            round: ReadRound(0),
        }
    }

    fn replicate(matched: u64, next: u64) -> Progress {
        Progress { state: ProgressState::Replicate, ..probe(matched, next) }
    }

    fn accepted(mut progress: Progress, matched: u64) -> Progress {
        progress.accepted(Index(matched));
        progress
    }

    /// The progress after a rejection of `prev`; `None` if the rejection was stale.
    fn rejected(mut progress: Progress, prev: u64, next: u64) -> Option<Progress> {
        let before = progress;
        let rejection = progress.rejected(Index(prev), Index(next));
        assert!(rejection != Rejection::Stale || progress == before, "a stale rejection changes nothing");
        assert_eq!(rejection == Rejection::LostEntries, progress.matched != before.matched);
        (rejection != Rejection::Stale).then_some(progress)
    }

    #[test]
    fn acknowledgement_ends_the_probe_and_goes_on_behind_it() {
        assert_eq!(accepted(probe(0, 5), 7), replicate(7, 8));
        assert_eq!(accepted(probe(0, 5), 4), replicate(4, 5));
        // A late acknowledgement, from before the leader went back. The entries after it may be
        // lost, and are sent again.
        assert_eq!(accepted(probe(2, 7), 4), replicate(4, 5));
        assert_eq!(accepted(probe(4, 7), 2), replicate(4, 5));
    }

    #[test]
    fn acknowledgement_in_the_pipeline_leaves_what_is_in_flight() {
        assert_eq!(accepted(replicate(2, 9), 6), replicate(6, 9));
        assert_eq!(accepted(replicate(6, 9), 2), replicate(6, 9));
        // An acknowledgement of entries that were in flight when the leader went back: they are not
        // sent again.
        assert_eq!(accepted(replicate(2, 4), 6), replicate(6, 7));
    }

    #[test]
    fn refusal_starts_a_probe_where_the_follower_says() {
        assert_eq!(rejected(probe(0, 9), 8, 4), Some(probe(0, 4)));
        assert_eq!(rejected(replicate(2, 9), 6, 4), Some(probe(2, 4)));
    }

    #[test]
    fn leader_goes_back_at_each_rejection_but_not_below_matched() {
        // Without a useful hint the leader still goes back, and never probes past the end of its
        // own log.
        assert_eq!(rejected(probe(0, 9), 8, 20), Some(probe(0, 8)));
        assert_eq!(rejected(replicate(2, 9), 6, 20), Some(probe(2, 6)));
        // A rejection older than the acknowledgement of entries that the follower lacked at the
        // time.
        assert_eq!(rejected(replicate(5, 9), 7, 3), Some(probe(5, 6)));
        assert_eq!(rejected(probe(5, 8), 7, 3), Some(probe(5, 6)));
    }

    #[test]
    fn follower_that_lost_acknowledged_entries_is_not_counted() {
        assert_eq!(rejected(replicate(5, 6), 5, 3), Some(probe(5, 6)));
        assert_eq!(rejected(probe(5, 6), 5, 3), Some(probe(0, 3)));
        assert_eq!(rejected(probe(5, 6), 5, 0), Some(probe(0, 1)));
        // The follower claims more than the probed entry: the leader still goes back.
        assert_eq!(rejected(probe(5, 6), 5, 20), Some(probe(0, 5)));
        assert_eq!(accepted(probe(0, 3), 2), replicate(2, 3));
    }

    #[test]
    fn stale_rejection_is_ignored() {
        for prev in [0, 7, 9, 10] {
            assert_eq!(rejected(probe(0, 9), prev, 1), None);
        }
        for prev in [0, 1, 9, 10] {
            assert_eq!(rejected(replicate(2, 9), prev, 1), None);
        }
        assert_eq!(rejected(replicate(0, 9), 0, 1), None);
        assert_eq!(rejected(probe(0, 1), 0, 1), None);
        for prev in [2, 3, 8] {
            assert!(rejected(replicate(2, 9), prev, 1).is_some());
        }
    }

    #[test]
    fn window_is_what_the_limit_leaves_in_the_pipeline() {
        assert_eq!(probe(2, 3).window(8), 0);
        assert_eq!([3, 4, 10, 11, 20].map(|next| replicate(2, next).window(8)), [8, 7, 1, 0, 0]);
    }
}
