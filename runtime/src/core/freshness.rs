//! When this node last knew that its state was current: the basis of a stale read's age.

use std::time::Instant;

use super::read::Age;

/// The moments at which the node's state was known to be current.
#[derive(Debug, Default)]
pub(super) struct Freshness {
    /// On a follower: when it last received the leader's commit index and had applied it. On a
    /// leader: a moment after which a majority has answered.
    current: Option<Instant>,
    /// When the leader last confirmed its majority.
    checked: Option<Instant>,
}

impl Freshness {
    /// A follower has received the leader's commit index, and has applied up to it.
    pub(super) fn is_current(&mut self, now: Instant) {
        self.current = Some(now);
    }

    /// The node leads: a majority has answered since the last call, or since the election. `knows`
    /// is whether the node knows the commit index: it has committed an entry of its term.
    pub(super) fn has_majority(&mut self, knows: bool, now: Instant) {
        if knows {
            self.current = self.current.max(self.checked);
        }
        self.checked = Some(now);
    }

    /// The node does not lead.
    pub(super) fn follows(&mut self) {
        self.checked = None;
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
    fn leader_age_counts_from_second_last_majority_check() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut freshness = Freshness::default();
        assert!(freshness.age(at(0)).0.is_none(), "no leader was heard yet");
        freshness.is_current(at(1));
        freshness.has_majority(false, at(2));
        freshness.has_majority(false, at(3));
        assert_eq!(
            freshness.age(at(4)).0,
            Some(Duration::from_secs(3)),
            "the leader has committed nothing in its term"
        );
        freshness.has_majority(true, at(5));
        assert_eq!(freshness.age(at(5)).0, Some(Duration::from_secs(2)), "a majority answered after the check at 3");
        freshness.follows();
        freshness.has_majority(true, at(9));
        assert_eq!(freshness.age(at(9)).0, Some(Duration::from_secs(6)), "a new leadership begins without a check");
    }
}
