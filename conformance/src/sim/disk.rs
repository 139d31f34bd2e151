//! An in-memory disk that models what a real disk may lose.
//!
//! Each file has a cached content (what the operating system returns) and a durable content. The
//! directory likewise has current names and durable names. A process crash keeps the cache. A power
//! failure makes any subset of the sectors of each unsynced write durable, independently of other
//! writes; unsynced name changes survive independently, too. A failed sync drops the data that it
//! could not write, although the cache still shows it, and later syncs do not report the loss. The
//! disk may also be full or slow, or its data may rot.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade::storage::{Access, Beside, Disk, DiskFile, Lock, Locking};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::host::Host;

/// Bytes that the disk writes atomically.
const SECTOR: usize = 512;

/// One machine's disk.
#[derive(Clone, Debug)]
pub(super) struct MemoryDisk {
    host: Host,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    rng: SmallRng,
    /// Current directory entries, as the operating system shows them.
    names: BTreeMap<String, Inode>,
    /// Directory entries that survive a power failure.
    durable: BTreeMap<String, Inode>,
    /// Unsynced name changes, oldest first.
    renamed: Vec<Naming>,
    /// Whether a process holds the directory lock.
    locked: Arc<AtomicBool>,
    /// Background work is running: its syncs cost the core no time.
    is_beside: bool,
    faults: DiskFaults,
    /// Counts of the faults so far.
    stats: DiskStats,
}

/// The disk's present faults.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DiskFaults {
    /// Syncs that still succeed before one fails.
    pub(super) sync_fails_in: Option<u32>,
    /// `sync_fails_in` counts and fails only syncs of snapshot files.
    pub(super) of_snapshots: bool,
    /// Files cannot grow.
    pub(super) is_full: bool,
    /// Maximum extra duration of a sync.
    pub(super) stall: Duration,
}

/// Counts of disk faults and syncs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DiskStats {
    /// Syncs that failed.
    pub(super) failed_syncs: u64,
    /// Writes refused because the disk was full.
    pub(super) refused_writes: u64,
    /// Writes that a power failure made durable in part.
    pub(super) torn_writes: u64,
    /// Writes that a power failure lost.
    pub(super) lost_writes: u64,
    /// Name changes that a power failure undid.
    pub(super) lost_names: u64,
    /// All syncs.
    pub(super) syncs: u64,
}

type Inode = Arc<Mutex<Content>>;

#[derive(Debug, Default)]
struct Content {
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// Changes since the last sync, oldest first.
    changes: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

#[derive(Debug)]
struct Naming {
    name: String,
    inode: Option<Inode>,
    /// The previous name, if this is a rename.
    before: Option<String>,
}

impl MemoryDisk {
    pub(super) fn new(host: Host, seed: u64) -> MemoryDisk {
        let inner = Inner {
            rng: SmallRng::seed_from_u64(seed),
            names: BTreeMap::new(),
            durable: BTreeMap::new(),
            renamed: Vec::new(),
            locked: Arc::default(),
            is_beside: false,
            faults: DiskFaults::default(),
            stats: DiskStats::default(),
        };
        MemoryDisk { host, inner: Arc::new(Mutex::new(inner)) }
    }

    /// The disk as the storage's trait object.
    pub(super) fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Changes the disk's faults.
    pub(super) fn set_faults(&self, change: impl FnOnce(&mut DiskFaults)) {
        change(&mut self.inner.lock().faults);
    }

    pub(super) fn stats(&self) -> DiskStats {
        self.inner.lock().stats
    }

    /// A power failure. The process's open files are closed.
    pub(super) fn power_failure(&self) {
        let mut inner = self.inner.lock();
        let Inner { rng, names, durable, renamed, stats, .. } = &mut *inner;
        for naming in renamed.drain(..) {
            if rng.random_bool(0.5) {
                naming.apply(durable);
            } else {
                stats.lost_names += 1;
            }
        }
        *names = durable.clone();
        for inode in names.values() {
            inode.lock().lose_power(rng, stats);
        }
    }

