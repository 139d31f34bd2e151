//! The states that a restart may find: all writes that were reported done, and any prefix of those
//! in flight.
//!
//! That is the model's disk. The server's log promises more (a batch is durable as a whole or not
//! at all), and its own tests check that.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, Index, Persist};

use super::replica::{Replica, apply};

/// Whether a node in state `before` may recover `found`.
pub(super) fn may_recover(before: &Replica, found: &Durable<LockTable>) -> bool {
    let mut disk = before.disk.clone();
    if is_equivalent(&disk, found, before.released) {
        return true;
    }
    for write in &before.pending {
        match write {
            Persist::Entries(entries) => {
                let end = entries.iter().position(|entry| entry.position() == found.log.last());
                let prefix = end.map(|last| Persist::Entries(entries[..=last].to_vec()));
                let torn = prefix.map(|prefix| {
                    let mut torn = disk.clone();
                    apply(&mut torn, &prefix);
                    torn
                });
                if torn.is_some_and(|torn| is_equivalent(&torn, found, before.released)) {
                    return true;
                }
            }
            Persist::Snapshot(snapshot) => {
                let mut torn = disk.clone();
                torn.snapshot = (**snapshot).clone();
                torn.settle();
                if is_equivalent(&torn, found, before.released) {
                    return true;
                }
            }
            Persist::HardState(_) | Persist::Compact(_) => {}
        }
        apply(&mut disk, write);
        if is_equivalent(&disk, found, before.released) {
            return true;
        }
    }
    false
}

/// Whether `found` equals `disk`, except for a snapshot that the node took meanwhile, up to what it
/// had `released`. The log may begin later, as long as the snapshot includes the entries before.
fn is_equivalent(disk: &Durable<LockTable>, found: &Durable<LockTable>, released: Index) -> bool {
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
    let after = |disk: &Durable<LockTable>| disk.log.slice(begins, usize::MAX).to_vec();
    after(disk) == after(found) && disk.snapshot_at(snapshot.last.index) == *snapshot
}
