//! A snapshot, and a log that begins after one, hold the members as of the snapshot's last entry
//! (§5.1), because the entries that changed them are removed.

use super::{Check, Committed, Property};
use crate::raft::{Index, Members, Payload};
use crate::require;

/// Fails if `members`, as of the committed entry at `index`, differ from what the entries up to
/// `index` state in a cluster with these `founders`.
///
/// A server that was added later may know no members: it has none until it receives the first
/// change.
pub fn members_survive_compaction<C>(
    index: Index,
    members: &Members,
    founders: &Members,
    committed: &Committed<C>,
) -> Check {
    let changes = committed.range(..=index).rev().filter_map(|(_, entry)| match &entry.payload {
        Payload::Members(members) => Some(&**members),
        Payload::Noop | Payload::Command(_) => None,
    });
    let latest = { changes }.next();
    let knows = members == latest.unwrap_or(founders) || (latest.is_none() && *members == Members::default());
    require!(Property::MembersSurviveCompaction, knows, "as of entry {index} there are other members than {members:?}")
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::members_survive_compaction;
    use crate::invariants::Committed;
    use crate::invariants::states::{complaint, noop};
    use crate::lock::Command;
    use crate::raft::{Entry, Index, Members, NodeId, Payload};

    fn members(voters: &[u32]) -> Members {
        Members::of(voters.iter().copied().map(NodeId))
    }

    /// Whether the check fails for these members as of `index`, in a cluster of three that became
    /// two with entry 2 and three again with entry 4.
    fn wrong(index: u64, voters: &[u32]) -> bool {
        let change = |index, voters: &[u32]| {
            (Index(index), Entry { payload: Payload::Members(Arc::new(members(voters))), ..noop(index, 1) })
        };
        let mut committed: Committed<Command> = [1, 3].map(|index| (Index(index), noop(index, 1))).into();
        committed.extend([change(2, &[1, 2]), change(4, &[1, 2, 4])]);
        let (members, founders) = (members(voters), members(&[1, 2, 3]));
        !complaint(members_survive_compaction(Index(index), &members, &founders, &committed)).is_empty()
    }

    #[test]
    fn members_of_another_moment_are_seen() {
        for (index, right) in [(0, &[1, 2, 3][..]), (1, &[1, 2, 3]), (2, &[1, 2]), (3, &[1, 2]), (4, &[1, 2, 4])] {
            for voters in [&[1, 2, 3][..], &[1, 2], &[1, 2, 4]] {
                assert_eq!(wrong(index, voters), voters != right, "{voters:?} at {index}");
            }
        }
    }

    #[test]
    fn members_may_be_unknown_only_before_the_first_change() {
        assert_eq!([0, 1, 2, 3, 4].map(|index| wrong(index, &[])), [false, false, true, true, true]);
    }
}
