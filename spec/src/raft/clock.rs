//! Cluster time, as one node knows it.
//!
//! Only a leader's clock moves cluster time: by what its own monotonic clock measures. AppendEntries carry the reading to
//! the followers, so that the next leader can go on from it.
//!
//! # Why cluster time never runs ahead
//!
//! Call an entry's *age* the real time since its leader stamped it. For every node, and every entry in its log, the
//! node's clock has moved on from the entry's stamp by at most the entry's age:
//!
//! - A leader stamps an entry with its own clock, and from then on its clock moves with real time.
//! - **A clock belongs to a log.** A follower takes over its leader's reading only when its whole log is a prefix of the
//!   leader's: then each of its entries is the leader's too. A follower whose log has a tail of another leader keeps the
//!   clock that it has: the new leader may have measured for longer than those entries exist.
//! - When a follower writes its leader's entries, the leader's reading replaces its own, *even where it is less*: what
//!   the follower knew before says nothing about the new entries.
//! - While the log stays as it is, the greater of two readings counts: both are true of all its entries.
//! - A restart knows only the log, and goes on from its last stamp.
//!
//! So a session never ends early, whoever leads: its sign of life is an entry, and every later stamp lies at most that
//! entry's age after it. Nothing is said of the other direction: time that no leader measured is lost, and deadlines
//! come later by it.

use alloc::vec;
use alloc::vec::Vec;

use super::{Index, Node, Output, Payload, Role, Stamp, StateMachine};

impl<S: StateMachine> Node<S> {
    /// As follower: the leader's clock read `reading` when it sent what has just been accepted. The logs are equal up to
    /// `matched`; `wrote` tells whether entries were written for that.
    pub(super) fn observe_leader_clock(&mut self, reading: Stamp, matched: Index, wrote: bool) {
        if wrote {
            self.clock = reading;
        } else if matched == self.log.last().index {
            self.clock = self.clock.max(reading);
        }
    }

    /// The node's monotonic clock advanced. Cluster time passes only at a leader, and not while it hands over: it takes
    /// no keepalives then, so no session may lose time by that.
    ///
    /// The leader appends a no-op when its clock has passed a deadline of the state machine, unless one that is late
    /// enough to meet it is on its way: so another follows as long as one does not do. And, while any deadline is pending,
    /// when the log's last stamp has fallen too far behind: that much a crash of all would forget.
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

    /// Whether the log has a no-op, not yet applied, whose stamp lies after `deadline`.
    fn has_uncommitted_noop(&self, deadline: Stamp) -> bool {
        let newest_first = self.log.entries().iter().rev();
        let mut late = newest_first.take_while(|entry| entry.index > self.commit && entry.stamp > deadline);
        late.any(|entry| matches!(entry.payload, Payload::Noop))
    }
}
