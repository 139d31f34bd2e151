//! A disk in memory that forgets what it was not made to keep.
//!
//! Each file has what the operating system shows of it (its cache) and what is durable; each directory has names, and
//! names that are durable. A process that dies leaves the cache as it is. When the power fails, of every write that was
//! not synced any selection of its sectors may be durable, in any combination with other writes; of every change of a
//! name that was not synced, too. A sync may fail: then the system has thrown away what it could not write, whatever the
//! cache still shows, and will not say so again. A disk may be full, slow, and rot.

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

/// What a disk writes, or fails to.
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
    /// As the system shows them.
    names: BTreeMap<String, Inode>,
    /// As they are after a power failure.
    durable: BTreeMap<String, Inode>,
    /// Changes of names that were not synced, the oldest first.
    renamed: Vec<Naming>,
    /// Whether a process has the directory.
    locked: Arc<AtomicBool>,
    /// Work beside the core takes none of its time.
    is_beside: bool,
    troubles: Troubles,
    /// What went wrong so far.
    harm: Harm,
}

/// What is wrong with a disk at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Troubles {
    /// The sync after so many others fails.
    pub(super) sync_fails_in: Option<u32>,
    /// Only those of snapshots count.
    pub(super) of_snapshots: bool,
    /// Files cannot grow.
    pub(super) is_full: bool,
    /// How long a sync takes at the most, beyond what it always takes.
    pub(super) stall: Duration,
}

/// What a disk has done to its process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Harm {
    /// Syncs that failed.
    pub(super) failed_syncs: u64,
    /// Writes that found no room.
    pub(super) refused_writes: u64,
    /// Writes of which a power failure left a part.
    pub(super) torn_writes: u64,
    /// Writes of which it left nothing.
    pub(super) lost_writes: u64,
    /// Changes of names that it undid.
    pub(super) lost_names: u64,
    /// Syncs.
    pub(super) syncs: u64,
}

type Inode = Arc<Mutex<Content>>;

#[derive(Debug, Default)]
struct Content {
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// What was changed since the last sync, the oldest first.
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
    /// The name that it had before, if it was renamed.
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
            troubles: Troubles::default(),
            harm: Harm::default(),
        };
        MemoryDisk { host, inner: Arc::new(Mutex::new(inner)) }
    }

    /// As the storage takes it.
    pub(super) fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Changes what is wrong with it.
    pub(super) fn trouble(&self, change: impl FnOnce(&mut Troubles)) {
        change(&mut self.inner.lock().troubles);
    }

    pub(super) fn harm(&self) -> Harm {
        self.inner.lock().harm
    }

    /// The power fails. What the process had open is closed.
    pub(super) fn power_failure(&self) {
        let mut inner = self.inner.lock();
        let Inner { rng, names, durable, renamed, harm, .. } = &mut *inner;
        for naming in renamed.drain(..) {
            if rng.random_bool(0.5) {
                naming.apply(durable);
            } else {
                harm.lost_names += 1;
            }
        }
        *names = durable.clone();
        for inode in names.values() {
            inode.lock().lose_power(rng, harm);
        }
    }

    /// One bit of what the log or the newest snapshot has turns over; says in which file, if there is anything to turn
    /// over. Only what the next start must read: what was written of the log's last segment, and the newest snapshot.
    pub(super) fn rot(&self) -> Option<String> {
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

    /// The log's last segment loses its end: it is zero from one of its frames on, or the file ends there. Says which file,
    /// if the log has enough frames. At least three are lost: a power failure may have kept the evidence of the last two
    /// from the disk.
    pub(super) fn lose_end(&self) -> Option<String> {
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

    /// A name in the one directory that there is.
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
        let is_snapshot = inner.troubles.of_snapshots
            && inner.names.iter().any(|(name, named)| name.contains(".snap") && Arc::ptr_eq(named, inode));
        let mut content = inode.lock();
        let Content { durable, changes, .. } = &mut *content;
        if inner.sync_fails(is_snapshot) {
            // What could not be written is taken for clean from now on.
            for change in changes.drain(..) {
                change.apply_partly(durable, &mut inner.rng, &mut Harm::default());
            }
            return Err(io::Error::other("the disk reports an error"));
        }
        changes.drain(..).for_each(|change| change.apply(durable));
        Ok(())
    }
}

impl Inner {
    fn sync_begins(&mut self, host: &Host) {
        self.harm.syncs += 1;
        if !self.is_beside {
            let base = Duration::from_micros(self.rng.random_range(80..900));
            let stall = self.troubles.stall;
            let stall = if stall.is_zero() { stall } else { stall.mul_f64(self.rng.random()) };
            host.spend(base + stall);
        }
    }

    fn sync_fails(&mut self, is_snapshot: bool) -> bool {
        let is_meant = is_snapshot || !self.troubles.of_snapshots;
        let Some(left) = self.troubles.sync_fails_in.as_mut().filter(|_| is_meant) else { return false };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.troubles.sync_fails_in = None;
        self.harm.failed_syncs += 1;
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

    /// Any selection of the sectors that it touches; or, as often, a prefix of them.
    fn apply_partly(self, to: &mut Vec<u8>, rng: &mut SmallRng, harm: &mut Harm) {
        let Change::Write { offset, bytes } = self else {
            return if rng.random() { self.apply(to) } else { harm.lost_writes += 1 };
        };
        match rng.random_range(0..4) {
            0 => harm.lost_writes += 1,
            1 => write(to, offset, &bytes),
            way => {
                harm.torn_writes += 1;
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
    fn lose_power(&mut self, rng: &mut SmallRng, harm: &mut Harm) {
        for change in std::mem::take(&mut self.changes) {
            change.apply_partly(&mut self.durable, rng, harm);
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

/// Where the frames of a segment begin. The format stands in docs/operations.md.
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

    /// Nothing when it is full, and enough for everything otherwise.
    fn available(&self, _: &Path) -> io::Result<u64> {
        Ok(if self.inner.lock().troubles.is_full { 0 } else { 1 << 40 })
    }

    /// At once: this is one thread. What the work takes is not the core's time.
    fn beside(&self, _: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside> {
        let before = std::mem::replace(&mut self.inner.lock().is_beside, true);
        work();
        self.inner.lock().is_beside = before;
        Ok(Beside::done())
    }
}

/// The directory is a process's until this is dropped.
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
        if dies.is_some() || (grows && inner.troubles.is_full) {
            taken = inner.rng.random_range(0..=bytes.len());
            if taken < bytes.len() {
                // A sector is written as a whole or not at all.
                taken = ((offset + taken) / SECTOR * SECTOR).saturating_sub(offset);
            }
            if grows && inner.troubles.is_full {
                taken = taken.min(content.cache.len().saturating_sub(offset));
            }
        }
        if !was_off {
            write(&mut content.cache, offset, &bytes[..taken]);
            content.changes.push(Change::Write { offset, bytes: bytes[..taken].to_vec() });
        }
        match dies {
            Some(error) => Err(error),
            None if taken < bytes.len() || (grows && inner.troubles.is_full) => {
                inner.harm.refused_writes += 1;
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
