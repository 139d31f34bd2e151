//! Results and failures of a validation.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use palisade::recording::{Flaw, Reading, Record};
use palisade_spec::invariants::Violation;

use super::judge::Judge;

/// Counts of what was validated.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Clusters.
    pub clusters: usize,
    /// Data directories.
    pub nodes: usize,
    /// Process runs.
    pub runs: usize,
    /// Runs whose last frame was cut short by a kill.
    pub torn: usize,
    /// Size of the recordings, in bytes.
    pub bytes: u64,
    /// Inputs, each replayed and checked.
    pub inputs: u64,
    /// Writes.
    pub writes: u64,
    /// Messages received, each compared with what was sent.
    pub messages: u64,
    /// Elections.
    pub elections: u64,
    /// Commits of leaders, for each of which a majority was counted.
    pub commits: u64,
    /// Restarts.
    pub restarts: u64,
    /// Snapshots sent.
    pub snapshots: u64,
    /// Entries committed.
    pub entries: u64,
    /// Events of the lock table.
    pub events: u64,
    /// Entries after which the whole table was checked.
    pub tables: u64,
    /// Whole states compared.
    pub states: u64,
    /// Majorities that were not counted, because a node of them was not recorded.
    pub uncounted: u64,
    /// Recordings that end before their run does. Later records of their clusters were not checked.
    pub cut: Vec<PathBuf>,
}

impl Report {
    pub(super) fn seen(&mut self, judge: &Judge) {
        let counts = judge.counts();
        self.messages += counts.received;
        self.elections += counts.elections;
        self.commits += counts.commits;
        self.restarts += counts.restarts;
        self.snapshots += counts.snapshots;
        self.states += counts.states;
        self.uncounted += counts.uncounted;
        if let Some(agreed) = judge.agreed() {
            let (entries, whole) = agreed.executed();
            self.entries += entries;
            self.events += agreed.entries().map(|entry| entry.outcome.events.len() as u64).sum::<u64>();
            self.tables += whole;
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
        writeln!(f, "{inputs} inputs replayed, {writes} writes, {messages} messages")?;
        writeln!(
            f,
            "{elections} elections, {commits} commits, {entries} entries, {events} events, {snapshots} snapshots"
        )?;
        write!(f, "{states} whole states and {tables} whole tables checked")?;
        if self.uncounted > 0 {
            write!(f, "; {} majorities not counted, because a node was not recorded", self.uncounted)?;
        }
        for path in &self.cut {
            write!(f, "\nCUT: {} ends before its run; later records of its cluster were not checked", path.display())?;
        }
        Ok(())
    }
}

/// Why a validation failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The directory cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A recording cannot be read.
    #[error(transparent)]
    Flaw(#[from] Flaw),
    /// A property is violated.
    #[error("{violation}\n  in {}, record {record}, {at} ns: {input}", .path.display())]
    Violation {
        /// The recording.
        path: PathBuf,
        /// The record in it, counted from 1; the header is not.
        record: u64,
        /// Time, on the machine's monotonic clock, in nanoseconds.
        at: u64,
        /// The record's content.
        input: String,
        /// The violated property.
        violation: Violation,
    },
}

/// Maximum length of a shown record, in characters.
const SHOWN: usize = 2_000;

impl Failure {
    pub(super) fn violation(path: &Path, record: u64, at: u64, violation: Violation) -> Failure {
        let input = shown(path, record).unwrap_or_default();
        Failure::Violation { path: path.to_owned(), record, at, input, violation }
    }
}

/// Reads a record again in order to show it.
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
