//! Mutation testing: every rule of the protocol must be load-bearing.
//!
//! A model that finds no violation proves something only if it would find a defect. The lists in
//! `model/mutants/` (one file for each area) hold such defects. A mutant omits a rule of `spec`, or
//! replaces it by a plausible wrong one; its entry names the property that must fail and the model
//! that must find the violation. [`run`] puts all mutants into a copy of the sources, each behind a
//! switch, builds the copy, and has the built binary search for a shortest path to each violation.
//! A mutant that no model finds *survives*: either the rule is not needed, or the model does not
//! cover its purpose.
//!
//! Mutants that break liveness are in `liveness.toml`: a check of [liveness](crate::liveness) must
//! find each.
//!
//! The protocol itself has no such switches. Each mutant replaces a text that must occur exactly
//! once in the source, so an outdated entry is an error.

mod build;
mod list;
mod mutant;
mod switches;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

use self::build::MutantBuilds;
pub use self::build::mirror;
pub use self::list::{Claims, mutants};
pub use self::mutant::Mutant;
pub use self::switches::{ON, SWITCHES, with_switches};
use crate::liveness::{Check, STATES, Unfinished, checks};
use crate::models::models as registry;
use crate::saved_traces::{SavedTrace, replace};
use crate::trace::Trace;

/// An error in a list, a source, a build or a search. A mutant that survives is a result, not an
/// error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file has invalid content.
    #[error("{path}: {source}", path = .path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// The defect of its content.
        source: Box<toml::de::Error>,
    },
    /// No list contains a mutant.
    #[error("{lists}: there is no list with a mutant in it", lists = .lists.display())]
    Empty {
        /// The folder that was searched for lists.
        lists: PathBuf,
    },
    /// A mutant does not fit the source or the models.
    #[error("{mutant}: {detail}")]
    Unfit {
        /// The mutant's name.
        mutant: String,
        /// The mismatch.
        detail: String,
    },
    /// The mutated source does not build.
    #[error("{mutant} does not build:\n{output}")]
    Build {
        /// The mutant's name.
        mutant: String,
        /// The compiler's output.
        output: String,
    },
    /// The search did not finish.
    #[error("{mutant}: the search broke off:\n{output}")]
    Search {
        /// The mutant's name.
        mutant: String,
        /// The last lines of its error output.
        output: String,
    },
}

/// The content of a file.
fn read(path: &Path) -> Result<String, Error> {
    at_path(path, std::fs::read_to_string(path))
}

/// Adds the path to an I/O error.
fn at_path<T>(path: &Path, result: std::io::Result<T>) -> Result<T, Error> {
    result.map_err(|source| Error::File { path: path.to_path_buf(), source })
}

/// Arguments of [`run`].
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Names of mutants; without names, all of them
    names: Vec<String>,
    /// The folder with the lists of mutants
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/mutants"))]
    lists: PathBuf,
    /// The workspace whose sources are mutated
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."))]
    workspace: PathBuf,
    /// Save the trace of each mutant to this file: the part of its violation's path that the
    /// protocol allows without the mutant
    #[arg(long, value_name = "FILE")]
    traces: Option<PathBuf>,
    /// Search the named model in this binary for a violation of the property given as name, and
    /// print the path: how the mutated binary is called
    #[arg(long, value_name = "MODEL", hide = true)]
    search: Option<String>,
}

/// Maximum duration of one search; generous, for slow machines.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(600);

/// Exit codes of a binary that runs one search (`--search`).
const FOUND: u8 = 0;
const SURVIVED: u8 = 3;

