//! One checker of a whole cluster, for everything that runs the protocol.
//!
//! A [`ClusterChecker`] sees what no node sees: all servers at once and, of each disk, what was
//! reported durable. The scenario scripts, the random adversary, the simulation and the validation
//! of recordings feed it with events; it keeps the reference state and judges every [`Property`] of
//! the protocol. The models check the same functions of [`invariants`](crate::invariants) over
//! states that they intern; a test of theirs feeds one run to both.
//!
//! | file | what it keeps and judges |
//! |---|---|
//! | [`cluster`](self) (`cluster.rs`) | recoveries, steps, elections, commits |
//! | `messages.rs` | messages: sent in order, after the writes before them, and never invented |
//! | `inputs.rs` | a single input: what a node does at once |
//! | `compare.rs` | whole states: a node with its disk, with the other nodes, with what was agreed |
//! | `server.rs` | one server: its disk, the writes and outputs under way, its last state |
//! | `agreed.rs` | the reference state: the committed entries, executed once |
//! | `disk.rs` | what a disk may hold after a crash |
//! | `written.rs` | every entry that was ever in a log |
//! | `machine.rs`, `lock_table.rs` | what is specific to the replicated state machine |
//!
//! # Why checking what is new suffices
//!
//! A property about all entries of all logs is checked where something is new: an entry when it is
//! written, a vote when it elects, a commit when it happens. By induction that covers everything.
//! From time to time whole states are compared ([`ClusterChecker::compare`]), which tests the
//! induction itself.
//!
//! # When an entry counts as agreed
//!
//! When the first server *may have executed* an `Applied` output of it: when all writes before that
//! output are durable. What a node has committed in memory only is compared with what was agreed,
//! and is not agreed: the node may crash and forget it.
//!
//! # The checker does not use the functions that it judges
//!
//! - It executes an entry by [`execute`], from [`StateMachine::apply`] and
//!   [`StateMachine::advance`], whose effects it judges entry by entry. It never calls
//!   [`StateMachine::apply_payload`] or [`Durable::snapshot_at`], by which nodes and drivers
//!   execute entries.
//! - It asks a node only for its state, and never steps the node that it observes.
//!
//! The exceptions, in all invariants:
//!
//! - [`Durable::apply`] and [`Durable::settle`] *define* what a disk holds, and are what a node's
//!   memory is compared with. Their own tests judge them.
//! - `Property::UnheardLeaderStepsDown` is about the future: it steps a copy of the leader once more
//!   (`inputs.rs`).
//! - What time alone does to a lock table is what a request that asks for nothing does
//!   ([`time_passed`](crate::invariants::time_passed)): the table executes it. The properties of
//!   expiry judge that part by themselves.

mod agreed;
mod cluster;
mod compare;
mod disk;
mod inputs;
mod lock_table;
mod machine;
mod messages;
mod server;
#[cfg(test)]
mod tests;
mod written;

use core::time::Duration;

pub use agreed::{Agreed, Reference};
pub use cluster::{ClusterChecker, Counts};
pub use inputs::{check_input, transfer_clock};
pub use lock_table::check_lock_entry;
pub use machine::{Checked, Execution, execute};

use crate::raft::{Message, StateMachine};
#[cfg(doc)]
use crate::{invariants::Property, raft::Durable};

/// See [`Feed::checked_whole_up_to`]: a state machine of any size is checked as a whole.
pub const ANY_SIZE: usize = 1 << 31;

/// A server: one disk. Two servers may have the same node ID, if one of them lost its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u64);

/// What a feeder tells, and what it can afford.
#[derive(Clone, Copy, Debug)]
pub struct Feed<S: StateMachine> {
    /// Whether a crash leaves a batch of writes on the disk as a whole or not at all; otherwise it
    /// may leave any prefix.
    pub batches_are_atomic: bool,
    /// Whether the feeder reports a driver's own snapshots ([`ClusterChecker::snapshot_taken`]).
    pub reports_snapshots: bool,
    /// Whether the feeder reports the messages that leave ([`ClusterChecker::sent`]).
    pub reports_sends: bool,
    /// A fingerprint of messages, if the feeder reports those that arrive
    /// ([`ClusterChecker::received`]).
    pub fingerprint: Option<fn(&Message<S>) -> u64>,
    /// Whether the feeder reports every server. A majority with an unknown server is not counted;
    /// otherwise an unknown server counts as blank.
    pub sees_all_servers: bool,
    /// How much cluster time may pass in a time by the feeder's clock.
    pub most: fn(Duration) -> Duration,
    /// How many committed entries are kept, and after how many of them the state too.
    pub entries_kept: usize,
    /// See [`entries_kept`](Feed::entries_kept).
    pub states_kept: usize,
    /// How many written entries are kept.
    pub written_kept: usize,
    /// How many entries a node commits between two comparisons of its whole state.
    pub commits_between_comparisons: u64,
    /// The size up to which a state machine is checked as a whole after each entry. One of k times
    /// this size is checked every k² entries, so that the cost of an entry falls as it grows.
    pub checked_whole_up_to: usize,
}

impl<S: StateMachine> Feed<S> {
    /// A feeder that reports everything, and can afford everything.
    pub fn of_everything() -> Feed<S> {
        Feed {
            batches_are_atomic: false,
            reports_snapshots: true,
            reports_sends: true,
            fingerprint: None,
            sees_all_servers: true,
            most: |time| time,
            entries_kept: usize::MAX,
            states_kept: usize::MAX,
            written_kept: usize::MAX,
            commits_between_comparisons: 1,
            checked_whole_up_to: ANY_SIZE,
        }
    }
}
