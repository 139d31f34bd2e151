//! The age of a stale read: an upper bound on how old a node's state is.
//!
//! A follower's state is current when it has applied up to the commit index of a message from the
//! leader, less the time that the message took.
//!
//! A leader asks for a read at each heartbeat (ReadIndex, `raft::read`). When a majority has
//! confirmed the read, no other leader had committed anything before the read was requested: the
//! state has everything that was committed until then. So the age counts from the request of the
//! newest confirmed read, and is a true upper bound. (That a majority has *answered* lately is none:
//! an answer may have been on its way while the majority elected another leader.)
//!
//! Except that the age is measured on the clock of the timers (`CLOCK_MONOTONIC` on Linux), which
//! stands still while the machine is suspended: right after a suspend the age lacks its length, until
//! the node hears from a leader, or stops to lead.

use std::collections::VecDeque;
use std::time::Instant;

use palisade_spec::raft::RequestId;

use super::read::Age;

/// The moments at which the node's state was known to be current.
#[derive(Debug, Default)]
pub(super) struct Freshness {
    /// The latest moment of which the node's state is known to have everything committed.
    current: Option<Instant>,
    /// The reads that no majority has confirmed yet, and when each was requested.
    unconfirmed: VecDeque<(RequestId, Instant)>,
}

impl Freshness {
    /// A follower has received the leader's commit index, and has applied up to it.
    pub(super) fn is_current(&mut self, now: Instant) {
        self.current = self.current.max(Some(now));
    }

    /// A read is requested from the node.
    pub(super) fn read_requested(&mut self, id: RequestId, now: Instant) {
        self.unconfirmed.push_back((id, now));
    }

    /// Whether a read is under way: its confirmation comes without another one.
    pub(super) fn awaits_confirmation(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// A majority has confirmed the reads up to this one.
    pub(super) fn read_confirmed(&mut self, id: RequestId) {
        while let Some((_, requested)) = self.unconfirmed.pop_front_if(|(unconfirmed, _)| *unconfirmed <= id) {
            self.current = self.current.max(Some(requested));
        }
    }

    /// The node has lost leadership, or does not lead: no read will be confirmed.
    pub(super) fn reads_ended(&mut self) {
        self.unconfirmed.clear();
    }

    /// Maximum age of the node's state.
    pub(super) fn age(&self, now: Instant) -> Age {
        Age(self.current.map(|current| now.saturating_duration_since(current)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn leader_age_counts_from_the_request_of_a_confirmed_read() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let age = |freshness: &Freshness, now| freshness.age(at(now)).0.map(|age| age.as_secs());
        let mut freshness = Freshness::default();
        assert_eq!(age(&freshness, 0), None, "nothing was heard yet");
        freshness.is_current(at(1));
        freshness.read_requested(RequestId(1), at(2));
        freshness.read_requested(RequestId(2), at(4));
        assert_eq!(age(&freshness, 5), Some(4), "no read is confirmed");
        freshness.read_confirmed(RequestId(1));
        assert_eq!(age(&freshness, 5), Some(3));
        assert!(freshness.awaits_confirmation());
        freshness.read_confirmed(RequestId(2));
        assert_eq!(age(&freshness, 5), Some(1));
        freshness.read_requested(RequestId(3), at(6));
        freshness.reads_ended();
        freshness.read_confirmed(RequestId(3));
        assert_eq!(age(&freshness, 7), Some(3), "the read ended with the leadership");
    }
}
