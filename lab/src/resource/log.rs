//! The resource's log: every accepted write, synced before it is answered.
//!
//! A directory has one log, `resource.log`, in the form of `frame.rs`, and one process at a time, which locks the directory.
//! The log grows with each write. When it is long, the resource replaces it by one that has the values alone
//! ([`Log::compact`]): the new log is written beside the old one, synced, and renamed over it. A crash before the rename
//! leaves the old log, and a part of the new one that the next start removes; a crash after it leaves the new log. Both
//! have the same values and tokens.

mod frame;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use self::frame::{Damage, HEADER, frame, recover};

/// A log that is not longer is not compacted, in bytes.
pub const COMPACT_AT: u64 = 8 << 20;

/// How a write changes the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// The body is the new value.
    Put,
    /// The body is appended to the value.
    Append,
}

/// An accepted write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The fencing token.
    pub token: u64,
    /// What was done.
    pub op: Op,
    /// The text that was sent.
    pub body: String,
}

/// The open log. One process at a time has it.
#[derive(Debug)]
pub struct Log {
    file: File,
    path: PathBuf,
    /// The directory, locked.
    directory: File,
    /// In bytes.
    length: u64,
    /// Its length after it was compacted, in bytes; 0 if it was not since it was opened.
    compacted: u64,
    compact_at: u64,
}

/// What a log contained when it was opened.
#[derive(Debug)]
pub struct Recovered {
    /// The log, ready for more.
    pub log: Log,
    /// All accepted writes, in their order.
    pub entries: Vec<Entry>,
    /// Length of the torn frame that was cut, in bytes.
    pub cut: usize,
}

impl Log {
    /// Opens the log in a directory, and creates both if they do not exist. The log is compacted if it is longer than
    /// `compact_at`, in bytes, and than twice what it must keep.
    ///
    /// # Errors
    /// The log is damaged, is another process's, or cannot be read or written.
    pub fn open(directory: &Path, compact_at: u64) -> Result<Recovered, String> {
        let path = directory.join("resource.log");
        let failed = |what: &str, error: std::io::Error| format!("cannot {what} {}: {error}", path.display());
        fs::create_dir_all(directory).map_err(|error| failed("create the directory of", error))?;
        let directory = File::open(directory).map_err(|error| failed("open the directory of", error))?;
        let used = |_| format!("{} is in use by another process; end that one first", path.display());
        directory.try_lock().map_err(used)?;
        match fs::remove_file(unfinished(&path)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("remove the unfinished successor of", error));
            }
            _ => {}
        }
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).to_owned();
        let mut file = options.open(&path).map_err(|error| failed("open", error))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| failed("read", error))?;
        let (entries, whole) = recover(&bytes).map_err(|damage| {
            let Damage { offset, what } = damage;
            format!(
                "{} is damaged at offset {offset} ({what}). A fencing token may be lost with it, so the resource \
                 does not start: restore the file, or move it away if no holder of an old token is left",
                path.display()
            )
        })?;
        let cut = bytes.len() - whole;
        file.set_len(whole as u64).map_err(|error| failed("cut", error))?;
        file.seek(SeekFrom::End(0)).map_err(|error| failed("read", error))?;
        if whole == 0 {
            file.write_all(HEADER).map_err(|error| failed("write", error))?;
        }
        file.sync_all().map_err(|error| failed("sync", error))?;
        directory.sync_all().map_err(|error| failed("sync the directory of", error))?;
        let length = whole.max(HEADER.len()) as u64;
        Ok(Recovered { log: Log { file, path, directory, length, compacted: 0, compact_at }, entries, cut })
    }

    /// Writes a frame and syncs it. After an error the log must not be used any more: what it
    /// contains is unknown until it is read again.
    ///
    /// # Errors
    /// The file cannot be written or synced.
    pub fn append(&mut self, entries: &[Entry]) -> Result<(), String> {
        let frame = frame(entries);
        let written = self.file.write_all(&frame).and_then(|()| self.file.sync_data());
        self.length += frame.len() as u64;
        written.map_err(|error| self.failed("write", &error))
    }

    /// Whether the log is so long that it should be compacted.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.length > self.compact_at.max(2 * self.compacted)
    }

    /// Replaces the log by one with these entries, which must add up to the same values and tokens. After an error the log
    /// must not be used any more.
    ///
    /// # Errors
    /// A file cannot be written, synced or renamed.
    pub fn compact(&mut self, entries: impl Iterator<Item = Entry>) -> Result<(), String> {
        let new = unfinished(&self.path);
        let replaced = successor(&new, entries).and_then(|(file, length)| {
            fs::rename(&new, &self.path)?;
            // Until the directory is synced, a crash could bring back the old log, without what is appended to the new one.
            self.directory.sync_all()?;
            Ok((file, length))
        });
        let (file, length) = replaced.map_err(|error| self.failed("compact", &error))?;
        (self.file, self.length, self.compacted) = (file, length, length);
        Ok(())
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> String {
        let path = self.path.display();
        format!("cannot {what} {path} ({error}); the resource stops, and a restart reads what was written")
    }
}

