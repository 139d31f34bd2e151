//! Recordings of live nodes, replayed through `spec` and checked as one run of the cluster.
//!
//! A recording (`palisade serve --record`, [`palisade::recording`]) has a node's recovered state,
//! its inputs, and digests of its outputs. The node is deterministic, so the spec with the same
//! inputs must produce the same outputs. That is checked first: it shows that the server runs the
//! functions that were model-checked, on the state that its disk returned. The records of all nodes
//! of a cluster are merged in the order of the machine's monotonic clock, and a [`judge`] feeds them
//! to the [`ClusterChecker`](palisade_spec::checker::ClusterChecker), which sees all nodes at once
//! and checks what the models demand of every state that they reach.
//!
//! # Why the order is right
//!
//! A step is recorded before any of its outputs is executed, and a write's completion after the
//! write. So a cause always has an earlier time than its effect: a message is sent before it is
//! received. Two independent steps may be merged in either order, and every property holds in both.
//!
//! # What is not checked
//!
//! The driver's answers to clients: the clients' histories cover them. The path to the disk: no
//! process that is merely killed can show whether a write that was reported done survives a power
//! failure.

pub mod command;
mod files;
mod judge;
mod report;

use std::path::Path;

use palisade::recording::Record;

pub use report::{Failure, Report};

use files::{Chain, Cluster};
use judge::Judge;

/// Facts about a cluster that its recordings do not contain.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rate of the fastest node's clock, relative to the machine's. Above 1 where a test has given
    /// a node a fast clock.
    pub clock_rate: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { clock_rate: 1.0 }
    }
}

/// Progress of a validation.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Directory of the present cluster's recordings.
    pub directory: &'a Path,
    /// The cluster's number, from 1.
    pub cluster: usize,
    /// Number of clusters.
    pub of: usize,
    /// Results so far.
    pub report: &'a Report,
}

/// Validates all recordings below a directory. Each directory may contain those of several
/// clusters.
///
/// # Errors
/// Unreadable recordings, or the first violation.
pub fn validate(directory: &Path, options: Options) -> Result<Report, Failure> {
    let (report, failures) = validate_each(directory, options, |_| {})?;
    failures.into_iter().next().map_or(Ok(report), Err)
}

/// Validates every cluster, whatever is wrong with the others. `watch` receives the progress a few
/// hundred times a second.
///
/// # Errors
/// An unreadable directory. Failures of a cluster are in the returned list.
pub fn validate_each(
    directory: &Path,
    options: Options,
    mut watch: impl FnMut(Progress<'_>),
) -> Result<(Report, Vec<Failure>), Failure> {
    let mut report = Report::default();
    let (clusters, mut failures) = files::find(directory)?;
    let of = clusters.len();
    for (cluster, number) in clusters.into_iter().zip(1..) {
        let directory = cluster.directory.clone();
        let progress = |report: &Report| watch(Progress { directory: &directory, cluster: number, of, report });
        if let Err(failure) = validate_cluster(cluster, options, &mut report, progress) {
            failures.push(failure);
        }
    }
    Ok((report, failures))
}

/// Number of inputs between two progress reports.
const STRIDE: u64 = 1_024;

fn validate_cluster(
    cluster: Cluster,
    options: Options,
    report: &mut Report,
    mut progress: impl FnMut(&Report),
) -> Result<(), Failure> {
    report.clusters += 1;
    report.nodes += cluster.nodes.len();
    let mut judge = Judge::new(options);
    let mut chains = Vec::new();
    for runs in cluster.nodes {
        judge.slot(runs[0].header.config.id);
        chains.push(Chain::new(runs, report)?);
    }
    // Merges the nodes' records by time.
    while let Some(slot) = earliest(&chains) {
        let chain = &mut chains[slot];
        let (at, record) = chain.next().expect("it has a next record");
        count(&record, report);
        let number = chain.number();
        if report.inputs.is_multiple_of(STRIDE) {
            progress(report);
        }
        judge
            .observe(slot, at, record)
            .map_err(|violation| Failure::violation(chains[slot].path(), number, at, violation))?;
        let chain = &mut chains[slot];
        if !chain.advance(report)? {
            // The node's later steps are unknown, and so is everything that depends on them.
            report.cut.push(chain.path().to_owned());
            report.seen(&judge);
            return Ok(());
        }
    }
    let end = chains.iter().map(Chain::time).max().unwrap_or(0);
    let last = chains.iter().max_by_key(|chain| chain.time());
    judge.compare_nodes().map_err(|violation| {
        let path = last.map_or(Path::new("").to_owned(), |chain| chain.path().to_owned());
        Failure::violation(&path, last.map_or(0, Chain::number), end, violation)
    })?;
    report.seen(&judge);
    Ok(())
}

fn earliest(chains: &[Chain]) -> Option<usize> {
    let next = chains.iter().enumerate().filter_map(|(slot, chain)| Some((chain.next_time()?, slot)));
    next.min().map(|(_, slot)| slot)
}

fn count(record: &Record, report: &mut Report) {
    match record {
        Record::Began(_) | Record::Recovered { .. } => {}
        Record::Stepped { .. } => report.inputs += 1,
        Record::Written { writes, .. } => report.writes += writes,
    }
}
