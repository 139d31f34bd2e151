//! The bounds of the case, and the logs within them.

use super::super::logs::{Stamped, grown};

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Number of servers.
    pub servers: u32,
    /// Last term of nodes; messages may be of the next one.
    pub terms: u64,
    /// Maximum length of logs.
    pub log: usize,
}

/// Every node and message within the bounds.
pub struct Consensus {
    pub(super) bounds: Bounds,
    /// All logs.
    pub(super) logs: Vec<Vec<Stamped>>,
}

impl Consensus {
    /// The case within these bounds.
    pub fn new(bounds: Bounds) -> Consensus {
        // Messages may be of the term after the nodes' last one.
        let logs = grown(|known: &[Stamped]| {
            let first = known.last().map_or(1, |last| last.0);
            if known.len() < bounds.log {
                (first..=bounds.terms + 1).map(|term| (term, 0)).collect()
            } else {
                Vec::new()
            }
        });
        Consensus { bounds, logs }
    }

    /// The other servers.
    pub(super) fn others(&self) -> impl Iterator<Item = u32> {
        2..=self.bounds.servers
    }

    /// Counted independently of the node, whose own count is under test.
    pub(super) fn is_majority(&self, count: usize) -> bool {
        2 * count > self.bounds.servers as usize
    }
}
