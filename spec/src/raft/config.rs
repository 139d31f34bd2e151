//! What a node is told once, at its start.

use serde::{Deserialize, Serialize};

use super::NodeId;

/// A node's configuration. Limits bound what is in flight; no value of theirs can break safety. Who else belongs to the
/// cluster is not told here, but stands on the disk ([`Members`](super::Members)).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// This node.
    pub id: NodeId,
    /// At most this many entries in one AppendEntries. A learner that lacks no more than these may be promoted.
    pub max_batch: usize,
    /// At most this many entries sent to a follower and not yet acknowledged.
    pub max_inflight: u64,
    /// At most this many entries committed, and so applied, in one step: a node that has much to catch up with, after a
    /// restart, goes on hearing and being heard meanwhile. Not less than `max_inflight`, so that it is felt at no other time.
    pub max_commits: u64,
    /// While a deadline is pending, the log's last stamp trails the leader's clock by at most this many
    /// milliseconds: so much can a crash of every node at once add to a time-to-live, beyond the outage itself.
    pub max_stamp_gap: u64,
}

impl Config {
    /// A configuration with the limits the server uses.
    pub fn new(id: NodeId) -> Config {
        Config { id, max_batch: 1024, max_inflight: 8192, max_commits: 8192, max_stamp_gap: 10_000 }
    }
}
