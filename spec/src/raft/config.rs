//! What a node is told once, at its start.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::NodeId;

/// A node's configuration. Limits bound what is in flight; no value of theirs can break safety.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// This node.
    pub id: NodeId,
    /// Every voting node of the cluster, this one included, in increasing order.
    pub voters: Vec<NodeId>,
    /// At most this many entries in one AppendEntries.
    pub max_batch: usize,
    /// At most this many entries sent to a follower and not yet acknowledged.
    pub max_inflight: u64,
    /// While a deadline is pending, the log's last stamp trails the leader's clock by at most this many
    /// milliseconds: so much can a crash of every node at once add to a time-to-live, beyond the outage itself.
    pub max_stamp_gap: u64,
}

impl Config {
    /// A configuration with the limits the server uses.
    ///
    /// # Panics
    /// If `id` is not one of `voters`.
    pub fn new(id: NodeId, voters: impl IntoIterator<Item = NodeId>) -> Config {
        let mut voters: Vec<NodeId> = voters.into_iter().collect();
        voters.sort_unstable();
        voters.dedup();
        assert!(voters.contains(&id), "a node is one of its cluster's voters");
        Config { id, voters, max_batch: 1024, max_inflight: 8192, max_stamp_gap: 10_000 }
    }

    /// The other voters.
    pub fn peers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.voters.iter().copied().filter(|&voter| voter != self.id)
    }

    /// How many voters decide: more than half.
    pub fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{Config, NodeId};

    fn config(id: u16, voters: &[u16]) -> Config {
        Config::new(NodeId(id), voters.iter().copied().map(NodeId))
    }

    #[test]
    fn voters_are_put_in_order_and_count_once() {
        let config = config(2, &[3, 1, 2, 3, 1]);
        assert_eq!(config.voters, [1, 2, 3].map(NodeId));
        assert_eq!(config.peers().collect::<Vec<_>>(), [1, 3].map(NodeId));
    }

    #[test]
    fn majority_is_more_than_half() {
        let majorities = [1, 2, 3, 4, 5].map(|count| config(1, &(1..=count).collect::<Vec<_>>()).majority());
        assert_eq!(majorities, [1, 2, 2, 3, 3]);
    }

    #[test]
    #[should_panic = "a node is one of its cluster's voters"]
    fn node_is_one_of_the_voters() {
        config(4, &[1, 2, 3]);
    }
}
