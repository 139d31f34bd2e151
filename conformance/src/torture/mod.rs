//! Live faults: real processes, sockets and files, many clients, and every fault that one machine
//! can have.
//!
//! The faults are drawn from a seed, so that a run can be repeated as far as real threads allow:
//! the same faults to the same nodes after the same pauses. Meanwhile clients acquire locks, wait,
//! give up, pause past their leases, write to a fenced resource, and read the locks; operators break
//! grants. At the end the faults stop, and then
//!
//! 1. every waiter is granted within a bound,
//! 2. all members have the same state (by the hash of a snapshot that each takes),
//! 3. the clients' [history](palisade_history) passes all checkers that are fast enough for it, and
//!    no write within a lease was refused,
//! 4. every node's recording is replayed and checked ([`mod@validate`]).
//!
//! A run leaves nothing behind: nodes end with the pipe that this process holds, and mounts and
//! links are in private [namespaces](namespace). That holds also after a Ctrl-C, a panic, and `kill
//! -9`.

mod certificates;
mod clock;
mod cluster;
pub mod command;
mod damage;
mod disk;
mod fault;
mod load;
mod namespace;
mod network;
mod node;
mod operator;
mod tracer;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::validate::{self, Failure, Options, validate};
use palisade_history::check::{Verdict, check_fast};
use palisade_history::{BadHistory, Call, History, Recorder};

use certificates::Certificates;
use cluster::Cluster;
use load::Load;
use load::watching::Watches;
use node::Setup;

