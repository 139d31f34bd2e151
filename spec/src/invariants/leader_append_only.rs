//! Leader Append-Only (figure 3.2): a leader never overwrites or deletes entries in its log; it
//! only appends.

use super::{Check, Property};
use crate::raft::{Node, StateMachine};
use crate::require;

/// Compares a node before and after a step that it took as the leader of one term throughout.
pub fn leader_append_only<S: StateMachine>(before: &Node<S>, after: &Node<S>) -> Check {
    if !(before.is_leader() && after.is_leader() && before.term() == after.term()) {
        return Ok(());
    }
    for entry in before.log().entries() {
        let index = entry.index;
        let kept = index <= after.log().base().index || after.log().get(index) == Some(entry);
        require!(Property::LeaderAppendOnly, kept, "leader {} lost or changed its entry {index}", after.id())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::leader_append_only;
    use crate::invariants::states::{complaint, follower, leader, with_appended, with_proposals};

    #[test]
    fn leader_that_loses_or_changes_an_entry_is_seen() {
        let short = leader(1, &[]);
        let (long, other) = (with_proposals(&short, &[1, 2]), with_proposals(&short, &[3]));
        assert_eq!(complaint(leader_append_only(&short, &long)), "");
        assert_eq!(complaint(leader_append_only(&long, &long)), "");
        assert_eq!(complaint(leader_append_only(&long, &short)), "leader 1 lost or changed its entry 2");
        assert_eq!(complaint(leader_append_only(&other, &long)), "leader 1 lost or changed its entry 2");
    }

    /// The rule holds for a leader while it leads: a follower removes conflicting entries (§3.5).
    #[test]
    fn others_may_lose_entries() {
        let deposed = with_proposals(&leader(1, &[]), &[1, 2]);
        let followed = with_appended(&deposed, 2, &[2], 0);
        let (elected, elected_later) = (leader(3, &[2]), leader(4, &[2, 2]));
        let (follower, overruled) = (follower(3, &[1, 1]), with_appended(&follower(3, &[1, 1]), 3, &[3], 0));
        for (before, after) in [
            (&deposed, &followed),
            (&deposed, &elected),
            (&deposed, &elected_later),
            (&follower, &overruled),
            (&follower, &elected),
        ] {
            assert_eq!(complaint(leader_append_only(before, after)), "");
        }
    }
}
