//! [Mutants](crate::mutants) of the server that the simulation must find: seed after seed, until a promise is broken.

use serde::Deserialize;

use crate::mutants::build::MutantBuild;
use crate::mutants::{self, Error, Verdict};

/// How a bug is found.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finder {
    /// The promises that it may break first.
    breaks: Vec<String>,
    /// Within so many seeds it must show.
    seeds: u64,
}

/// How long each cluster lives, in hours.
const HOURS: &str = "0.05";

impl mutants::Finder for Finder {
    fn part(&self) -> &'static str {
        "sim"
    }

    fn run(&self, build: &MutantBuild<'_>) -> Result<Verdict, Error> {
        let seeds = self.seeds.to_string();
        let simulate = |build: &MutantBuild<'_>, first: &str, seeds: &str| {
            let command = ["sim", "--brief", "--hours", HOURS, "--seed", first, "--seeds", seeds];
            build.conformance().args(command).output()
        };
        let output = simulate(build, "1", &seeds)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let Some((seed, property)) = said.lines().find_map(found) else {
            if output.status.success() {
                return Ok(Verdict::Survived(format!("{seeds} seeds")));
            }
            let broke_off = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Hunt(format!("the simulation broke off: {broke_off}")));
        };
        let how = format!("\"{property}\" with seed {seed}");
        if !simulate(&build.sound(), &seed.to_string(), "1")?.status.success() {
            return Ok(Verdict::Otherwise(format!("{how}, which is found without the mutant as well")));
        }
        let is_meant = self.breaks.iter().any(|meant| meant == property);
        Ok(if is_meant { Verdict::Caught(how) } else { Verdict::Otherwise(how) })
    }
}

/// The seed and the property that a line of the simulation's report names.
fn found(line: &str) -> Option<(u64, &str)> {
    let (seed, rest) = line.strip_prefix("seed ")?.split_once(": ")?;
    let (property, _) = rest.split_once(" is violated")?;
    Some((seed.parse().ok()?, property))
}

#[cfg(test)]
mod tests {
    use super::found;

    #[test]
    fn the_report_is_understood() {
        let line = "seed 17: acknowledged writes survive is violated: node 2 had a log: it is gone";
        assert_eq!(found(line), Some((17, "acknowledged writes survive")));
        assert_eq!(found("again: palisade-conformance sim --seed 17 --hours 0.05"), None);
    }
}
