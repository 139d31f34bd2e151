//! [Mutants](crate::mutants) of the server that live faults must find: run after run, until one is not right. Needs what
//! [faults](super) need: root, `nft`, `strace`.

use serde::Deserialize;

use crate::mutants::build::MutantBuild;
use crate::mutants::{self, Error, Verdict};

/// How a bug is found.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finder {
    /// What may be said of the run that it shows in first.
    says: Vec<String>,
    /// Within so many seeds it must show.
    seeds: u64,
}

/// How long faults happen with each seed.
const MINUTES: &str = "0.4";

impl mutants::Finder for Finder {
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
            let Some(broken) = complaint(&said, &seed) else {
                return Err(Error::Hunt(format!("the run with seed {seed} broke off: {said}")));
            };
            let how = format!("\"{broken}\" with seed {seed}");
            let control = torture(&build.sound())?;
            if !control.status.success() {
                let said = String::from_utf8_lossy(&control.stderr);
                return Ok(Verdict::Otherwise(format!("{how}, and without the mutant: {}", said.trim())));
            }
            let is_meant = self.says.iter().any(|meant| broken.contains(meant.as_str()));
            return Ok(if is_meant { Verdict::Caught(how) } else { Verdict::Otherwise(how) });
        }
        Ok(Verdict::Survived(format!("{} runs of {MINUTES} minutes", self.seeds)))
    }
}

/// What a run says of why it is not right, in its first line.
fn complaint<'a>(said: &'a str, seed: &str) -> Option<&'a str> {
    let named = format!("palisade-conformance: seed {seed}: ");
    said.lines().find_map(|line| line.strip_prefix(named.as_str()))
}

#[cfg(test)]
mod tests {
    use super::complaint;

    #[test]
    fn the_report_is_understood() {
        let said = "at cluster 1\npalisade-conformance: seed 3: a clock is wrong\n  in a file\n";
        assert_eq!(complaint(said, "3"), Some("a clock is wrong"));
        assert_eq!(complaint(said, "4"), None);
        assert_eq!(complaint("palisade-conformance: there is no palisade", "3"), None);
    }
}