    /// Flips one bit in the log's last segment or in the newest snapshot, and returns the file's
    /// name, or `None` if there is nothing to flip. The bit lies in the written part, which the
    /// next start must read.
    pub(super) fn flip_bit(&self) -> Option<String> {
        let mut inner = self.inner.lock();
        let Inner { rng, names, .. } = &mut *inner;
        let log: Vec<&String> =
            names.keys().filter(|name| name.starts_with("wal-") && name.ends_with(".log")).collect();
        let newest = names.keys().rfind(|name| name.starts_with("snapshot-") && name.ends_with(".snap"));
        let mut candidates: Vec<&String> = log.last().into_iter().copied().collect();
        candidates.extend(newest);
        if candidates.is_empty() {
            return None;
        }
        let name = candidates[rng.random_range(0..candidates.len())].clone();
        let mut content = names[&name].lock();
        let written = content.cache.iter().rposition(|byte| *byte != 0)? + 1;
        let bit = rng.random_range(0..written * 8);
        let Content { cache, durable, .. } = &mut *content;
        for bytes in [cache, durable] {
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        Some(name)
    }

    /// Cuts off the end of the log's last segment at the start of a frame: the rest is zeroed, or
    /// the file is truncated there. Returns the file's name, or `None` if the log has too few
    /// frames. At least three frames are lost: a power failure may have kept the evidence of the
    /// last two from the disk.
    pub(super) fn truncate_log(&self) -> Option<String> {
        let mut inner = self.inner.lock();
        let Inner { rng, names, .. } = &mut *inner;
        let (name, inode) = names.iter().rfind(|(name, _)| name.starts_with("wal-") && name.ends_with(".log"))?;
        let mut content = inode.lock();
        let frames = frames(&content.cache);
        let end = frames[rng.random_range(0..frames.len().checked_sub(2).filter(|most| *most > 0)?)];
        let length = content.cache.len();
        content.cache.truncate(end);
        if rng.random() {
            content.cache.resize(length, 0);
        }
        content.durable = content.cache.clone();
        content.changes.clear();
        Some(name.clone())
    }

    /// The file name: the disk has a single directory.
    fn name(path: &Path) -> String {
        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn handle(&self, inode: &Inode) -> Box<dyn DiskFile> {
        Box::new(Handle { disk: self.clone(), inode: Arc::clone(inode) })
    }

    fn sync(&self, inode: &Inode) -> io::Result<()> {
        self.host.tick(true)?;
        let mut inner = self.inner.lock();
        inner.sync_begins(&self.host);
        let is_snapshot = inner.faults.of_snapshots
            && inner.names.iter().any(|(name, named)| name.contains(".snap") && Arc::ptr_eq(named, inode));
        let mut content = inode.lock();
        let Content { durable, changes, .. } = &mut *content;
        if inner.sync_fails(is_snapshot) {
            // The kernel marks the unwritten pages clean: later syncs do not write them.
            for change in changes.drain(..) {
                change.apply_partly(durable, &mut inner.rng, &mut DiskStats::default());
            }
            return Err(io::Error::other("the disk reports an error"));
        }
        changes.drain(..).for_each(|change| change.apply(durable));
        Ok(())
    }
}

impl Inner {
    fn sync_begins(&mut self, host: &Host) {
        self.stats.syncs += 1;
        if !self.is_beside {
            let base = Duration::from_micros(self.rng.random_range(80..900));
            let stall = self.faults.stall;
            let stall = if stall.is_zero() { stall } else { stall.mul_f64(self.rng.random()) };
            host.spend(base + stall);
        }
    }

    fn sync_fails(&mut self, is_snapshot: bool) -> bool {
        let is_meant = is_snapshot || !self.faults.of_snapshots;
        let Some(left) = self.faults.sync_fails_in.as_mut().filter(|_| is_meant) else { return false };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.faults.sync_fails_in = None;
        self.stats.failed_syncs += 1;
        true
    }

    fn rename(&mut self, naming: Naming) {
        naming.apply(&mut self.names);
        self.renamed.push(naming);
    }
}

impl Naming {
    fn apply(&self, names: &mut BTreeMap<String, Inode>) {
        if let Some(before) = &self.before {
            names.remove(before);
        }
        match &self.inode {
            Some(inode) => names.insert(self.name.clone(), Arc::clone(inode)),
            None => names.remove(&self.name),
        };
    }
}

impl Change {
    fn apply(self, to: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes } => write(to, offset, &bytes),
            Change::Length(length) => to.resize(length, 0),
        }
    }

    /// Applies any subset of the touched sectors or, as often, a prefix of them.
    fn apply_partly(self, to: &mut Vec<u8>, rng: &mut SmallRng, stats: &mut DiskStats) {
        let Change::Write { offset, bytes } = self else {
            return if rng.random() { self.apply(to) } else { stats.lost_writes += 1 };
        };
        match rng.random_range(0..4) {
            0 => stats.lost_writes += 1,
            1 => write(to, offset, &bytes),
            way => {
                stats.torn_writes += 1;
                let prefix = rng.random_range(0..=bytes.len());
                let mut at = 0;
                while at < bytes.len() {
                    let end = ((offset + at) / SECTOR * SECTOR + SECTOR - offset).min(bytes.len());
                    let lands = if way == 2 { end <= prefix } else { rng.random() };
                    if lands {
                        write(to, offset + at, &bytes[at..end]);
                    }
                    at = end;
                }
            }
        }
    }
}

impl Content {
    fn lose_power(&mut self, rng: &mut SmallRng, stats: &mut DiskStats) {
        for change in std::mem::take(&mut self.changes) {
            change.apply_partly(&mut self.durable, rng, stats);
        }
        self.cache.clone_from(&self.durable);
    }
}

fn write(to: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if to.len() < end {
        to.resize(end, 0);
    }
    to[offset..end].copy_from_slice(bytes);
}

/// Offsets of a segment's frames. docs/data-directory.md has the format.
fn frames(segment: &[u8]) -> Vec<usize> {
    let mut frames = Vec::new();
    let mut at = 3 * SECTOR;
    while let Some([b'P', b'L', b'F', b'R', length @ ..]) = segment.get(at..at + 8) {
        frames.push(at);
        let payload = u32::from_le_bytes(length.try_into().expect("four bytes"));
        at += 30 + usize::try_from(payload).expect("frames here are small");
    }
    frames
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no {}", path.display()))
}

impl Disk for MemoryDisk {
    fn create_directory(&self, _: &Path) -> io::Result<()> {
        self.host.tick(true)
    }

