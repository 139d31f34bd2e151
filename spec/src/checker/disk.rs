//! The possible contents of a disk after a crash: all writes that were reported durable, and some
//! of those under way.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use super::machine::execute;
use crate::invariants::{Check, Property};
use crate::raft::{Durable, Index, Persist, Snapshot, StateMachine};
use crate::require;

/// Applies a durable write. If the feeder does not report snapshots (`computes`), a compaction
/// shows that the driver took one, which is computed here.
///
/// # Errors
/// A compaction of what no snapshot includes.
pub(super) fn apply<S: StateMachine>(disk: &mut Durable<S>, write: &Persist<S>, computes: bool) -> Check {
    if let Persist::Compact(through) = write
        && *through > disk.snapshot.last.index
    {
        require!(Property::CompactedAfterRelease, computes, "what no snapshot includes is compacted, up to {through}")?;
        disk.snapshot = snapshot_at(disk, *through);
    }
    disk.apply(write);
    Ok(())
}

/// The state after the entry at `through`, as a driver's snapshot has it.
pub(super) fn snapshot_at<S: StateMachine>(disk: &Durable<S>, through: Index) -> Snapshot<S> {
    let Snapshot { mut last, mut stamp, ref machine, .. } = disk.snapshot;
    let mut machine = machine.clone();
    while last.index < through {
        let entry = disk.log.get(last.index.next()).expect("the log reaches as far as the new snapshot");
        execute(&mut machine, entry.stamp, &entry.payload);
        (last, stamp) = (entry.position(), entry.stamp);
    }
    Snapshot { last, stamp, members: Arc::clone(disk.log.members_at(last.index)), machine }
}

/// Whether a crash may leave `found` of a disk that had these writes under way. If batches are
/// `atomic`, a batch is durable as a whole or not at all: but for a snapshot, which has its file
/// before the log refers to it, and which ends a batch.
pub(super) fn may_hold<S: StateMachine>(
    disk: &Durable<S>,
    pending: &VecDeque<Persist<S>>,
    atomic: bool,
    released: Index,
    found: &Durable<S>,
) -> bool {
    let mut disk = disk.clone();
    if is_equivalent(&disk, found, released) {
        return true;
    }
    for (position, write) in pending.iter().enumerate() {
        if !atomic && is_torn(&disk, write, released, found) {
            return true;
        }
        apply(&mut disk, write, true).expect("the snapshot of a compaction can be computed");
        let next = pending.get(position + 1);
        let ends =
            next.is_none_or(|next| matches!(next, Persist::Snapshot(_))) || matches!(write, Persist::Snapshot(_));
        if (ends || !atomic) && is_equivalent(&disk, found, released) {
            return true;
        }
    }
    false
}

/// Whether `found` is the disk with a part of this write of entries. Of all prefixes, only the one that ends like
/// the disk that was found.
fn is_torn<S: StateMachine>(disk: &Durable<S>, write: &Persist<S>, released: Index, found: &Durable<S>) -> bool {
    let Persist::Entries(entries) = write else { return false };
    let (mut torn, end) = (disk.clone(), found.log.last());
    torn.log.truncate(entries[0].index);
    if torn.log.last() != end {
        let Some(last) = entries.iter().position(|entry| entry.position() == end) else { return false };
        entries[..=last].iter().for_each(|entry| torn.log.push(entry.clone()));
    }
    is_equivalent(&torn, found, released)
}

/// Whether `found` equals `disk`, except for a snapshot that the driver took meanwhile, up to what
/// it had `released`. The log may begin later, as long as the snapshot includes the entries before.
fn is_equivalent<S: StateMachine>(disk: &Durable<S>, found: &Durable<S>, released: Index) -> bool {
    let (kept, snapshot) = (&disk.snapshot, &found.snapshot);
    if disk.hard != found.hard
        || disk.log.last() != found.log.last()
        || disk.log.last_stamp() != found.log.last_stamp()
        || snapshot.last.index < kept.last.index
        || snapshot.last.index > released.max(kept.last.index)
        || found.log.base().index > snapshot.last.index
    {
        return false;
    }
    let begins = disk.log.base().index.max(found.log.base().index).next();
    disk.log.slice(begins, usize::MAX) == found.log.slice(begins, usize::MAX)
        && snapshot_at(disk, snapshot.last.index) == *snapshot
}
