//! What a node must remember across a crash, and the writes that change it.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Entry, Log, NodeId, Position, Stamp, StateMachine, Term};

/// The node's place in the elections (figure 3.1's `currentTerm` and `votedFor`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HardState {
    /// The latest term the node has seen.
    pub term: Term,
    /// Whom it voted for in that term, if anyone.
    pub vote: Option<NodeId>,
}

/// The state machine as it was after the entry at `last`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Snapshot<S> {
    /// The last entry that the state includes; [`Position::default`] for the state before the first entry.
    pub last: Position,
    /// That entry's stamp.
    pub stamp: Stamp,
    /// The state.
    pub machine: S,
}

/// A node's disk, as the protocol sees it. The model's disk *is* this type; the server's write-ahead log recovers
/// exactly to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub struct Durable<S: StateMachine> {
    /// Term and vote.
    pub hard: HardState,
    /// The state that the log builds on.
    pub snapshot: Snapshot<S>,
    /// The entries after the snapshot.
    pub log: Log<S::Command>,
}

/// One write to the disk. A later write stands on the earlier ones, so the disk keeps their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Persist<C> {
    /// Replaces term and vote.
    HardState(HardState),
    /// Removes whatever the log holds from the first of these entries on, then appends them all. Never empty.
    ///
    /// A crash may leave any prefix of the entries behind, truncation included: what was removed conflicts with the
    /// leader's log and so was never committed, and none of the new entries has been acknowledged yet.
    Entries(Vec<Entry<C>>),
}

impl<S: StateMachine> Durable<S> {
    /// A blank disk under a state machine's first state.
    pub fn blank(machine: S) -> Durable<S> {
        Durable {
            hard: HardState::default(),
            snapshot: Snapshot { last: Position::default(), stamp: Stamp::default(), machine },
            log: Log::default(),
        }
    }

    /// Executes one write.
    ///
    /// # Panics
    /// If the entries leave a gap after the log, or reach into the snapshot: such a write was never asked for.
    pub fn apply(&mut self, write: &Persist<S::Command>) {
        match write {
            Persist::HardState(hard) => self.hard = *hard,
            Persist::Entries(entries) => {
                let first = entries.first().expect("a write of entries is never empty");
                self.log.truncate(first.index);
                for entry in entries {
                    self.log.push(entry.clone());
                }
            }
        }
    }
}