/// The file in which a log's successor is written.
fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("log.new")
}

/// Writes and syncs a log; returns it with its length.
fn successor(path: &Path, entries: impl Iterator<Item = Entry>) -> std::io::Result<(File, u64)> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(HEADER)?;
    let mut length = HEADER.len() as u64;
    for entry in entries {
        let frame = frame(std::slice::from_ref(&entry));
        file.write_all(&frame)?;
        length += frame.len() as u64;
    }
    file.sync_all()?;
    Ok((file, length))
}

impl Drop for Log {
    fn drop(&mut self) {
        // To close the directory is not enough: a process that another thread has just begun has a copy of it until it
        // executes its program, and the lock would last as long.
        let _ = self.directory.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, token: u64, body: &str) -> Entry {
        Entry { key: key.to_owned(), token, op: Op::Put, body: body.to_owned() }
    }

    fn open(directory: &Path) -> Recovered {
        Log::open(directory, COMPACT_AT).unwrap()
    }

    /// Four writes to two keys, and what they add up to.
    fn writes() -> (Vec<Entry>, Vec<Entry>) {
        let values = [entry("a", 3, "third"), entry("b", 4, "fourth")];
        let mut writes = vec![entry("a", 1, "first"), entry("b", 2, "second")];
        writes.extend(values.clone());
        (writes, values.into())
    }

    #[test]
    fn a_log_has_one_process() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = open(directory.path());
        let refused = || Log::open(directory.path(), COMPACT_AT).unwrap_err();
        assert!(refused().contains("in use by another process"), "{}", refused());
        first.log.compact(std::iter::empty()).unwrap();
        assert!(refused().contains("in use by another process"), "{}", refused());
        drop(first);
        open(directory.path());
    }

    /// A crash while the successor is written, at each of its bytes: the old log counts.
    #[test]
    fn a_crash_before_the_rename_leaves_the_old_log() {
        let (writes, values) = writes();
        let directory = tempfile::tempdir().unwrap();
        let new = unfinished(&directory.path().join("resource.log"));
        let mut log = open(directory.path()).log;
        writes.iter().for_each(|write| log.append(std::slice::from_ref(write)).unwrap());
        drop(log);
        let old = fs::read(directory.path().join("resource.log")).unwrap();
        let (_, length) = successor(&new, values.into_iter()).unwrap();
        let bytes = fs::read(&new).unwrap();
        assert_eq!(bytes.len() as u64, length);
        for cut in 0..=bytes.len() {
            fs::write(&new, &bytes[..cut]).unwrap();
            let recovered = open(directory.path());
            assert_eq!((recovered.entries, recovered.cut), (writes.clone(), 0), "cut at {cut}");
            assert!(!new.exists(), "cut at {cut}");
            assert_eq!(fs::read(directory.path().join("resource.log")).unwrap(), old, "cut at {cut}");
        }
    }

    /// A crash while the compacted log grows, at each byte of its last frame: all values and tokens from before count.
    #[test]
    fn a_crash_after_the_rename_leaves_the_new_log() {
        let (writes, values) = writes();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resource.log");
        let mut log = open(directory.path()).log;
        log.append(&writes).unwrap();
        log.compact(values.iter().cloned()).unwrap();
        let compacted = fs::read(&path).unwrap().len();
        assert_eq!((log.length, log.compacted), (compacted as u64, compacted as u64));
        let fifth = entry("a", 5, "fifth");
        log.append(std::slice::from_ref(&fifth)).unwrap();
        drop(log);
        let bytes = fs::read(&path).unwrap();
        for cut in compacted..=bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            let recovered = open(directory.path());
            let mut expected = values.clone();
            expected.extend((cut == bytes.len()).then(|| fifth.clone()));
            assert_eq!((recovered.entries, recovered.log.length), (expected, fs::metadata(&path).unwrap().len()));
        }
    }

    #[test]
    fn a_log_is_long_beyond_the_limit_and_twice_what_it_keeps() {
        let directory = tempfile::tempdir().unwrap();
        let Recovered { mut log, .. } = Log::open(directory.path(), 200).unwrap();
        let write = entry("a", 1, &"x".repeat(60));
        let mut lengths = Vec::new();
        for _ in 0..6 {
            lengths.push((log.length > 200, log.is_long()));
            log.append(std::slice::from_ref(&write)).unwrap();
        }
        assert!(lengths.iter().all(|(longer, long)| longer == long) && lengths[0] != lengths[5], "{lengths:?}");
        log.compact([entry("a", 1, &"x".repeat(300))].into_iter()).unwrap();
        assert!(log.length > 200 && !log.is_long());
        log.append(&[entry("a", 2, &"x".repeat(300))]).unwrap();
        log.append(std::slice::from_ref(&write)).unwrap();
        assert!(log.is_long());
    }
}
