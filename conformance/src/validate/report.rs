//! What was looked at, and what was found.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use palisade::recording::{Flaw, Reading, Record};
use palisade_spec::invariants::Violation;

use super::judge::Judge;

/// What was validated.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Clusters.
    pub clusters: usize,
    /// Data directories.
    pub nodes: usize,
    /// Runs of processes.
    pub runs: usize,
    /// Of them, those whose last frame was cut short by a kill.
    pub torn: usize,
    /// How large the recordings are.
    pub bytes: u64,
    /// Inputs, each stepped again and judged.
    pub inputs: u64,
    /// Writes.
    pub writes: u64,
    /// Messages that were received, and held against what was sent.
    pub messages: u64,
    /// Elections.
    pub elections: u64,
    /// Commits of a leader, for which a majority was counted.
    pub commits: u64,
    /// Restarts.
    pub restarts: u64,
    /// Snapshots that were sent.
    pub snapshots: u64,
    /// Entries that were agreed on.
    pub entries: u64,
    /// Events of the lock table.
    pub events: u64,
    /// Entries after which the whole table was judged.
    pub tables: u64,
    /// Whole states that were compared.
    pub states: u64,
    /// Majorities that were not counted, because somebody was not recorded.
    pub uncounted: u64,
    /// Recordings that end before their run does. What follows in their clusters was not judged.
    pub cut: Vec<PathBuf>,
}

impl Report {
    pub(super) fn seen(&mut self, judge: &Judge) {
        let seen = judge.seen;
        self.messages += seen.messages;
        self.elections += seen.elections;
        self.commits += seen.commits;
        self.restarts += seen.restarts;
        self.snapshots += seen.snapshots;
        self.states += seen.states;
        self.uncounted += seen.uncounted;
        if let Some(agreed) = judge.agreed() {
            self.entries += agreed.entries.len() as u64;
            self.events += agreed.events;
            self.tables += agreed.tables;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { clusters, nodes, runs, torn, restarts, inputs, writes, messages, .. } = self;
        let Report { elections, commits, snapshots, entries, events, tables, states, .. } = self;
        let mebibytes = self.bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "{clusters} clusters, {nodes} nodes, {runs} runs ({torn} torn), {restarts} restarts, {mebibytes:.1} MiB"
        )?;
        writeln!(f, "{inputs} inputs stepped again, {writes} writes, {messages} messages")?;
        writeln!(
            f,
            "{elections} elections, {commits} commits, {entries} entries, {events} events, {snapshots} snapshots"
        )?;
        write!(f, "{states} states and {tables} tables judged as a whole")?;
        if self.uncounted > 0 {
            write!(f, "; {} majorities not counted: somebody was not recorded", self.uncounted)?;
        }
        for path in &self.cut {
            write!(f, "\nCUT: {} ends before its run; what followed was not judged", path.display())?;
        }
        Ok(())
    }
}

/// Why recordings are not valid.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The directory cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A recording cannot be read.
    #[error(transparent)]
    Flaw(#[from] Flaw),
    /// Something does not hold.
    #[error("{violation}\n  in {}, record {record}, {at} ns: {input}", .path.display())]
    Violation {
        /// The recording.
        path: PathBuf,
        /// The record in it, counted from 1; the header is not.
        record: u64,
        /// When, on the machine's monotonic clock.
        at: u64,
        /// What the record has.
        input: String,
        /// What does not hold.
        violation: Violation,
    },
}

/// The most of a record that is shown.
const SHOWN: usize = 2_000;

impl Failure {
    pub(super) fn violation(path: &Path, record: u64, at: u64, violation: Violation) -> Failure {
        let input = shown(path, record).unwrap_or_default();
        Failure::Violation { path: path.to_owned(), record, at, input, violation }
    }
}

/// Reads a record again, to show it.
fn shown(path: &Path, number: u64) -> Option<String> {
    let (_, mut reading) = Reading::open(path).ok()??;
    let mut record = None;
    for _ in 0..number {
        record = reading.record().ok()?;
    }
    let mut text = match record? {
        Record::Stepped { input, .. } => format!("{input:?}"),
        Record::Recovered { durable, .. } => {
            format!("a start, with {:?} and a log up to {:?}", durable.hard, durable.log.last())
        }
        other => format!("{other:?}"),
    };
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    Some(text)
}
