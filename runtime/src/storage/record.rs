//! The content of a frame: the node's writes, in order.

use std::borrow::Cow;

use palisade_spec::raft::{Entry, HardState, Index, Persist, Position, Stamp, StateMachine};
use serde::{Deserialize, Serialize};

/// One write, as the log stores it. A snapshot's state never goes into a frame: it has a file of
/// its own, and the log records at which point among the writes the snapshot was installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "C: Serialize", deserialize = "C: Deserialize<'de>"))]
pub(super) enum Record<'a, C: Clone> {
    /// [`Persist::HardState`].
    HardState(HardState),
    /// [`Persist::Entries`].
    Entries(Cow<'a, [Entry<C>]>),
    /// [`Persist::Compact`].
    Compacted(Index),
    /// [`Persist::Snapshot`].
    Installed {
        /// The snapshot's last entry.
        last: Position,
        /// That entry's stamp.
        stamp: Stamp,
        /// Whether the log had that entry, and so keeps the entries behind it. Recovery cannot
        /// always find out: it may begin with a later segment than the one that had the entry.
        keeps: bool,
    },
}

impl<'a, C: Clone> Record<'a, C> {
    /// The write's record. `has` returns whether the log, after all writes before this one, has the
    /// entry at a position.
    pub(super) fn of<S>(write: &'a Persist<S>, has: impl FnOnce(Position) -> bool) -> Record<'a, C>
    where
        S: StateMachine<Command = C>,
    {
        match write {
            Persist::HardState(hard) => Record::HardState(*hard),
            Persist::Entries(entries) => Record::Entries(Cow::Borrowed(entries)),
            Persist::Compact(through) => Record::Compacted(*through),
            Persist::Snapshot(snapshot) => {
                Record::Installed { last: snapshot.last, stamp: snapshot.stamp, keeps: has(snapshot.last) }
            }
        }
    }
}
