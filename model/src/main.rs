//! `palisade-model`: explores the models of Palisade's protocol.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use palisade_model::check::Effort;
use palisade_model::check_all::check_all;
use palisade_model::document;
use palisade_model::explore::{self, fragment};
use palisade_model::liveness;
use palisade_model::models::models;
use palisade_model::mutants;
use palisade_model::named::{Named, Tier};
use palisade_model::saved_traces::{self, SavedTrace, make};
use palisade_model::simulate::Walks;
use palisade_model::state_table::columns;
use palisade_model::trace::Trace;

/// Explores the models of Palisade's protocol
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List every model: its name, its tier and what it explores
    List,
    /// Explore models to their end; without names, all models but the deep ones
    Check {
        /// Names of models
        names: Vec<String>,
        /// Include the deep models
        #[arg(long)]
        deep: bool,
        /// Number of threads
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = positive)]
        threads: usize,
        /// Stop after about this many states, for a trial: an incomplete run fails
        #[arg(long, value_name = "STATES", value_parser = positive)]
        limit: Option<usize>,
        /// Stop after about this many seconds, for a trial: an incomplete run fails
        #[arg(long, value_name = "SECONDS")]
        time: Option<u64>,
    },
    /// Check liveness on every fair run; without names, all checks but the deep ones
    Liveness {
        /// Names of checks
        names: Vec<String>,
        /// List the checks, and what each explores
        #[arg(long)]
        list: bool,
        /// Include the deep checks
        #[arg(long)]
        deep: bool,
        /// Fail when the graph has more states than this
        #[arg(long, value_name = "STATES", default_value_t = liveness::STATES, value_parser = positive)]
        limit: usize,
    },
    /// Walk through models at random, far past the bounds of exhaustive exploration; without names,
    /// the models of the random tier
    Simulate {
        /// Names of models
        names: Vec<String>,
        /// Duration for each model, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 10)]
        seconds: u64,
        /// Run this many rounds for each model instead, however long they take: the result is the
        /// same on every machine
        #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = positive)]
        rounds: Option<usize>,
        /// Seed of the first round; each further round takes the next one
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// States in a round, approximately; each round runs in a new process
        #[arg(long, value_name = "STATES", default_value_t = 50_000, value_parser = positive)]
        states: usize,
        /// Number of concurrent rounds
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = positive)]
        threads: usize,
        /// Continue walks from states where something new was found, instead of from the initial
        /// state
        #[arg(long)]
        guided: bool,
        /// Run one round of one model, and print the result as JSON
        #[arg(long, hide = true)]
        round: bool,
    },
    /// Print a shortest path to a state that violates a property, or meets it if it must be
    /// possible
    Trace {
        /// Name of the model
        name: String,
        /// Name of the property; without it, list all properties
        #[arg(long)]
        property: Option<String>,
        /// Instead of a shortest path, print the path of these choices (indexes of the possible
        /// actions, as in the `choices` of a JSON trace)
        #[arg(long, value_name = "N,N,…", value_delimiter = ',', conflicts_with_all = ["walk", "follow"])]
        choices: Option<Vec<usize>>,
        /// Print a random walk with this seed
        #[arg(long, value_name = "SEED", conflicts_with_all = ["property", "follow"])]
        walk: Option<u64>,
        /// Maximum steps of the walk
        #[arg(long, value_name = "N", default_value_t = 60)]
        steps: usize,
        /// Follow a JSON trace of another build, such as a mutant's, and skip the events that are
        /// impossible in this build
        #[arg(long, value_name = "FILE", conflicts_with = "property")]
        follow: Option<PathBuf>,
        /// Print JSON, one line for each step
        #[arg(long)]
        json: bool,
    },
    /// Save paths for replay on live servers: shortest witnesses of the properties that must be
    /// possible, and random walks; without names, for all models but the gallery (`mutants
    /// --traces` saves those of mutants)
    Keep {
        /// Names of models
        names: Vec<String>,
        /// Folder of the saved traces
        #[arg(long, value_name = "DIR", default_value = TRACES)]
        into: PathBuf,
        /// Maximum states of a model in the search for witnesses
        #[arg(long, value_name = "STATES", default_value_t = 12_000_000, value_parser = positive)]
        states: usize,
        /// Number of random walks through each model of the random tier
        #[arg(long, value_name = "N", default_value_t = 10)]
        walks: u64,
        /// Maximum steps of a walk
        #[arg(long, value_name = "N", default_value_t = 200)]
        steps: usize,
    },
    /// Explore a model step by step in a browser, which is opened if this is a terminal on a screen
    Explore {
        /// Name of the model
        #[arg(default_value = "cluster")]
        name: String,
        /// Address of the page
        #[arg(long, default_value = "127.0.0.1:3000")]
        address: String,
        /// Open at a state that violates this property, or meets it if it must be possible: at the
        /// end of a saved trace, or else of a shortest path. The name of a mutant opens its trace
        #[arg(long, value_name = "PROPERTY")]
        at: Option<String>,
    },
    /// Write docs/results.md: the models with their sizes, and the mutants with what finds each
    Document,
    /// Build mutants of the protocol, and check that a model finds each
    Mutants(mutants::Arguments),
}

