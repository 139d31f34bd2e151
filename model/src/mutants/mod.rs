//! Mutants: every rule of the protocol is load-bearing.
//!
//! A model that finds nothing shows something only if it would have found a bug. So there is a list of bugs
//! (`model/mutants/`, a file for each area): each a rule of `spec` that is left out, or turned into one that looks just
//! as good, with the property that then must fail and the model that must find it. [`run`] puts all of them into a copy
//! of the sources, each behind a switch, builds that, and for each lets the built binary look for a shortest path to the
//! violation. A bug that is not found *survives*: either the rule is not needed, or the model does not see what it is
//! for.
//!
//! Bugs by which something never comes are in `liveness.toml`: a check of [liveness](crate::liveness) must find each.
//!
//! The protocol itself has no switch for any of this. Each bug is a replacement of a text, which must stand exactly
//! once in the source, so the list cannot rot unnoticed.

mod build;
mod list;
pub(crate) mod models;
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
pub use self::list::{Claims, Mutant, mutants};
pub use self::switches::{ON, SWITCHES, with_switches};
use crate::liveness::{Check, STATES, Unfinished, checks};
use crate::models::models as registry;
use crate::saved_traces::{SavedTrace, replace};
use crate::trace::Trace;

/// What went wrong with a list, a source, a build or a search. A bug that survives is no error: it is a result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{path}: {source}", path = .path.display())]
    Toml {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<toml::de::Error>,
    },
    /// There is nothing to do.
    #[error("{lists}: there is no list with a mutant in it", lists = .lists.display())]
    Empty {
        /// Where the lists should be.
        lists: PathBuf,
    },
    /// A bug does not fit the source or the models.
    #[error("{mutant}: {detail}")]
    Unfit {
        /// Which.
        mutant: String,
        /// What does not fit.
        detail: String,
    },
    /// The mutated source does not build.
    #[error("{mutant} does not build:\n{output}")]
    Build {
        /// Which bug.
        mutant: String,
        /// What the compiler says.
        output: String,
    },
    /// The search did not come to its end.
    #[error("{mutant}: the search broke off:\n{output}")]
    Search {
        /// Which bug.
        mutant: String,
        /// What was said last.
        output: String,
    },
}

/// The content of a file.
fn read(path: &Path) -> Result<String, Error> {
    in_place(path, std::fs::read_to_string(path))
}

/// Says where it happened.
fn in_place<T>(path: &Path, result: std::io::Result<T>) -> Result<T, Error> {
    result.map_err(|source| Error::File { path: path.to_path_buf(), source })
}

/// What is asked of [`run`].
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Which bugs; without names, all of them
    names: Vec<String>,
    /// The folder with the lists of bugs
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/mutants"))]
    lists: PathBuf,
    /// The workspace whose sources are mutated
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."))]
    workspace: PathBuf,
    /// Keep the scene of each bug in this file: of the path on which it shows, as much as there is without it
    #[arg(long, value_name = "FILE")]
    scenes: Option<PathBuf>,
    /// Search the model of that name in this very binary for a violation of the property given as name, and tell the path:
    /// what the mutated binary is asked to do
    #[arg(long, value_name = "MODEL", hide = true)]
    search: Option<String>,
}

/// How long a search may take, on the slowest of machines.
const PATIENCE: Duration = Duration::from_secs(600);

/// Exit codes of a binary that is asked to search.
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
    match hunt_all(&arguments.workspace, &chosen, arguments.scenes.as_deref()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("palisade-model: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Looks for a shortest violation, in this binary's own models.
fn search(model: &str, property: &str) -> ExitCode {
    // With a bug in it, a protocol may go on for ever within a single step.
    std::thread::spawn(|| {
        std::thread::sleep(PATIENCE);
        eprintln!("it has not come to its end after {PATIENCE:?}");
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

/// The shortest run on which what a property asks for never comes: to the cycle, and once around it.
fn lasso(check: &Check, property: &str) -> Result<Option<Trace>, Unfinished> {
    let report = check.run(STATES)?;
    let own = report.violations().into_iter().find(|answer| answer.response.property == property);
    Ok(own.and_then(|answer| answer.lasso.as_ref()).map(|lasso| lasso.trace.clone()))
}

/// The bugs that are asked for, each of which fits the sources and the models.
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

/// Where nothing may be found without a bug: a model of each half of the protocol.
const CONTROLS: [(&str, &str); 2] = [("raft-votes", "one vote a term"), ("locks-asked", "FIFO order")];

/// How many searches there are at a time.
const SEARCHES: usize = 2;

/// Builds the mutants, and searches them. Says whether all were caught.
fn hunt_all(workspace: &Path, chosen: &[Mutant], scenes: Option<&Path>) -> Result<bool, Error> {
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
                    let verdict = build.and_then(|build| build.hunt(mutant));
                    println!("{}", told(mutant, &verdict, begun.elapsed()));
                    if let (Some(file), Ok(Some(path))) = (scenes, &verdict) {
                        let mut kept = kept.lock();
                        *kept = std::mem::replace(&mut *kept, Ok(())).and_then(|()| keep_scene(file, mutant, path));
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

/// Keeps what there is, without the bug, of the path on which it shows, if live nodes can take it.
fn keep_scene(file: &Path, mutant: &Mutant, path: &[Value]) -> Result<(), Error> {
    let known = registry();
    // Runs that go on for ever are no scenes.
    let Some(named) = known.iter().find(|known| known.name == mutant.model && known.can_be_replayed()) else {
        return Ok(());
    };
    let scene = named.model.follow(path).expect("a model has a beginning");
    let kept = SavedTrace {
        model: mutant.model.clone(),
        property: mutant.property.clone(),
        mutant: Some(mutant.name.clone()),
        choices: scene.choices,
    };
    let unkept = |detail: String| Error::Unfit { mutant: mutant.name.clone(), detail };
    kept.holds().map_err(|error| unkept(error.to_string()))?;
    replace(file, |other| other.mutant == kept.mutant, vec![kept.clone()]).map_err(|error| unkept(error.to_string()))
}

fn told(mutant: &Mutant, verdict: &Result<Option<Vec<Value>>, Error>, time: Duration) -> String {
    let (Mutant { name, property, model, .. }, seconds) = (mutant, time.as_secs_f64());
    let verdict = verdict.as_ref().map(|path| path.as_ref().map(Vec::len));
    match verdict {
        Ok(Some(1)) => format!("{name}: caught by \"{property}\" after 1 step in {model}, {seconds:.1} s"),
        Ok(Some(steps)) => format!("{name}: caught by \"{property}\" after {steps} steps in {model}, {seconds:.1} s"),
        Ok(None) => format!("{name}: SURVIVES; \"{property}\" holds in {model}, {seconds:.1} s"),
        Err(error) => error.to_string(),
    }
}
