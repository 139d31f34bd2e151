//! `palisade-conformance seeded`.

use std::io::Write;
use std::time::Instant;

use clap::Args;

use super::mutants::Mutants;
use super::{Bug, Error, Verdict, bugs, chosen, workspace};

/// Put known bugs into a copy of the server: each must be found
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// Which bugs; without names, all of them
    names: Vec<String>,
    /// Of them, only those that this part is to find, such as `sim`
    #[arg(long, value_name = "COMMAND", value_parser = super::PARTS)]
    part: Option<String>,
    /// Say which there are
    #[arg(long)]
    list: bool,
}

/// Tries the bugs; `true` if each was found.
///
/// # Errors
/// If they could not be tried.
pub fn run(arguments: &Arguments, out: &mut impl Write) -> Result<bool, Error> {
    let mut bugs = chosen(bugs()?, &arguments.names)?;
    bugs.retain(|bug| arguments.part.as_ref().is_none_or(|part| part == bug.finder.part()));
    if arguments.list {
        for bug in &bugs {
            let Bug { entry, finder } = bug;
            writeln!(out, "{}  {} ({}): {}", finder.part(), entry.name, bug.path().display(), entry.why)?;
        }
        return Ok(true);
    }
    let begun = Instant::now();
    let mutants = Mutants::build(&workspace(), &bugs)?;
    writeln!(out, "{} bugs built in {:.0} s", bugs.len(), begun.elapsed().as_secs_f64())?;
    out.flush()?;
    let mut caught = 0;
    for (number, Bug { entry, finder }) in bugs.iter().enumerate() {
        let before = Instant::now();
        let verdict = finder.hunt(&mutants.with(number))?;
        let (part, name, why, seconds) = (finder.part(), &entry.name, &entry.why, before.elapsed().as_secs_f64());
        match verdict {
            Verdict::Caught(how) => {
                caught += 1;
                writeln!(out, "{part}  {name}: caught by {how}, {seconds:.1} s")?;
            }
            Verdict::Otherwise(how) => writeln!(out, "{part}  {name}: FOUND OTHERWISE, by {how}: {why}")?,
            Verdict::Survived(what) => writeln!(out, "{part}  {name}: SURVIVES {what}, {seconds:.1} s: {why}")?,
        }
        out.flush()?;
    }
    writeln!(out, "{caught} of {} caught in {:.0} s", bugs.len(), begun.elapsed().as_secs_f64())?;
    Ok(caught == bugs.len())
}
