//! A node uses the members that its log states (§4.1): those of the latest entry that changes them,
//! committed or not, or else those at the base of the log.

use alloc::sync::Arc;

use super::{Check, Property};
use crate::raft::{Index, Log, Members, Payload};
use crate::require;

/// Fails if a log's index of members, at any entry, differs from its entries.
pub fn members_follow_the_log<C>(log: &Log<C>) -> Check {
    let base = log.base().index;
    let mut said: (Index, &Arc<Members>) = (base, log.members_at(base));
    for entry in log.entries() {
        if let Payload::Members(members) = &entry.payload {
            let dropped = said.1.ids().find(|&id| members.get(id).is_none() && !members.was_removed(id));
            require!(
                Property::MembersFollowLog,
                dropped.is_none(),
                "entry {} forgets that {dropped:?} went",
                entry.index
            )?;
            said = (entry.index, members);
        }
        let known = log.members_at(entry.index);
        require!(
            Property::MembersFollowLog,
            known == said.1,
            "as of entry {} it knows {known:?}, and its log says {:?}",
            entry.index,
            said.1
        )?;
    }
    let listed = log.changes_listed();
    let once = listed.clone().zip(listed.skip(1)).all(|(one, next)| one < next);
    require!(Property::MembersFollowLog, once, "it lists a change of the members twice")?;
    let latest = (log.members_since(), log.members());
    require!(Property::MembersFollowLog, latest == said, "it acts on {latest:?}, and its log says {said:?}")
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::members_follow_the_log;
    use crate::invariants::states::{complaint, follower, noop, with_members};
    use crate::lock::LockTable;
    use crate::raft::parts::Parts;
    use crate::raft::{Members, NodeId, Payload};

    /// The detail of the violation after a change to the entries of a log of 3 with members at
    /// index 2.
    fn broken(breaks: impl FnOnce(Parts<'_, LockTable>)) -> alloc::string::String {
        let mut node = with_members(&follower(1, &[1]), 1, &[1, 2, 3, 5]);
        node = with_members(&node, 1, &[1, 2, 3, 4, 5]);
        assert_eq!(complaint(members_follow_the_log(node.log())), "");
        breaks(node.parts());
        complaint(members_follow_the_log(node.log()))
    }

    #[test]
    fn change_that_is_not_in_force_is_seen() {
        let members = Arc::new(Members::of([1, 2, 3, 6].map(NodeId)));
        let complaint = broken(|parts| parts.entries[0].payload = Payload::Members(members));
        assert!(complaint.starts_with("as of entry 1 it knows"), "{complaint}");
    }

    #[test]
    fn member_that_goes_and_is_not_remembered_is_seen() {
        let node = with_members(&follower(1, &[1]), 1, &[1, 2, 3]);
        let node = with_members(&node, 1, &[1, 2]);
        let complaint = complaint(members_follow_the_log(node.log()));
        assert_eq!(complaint, "entry 3 forgets that Some(NodeId(3)) went");
    }

    #[test]
    fn change_that_is_listed_twice_is_seen() {
        let mut node = with_members(&follower(1, &[1]), 1, &[1, 2, 3, 4]);
        // The log loses the entry, and the list of changes keeps it.
        node.parts().entries.pop();
        let node = with_members(&node, 1, &[1, 2, 3, 4]);
        assert_eq!(complaint(members_follow_the_log(node.log())), "it lists a change of the members twice");
    }

    #[test]
    fn change_that_was_taken_out_of_the_log_is_seen() {
        assert!(broken(|parts| parts.entries[1] = noop(2, 1)).starts_with("as of entry 2 it knows"));
        assert!(broken(|parts| drop(parts.entries.pop())).starts_with("it acts on"));
    }
}
