//! `palisade-conformance mutants`.

use std::io::Write;
use std::time::Instant;

use clap::Args;

use super::build::{build, workspace};
use super::error::Error;
use super::mutant::{Mutant, Verdict};
use super::{chosen, mutants};

/// Put mutants into a copy of the server: each must be found
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// The mutants to try; without names, all
    names: Vec<String>,
    /// Try only the mutants that this part must find, such as `sim`
    #[arg(long, value_name = "COMMAND", value_parser = super::PARTS)]
    part: Option<String>,
    /// List the mutants instead
    #[arg(long)]
    list: bool,
}

/// Tries the mutants; returns whether each was found.
///
/// # Errors
/// If the mutants cannot be tried.
pub fn run(arguments: &Arguments, out: &mut impl Write) -> Result<bool, Error> {
    let mut mutants = chosen(mutants()?, &arguments.names)?;
    mutants.retain(|mutant| arguments.part.as_ref().is_none_or(|part| part == mutant.finder.part()));
    if arguments.list {
        for mutant in &mutants {
            let Mutant { entry, finder } = mutant;
            writeln!(out, "{}  {} ({}): {}", finder.part(), entry.name, mutant.path().display(), entry.why)?;
        }
        return Ok(true);
    }
    let begun = Instant::now();
    let builds = build(&workspace(), &mutants)?;
    writeln!(out, "{} mutants built in {:.0} s", mutants.len(), begun.elapsed().as_secs_f64())?;
    out.flush()?;
    let mut caught = 0;
    for (number, Mutant { entry, finder }) in mutants.iter().enumerate() {
        let before = Instant::now();
        let verdict = finder.run(&builds.with(number))?;
        let (part, name, why, seconds) = (finder.part(), &entry.name, &entry.why, before.elapsed().as_secs_f64());
        match verdict {
            Verdict::Caught(how) => {
                caught += 1;
                writeln!(out, "{part}  {name}: caught by {how}, {seconds:.1} s")?;
            }
            Verdict::Otherwise(how) => writeln!(out, "{part}  {name}: FOUND DIFFERENTLY, by {how}: {why}")?,
            Verdict::Survived(what) => writeln!(out, "{part}  {name}: SURVIVES {what}, {seconds:.1} s: {why}")?,
        }
        out.flush()?;
    }
    writeln!(out, "{caught} of {} caught in {:.0} s", mutants.len(), begun.elapsed().as_secs_f64())?;
    Ok(caught == mutants.len())
}
