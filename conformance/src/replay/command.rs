//! `palisade-conformance replay`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::Args;
use palisade_model::models::models;
use palisade_model::named::Tier;
use parking_lot::Mutex;

use super::coverage::Coverage;
use super::finding::PlayError;
use super::large_table::large_table;
use super::live::Program;
use super::nodes::{Previous, ReplayConfig};
use super::play::{Played, play};
use super::saved_traces::{self, SavedTrace};
use super::trace::Trace;

/// Default segment size of the nodes' logs, in bytes: so short that a few writes fill a segment.
pub const SEGMENT_BYTES: u64 = 1664;

/// Replay the models' traces on live nodes and compare after every step; without files, replay the
/// saved traces
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// Traces, as `palisade-model trace --json` writes them
    files: Vec<PathBuf>,
    /// Replay only the saved traces of this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The folder of the saved traces
    #[arg(long, value_name = "DIR", default_value_os_t = saved_traces::folder())]
    traces: PathBuf,
    /// Also replay this many random walks through each model of the random tier
    #[arg(long, value_name = "N", default_value_t = 0)]
    walks: u64,
    /// The seed of the first walk
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum length of a walk, in steps
    #[arg(long, value_name = "N", default_value_t = 200)]
    steps: usize,
    /// Segment size of the nodes' logs, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = SEGMENT_BYTES)]
    segment_bytes: u64,
    /// Number of traces to replay in parallel
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// The program whose `step-node` runs the nodes; by default this one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The `palisade-conformance` of the version before: it runs every second node, those with an even number in every
    /// second trace, and those with an odd number in the others
    #[arg(long, value_name = "FILE")]
    previous: Option<PathBuf>,
    /// Print what was exercised, and fail if anything required was not
    #[arg(long)]
    coverage: bool,
}

/// A title, and the trace or why it could not be read.
pub type Titled = (String, Result<Trace, String>);

/// Runs the command. Returns whether no trace differs and, with `--coverage`, nothing is missing.
///
/// # Errors
/// If the arguments cannot be used: no such trace, or an unreadable file.
pub fn run(arguments: &Arguments, out: &mut impl Write) -> Result<bool, String> {
    let kept = saved_traces::all(&arguments.traces).map_err(|error| error.to_string())?;
    let this = || std::env::current_exe().map_err(|error| format!("this program has no path: {error}"));
    let file = arguments.program.clone().map_or_else(this, Ok)?;
    let program = |file| Program { file, on: String::new() };
    let previous = arguments.previous.clone().map(|file| Previous { program: program(file), parity: 0 });
    let config = ReplayConfig { program: program(file), previous, segment_bytes: arguments.segment_bytes };
    let traces = if arguments.files.is_empty() { chosen(&kept, arguments) } else { read_all(&arguments.files)? };
    if traces.is_empty() {
        return Err("no trace was selected: check --model, --traces and the files".to_owned());
    }
    let begun = Instant::now();
    let total = play_all(&config, &traces, arguments.jobs.max(1));
    let failed = |error: std::io::Error| error.to_string();
    for failure in &total.failures {
        writeln!(out, "{failure}").map_err(failed)?;
    }
    writeln!(out, "{}", total.summary(begun.elapsed().as_secs_f64())).map_err(failed)?;
    let mut is_sound = total.failures.is_empty();
    if arguments.coverage {
        write!(out, "{}", total.coverage).map_err(failed)?;
        for missing in total.coverage.missing() {
            writeln!(out, "NOT EXERCISED: {missing}").map_err(failed)?;
            is_sound = false;
        }
    }
    Ok(is_sound)
}

