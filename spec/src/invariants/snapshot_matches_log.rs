//! A snapshot, and the base of a log, name the committed entry that they replace, and its stamp.

use super::{Check, Property};
use crate::raft::{Entry, Position, Stamp};
use crate::require;

/// Checks the position and the stamp of a snapshot or a base after the first entry. `committed` is
/// the committed entry at its index.
pub fn snapshot_matches_log<C>(last: Position, stamp: Stamp, committed: Option<&Entry<C>>) -> Check {
    let named = committed.map(|entry| (entry.position(), entry.stamp));
    require!(
        Property::SnapshotsMatchLog,
        named == Some((last, stamp)),
        "a log or snapshot begins after {last:?} at {stamp}, and {named:?} was committed there"
    )
}
