//! At most one membership change is uncommitted (§4.1): majorities before and after one change
//! overlap, but over two changes they need not.

use super::{Check, Property};
use crate::raft::{Index, Log, Payload};
use crate::require;

/// Fails if a log has more than one change after the committed index `committed`.
pub fn one_change_at_a_time<C>(log: &Log<C>, committed: Index) -> Check {
    let open = log.entries().iter().filter(|entry| entry.index > committed);
    let changes = open.filter(|entry| matches!(entry.payload, Payload::Members(_))).count();
    require!(Property::OneChangeAtATime, changes <= 1, "{changes} changes of the members follow entry {committed}")
}

#[cfg(test)]
mod tests {
    use super::one_change_at_a_time;
    use crate::invariants::states::{complaint, follower, with_members};
    use crate::raft::Index;

    #[test]
    fn second_change_under_way_is_seen() {
        let node = with_members(&with_members(&follower(1, &[1]), 1, &[1, 2]), 1, &[1, 2, 4]);
        let complaint = |committed| complaint(one_change_at_a_time(node.log(), Index(committed)));
        assert_eq!([2, 3, 9].map(complaint), ["", "", ""]);
        assert_eq!(
            [0, 1].map(complaint),
            [0, 1].map(|committed| { alloc::format!("2 changes of the members follow entry {committed}") })
        );
    }
}