fn chosen(kept: &[SavedTrace], arguments: &Arguments) -> Vec<Titled> {
    let is_chosen = |kept: &&SavedTrace| arguments.model.as_ref().is_none_or(|model| *model == kept.model);
    let kept = kept.iter().filter(is_chosen);
    let traces = kept.map(|kept| (kept.title(), saved_traces::rebuild(kept).map_err(|error| error.to_string())));
    let large = if arguments.model.is_none() { large_tables() } else { Vec::new() };
    traces.chain(large).chain(walks(arguments.walks, arguments.seed, arguments.steps)).collect()
}

/// Two generated traces: sessions that come and go, and sessions that are there from the start and
/// expire all at once.
fn large_tables() -> Vec<Titled> {
    let all = [(1, 0, 700), (2, 1200, 320)];
    let traces = all.map(|(seed, sessions, entries)| {
        let trace = large_table(seed, sessions, entries).map_err(|error| error.to_string());
        (format!("a large table, {entries} entries on a table of {sessions} sessions"), trace)
    });
    traces.into()
}

/// Random walks through each model of the random tier.
pub fn walks(count: u64, seed: u64, steps: usize) -> Vec<Titled> {
    let models = models();
    let wide = models.iter().filter(|model| model.tier == Tier::Random);
    let walks = wide.flat_map(|model| (seed..seed + count).map(move |seed| (model, seed)));
    let traces = walks.map(|(model, seed)| {
        let lines = model.model.wander(seed, steps).map(|trace| trace.lines(model.name)).unwrap_or_default();
        (format!("{}, a random walk, seed {seed}", model.name), Trace::read(lines).map_err(|error| error.to_string()))
    });
    traces.collect()
}

fn read_all(files: &[PathBuf]) -> Result<Vec<Titled>, String> {
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let lines: Result<Vec<_>, _> = text.lines().map(serde_json::from_str).collect();
        let lines = lines.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((path.display().to_string(), Trace::read(lines).map_err(|error| error.to_string())))
    };
    files.iter().map(read).collect()
}

/// The result of many replays.
#[derive(Clone, Debug, Default)]
pub struct Total {
    /// Number of traces that were replayed, and of their steps.
    pub played: (usize, usize),
    /// Why replays ended before their traces did, and how many.
    pub ended: BTreeMap<String, usize>,
    /// Differences found, and traces that could not be replayed.
    pub failures: Vec<String>,
    /// What the replays exercised.
    pub coverage: Coverage,
}

impl Total {
    fn summary(&self, seconds: f64) -> String {
        let Total { played: (traces, steps), ended, failures, .. } = self;
        let mut summary =
            format!("{traces} traces, {steps} steps on live nodes, {seconds:.1} s: {} differ", failures.len());
        for (why, count) in ended {
            summary.push_str(&format!("\n  {count} ended before the trace did: {why}"));
        }
        summary
    }

    fn add(&mut self, played: Played) {
        self.played.0 += 1;
        self.played.1 += played.steps;
        if let Some(why) = played.ended {
            *self.ended.entry(why).or_default() += 1;
        }
        self.coverage.add(played.coverage);
    }
}

/// Replays traces, `jobs` at a time.
pub fn play_all(config: &ReplayConfig, traces: &[Titled], jobs: usize) -> Total {
    let (next, total) = (AtomicUsize::new(0), Mutex::new(Total::default()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((title, trace)) = traces.get(number) else { break };
                    let parity = u32::from(number % 2 == 1);
                    let previous = config.previous.clone().map(|previous| Previous { parity, ..previous });
                    let config = &ReplayConfig { previous, ..config.clone() };
                    let played = match trace {
                        Ok(trace) => play(config, trace).map_err(|error| match error {
                            PlayError::Found(finding) => format!("{title}: DIFFERS in {finding}"),
                            PlayError::Setup(_) => format!("{title}: {error}"),
                        }),
                        Err(error) => Err(format!("{title}: {error}")),
                    };
                    match played {
                        Ok(played) => total.lock().add(played),
                        Err(failure) => total.lock().failures.push(failure),
                    }
                }
            });
        }
    });
    total.into_inner()
}