/// The folder of the saved traces.
const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/traces");

/// Exit code of invalid arguments.
const USAGE: u8 = 64;
/// Exit code when a file, an address or the output is not available.
const UNAVAILABLE: u8 = 69;

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "the number must be 1 or greater".to_string())
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::List => list(),
        Command::Check { names, deep, threads, limit, time } => {
            let effort = Effort { threads, states: limit, time: time.map(Duration::from_secs), name: None };
            check(&names, deep, &effort)
        }
        Command::Liveness { list: true, .. } => list_checks(),
        Command::Liveness { names, deep, limit, list: false } => check_liveness(&names, deep, limit),
        Command::Simulate { names, seed, states, guided, round: true, .. } => round(&names, seed, states, guided),
        Command::Simulate { names, seconds, rounds, seed, states, threads, guided, round: false } => {
            let until = rounds.map_or(Until::Time(Duration::from_secs(seconds)), Until::Rounds);
            simulate(&names, until, &Plan { seed, states, threads, guided })
        }
        Command::Trace { name, property, choices, walk, steps, follow, json } => {
            let way = match (walk, choices, follow) {
                (Some(seed), ..) => Way::Walk { seed, steps },
                (_, Some(choices), _) => Way::Choices(choices),
                (.., Some(file)) => Way::Follow(file),
                _ => Way::Shortest,
            };
            trace(&name, property.as_deref(), &way, json)
        }
        Command::Keep { names, into, states, walks, steps } => {
            keep(&names, &into, make::Effort { states, walks, steps })
        }
        Command::Explore { name, address, at } => explore(&name, &address, at.as_deref()),
        Command::Document => document(),
        Command::Mutants(arguments) => Ok(mutants::run(&arguments)),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("palisade-model: {}", failure.message);
        ExitCode::from(failure.code)
    })
}

/// Why a command failed.
struct Failure {
    message: String,
    code: u8,
}

type Done = Result<ExitCode, Failure>;

fn find<'a>(models: &'a [Named], name: &str) -> Result<&'a Named, Failure> {
    models.iter().find(|model| model.name == name).ok_or_else(|| {
        let known: Vec<_> = models.iter().map(|model| model.name).collect();
        Failure { message: format!("there is no model {name}; there are {}", known.join(", ")), code: USAGE }
    })
}

/// Prints a line. A closed pipe, such as of `head`, is no failure.
fn say(line: impl Display) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure { message: format!("cannot write to standard output: {error}"), code: UNAVAILABLE })
        }
        _ => Ok(()),
    }
}

fn list() -> Done {
    let rows = models().into_iter().map(|model| [model.name, model.tier.name(), model.about].map(String::from));
    say(columns(&rows.collect::<Vec<_>>()))?;
    Ok(ExitCode::SUCCESS)
}

