//! A leader's view of one follower's log (figure 3.1's `nextIndex` and `matchIndex`).

use serde::{Deserialize, Serialize};

use super::Index;

/// How far a follower is, and how the leader goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Progress {
    /// The highest index that the follower has acknowledged in this term. Never decreases.
    pub matched: Index,
    /// The next index to send. Always above `matched`.
    pub next: Index,
    /// Whether `next` is known to fit.
    pub pace: Pace,
    /// Whether the follower has answered since the last check for a quorum (CheckQuorum, §6.2).
    pub active: bool,
}

/// How a leader sends entries to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pace {
    /// The leader does not know where the logs part. It sends one AppendEntries and waits for the answer; a
    /// heartbeat asks again.
    Probe,
    /// The logs fit. Entries are sent as they come, up to the limit in flight, without waiting for answers (§10.2.1).
    Replicate,
}

impl Progress {
    /// A follower of whom the leader of a new term knows nothing yet: its log probably ends where the leader's does.
    pub(crate) fn unknown(leader_last: Index) -> Progress {
        Progress { matched: Index(0), next: leader_last.next(), pace: Pace::Probe, active: false }
    }

    /// The follower's log equals the leader's up to `matched`.
    pub(crate) fn accepted(&mut self, matched: Index) {
        self.matched = self.matched.max(matched);
        self.next = self.next.max(self.matched.next());
        if self.pace == Pace::Probe {
            self.pace = Pace::Replicate;
            self.next = self.matched.next();
        }
    }

    /// The follower refused what followed `prev`; the leader should try again from `next`. Says whether the refusal
    /// is news: one that answers an earlier attempt is not.
    pub(crate) fn rejected(&mut self, prev: Index, next: Index) -> bool {
        let current = match self.pace {
            Pace::Probe => prev.next() == self.next,
            Pace::Replicate => prev > self.matched && prev < self.next,
        };
        if current {
            self.pace = Pace::Probe;
            self.next = next.min(prev).max(self.matched.next());
        }
        current
    }

    /// How many more entries may be sent now, if at most `limit` may be in flight.
    pub(crate) fn window(&self, limit: u64) -> u64 {
        match self.pace {
            Pace::Probe => 0,
            Pace::Replicate => limit.saturating_sub(self.next.0 - self.matched.0 - 1),
        }
    }
}
