//! The files of an audit log: `audit-00000001.jsonl` and so on in one directory. A new file follows
//! when the last one has reached its size; nothing removes a file but an operator.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::AuditError;
use super::chain::{Chain, Hash};
use super::record::{FORMAT, Position};
use crate::storage::{Access, Disk, DiskFile, Lock, Locking, first_foreign};

/// The lock file's name.
const LOCK_FILE: &str = "lock";
/// How the names of the other files end.
const END: &str = ".jsonl";
/// No node writes as many records, and no cluster as many entries: with a greater number of a forged file, those after it
/// could overflow, and the node would stop.
const MAX_NUMBER: u64 = u64::MAX / 2;
/// The same of files.
const MAX_FILE: u32 = u32::MAX / 2;

/// A locked directory of files.
#[derive(Debug)]
pub(super) struct Files {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    _lock: Lock,
}

/// A file that can be continued.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) number: u32,
    pub(super) file: Box<dyn DiskFile>,
    /// Number of bytes of whole lines.
    pub(super) length: u64,
    pub(super) chain: Chain,
    pub(super) position: Position,
    /// The cluster whose log the position is in.
    pub(super) cluster_id: String,
    /// Number of bytes of an unfinished line that were cut off.
    pub(super) cut: u64,
}

impl Files {
    /// Creates the directory if necessary, takes away what other users may do with it, and locks it. A directory with
    /// files of other programs is refused before anything in it is changed: a mistaken `--audit` must not take the
    /// permissions of all users on `/var/log` away.
    pub(super) fn lock(disk: Arc<dyn Disk>, directory: &Path) -> Result<Files, AuditError> {
        let failed = |source| AuditError::Io { path: directory.to_owned(), source };
        disk.create_directory(directory).map_err(failed)?;
        let names = disk.list(directory).map_err(failed)?;
        let is_audit_log = names.iter().any(|name| name.to_str().and_then(number).is_some());
        if !is_audit_log && let Some(foreign) = first_foreign(&names, is_own) {
            return Err(AuditError::ForeignFiles { path: directory.to_owned(), foreign });
        }
        disk.make_private(directory).map_err(failed)?;
        match disk.lock(&directory.join(LOCK_FILE)).map_err(failed)? {
            Locking::Locked(lock) => Ok(Files { disk, directory: directory.to_owned(), _lock: lock }),
            Locking::Taken(process) => Err(AuditError::Taken { path: directory.to_owned(), process }),
        }
    }

    /// Opens the last file, if there is one, and checks all its lines. An unfinished last line is cut
    /// off: the process ended while it wrote it. A file without its first line is removed.
    pub(super) fn open_last(&self) -> Result<Option<Open>, AuditError> {
        let failed = |source| AuditError::Io { path: self.directory.clone(), source };
        let mut numbers: Vec<u32> =
            self.disk.list(&self.directory).map_err(failed)?.iter().filter_map(|name| number(name.to_str()?)).collect();
        numbers.sort_unstable();
        let mut cut = 0;
        while let Some(last) = numbers.pop() {
            let path = self.path(last);
            if last > MAX_FILE {
                let why = format!("no node has begun {last} files");
                return Err(AuditError::Damaged { path, line: 1, why });
            }
            let failed = |source| AuditError::Io { path: path.clone(), source };
            let content = self.disk.read(&path).map_err(failed)?;
            let whole = content.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            cut += (content.len() - whole) as u64;
            if whole == 0 {
                self.disk.remove(&path).map_err(failed)?;
                self.disk.sync_directory(&self.directory).map_err(failed)?;
                continue;
            }
            let (chain, position, cluster_id) =
                read(&content[..whole]).map_err(|(line, why)| AuditError::Damaged { path: path.clone(), line, why })?;
            let file = self.disk.open(&path, Access::Continue).map_err(failed)?;
            let length = whole as u64;
            if whole < content.len() {
                file.set_length(length).and_then(|()| file.sync_all()).map_err(failed)?;
            }
            return Ok(Some(Open { number: last, file, length, chain, position, cluster_id, cut }));
        }
        Ok(None)
    }

    /// Creates a file. Its name is durable afterwards.
    pub(super) fn create(&self, number: u32) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(&self.path(number), Access::Create)?;
        self.disk.sync_directory(&self.directory)?;
        Ok(file)
    }

    pub(super) fn path(&self, number: u32) -> PathBuf {
        self.directory.join(file_name(number))
    }
}

pub(super) fn file_name(number: u32) -> String {
    format!("audit-{number:08}{END}")
}

/// The number of the file of this name, if it is one of an audit log.
pub(super) fn number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("audit-")?.strip_suffix(END)?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// Whether a file of this name belongs to an audit log: its lock, one of its files, or what an operator has made of one
/// (`audit-00000001.jsonl.gz`).
fn is_own(name: &str) -> bool {
    let original = name.find(END).map_or(name, |at| &name[..at + END.len()]);
    name == LOCK_FILE || number(original).is_some()
}

