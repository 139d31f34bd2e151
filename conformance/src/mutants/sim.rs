//! Mutants of the server that the simulation must detect: it runs seeds until a property is violated.

use serde::Deserialize;

use super::error::Error;
use super::mutant::{self, Verdict};
use super::programs::MutantBuild;

/// How a mutant is detected.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finder {
    /// Properties that the mutant may violate first.
    breaks: Vec<String>,
    /// Number of seeds within which it must be detected.
    seeds: u64,
}

/// Virtual time of each cluster, in hours.
const HOURS: &str = "0.05";

impl mutant::Finder for Finder {
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
        let report = String::from_utf8_lossy(&output.stdout);
        let Some((seed, property)) = report.lines().find_map(parse_violation) else {
            if output.status.success() {
                return Ok(Verdict::Survived(format!("{seeds} seeds")));
            }
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Run(format!("the simulation failed: {errors}")));
        };
        let control = simulate(&build.sound(), &seed.to_string(), "1")?;
        let said = || String::from_utf8_lossy(&control.stdout).trim().to_owned();
        let control = if control.status.success() { Ok(()) } else { Err(said()) };
        let is_meant = self.breaks.iter().any(|meant| meant == property);
        Ok(Verdict::of_finding(format!("\"{property}\" with seed {seed}"), control, is_meant))
    }
}

/// Extracts seed and property from a line of the simulation's report.
fn parse_violation(line: &str) -> Option<(u64, &str)> {
    let (seed, rest) = line.strip_prefix("seed ")?.split_once(": ")?;
    let (property, _) = rest.split_once(" is violated")?;
    Some((seed.parse().ok()?, property))
}

#[cfg(test)]
mod tests {
    use super::parse_violation;

    #[test]
    fn violation_line_is_parsed() {
        let line = "seed 17: acknowledged writes survive is violated: node 2 had a log: it is gone";
        assert_eq!(parse_violation(line), Some((17, "acknowledged writes survive")));
        assert_eq!(parse_violation("again: palisade-conformance sim --seed 17 --hours 0.05"), None);
    }
}
