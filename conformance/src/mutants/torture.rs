//! Mutants of the server that live faults must detect: the torture runs seed after seed until a run
//! fails. Needs what [torture](crate::torture) needs: root, `nft`, `strace`.

use serde::Deserialize;

use super::error::Error;
use super::mutant::{self, Verdict};
use super::programs::MutantBuild;

/// How a mutant is detected.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finder {
    /// Texts, one of which the first failing run's report must contain.
    says: Vec<String>,
    /// Number of seeds within which the mutant must be detected.
    seeds: u64,
}

/// Duration of the faults with each seed, in minutes.
const MINUTES: &str = "0.4";

impl mutant::Finder for Finder {
    fn part(&self) -> &'static str {
        "torture"
    }

    fn run(&self, build: &MutantBuild<'_>) -> Result<Verdict, Error> {
        for seed in 1..=self.seeds {
            let seed = seed.to_string();
            let torture = |build: &MutantBuild<'_>| {
                let directory = tempfile::tempdir()?;
                let mut torture = build.conformance();
                torture.args(["torture", "--minutes", MINUTES, "--seed", &seed, "--keep"]).arg(directory.path());
                torture.output()
            };
            let output = torture(build)?;
            if output.status.success() {
                continue;
            }
            let said = String::from_utf8_lossy(&output.stderr);
            let Some(failure) = parse_failure(&said, &seed) else {
                return Err(Error::Run(format!("the run with seed {seed} failed: {said}")));
            };
            let control = torture(&build.sound())?;
            let said = || String::from_utf8_lossy(&control.stderr).trim().to_owned();
            let control = if control.status.success() { Ok(()) } else { Err(said()) };
            let is_meant = self.says.iter().any(|meant| failure.contains(meant.as_str()));
            return Ok(Verdict::of_finding(format!("\"{failure}\" with seed {seed}"), control, is_meant));
        }
        Ok(Verdict::Survived(format!("{} runs of {MINUTES} minutes", self.seeds)))
    }
}

/// The failure that a run reports, from its first line.
fn parse_failure<'a>(said: &'a str, seed: &str) -> Option<&'a str> {
    let named = format!("palisade-conformance: seed {seed}: ");
    said.lines().find_map(|line| line.strip_prefix(named.as_str()))
}

#[cfg(test)]
mod tests {
    use super::parse_failure;

    #[test]
    fn failure_line_is_parsed() {
        let said = "at cluster 1\npalisade-conformance: seed 3: a clock is wrong\n  in a file\n";
        assert_eq!(parse_failure(said, "3"), Some("a clock is wrong"));
        assert_eq!(parse_failure(said, "4"), None);
        assert_eq!(parse_failure("palisade-conformance: there is no palisade", "3"), None);
    }
}
