//! What a restart may find: what was reported written, and of what was being written any beginning.
//!
//! That is the model's disk. The server's log promises more (a batch is there wholly or not at all), and its own tests
//! hold it to that.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, Index, Persist};

use super::replica::{Replica, apply};

/// Whether a node that was this may come back with that.
pub(super) fn may_find(was: &Replica, found: &Durable<LockTable>) -> bool {
    let mut disk = was.disk.clone();
    if is(&disk, found, was.released) {
        return true;
    }
    for write in &was.pending {
        match write {
            Persist::Entries(entries) => {
                let some = entries.iter().position(|entry| entry.position() == found.log.last());
                let beginning = some.map(|place| Persist::Entries(entries[..=place].to_vec()));
                let torn = beginning.map(|beginning| {
                    let mut torn = disk.clone();
                    apply(&mut torn, &beginning);
                    torn
                });
                if torn.is_some_and(|torn| is(&torn, found, was.released)) {
                    return true;
                }
            }
            Persist::Snapshot(snapshot) => {
                let mut torn = disk.clone();
                torn.snapshot = (**snapshot).clone();
                torn.settle();
                if is(&torn, found, was.released) {
                    return true;
                }
            }
            Persist::HardState(_) | Persist::Compact(_) => {}
        }
        apply(&mut disk, write);
        if is(&disk, found, was.released) {
            return true;
        }
    }
    false
}

/// Whether this is that, but for a snapshot that the node took by itself meanwhile, up to what it had `released`. The log
/// may begin later, as long as the snapshot includes what is before.
fn is(disk: &Durable<LockTable>, found: &Durable<LockTable>, released: Index) -> bool {
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
