//! A node's commit index never goes back while the node runs.

use super::{Check, Property};
use crate::raft::{Index, Node, StateMachine};
use crate::require;

/// Compares a node's commit index before a step with the node after it.
pub fn commit_only_grows<S: StateMachine>(was: Index, after: &Node<S>) -> Check {
    let (id, is) = (after.id(), after.commit());
    require!(Property::CommitOnlyGrows, is >= was, "the commit index of server {id} went from {was} to {is}")
}

#[cfg(test)]
mod tests {
    use super::commit_only_grows;
    use crate::invariants::states::{complaint, follower};
    use crate::raft::Index;

    #[test]
    fn commit_index_that_goes_back_is_seen() {
        let node = follower(1, &[1, 1]);
        assert_eq!(complaint(commit_only_grows(node.commit(), &node)), "");
        let was = Index(node.commit().0 + 1);
        let seen = alloc::format!("the commit index of server 1 went from {was} to {}", node.commit());
        assert_eq!(complaint(commit_only_grows(was, &node)), seen);
    }
}
