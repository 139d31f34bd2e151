//! Live faults: real processes, real sockets and files, many clients, and everything that can go wrong on one machine.
//!
//! Faults are drawn from a seed, so that a run can be had again as far as a run on real threads can: the same faults, to
//! the same nodes, after the same pauses. While they happen clients take locks, wait, give up, pause past their leases,
//! write to a fenced resource, and read who holds what. At the end the faults stop, and then
//!
//! 1. everybody who waits is granted within a bound,
//! 2. all members have the same state, to the bit (the hash of a snapshot that each takes),
//! 3. what the clients saw is right, by all checkers of [histories](crate::history) that are not too slow for it, and no
//!    write within a lease was refused,
//! 4. every node's recording is stepped again and judged ([`mod@validate`]).
//!
//! Nothing is left behind: nodes end with the pipe that this process holds, and what is mounted and linked is in
//! [namespaces](namespace) of its own. So that is true also after a Ctrl-C, a panic, and `kill -9`.

mod clock;
mod cluster;
pub mod command;
mod disk;
mod fault;
mod load;
pub mod mutants;
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

use crate::history::check::{Verdict, check_fast};
use crate::history::{BadHistory, Call, History, Recorder};
use crate::validate::{self, Failure, Options, validate};

use cluster::Cluster;
use load::Field;
use node::Setup;

/// How many clients there are: with guards, plain ones, readers.
const CLIENTS: [u64; 3] = [8, 4, 2];
/// How many wait for each key when the faults are over, and how long it may take until all of them were granted.
const WAITERS: usize = 8;
const BOUND: Duration = Duration::from_secs(30);
/// How often the cluster is looked at.
const TICK: Duration = Duration::from_millis(20);

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For how long faults happen.
    pub faults: Duration,
    /// What they are drawn from.
    pub seed: u64,
    /// The server.
    pub palisade: PathBuf,
    /// Where data, logs and recordings are.
    pub directory: PathBuf,
}

/// Why a run is not right.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The machine does not do what it is asked to.
    #[error("the run cannot go on: {0}")]
    Io(#[from] io::Error),
    /// A node has stopped by itself.
    #[error("node {node} stopped by itself, with {status}; its log ends with\n{words}")]
    Stopped {
        /// Which.
        node: u16,
        /// How.
        status: String,
        /// What it said.
        words: String,
    },
    /// A node has been told that a sync failed, and has not stopped.
    #[error("a sync of node {node}'s log has failed, and the node goes on; it must stop before it syncs again")]
    Swallowed {
        /// Which.
        node: u16,
    },
    /// The cluster does not come to an agreement.
    #[error("{0}")]
    NoAgreement(String),
    /// Clients saw something that must not be.
    #[error("{} complaints of clients, the first: {}", .0.len(), .0[0])]
    Complaints(Vec<String>),
    /// What the clients saw was not recorded properly.
    #[error(transparent)]
    History(#[from] BadHistory),
    /// The nodes did something that must not be.
    #[error(transparent)]
    Invalid(#[from] Failure),
    /// The same, and something came of it.
    #[error("{failure}\nwhich was looked for because of this: {broken}")]
    Explained {
        /// What the nodes did.
        failure: Failure,
        /// What was seen first.
        broken: Box<Broken>,
    },
}

/// What has happened in a run that is right.
#[derive(Debug)]
pub struct Report {
    /// Whether somebody has ended the faults before their time.
    early: bool,
    faults: Vec<(&'static str, u64)>,
    load: [(&'static str, u64); 11],
    lost: String,
    left_out: Vec<&'static str>,
    granted: Duration,
    hash: String,
    operations: BTreeMap<&'static str, u64>,
    verdicts: Vec<Verdict>,
    validated: validate::Report,
}

impl Report {
    /// Whether all that the nodes did was recorded.
    pub fn is_recorded(&self) -> bool {
        self.validated.cut.is_empty()
    }

    /// Whether it went on for as long as it was to, something was done, and all that the nodes did was recorded.
    pub fn is_whole(&self) -> bool {
        let grants = self.load.iter().any(|&(name, count)| name == "grants" && count > 0);
        !self.early && grants && self.validated.runs > 0 && self.is_recorded()
    }
}

/// Tortures a cluster, until the time is over or `stop` is set.
///
/// # Errors
/// If something is not right. If the recordings show that a node did something that must not be, that is said first.
pub fn torture(plan: &Plan, stop: &AtomicBool) -> Result<Report, Broken> {
    let skewed = clock::may_hurry();
    let setup = Setup { palisade: plan.palisade.clone(), directory: plan.directory.clone(), skewed };
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
    let (skewed, recordings) = (setup.skewed, setup.recordings());
    let mut cluster = Cluster::start(setup)?;
    let history = plan.directory.join("history.jsonl");
    let recorder = Recorder::into_writer(Box::new(BufWriter::new(File::create(&history)?)));
    if skewed {
        recorder.drift(clock::DRIFT_PPM);
    }
    let field = Field::new(cluster.endpoints(), recorder.clone());
    let clients = field.clients(CLIENTS, plan.seed);
    let end = Instant::now() + plan.faults;
    let mut went = Ok(());
    while went.is_ok() && Instant::now() < end && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        went = cluster.tick(&mut random);
        field.point_to(cluster.endpoints());
    }
    went = went.and_then(|()| cluster.heal());
    field.point_to(cluster.endpoints());
    field.stop();
    for client in clients {
        if client.join().is_err() {
            went = went.and(Err(Broken::Complaints(vec!["a client panicked".into()])));
        }
    }
    went?;
    // Before those who wait come and go: who holds what now is what was acknowledged.
    field.read_all();
    let granted = field.everybody_is_granted(WAITERS, BOUND).map_err(Broken::NoAgreement)?;
    let hash = cluster.same_state()?;
    field.read_all();
    recorder.finish()?;
    let history = History::read(BufReader::new(File::open(&history)?))?;
    let verdicts = check_fast(&history);
    let mut complaints = field.complaints();
    complaints.extend(verdicts.iter().flat_map(|verdict| &verdict.violations).map(ToString::to_string));
    if !complaints.is_empty() {
        return Err(Broken::Complaints(complaints));
    }
    cluster.stop()?;
    let validated = validate(&recordings, options)?;
    let counts = &field.counts;
    let load = [
        ("grants", &counts.grants),
        ("releases", &counts.releases),
        ("held by others", &counts.held),
        ("timed out", &counts.timed_out),
        ("abandoned", &counts.abandoned),
        ("unreachable", &counts.unreachable),
        ("lost", &counts.lost),
        ("pauses", &counts.pauses),
        ("writes", &counts.writes),
        ("stale writes refused", &counts.stale),
        ("requests said again", &counts.repeated),
    ];
    let load = load.map(|(name, counter)| (name, counter.load(Ordering::Relaxed)));
    let early = stop.load(Ordering::Relaxed);
    let faults = cluster.counts.iter().map(|(&name, &count)| (name, count)).collect();
    let (lost, left_out) = (cluster.lost()?, cluster.left_out());
    let operations = by_kind(&history);
    Ok(Report { early, faults, load, lost, left_out, granted, hash, operations, verdicts, validated })
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
            Call::Read { stale: false, .. } => "reads",
            Call::Read { stale: true, .. } => "stale reads",
            Call::Access { .. } => "accesses to the resource",
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
            writeln!(f, "ENDED EARLY: the faults were ended before their time")?;
        }
        writeln!(f, "faults: {}; {}", list(&mut self.faults.iter().copied()), self.lost)?;
        for words in &self.left_out {
            writeln!(f, "left out: {words}")?;
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