/// Checks the lines of a file; returns the end of the chain, the position in the cluster's log, and the
/// cluster's ID.
/// An error has the number of the line.
fn read(content: &[u8]) -> Result<(Chain, Position, String), (u64, String)> {
    let (mut chain, mut position, mut cluster_id) = (Chain::EMPTY, Position::default(), String::new());
    for (line, number) in content.split_inclusive(|&byte| byte == b'\n').zip(1..) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if number == 1 {
            chain = first(line).map_err(|why| (1, why))?;
        }
        let fields = chain.check(line).map_err(|why| (number, why))?;
        position = match fields {
            _ if number == 1 => {
                cluster_id = fields.cluster_id.unwrap_or_default();
                Position { index: fields.through.unwrap_or(0), parts: fields.parts }
            }
            super::chain::Fields { index: Some(index), .. } => position.after_entry(index),
            super::chain::Fields { through: Some(through), .. } => position.through(through),
            _ => position,
        };
        if position.index > MAX_NUMBER {
            return Err((number, format!("no cluster has reached entry {}", position.index)));
        }
    }
    Ok((chain, position, cluster_id))
}

/// The chain before a file, from the file's first line.
///
/// # Errors
/// What is wrong with the line.
pub(super) fn first(line: &[u8]) -> Result<Chain, String> {
    #[derive(serde::Deserialize)]
    struct First {
        n: u64,
        event: String,
        format: u64,
        prev: String,
    }
    let not_first = |error| format!("it is not the first line of a file of an audit log: {error}");
    let first: First = serde_json::from_slice(line).map_err(|error| not_first(error.to_string()))?;
    if first.event != "file" {
        return Err(not_first(format!("its event is `{}`", first.event)));
    }
    if first.format != FORMAT {
        return Err(format!("it has format {}, and this program reads format {FORMAT}", first.format));
    }
    let hash = Hash::parse(first.prev.as_bytes()).ok_or_else(|| not_first("`prev` is not a hash".into()))?;
    let count = first.n.checked_sub(1).filter(|&count| count < MAX_NUMBER);
    let count = count.ok_or_else(|| not_first(format!("`n` is {}, which no node has written", first.n)))?;
    Ok(Chain { count, hash })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::Arc;

    use super::{Files, MAX_FILE, MAX_NUMBER, is_own, read};
    use crate::audit::verify::seal;
    use crate::storage::SystemDisk;

    /// Goal: no forged file leads a node that continues it to a number that overflows.
    #[test]
    fn numbers_that_nothing_has_reached_are_refused() {
        let prev = "0".repeat(64);
        let file = |through: u64| {
            let line = format!(
                r#"{{"n":1,"time":"t","node":"1","event":"file","format":1,"cluster_id":"c","through":{through},"prev":"{prev}""#
            );
            seal(line.as_bytes())
        };
        let (_, position, _) = read(&file(MAX_NUMBER)).unwrap();
        assert_eq!(position.index, MAX_NUMBER);
        let (line, why) = read(&file(MAX_NUMBER + 1)).unwrap_err();
        assert_eq!((line, why.contains("no cluster has reached entry")), (1, true), "{why}");
        let directory = tempfile::tempdir().unwrap();
        let files = Files::lock(Arc::new(SystemDisk), directory.path()).unwrap();
        for (number, is_refused) in [(MAX_FILE, false), (MAX_FILE + 1, true), (u32::MAX, true)] {
            fs::write(files.path(number), file(4)).unwrap();
            assert_eq!(files.open_last().is_err(), is_refused, "{number}");
        }
    }

    /// Goal: `--audit` with the directory of other programs changes nothing there.
    #[test]
    fn directory_of_other_programs_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let foreign = directory.path().join("syslog");
        fs::write(&foreign, "a line").unwrap();
        for path in [directory.path(), &foreign] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let lock = || Files::lock(Arc::new(SystemDisk), directory.path());
        let refused = lock().unwrap_err().to_string();
        assert!(refused.contains("has files of other programs, such as syslog"), "{refused}");
        assert_eq!((mode(directory.path()), mode(&foreign)), (0o755, 0o755));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no lock file either");

        fs::rename(&foreign, directory.path().join("audit-00000001.jsonl.gz")).unwrap();
        fs::create_dir(directory.path().join("lost+found")).unwrap();
        drop(lock().unwrap());
        assert_eq!(mode(directory.path()), 0o700);
        drop(lock().unwrap());

        fs::write(directory.path().join("audit-00000002.jsonl"), "").unwrap();
        fs::write(directory.path().join("README"), "what an operator has put beside the log").unwrap();
        drop(lock().unwrap());
    }

    #[test]
    fn names_of_an_audit_log_are_known() {
        for own in ["lock", "audit-00000001.jsonl", "audit-123456789.jsonl", "audit-00000007.jsonl.zst"] {
            assert!(is_own(own), "{own}");
        }
        for foreign in ["syslog", "audit", "audit-1.jsonl", "audit-00000001.json", "locks", ".jsonl", "x.jsonl"] {
            assert!(!is_own(foreign), "{foreign}");
        }
    }
}
