//! A node's configuration, which is fixed at its start.

use serde::{Deserialize, Serialize};

use super::NodeId;

/// A node's configuration. The limits bound what is in flight; none of their values can break
/// safety. The other members are not configured here but stored on disk
/// ([`Members`](super::Members)).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// This node.
    pub id: NodeId,
    /// Maximum number of entries in one AppendEntries. A learner that lacks no more than this many
    /// entries may be promoted.
    pub max_batch: usize,
    /// Maximum number of entries sent to a follower and not yet acknowledged.
    pub max_inflight: u64,
    /// Maximum number of entries committed, and so applied, in one step, so that a node with many
    /// entries to apply after a restart still sends and receives messages meanwhile. At least
    /// `max_inflight`, so that the limit has no effect at other times.
    pub max_commits: u64,
    /// Maximum lag, in milliseconds, of the log's last stamp behind the leader's clock while a
    /// deadline is pending. A simultaneous crash of all nodes can extend a time-to-live by this
    /// much, in addition to the outage itself.
    pub max_stamp_gap: u64,
}

impl Config {
    /// A configuration with the limits the server uses.
    pub fn new(id: NodeId) -> Config {
        Config { id, max_batch: 512, max_inflight: 8192, max_commits: 8192, max_stamp_gap: 10_000 }
    }
}
