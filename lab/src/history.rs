//! Histories of several processes on one clock, so that one checker judges them together.
//!
//! Workers and the resource record in files of their own (`--history`). A recorder counts from its
//! own start, so the file begins with a comment that says when that was on the machine's monotonic
//! clock, which all processes share. [`merge`] moves all times to that clock and gives the
//! operations new numbers. The format and the checkers are those of
//! `palisade_history` (docs/conformance/histories.md).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use palisade_history::check::Verdict;
use palisade_history::{Call, End, History, Key, OpId, Recorder, Time};
use rustix::time::{ClockId, clock_gettime};

/// How the first line of a file begins. Two times follow, between which the recorder started.
const ORIGIN: &str = "# the clock started between";

/// How much faster than this machine's monotonic clock a server's clock may run, in millionths.
/// Redis and ZooKeeper count a lease in whole milliseconds of the wall clock, which time
/// synchronisation may slew by 500 millionths.
pub const DRIFT_PPM: u32 = 1_000;

/// The time on the machine's monotonic clock.
#[must_use]
pub fn monotonic() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the monotonic clock starts at zero");
    let nanoseconds = u64::try_from(time.tv_nsec).expect("nanoseconds are a part of a second");
    Time(seconds * 1_000_000_000 + nanoseconds)
}

/// A recorder that writes each event to a new file when it happens: a process that is killed leaves
/// what it has recorded.
///
/// # Errors
/// The file exists already, or cannot be written.
pub fn record_to(path: &Path) -> Result<Recorder, String> {
    let failed = |error: std::io::Error| {
        format!("cannot create the history {} ({error}); name a file that does not exist yet", path.display())
    };
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(failed)?;
    let before = monotonic();
    let recorder = Recorder::into_writer(Box::new(Origin { file, before: Some(before), kept: Vec::new() }));
    recorder.drift(DRIFT_PPM);
    Ok(recorder)
}

/// A recorder in memory.
#[must_use]
pub fn in_memory() -> Recorder {
    let recorder = Recorder::in_memory();
    recorder.drift(DRIFT_PPM);
    recorder
}

/// A recorder that keeps nothing.
#[must_use]
pub fn discard() -> Recorder {
    Recorder::into_writer(Box::new(std::io::sink()))
}

/// Writes the first line when the recorder writes its first event: the clock has started by then.
struct Origin {
    file: File,
    before: Option<Time>,
    kept: Vec<u8>,
}

impl Write for Origin {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.kept.clear();
        if let Some(before) = self.before.take() {
            self.kept.extend(format!("{ORIGIN} {} {}\n", before.0, monotonic().0).into_bytes());
        }
        self.kept.extend(bytes);
        self.file.write_all(&self.kept)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Reads the records of several processes as one history.
///
/// # Errors
/// A file that cannot be read, or is not a history that [`record_to`] has begun.
pub fn merge(files: &[&Path]) -> Result<History, String> {
    let mut merged = History::default();
    for path in files {
        let failed = |error: String| format!("the history {}: {error}", path.display());
        let mut lines = BufReader::new(File::open(path).map_err(|error| failed(error.to_string()))?);
        let mut first = String::new();
        lines.read_line(&mut first).map_err(|error| failed(error.to_string()))?;
        let (before, after) = origin(&first).ok_or_else(|| failed(format!("the first line is not `{ORIGIN} N N`")))?;
        let history = History::read(lines).map_err(|error| failed(error.to_string()))?;
        merged.drift_ppm = merged.drift_ppm.max(history.drift_ppm);
        for mut operation in history.operations {
            // An invocation may only be moved to an earlier time, an end to a later one.
            operation.invoked = Time(before + operation.invoked.0);
            operation.notes.iter_mut().for_each(|(time, _)| time.0 += after);
            if let Some((time, _)) = &mut operation.end {
                time.0 += after;
            }
            merged.operations.push(operation);
        }
    }
    renumber(&mut merged);
    Ok(merged)
}

/// Gives the operations of several records an order and numbers.
pub fn renumber(history: &mut History) {
    history.operations.sort_by_key(|operation| operation.invoked);
    for (number, operation) in (1..).zip(&mut history.operations) {
        operation.id = OpId(number);
    }
}

/// The workers' history with the accesses as the resource saw them.
#[must_use]
pub fn seen_by_resource(workers: &History, resource: History) -> History {
    let mut history = workers.clone();
    history.operations.retain(|operation| !matches!(operation.call, Call::Access { .. }));
    history.operations.extend(resource.operations);
    history.drift_ppm = history.drift_ppm.max(resource.drift_ppm);
    renumber(&mut history);
    history
}

/// A history for each key: the checkers compare all tokens of a history, and those of some lock services compare within
/// one key only. A keep-alive names no key: such operations are together.
#[must_use]
pub fn by_key(history: History) -> BTreeMap<Option<Key>, History> {
    let mut keys: BTreeMap<Option<Key>, History> = BTreeMap::new();
    let drift_ppm = history.drift_ppm;
    for operation in history.operations {
        let key = operation.call.keys().first().cloned();
        let one = keys.entry(key).or_insert_with(|| History { drift_ppm, ..History::default() });
        one.operations.push(operation);
    }
    keys
}

fn origin(line: &str) -> Option<(u64, u64)> {
    let (before, after) = line.strip_prefix(ORIGIN)?.trim().split_once(' ')?;
    Some((before.parse().ok()?, after.parse().ok()?))
}

/// What the checkers of a history found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Judgement {
    /// Number of operations that were judged.
    pub operations: usize,
    /// Violations that the checker `resource` found: writes accepted out of the tokens' order.
    pub resource: Vec<String>,
    /// Violations that the checkers of the lock service found: exclusion, acknowledged, fifo, linearizable.
    pub service: Vec<String>,
}

