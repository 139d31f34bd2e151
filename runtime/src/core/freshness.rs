//! When this node last knew that what it has is current: what a stale read says of its age.

use std::time::Instant;

use super::read::Age;

/// The node's last contact.
#[derive(Debug, Default)]
pub(super) struct Freshness {
    /// When it was told how much is committed, and had all of it; as a leader, the moment since which a majority has answered.
    current: Option<Instant>,
    /// When a leader last made sure of its majority.
    checked: Option<Instant>,
}

impl Freshness {
    /// The leader says how much is committed, and the node has applied that.
    pub(super) fn is_current(&mut self, now: Instant) {
        self.current = Some(now);
    }

    /// The node leads: a majority has answered since it did this last, or since it was elected. `knows` tells whether
    /// it knows what is committed: it has committed something in its term.
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

    /// How old what the node has may be.
    pub(super) fn age(&self, now: Instant) -> Age {
        Age(self.current.map(|current| now.saturating_duration_since(current)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_leader_is_as_current_as_its_last_check_but_one() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut freshness = Freshness::default();
        assert!(freshness.age(at(0)).0.is_none(), "nobody was heard yet");
        freshness.is_current(at(1));
        freshness.has_majority(false, at(2));
        freshness.has_majority(false, at(3));
        assert_eq!(freshness.age(at(4)).0, Some(Duration::from_secs(3)), "it does not know what is committed");
        freshness.has_majority(true, at(5));
        assert_eq!(freshness.age(at(5)).0, Some(Duration::from_secs(2)), "somebody answered after the check at 3");
        freshness.follows();
        freshness.has_majority(true, at(9));
        assert_eq!(freshness.age(at(9)).0, Some(Duration::from_secs(6)), "a new office begins with nothing");
    }
}
