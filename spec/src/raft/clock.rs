//! Cluster time, as one node knows it.
//!
//! Only a leader's clock advances cluster time, by what its own monotonic clock measures.
//! AppendEntries carry the leader's reading to the followers, so that the next leader can continue
//! from it.
//!
//! # Why cluster time never runs ahead
//!
//! The *age* of an entry is the real time since its leader stamped it. For every node and every
//! entry in its log, the node's clock has advanced past the entry's stamp by at most the entry's
//! age:
//!
//! - A leader stamps an entry with its own clock, and from then on its clock moves with real time.
//! - **A clock belongs to a log.** A follower adopts its leader's reading only if its whole log is
//!   a prefix of the leader's: then each of its entries is also the leader's. A follower whose log
//!   ends with entries of another leader keeps its clock: the new leader may have measured for
//!   longer than those entries exist.
//! - When a follower writes its leader's entries, the leader's reading replaces its own, *even if
//!   it is less*: the follower's earlier reading says nothing about the new entries.
//! - While the log does not change, the greater of two readings counts: both hold for all its
//!   entries.
//! - A restarted node knows only its log, and continues from the log's last stamp.
//!
//! So a session never ends early, whichever node leads: its last renewal (or its opening) is an
//! entry, and every later stamp lies after it by at most that entry's age. The other direction is not guaranteed: time
//! that no leader measured is lost, and deadlines come later by that much.

use alloc::vec;
use alloc::vec::Vec;

use super::{Index, Node, Output, Payload, Role, Stamp, StateMachine};

impl<S: StateMachine> Node<S> {
    /// Follower: adopts the leader's clock, which read `reading` when the leader sent the
    /// AppendEntries that was just accepted. The logs are equal up to `matched`; `wrote` is true if
    /// entries were written for it.
    pub(super) fn observe_leader_clock(&mut self, reading: Stamp, matched: Index, wrote: bool) {
        if wrote {
            self.clock = reading;
        } else if matched == self.log.last().index {
            self.clock = self.clock.max(reading);
        }
    }

    /// Handles the advance of the node's monotonic clock. Cluster time advances only at a leader,
    /// and not during a transfer: a leader in transfer accepts no keepalives, so no session may
    /// lose time.
    ///
    /// The leader appends a no-op when its clock has passed a deadline of the state machine, unless
    /// a no-op with a stamp after that deadline is already in flight; so no-ops follow as long as
    /// one does not suffice. It also appends a no-op while any deadline is pending and the log's
    /// last stamp has fallen `max_stamp_gap` behind: a crash of all nodes would lose that much
    /// time.
    pub(super) fn on_clock(&mut self, milliseconds: u64, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { return };
        if leadership.successor.is_some() {
            return;
        }
        self.clock = self.clock.plus(milliseconds);
        let Some(deadline) = self.machine.next_deadline() else { return };
        let passed = deadline < self.clock && !self.has_uncommitted_noop(deadline);
        let stale = self.clock.0 - self.log.last_stamp().0 >= self.config.max_stamp_gap;
        if passed || stale {
            self.append(vec![Payload::Noop], Self::replicate, out);
        }
    }

    /// Whether the log has an unapplied no-op whose stamp lies after `deadline`.
    fn has_uncommitted_noop(&self, deadline: Stamp) -> bool {
        let newest_first = self.log.entries().iter().rev();
        let mut late = newest_first.take_while(|entry| entry.index > self.commit && entry.stamp > deadline);
        late.any(|entry| matches!(entry.payload, Payload::Noop))
    }
}
