//! Clock monotonicity: a node's clock goes back only if its log changes. A follower that writes a
//! leader's entries adopts that leader's reading, even if it is less; while the log does not
//! change, cluster time only advances.

use super::{Check, Property};
use crate::raft::{Node, Position, Stamp, StateMachine};
use crate::require;

/// Compares a node's clock and its log's end before a step with the node after it.
pub fn clock_monotonicity<S: StateMachine>((was, last): (Stamp, Position), after: &Node<S>) -> Check {
    let is = after.clock();
    let holds = is >= was || after.log().last() != last;
    require!(Property::ClockMonotonicity, holds, "the clock of node {} went back from {was} to {is}", after.id())
}

#[cfg(test)]
mod tests {
    use super::clock_monotonicity;
    use crate::invariants::states::{complaint, follower, with_appended};
    use crate::lock::LockTable;
    use crate::raft::{Node, Position, Stamp};

    fn before(node: &Node<LockTable>) -> (Stamp, Position) {
        (node.clock(), node.log().last())
    }

    #[test]
    fn clock_that_goes_back_by_itself_is_seen() {
        let mut early = follower(2, &[1, 1]);
        let mut late = early.clone();
        *late.parts().clock = Stamp(10);
        assert_eq!(complaint(clock_monotonicity(before(&early), &late)), "");
        assert_eq!(complaint(clock_monotonicity(before(&late), &late)), "");
        *early.parts().clock = Stamp(9);
        assert_eq!(complaint(clock_monotonicity(before(&late), &early)), "the clock of node 1 went back from 10 to 9");
    }

    #[test]
    fn clock_of_another_log_may_read_less() {
        let mut own = follower(2, &[1, 1]);
        *own.parts().clock = Stamp(10);
        let followed = with_appended(&own, 2, &[2], 0);
        assert_eq!(followed.clock(), Stamp(0));
        assert_eq!(complaint(clock_monotonicity(before(&own), &followed)), "");
    }
}