    fn list(&self, _: &Path) -> io::Result<Vec<OsString>> {
        self.host.tick(true)?;
        Ok(self.inner.lock().names.keys().map(OsString::from).collect())
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        self.host.tick(true)?;
        let mut inner = self.inner.lock();
        inner.sync_begins(&self.host);
        if inner.sync_fails(false) {
            return Err(io::Error::other("the disk reports an error"));
        }
        let Inner { renamed, durable, .. } = &mut *inner;
        renamed.drain(..).for_each(|naming| naming.apply(durable));
        Ok(())
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        self.host.tick(true)?;
        let name = MemoryDisk::name(path);
        let mut inner = self.inner.lock();
        if let Some(inode) = inner.names.get(&name).cloned() {
            drop(inner);
            let handle = self.handle(&inode);
            if access == Access::Create {
                handle.set_length(0)?;
            }
            return Ok(handle);
        }
        match access {
            Access::Read | Access::Write => Err(not_found(path)),
            Access::Create | Access::Continue => {
                let inode = Inode::default();
                inner.rename(Naming { name, inode: Some(Arc::clone(&inode)), before: None });
                Ok(self.handle(&inode))
            }
        }
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.host.tick(true)?;
        let inner = self.inner.lock();
        let inode = inner.names.get(&MemoryDisk::name(path)).ok_or_else(|| not_found(path))?;
        let content = inode.lock();
        Ok(content.cache.clone())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.host.tick(true)?;
        let (from, to) = (MemoryDisk::name(from), MemoryDisk::name(to));
        let mut inner = self.inner.lock();
        let inode = inner.names.get(&from).cloned().ok_or_else(|| not_found(Path::new(&from)))?;
        inner.rename(Naming { name: to, inode: Some(inode), before: Some(from) });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.host.tick(true)?;
        let name = MemoryDisk::name(path);
        let mut inner = self.inner.lock();
        if !inner.names.contains_key(&name) {
            return Err(not_found(path));
        }
        inner.rename(Naming { name, inode: None, before: None });
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Locking> {
        self.host.tick(true)?;
        let locked = Arc::clone(&self.inner.lock().locked);
        if locked.swap(true, Ordering::Relaxed) {
            return Ok(Locking::Taken(None));
        }
        Ok(Locking::Locked(Lock::new(Held(locked))))
    }

    /// 0 when the disk is full, otherwise practically unlimited.
    fn available(&self, _: &Path) -> io::Result<u64> {
        Ok(if self.inner.lock().faults.is_full { 0 } else { 1 << 40 })
    }

    /// Runs the work at once, since the simulation has one thread, and charges the core no time for
    /// it.
    fn beside(&self, _: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside> {
        let before = std::mem::replace(&mut self.inner.lock().is_beside, true);
        work();
        self.inner.lock().is_beside = before;
        Ok(Beside::done())
    }
}

/// Holds the directory lock until it is dropped.
struct Held(Arc<AtomicBool>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Handle {
    disk: MemoryDisk,
    inode: Inode,
}

impl DiskFile for Handle {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.inode.lock();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.cache.len());
        let read = bytes.len().min(content.cache.len() - from);
        bytes[..read].copy_from_slice(&content.cache[from..from + read]);
        Ok(read)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let was_off = self.disk.host.is_off();
        let dies = self.disk.host.tick(true).err();
        let mut inner = self.disk.inner.lock();
        let mut content = self.inode.lock();
        let offset = usize::try_from(offset).expect("files here are small");
        let grows = offset + bytes.len() > content.cache.len();
        let mut taken = bytes.len();
        if dies.is_some() || (grows && inner.faults.is_full) {
            taken = inner.rng.random_range(0..=bytes.len());
            if taken < bytes.len() {
                // Sectors are written as a whole or not at all.
                taken = ((offset + taken) / SECTOR * SECTOR).saturating_sub(offset);
            }
            if grows && inner.faults.is_full {
                taken = taken.min(content.cache.len().saturating_sub(offset));
            }
        }
        if !was_off {
            write(&mut content.cache, offset, &bytes[..taken]);
            content.changes.push(Change::Write { offset, bytes: bytes[..taken].to_vec() });
        }
        match dies {
            Some(error) => Err(error),
            None if taken < bytes.len() || (grows && inner.faults.is_full) => {
                inner.stats.refused_writes += 1;
                Err(io::ErrorKind::StorageFull.into())
            }
            None => Ok(()),
        }
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.inode.lock().cache.len() as u64)
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.disk.host.tick(true)?;
        let length = usize::try_from(bytes).expect("files here are small");
        let mut content = self.inode.lock();
        content.cache.resize(length, 0);
        content.changes.push(Change::Length(length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.sync(&self.inode)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.disk.sync(&self.inode)
    }
}
