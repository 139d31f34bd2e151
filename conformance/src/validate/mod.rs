//! Live → model: recordings of running nodes, stepped again through `spec` and judged as one run.
//!
//! A recording (`palisade serve --record`, [`palisade::recording`]) has a node's recovered state, its inputs and digests of
//! what it asked for. The node is deterministic, so a [`replica`] that is given the same has to ask for the same. That is
//! checked first, and says that the server runs the functions that were model-checked, on the state that its disk gave
//! back. Then all nodes of a cluster are taken together, in the order of the machine's monotonic clock, and a [`judge`] who
//! sees all of them at once knows what must hold: what the models ask of every state that they reach.
//!
//! # Why the order is right
//!
//! A step is recorded before anything that it asked for is carried out, and a write's end after the write. So if one thing
//! can have caused another, it has the earlier time: a message is sent before it is received. Two steps that have nothing
//! to do with one another may be merged in either order, and every property holds in both.
//!
//! # What is not seen
//!
//! What the driver tells clients: that is judged by their histories. What happens on the way to the disk: whether a write
//! that was reported done survives a power failure, no process that is merely killed can show.

pub mod command;
mod files;
mod judge;
mod replica;
mod report;
mod restart;
mod table;

use std::path::Path;

use palisade::recording::Record;
use palisade_spec::invariants::Violation;

pub use report::{Failure, Report};

use files::{Chain, Cluster};
use judge::Judge;

/// What is known of a cluster beside its recordings.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How fast the fastest node's clock may run, to one second of the machine's. More than 1 where a test has given a node
    /// such a clock.
    pub clock_rate: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { clock_rate: 1.0 }
    }
}

/// How far a validation is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Where the present cluster's recordings are.
    pub directory: &'a Path,
    /// Its number, from 1.
    pub cluster: usize,
    /// How many there are.
    pub of: usize,
    /// What was looked at so far.
    pub report: &'a Report,
}

/// Validates all recordings below a directory. Each directory may have those of several clusters.
///
/// # Errors
/// If they cannot be read, or at the first violation.
pub fn validate(directory: &Path, options: Options) -> Result<Report, Failure> {
    let (report, failures) = validate_each(directory, options, |_| {})?;
    failures.into_iter().next().map_or(Ok(report), Err)
}

/// The same, with every cluster looked at whatever is wrong with the others; and `watch` is told how far it is, a few
/// hundred times a second.
///
/// # Errors
/// If the directory cannot be read. What is wrong with a cluster is in the list.
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
        let tell = |report: &Report| watch(Progress { directory: &directory, cluster: number, of, report });
        if let Err(failure) = validate_cluster(cluster, options, &mut report, tell) {
            failures.push(failure);
        }
    }
    Ok((report, failures))
}

/// So many inputs are looked at before somebody is told again how far it is.
const STRIDE: u64 = 1_024;

fn validate_cluster(
    cluster: Cluster,
    options: Options,
    report: &mut Report,
    mut tell: impl FnMut(&Report),
) -> Result<(), Failure> {
    report.clusters += 1;
    report.nodes += cluster.nodes.len();
    let mut judge = Judge::new(options);
    let mut chains = Vec::new();
    for runs in cluster.nodes {
        judge.slot(runs[0].header.config.id);
        chains.push(Chain::new(runs, report)?);
    }
    // As if it were one run: whoever's next record is the earliest.
    while let Some(slot) = earliest(&chains) {
        let chain = &mut chains[slot];
        let (at, record) = chain.next().expect("it has a next record");
        count(&record, report);
        let number = chain.number();
        if report.inputs.is_multiple_of(STRIDE) {
            tell(report);
        }
        judge
            .observe(slot, at, record)
            .map_err(|violation| Failure::violation(chains[slot].path(), number, at, violation))?;
        let chain = &mut chains[slot];
        if !chain.advance(report)? {
            // What this node did next nobody knows, and so nothing that depends on all of them.
            report.cut.push(chain.path().to_owned());
            report.seen(&judge);
            return Ok(());
        }
    }
    let end = chains.iter().map(Chain::time).max().unwrap_or(0);
    let last = chains.iter().max_by_key(|chain| chain.time());
    judge.look_around().map_err(|violation| {
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

/// A property that the validator itself knows of.
fn broken(property: &'static str, detail: String) -> Result<(), Violation> {
    Err(Violation { property, detail })
}

/// Fails with `property` unless `holds`.
fn require(property: &'static str, holds: bool, detail: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { broken(property, detail()) }
}
