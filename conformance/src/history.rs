//! `palisade-conformance history FILE…`: runs the checkers on recorded histories.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};

use palisade_history::check::check_all;
use palisade_history::{BadHistory, History, knossos, porcupine};

/// Check whether one correct lock service could have given the answers that clients recorded
#[derive(Debug, Args)]
pub struct Arguments {
    /// Records, one JSON object per line (docs/conformance/histories.md)
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Export the histories for another checker instead of checking them
    #[arg(long, value_name = "FORM")]
    export: Option<Form>,
}

/// The export formats.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// EDN, one event per line, for Knossos and Jepsen
    Knossos,
    /// JSON, one operation per line, for Porcupine
    Porcupine,
}

/// Why a file could not be checked.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", file.display())]
pub struct Failed {
    file: PathBuf,
    error: BadHistory,
}

/// Checks every file and reports to `out`. Returns whether no violation was found.
///
/// # Errors
/// If a file cannot be read or is not a history.
pub fn run(arguments: &Arguments, out: &mut impl Write) -> Result<bool, Failed> {
    let mut sound = true;
    for file in &arguments.files {
        let failed = |error| Failed { file: file.clone(), error };
        let begun = Instant::now();
        let history = read(file).map_err(failed)?;
        let took = begun.elapsed().as_secs_f64();
        let done = match arguments.export {
            Some(Form::Knossos) => knossos::write(&history, &mut *out).map(|()| true),
            Some(Form::Porcupine) => porcupine::write(&history, &mut *out).map(|()| true),
            None => report(file, &history, took, out),
        };
        sound &= done.map_err(|error| failed(error.into()))?;
    }
    Ok(sound)
}

fn read(file: &Path) -> Result<History, BadHistory> {
    History::read(BufReader::with_capacity(1 << 20, File::open(file)?))
}

fn report(file: &Path, history: &History, took: f64, out: &mut impl Write) -> io::Result<bool> {
    let begun = Instant::now();
    let verdicts = check_all(history);
    let operations = history.operations.len();
    writeln!(
        out,
        "{}: {operations} operations, read in {took:.1} s, checked in {:.1} s",
        file.display(),
        begun.elapsed().as_secs_f64()
    )?;
    for verdict in &verdicts {
        let found = if verdict.violations.is_empty() { "holds" } else { "VIOLATED" };
        writeln!(out, "  {:<14} {found:<9} {}", verdict.checker, verdict.checked)?;
        for violation in &verdict.violations {
            writeln!(out, "    {violation}")?;
        }
    }
    Ok(verdicts.iter().all(|verdict| verdict.violations.is_empty()))
}
