//! Cluster time, as one node knows it.
//!
//! Only the leader's clock is the cluster's: it goes on from what the node knew when it was elected by what its own
//! monotonic clock measures. Followers take over what AppendEntries carry. A clock therefore belongs to a leadership,
//! and the clock of a later leader replaces that of an earlier one *even where it reads less*: a leader that was cut
//! off went on measuring while nobody measured with the others, and if the node counted on from there when it leads
//! again, cluster time would jump past deadlines that the leader in between had put off.
//!
//! So cluster time never passes faster than real time, seen from any entry that was committed: whoever leads later
//! has that entry, and took its clock from its leader or from a later one.

use serde::{Deserialize, Serialize};

use super::{Stamp, Term};

/// What a node knows of cluster time. Ordered: a later leader's word counts more, and of one leader's the higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Clock {
    /// The term whose leader said so.
    pub term: Term,
    /// What it said, or, for the leader itself, measures.
    pub now: Stamp,
}

impl Clock {
    /// Takes over what the leader of `term` says. An earlier word changes nothing.
    pub(crate) fn hear(&mut self, term: Term, now: Stamp) {
        *self = (*self).max(Clock { term, now });
    }

    /// The node leads `term` from here on. Stamps do not decrease along its log, so it goes on from its log's `last` at
    /// the earliest.
    pub(crate) fn lead(&mut self, term: Term, last: Stamp) {
        *self = Clock { term, now: self.now.max(last) };
    }

    /// The leader measured that `milliseconds` have passed.
    pub(crate) fn advance(&mut self, milliseconds: u64) {
        self.now = self.now.plus(milliseconds);
    }
}