fn check(names: &[String], deep: bool, effort: &Effort) -> Done {
    let models = models();
    for name in names {
        find(&models, name)?;
    }
    let chosen = |model: &&Named| match names {
        [] => is_due(model.tier, deep),
        names => names.iter().any(|name| name == model.name),
    };
    let chosen: Vec<_> = models.iter().filter(chosen).collect();
    let passes = check_all(&chosen, effort, |line| println!("{line}"));
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a model or check is selected when the command line names none.
fn is_due(tier: Tier, deep: bool) -> bool {
    tier <= if deep { Tier::Deep } else { Tier::Full }
}

fn list_checks() -> Done {
    let rows =
        liveness::checks().into_iter().map(|check| [check.name, check.tier.name(), check.about].map(String::from));
    say(columns(&rows.collect::<Vec<_>>()))?;
    Ok(ExitCode::SUCCESS)
}

fn check_liveness(names: &[String], deep: bool, most: usize) -> Done {
    let checks = liveness::checks();
    if let Some(unknown) = names.iter().find(|name| checks.iter().all(|check| check.name != **name)) {
        let known: Vec<_> = checks.iter().map(|check| check.name).collect();
        let message = format!("there is no check of liveness {unknown}; there are {}", known.join(", "));
        return Err(Failure { message, code: USAGE });
    }
    let mut passes = true;
    let chosen = |check: &&liveness::Check| match names {
        [] => is_due(check.tier, deep),
        names => names.iter().any(|name| name == check.name),
    };
    for check in checks.iter().filter(chosen) {
        match check.run(most) {
            Ok(report) => {
                say(format_args!("{}: {report}", check.name))?;
                if let Some(lasso) = report.violations().first().and_then(|answer| answer.lasso.as_ref()) {
                    say(format_args!("\n{lasso}"))?;
                }
                passes &= report.holds();
            }
            Err(unfinished) => {
                say(format_args!("{}: {unfinished}", check.name))?;
                passes = false;
            }
        }
    }
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one round of walks in this process.
fn round(names: &[String], seed: u64, states: usize, guided: bool) -> Done {
    let models = models();
    let [name] = names else {
        return Err(Failure { message: "--round needs exactly one model".to_string(), code: USAGE });
    };
    let model = &find(&models, name)?.model;
    let walks = if guided { model.search(seed, states) } else { model.walk(seed, states) };
    println!("{}", serde_json::to_string(&walks).expect("walks are plain values"));
    Ok(ExitCode::SUCCESS)
}

/// The rounds of walks to run.
struct Plan {
    /// Whether walks continue from states where something new was found.
    guided: bool,
    /// The first round's seed; each further round has the next one.
    seed: u64,
    /// Approximate number of states of a round.
    states: usize,
    /// Number of concurrent rounds.
    threads: usize,
}

/// The limit on rounds.
#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    Rounds(usize),
}

fn simulate(names: &[String], until: Until, plan: &Plan) -> Done {
    let models = models();
    for name in names {
        find(&models, name)?;
    }
    let chosen = |model: &&Named| match names {
        [] => model.tier == Tier::Random,
        names => names.iter().any(|name| name == model.name),
    };
    let mut passes = true;
    for model in models.iter().filter(chosen) {
        let begun = Instant::now();
        let (mut rounds, mut states, mut longest, mut met) = (0, 0, 0, BTreeSet::new());
        let mut sound = true;
        while sound {
            let most = match until {
                Until::Time(time) if rounds == 0 || begun.elapsed() < time => plan.threads,
                Until::Time(_) => 0,
                Until::Rounds(most) => plan.threads.min(most - rounds),
            };
            if most == 0 {
                break;
            }
            let next = plan.seed + rounds as u64;
            for walks in walk_elsewhere(model.name, next..next + most as u64, plan)? {
                rounds += 1;
                states += walks.states;
                longest = longest.max(walks.longest);
                met.extend(walks.met);
                for (property, trace) in &walks.violated {
                    println!("{}  VIOLATED with seed {}: {property}\n\n{trace}", model.name, walks.seed);
                    sound = false;
                }
            }
        }
        passes &= sound;
        let unmet = model.model.properties().into_iter().filter(|(name, possible)| *possible && !met.contains(*name));
        let unmet: Vec<_> = unmet.map(|(name, _)| format!("; not met: {name}")).collect();
        println!(
            "{:<20} {states} states of random walks of up to {longest} steps, seeds {} to {}, {:.1} s{}",
            model.name,
            plan.seed,
            plan.seed + rounds as u64 - 1,
            begun.elapsed().as_secs_f64(),
            unmet.concat()
        );
    }
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs concurrent rounds of walks, each in its own process: a model interns the parts of its
/// states as long as its process lives.
fn walk_elsewhere(name: &str, seeds: Range<u64>, plan: &Plan) -> Result<Vec<Walks>, Failure> {
    let failed = |seed: u64, message: String| Failure { message: format!("{name}, seed {seed}: {message}"), code: 1 };
    let begin = |seed: u64| {
        let program = std::env::current_exe()?;
        let mut round = std::process::Command::new(program);
        round.args(["simulate", name, "--round", "--seed", &seed.to_string(), "--states", &plan.states.to_string()]);
        round.args(plan.guided.then_some("--guided"));
        round.stdout(Stdio::piped()).spawn()
    };
    let begun: Vec<_> = seeds.map(|seed| (seed, begin(seed))).collect();
    let ended = begun.into_iter().map(|(seed, round)| (seed, round.and_then(std::process::Child::wait_with_output)));
    let ended: Vec<_> = ended.collect();
    let report = ended.into_iter().map(|(seed, output)| {
        let output = output.map_err(|error| failed(seed, error.to_string()))?;
        if !output.status.success() {
            return Err(failed(seed, format!("the process of the walks failed with {}", output.status)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| failed(seed, error.to_string()))
    });
    report.collect()
}

/// A shortest path to a state that violates or meets `property`, which `option` names.
fn find_trace(model: &Named, property: Option<&str>, option: &str) -> Result<Trace, Failure> {
    let name = model.name;
    let properties = model.model.properties();
    let Some(&(property, possible)) = properties.iter().find(|(known, _)| Some(*known) == property) else {
        let asked = property.map_or(String::new(), |asked| format!("{name} has no property \"{asked}\"; "));
        let known: Vec<_> = properties.iter().map(|(known, _)| format!("\n  {known}")).collect();
        let message = format!("{asked}name one with {option}; the properties of {name} are{}", known.concat());
        return Err(Failure { message, code: USAGE });
    };
    model.model.trace(property).ok_or_else(|| {
        let never = if possible { "is never met" } else { "is never violated" };
        Failure { message: format!("{name}: \"{property}\" {never}, in no state that the model can reach"), code: 1 }
    })
}

/// The events of a JSON trace.
fn events(file: &Path) -> Result<Vec<serde_json::Value>, Failure> {
    let unreadable = |why: String| Failure { message: format!("{}: {why}", file.display()), code: UNAVAILABLE };
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
    let event = |line| serde_json::from_str(line).map(|mut step: serde_json::Value| step["event"].take());
    text.lines().skip(1).map(|line| event(line).map_err(|error| unreadable(error.to_string()))).collect()
}

/// The path to print.
enum Way {
    Shortest,
    Choices(Vec<usize>),
    Walk { seed: u64, steps: usize },
    Follow(PathBuf),
}

fn trace(name: &str, property: Option<&str>, way: &Way, json: bool) -> Done {
    let models = models();
    let named = find(&models, name)?;
    let no_path = || Failure { message: format!("{name}: the model has no such path"), code: 1 };
    let trace = match way {
        Way::Shortest => find_trace(named, property, "--property")?,
        Way::Choices(choices) => {
            let property = property.unwrap_or(palisade_model::trace::WALK);
            let known = named.model.properties().iter().any(|(known, _)| *known == property);
            if !known && property != palisade_model::trace::WALK {
                return Err(Failure { message: format!("{name} has no property \"{property}\""), code: USAGE });
            }
            named.model.retrace(property, choices).ok_or_else(no_path)?
        }
        Way::Walk { seed, steps } => named.model.wander(*seed, *steps).ok_or_else(no_path)?,
        Way::Follow(file) => named.model.follow(&events(file)?).ok_or_else(no_path)?,
    };
    if json {
        trace.lines(name).iter().try_for_each(say)?;
    } else {
        let report = trace.to_string();
        say(format_args!("{name}: {}\n\n{}\n\n{}", trace.title(), trace.initial, report.trim_end()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Saves the paths of models, each in its own process: a model interns the parts of its states as
/// long as its process lives.
fn keep(names: &[String], into: &Path, effort: make::Effort) -> Done {
    let failed = |message: String| Failure { message, code: UNAVAILABLE };
    let models = models();
    if let [name] = names {
        let report = make::make(find(&models, name)?, effort, into).map_err(|error| failed(error.to_string()))?;
        say(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    for name in names {
        find(&models, name)?;
    }
    let chosen = |model: &&Named| match names {
        [] => model.can_be_replayed(),
        names => names.iter().any(|name| name == model.name),
    };
    let make::Effort { states, walks, steps } = effort;
    for model in models.iter().filter(chosen) {
        let elsewhere = || {
            let mut keep = std::process::Command::new(std::env::current_exe()?);
            keep.args(["keep", model.name, "--into"]).arg(into);
            keep.args(["--states", &states.to_string(), "--walks", &walks.to_string(), "--steps", &steps.to_string()]);
            keep.status()
        };
        let status = elsewhere().map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            return Err(failed(format!("{}: the process of the search failed with {status}", model.name)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn document() -> Done {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let written = document::write(workspace);
    let path = written.map_err(|error| Failure { message: error.to_string(), code: UNAVAILABLE })?;
    say(format_args!("wrote {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The path whose end the Explorer opens at: the first saved trace that fits, or a shortest path.
fn path_to(model: &Named, at: &str) -> Result<Trace, Failure> {
    // The folder belongs to the sources: without them every path is searched for.
    let mut saved = saved_traces::read_all(Path::new(TRACES)).unwrap_or_default();
    saved.retain(|saved| saved.model == model.name);
    let shows = |saved: &&SavedTrace| saved.mutant.as_deref().unwrap_or(&saved.property) == at;
    match saved.iter().find(shows).and_then(|saved| saved.trace().ok()) {
        Some(trace) => Ok(trace),
        None => find_trace(model, Some(at), "--at"),
    }
}

fn explore(name: &str, address: &str, at: Option<&str>) -> Done {
    let models = models();
    let model = find(&models, name)?;
    let failed = |error: std::io::Error| {
        let message = format!("cannot serve the page at {address}: {error}; choose another address with --address");
        Failure { message, code: UNAVAILABLE }
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let path = at.map(|at| path_to(model, at)).transpose()?;
    let page = format!("http://{bound}/{}", fragment(path.as_ref()));
    say(format_args!("{name}: {page}"))?;
    if let Some(path) = &path {
        say(path.title())?;
    }
    say("Press Ctrl-C to stop.")?;
    explore::open(&page);
    model.model.explore(name, listener).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