impl Judgement {
    /// Runs all checkers.
    #[must_use]
    pub fn of(history: &History) -> Judgement {
        Judgement::from_verdicts(history, palisade_history::check::check_all(history))
    }

    /// Runs the checkers whose cost is O(n log n): all but the search for linearizability. Where many leases end by
    /// themselves, the search takes minutes and decides nothing.
    #[must_use]
    pub fn without_search(history: &History) -> Judgement {
        Judgement::from_verdicts(history, palisade_history::check::check_fast(history))
    }

    fn from_verdicts(history: &History, verdicts: Vec<Verdict>) -> Judgement {
        let mut judgement = Judgement { operations: history.operations.len(), ..Judgement::default() };
        for verdict in verdicts {
            let found = verdict.violations.into_iter().map(|violation| violation.0);
            match verdict.checker {
                "resource" => judgement.resource.extend(found),
                _ => judgement.service.extend(found),
            }
        }
        judgement
    }
}

/// Number of accesses that were accepted, and of those that were refused.
#[must_use]
pub fn accesses(history: &History) -> (usize, usize) {
    let of = |wanted: fn(&End) -> bool| {
        let ended =
            history.operations.iter().filter_map(|operation| Some((&operation.call, &operation.end.as_ref()?.1)));
        ended.filter(|(call, end)| matches!(call, Call::Access { .. }) && wanted(end)).count()
    };
    (of(|end| matches!(end, End::Ok(_))), of(|end| matches!(end, End::Fail(_))))
}

#[cfg(test)]
mod tests {
    use palisade_history::{Answer, Client, Refusal};

    use super::*;

    fn access(token: u64) -> Call {
        Call::write(Key::from("k"), token)
    }

    #[test]
    fn files_of_two_processes_are_one_history() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        let start = monotonic();
        let (first, second) = (record_to(&one).unwrap(), record_to(&two).unwrap());
        // The second file's access comes first, although each file numbers its operations from 1.
        second.invoke(&Client::from("b"), access(2)).ok(Answer::Accepted);
        std::thread::sleep(std::time::Duration::from_millis(2));
        first.invoke(&Client::from("a"), access(1)).ok(Answer::Accepted);
        first.invoke(&Client::from("c"), access(1)).fail(Refusal::Refused);
        let history = merge(&[&one, &two]).unwrap();
        let clients: Vec<_> = history.operations.iter().map(|operation| operation.client.to_string()).collect();
        assert_eq!(clients, ["b", "a", "c"]);
        // An end is moved to a later time by what passed between the start of the clock and the first event.
        let now = monotonic();
        let latest = Time(now.0 + (now.0 - start.0));
        assert!(history.operations[0].invoked >= start && history.operations[2].completed() <= latest);
        assert_eq!(accesses(&history), (2, 1));
        let judgement = Judgement::of(&history);
        assert_eq!(judgement.resource.len(), 1, "{judgement:?}");
        assert_eq!((judgement.operations, judgement.service.len()), (3, 0), "{judgement:?}");
    }

    #[test]
    fn a_history_is_not_overwritten() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = record_to(file.path()).err().unwrap();
        assert!(error.contains("name a file that does not exist yet"), "{error}");
    }
}