/// The command `palisade-model mutants`.
pub fn run(arguments: &Arguments) -> ExitCode {
    if let Some(model) = &arguments.search {
        return search(model, arguments.names.first().map_or("", String::as_str));
    }
    let chosen = match choose(arguments) {
        Ok(chosen) => chosen,
        Err(error) => {
            eprintln!("palisade-model: {error}");
            return ExitCode::from(64);
        }
    };
    match run_all(&arguments.workspace, &chosen, arguments.traces.as_deref()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("palisade-model: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Searches this binary's own models for a shortest violation.
fn search(model: &str, property: &str) -> ExitCode {
    // A mutant may loop for ever within a single step.
    std::thread::spawn(|| {
        std::thread::sleep(SEARCH_TIMEOUT);
        eprintln!("the search did not finish within {SEARCH_TIMEOUT:?}");
        std::process::abort();
    });
    let found = match checks().iter().find(|check| check.name == model) {
        Some(check) => lasso(check, property),
        None => {
            let known = registry();
            let named = known.iter().find(|known| known.name == model);
            Ok(named.expect("the list was checked against the models").model.trace(property))
        }
    };
    match found {
        Err(unfinished) => {
            eprintln!("{unfinished}");
            ExitCode::FAILURE
        }
        Ok(Some(trace)) => {
            trace.lines(model).iter().for_each(|line| println!("{line}"));
            ExitCode::from(FOUND)
        }
        Ok(None) => ExitCode::from(SURVIVED),
    }
}

/// The shortest run on which the property's response never happens: the steps to the cycle, then
/// the cycle once.
fn lasso(check: &Check, property: &str) -> Result<Option<Trace>, Unfinished> {
    let report = check.run(STATES)?;
    let own = report.violations().into_iter().find(|answer| answer.response.property == property);
    Ok(own.and_then(|answer| answer.lasso.as_ref()).map(|lasso| lasso.trace.clone()))
}

/// The requested mutants; each must fit the sources and the models.
fn choose(arguments: &Arguments) -> Result<Vec<Mutant>, Error> {
    let mut chosen = mutants(&arguments.lists)?;
    let known: BTreeSet<&str> = chosen.iter().map(|mutant| mutant.name.as_str()).collect();
    if let Some(unknown) = arguments.names.iter().find(|name| !known.contains(name.as_str())) {
        return Err(Error::Unfit { mutant: unknown.clone(), detail: "no list has a mutant of that name".to_string() });
    }
    chosen.retain(|mutant| arguments.names.is_empty() || arguments.names.contains(&mutant.name));
    if chosen.is_empty() {
        return Err(Error::Empty { lists: arguments.lists.clone() });
    }
    let claims = Claims::of(&chosen);
    for mutant in &chosen {
        mutant.fits(&arguments.workspace, &claims)?;
    }
    Ok(chosen)
}

/// Controls: models, one for each half of the protocol, that find no violation without a mutant.
const CONTROLS: [(&str, &str); 2] = [("raft-votes", "one vote a term"), ("locks-asked", "FIFO order")];

/// Number of concurrent searches.
const SEARCHES: usize = 2;

/// Builds and searches the mutants. Returns whether all were caught.
fn run_all(workspace: &Path, chosen: &[Mutant], traces: Option<&Path>) -> Result<bool, Error> {
    let begun = Instant::now();
    let builds = MutantBuilds::of(workspace)?.build(chosen)?;
    println!("{} mutants built in {:.0} s", chosen.len(), begun.elapsed().as_secs_f64());
    if let Some(build) = builds.iter().flatten().next() {
        for (model, property) in CONTROLS {
            if let Some(path) = build.control(model, property)? {
                println!("no mutant: \"{property}\" is violated after {} steps in {model}; it must hold", path.len());
                return Ok(false);
            }
        }
    }
    let (todo, caught, kept) = (Mutex::new(chosen.iter().zip(builds)), AtomicUsize::new(0), Mutex::new(Ok(())));
    std::thread::scope(|scope| {
        for _ in 0..SEARCHES {
            scope.spawn(|| {
                while let Some((mutant, build)) = { todo.lock().next() } {
                    let begun = Instant::now();
                    let verdict = build.and_then(|build| build.find_violation(mutant));
                    println!("{}", verdict_line(mutant, &verdict, begun.elapsed()));
                    if let (Some(file), Ok(Some(path))) = (traces, &verdict) {
                        let mut kept = kept.lock();
                        *kept = std::mem::replace(&mut *kept, Ok(())).and_then(|()| save_trace(file, mutant, path));
                    }
                    caught.fetch_add(usize::from(matches!(verdict, Ok(Some(_)))), Ordering::Relaxed);
                }
            });
        }
    });
    kept.into_inner()?;
    let caught = caught.into_inner();
    println!("{caught} of {} caught in {:.0} s", chosen.len(), begun.elapsed().as_secs_f64());
    Ok(caught == chosen.len())
}

/// Saves the part of a violation's path that exists without the mutant, if live nodes can replay
/// the model.
fn save_trace(file: &Path, mutant: &Mutant, path: &[Value]) -> Result<(), Error> {
    let known = registry();
    // Infinite runs (lassos) are not saved.
    let Some(named) = known.iter().find(|known| known.name == mutant.model && known.can_be_replayed()) else {
        return Ok(());
    };
    let trace = named.model.follow(path).expect("a model has a beginning");
    let kept = SavedTrace {
        model: mutant.model.clone(),
        property: mutant.property.clone(),
        mutant: Some(mutant.name.clone()),
        choices: trace.choices,
    };
    let unkept = |detail: String| Error::Unfit { mutant: mutant.name.clone(), detail };
    kept.holds().map_err(|error| unkept(error.to_string()))?;
    replace(file, |other| other.mutant == kept.mutant, vec![kept.clone()]).map_err(|error| unkept(error.to_string()))
}

fn verdict_line(mutant: &Mutant, verdict: &Result<Option<Vec<Value>>, Error>, time: Duration) -> String {
    let (Mutant { name, property, model, .. }, seconds) = (mutant, time.as_secs_f64());
    let verdict = verdict.as_ref().map(|path| path.as_ref().map(Vec::len));
    match verdict {
        Ok(Some(1)) => format!("{name}: caught by \"{property}\" after 1 step in {model}, {seconds:.1} s"),
        Ok(Some(steps)) => format!("{name}: caught by \"{property}\" after {steps} steps in {model}, {seconds:.1} s"),
        Ok(None) => format!("{name}: SURVIVES; \"{property}\" holds in {model}, {seconds:.1} s"),
        Err(error) => error.to_string(),
    }
}