/// Number of clients: with guards, plain ones, readers.
const CLIENTS: [u64; 3] = [8, 4, 2];
/// Number of clients that follow all locks and records.
const WATCHERS: u64 = 2;
/// Number of waiters for each key after the faults, and the bound within which all of them must be
/// granted.
const WAITERS: usize = 8;
const BOUND: Duration = Duration::from_secs(30);
/// Interval between looks at the cluster.
const TICK: Duration = Duration::from_millis(20);

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Duration of the faults.
    pub faults: Duration,
    /// Seed of the faults.
    pub seed: u64,
    /// The server program.
    pub palisade: PathBuf,
    /// The program of the version before, for every second start of each node.
    pub previous: Option<PathBuf>,
    /// Directory of data, logs and recordings.
    pub directory: PathBuf,
    /// Whether nodes and clients use TLS.
    pub tls: bool,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The machine failed to do what the run needs.
    #[error("the run cannot go on: {0}")]
    Io(#[from] io::Error),
    /// A node stopped without an injected reason.
    #[error("node {node} stopped by itself, with {status}; its log ends with\n{log_end}")]
    Stopped {
        /// The node's ID.
        node: u16,
        /// Its exit status.
        status: String,
        /// The end of its log.
        log_end: String,
    },
    /// A node's sync failed, and the node did not stop.
    #[error("a sync of node {node}'s log has failed, and the node goes on; it must stop before it syncs again")]
    Swallowed {
        /// The node's ID.
        node: u16,
    },
    /// The cluster did not reach agreement.
    #[error("{0}")]
    NoAgreement(String),
    /// The clients observed violations.
    #[error("{} violations observed by clients, the first: {}", .0.len(), .0[0])]
    Complaints(Vec<String>),
    /// The history is malformed.
    #[error(transparent)]
    History(#[from] BadHistory),
    /// The recordings show a violation.
    #[error(transparent)]
    Invalid(#[from] Failure),
    /// The recordings show a violation that explains another failure.
    #[error("{failure}\nfound after this failure: {broken}")]
    Explained {
        /// The violation in the recordings.
        failure: Failure,
        /// The failure that was seen first.
        broken: Box<Broken>,
    },
}

/// Results of a successful run.
#[derive(Debug)]
pub struct Report {
    /// Whether a signal ended the faults early.
    early: bool,
    /// For how long faults were planned.
    planned: Duration,
    faults: Vec<(&'static str, u64)>,
    load: [(&'static str, u64); 30],
    lost: String,
    left_out: Vec<&'static str>,
    granted: Duration,
    hash: String,
    operations: BTreeMap<&'static str, u64>,
    verdicts: Vec<Verdict>,
    validated: validate::Report,
}

impl Report {
    /// Whether all recordings are complete.
    pub fn is_recorded(&self) -> bool {
        self.validated.cut.is_empty()
    }

    /// Whether the run took its full time, had everything that it should have had in this time, and was recorded
    /// completely.
    pub fn is_whole(&self) -> bool {
        let mut kinds = expected_kinds(self.planned);
        let has = |kind: &str| self.load.iter().any(|&(name, count)| name == kind && count > 0);
        !self.early && kinds.all(has) && self.validated.runs > 0 && self.is_recorded()
    }
}

/// What must have happened in a run with faults for this long. Some is so rare that half a minute on a slow machine
/// may be without it.
fn expected_kinds(faults: Duration) -> impl Iterator<Item = &'static str> {
    let rare = ["of them because of another version", "of them proclaimed by guards"];
    let kinds = [
        "grants",
        "of them shared",
        "of permits",
        "of several keys",
        "holds added",
        "of them by guards",
        "of them of two records",
        "of them with a version compared",
        "values proclaimed",
        "events watched",
    ];
    kinds.into_iter().chain(rare.into_iter().filter(move |_| faults >= Duration::from_secs(60)))
}

/// Tortures a cluster until the time is over or `stop` is set.
///
/// # Errors
/// Anything that is not right. A violation in the recordings is reported first, because it explains
/// what clients saw.
pub fn torture(plan: &Plan, stop: &AtomicBool) -> Result<Report, Broken> {
    let skewed = clock::is_available();
    let Plan { palisade, previous, directory, tls, .. } = plan.clone();
    let certificates = tls.then(|| Certificates::create(&directory.join("tls"))).transpose()?;
    let setup = Setup { palisade, previous, directory, skewed, certificates };
    let recordings = setup.recordings();
    let options = Options { clock_rate: if skewed { clock::RATE } else { 1.0 } };
    run(plan, setup, options, stop).map_err(|broken| match validate(&recordings, options) {
        Err(failure @ Failure::Violation { .. }) if !matches!(broken, Broken::Invalid(_)) => {
            Broken::Explained { failure, broken: Box::new(broken) }
        }
        _ => broken,
    })
}

fn run(plan: &Plan, setup: Setup, options: Options, stop: &AtomicBool) -> Result<Report, Broken> {
    let mut random = SmallRng::seed_from_u64(plan.seed);
    let (skewed, recordings, security) = (setup.skewed, setup.recordings(), setup.security());
    let mut cluster = Cluster::start(setup)?;
    let history = plan.directory.join("history.jsonl");
    let recorder = Recorder::into_writer(Box::new(BufWriter::new(File::create(&history)?)));
    if skewed {
        recorder.drift(clock::DRIFT_PPM);
    }
    let workload = Load::new(cluster.endpoints(), security, recorder.clone());
    let clients = workload.clients(CLIENTS, plan.seed);
    let watches = Watches::start(&workload, WATCHERS, plan.seed);
    let end = Instant::now() + plan.faults;
    let mut went = Ok(());
    while went.is_ok() && Instant::now() < end && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        went = cluster.tick(&mut random);
        workload.point_to(cluster.endpoints());
    }
    went = went.and_then(|()| cluster.heal());
    workload.point_to(cluster.endpoints());
    workload.stop();
    for client in clients {
        if client.join().is_err() {
            went = went.and(Err(Broken::Complaints(vec!["a client panicked".into()])));
        }
    }
    went?;
    // Read before the final waiters change the locks: the reads must show what was acknowledged.
    workload.read_all();
    let granted = workload.await_all_granted(WAITERS, BOUND).map_err(Broken::NoAgreement)?;
    let hash = cluster.same_state()?;
    workload.read_all();
    watches.end(BOUND).map_err(Broken::NoAgreement)?;
    recorder.finish()?;
    let history = History::read(BufReader::new(File::open(&history)?))?;
    let verdicts = check_fast(&history);
    let mut complaints = workload.complaints();
    complaints.extend(verdicts.iter().flat_map(|verdict| &verdict.violations).map(ToString::to_string));
    if !complaints.is_empty() {
        return Err(Broken::Complaints(complaints));
    }
    cluster.stop()?;
    let validated = validate(&recordings, options)?;
    let counts = &workload.counts;
    let load = [
        ("grants", &counts.grants),
        ("of them shared", &counts.shared),
        ("of permits", &counts.permits),
        ("of several keys", &counts.several),
        ("holds added", &counts.holds),
        ("of them by guards", &counts.held_again),
        ("refused by a long queue", &counts.short_queues),
        ("releases", &counts.releases),
        ("held by others", &counts.held),
        ("timed out", &counts.timed_out),
        ("abandoned", &counts.abandoned),
        ("unreachable", &counts.unreachable),
        ("lost", &counts.lost),
        ("pauses", &counts.pauses),
        ("writes", &counts.writes),
        ("reads", &counts.reads),
        ("stale accesses refused", &counts.stale),
        ("changes of records", &counts.changes),
        ("of them of two records", &counts.of_two_records),
        ("of them with a version compared", &counts.compared),
        ("changes refused or not answered", &counts.not_changed),
        ("of them because of another version", &counts.other_version),
        ("reads of records", &counts.record_reads),
        ("values proclaimed", &counts.proclaimed),
        ("of them proclaimed by guards", &counts.proclaimed_by_guards),
        ("grants broken", &counts.broken),
        ("breaks of grants that were not there", &counts.not_broken),
        ("events watched", &counts.events),
        ("listings of watches", &counts.listings),
        ("requests repeated", &counts.repeated),
    ];
    let load = load.map(|(name, counter)| (name, counter.load(Ordering::Relaxed)));
    let early = stop.load(Ordering::Relaxed);
    let faults = cluster.counts.iter().map(|(&name, &count)| (name, count)).collect();
    let (lost, left_out) = (cluster.lost()?, cluster.left_out());
    let operations = by_kind(&history);
    let planned = plan.faults;
    Ok(Report { early, planned, faults, load, lost, left_out, granted, hash, operations, verdicts, validated })
}

fn by_kind(history: &History) -> BTreeMap<&'static str, u64> {
    let mut kinds = BTreeMap::new();
    for operation in &history.operations {
        let kind = match operation.call {
            Call::OpenSession { .. } => "sessions opened",
            Call::KeepAlive { .. } => "keepalives",
            Call::CloseSession { .. } => "sessions closed",
            Call::Acquire { .. } => "acquires",
            Call::Withdraw { .. } => "withdrawals",
            Call::Release { .. } => "releases",
            Call::Proclaim { .. } => "proclamations",
            Call::Break { .. } => "breaks",
            Call::SetAccess { .. } => "changes of the access rules",
            Call::Read { stale: false, .. } => "reads",
            Call::Read { stale: true, .. } => "stale reads",
            Call::Access { .. } => "accesses to the resource",
            Call::WriteRecord { .. } => "changes of records",
            Call::ReadRecord { .. } => "reads of records",
            Call::NoteLoss { .. } => "losses noted",
        };
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |counts: &mut dyn Iterator<Item = (&str, u64)>| {
            counts.map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
        };
        if self.early {
            writeln!(f, "ENDED EARLY: a signal ended the faults before their time")?;
        }
        writeln!(f, "faults: {}; {}", list(&mut self.faults.iter().copied()), self.lost)?;
        for fault in &self.left_out {
            writeln!(f, "left out: {fault}")?;
        }
        writeln!(f, "clients: {}", list(&mut self.load.iter().copied()))?;
        writeln!(f, "operations: {}", list(&mut self.operations.iter().map(|(&name, &count)| (name, count))))?;
        writeln!(
            f,
            "afterwards: all {} waiters a key granted within {} ms, one state, {}",
            WAITERS,
            self.granted.as_millis(),
            self.hash
        )?;
        let verdicts: Vec<String> =
            self.verdicts.iter().map(|verdict| format!("{} ({})", verdict.checker, verdict.checked)).collect();
        let operations: u64 = self.operations.values().sum();
        writeln!(f, "histories: {operations} operations; {}", verdicts.join(", "))?;
        write!(f, "recordings: {}", self.validated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_runs_need_not_have_what_is_rare() {
        let [short, long] = [30, 60].map(|seconds| expected_kinds(Duration::from_secs(seconds)).collect::<Vec<_>>());
        assert!(short.contains(&"of them of two records") && !short.contains(&"of them because of another version"));
        assert!(long.contains(&"of them because of another version") && long.starts_with(&short));
    }
}
