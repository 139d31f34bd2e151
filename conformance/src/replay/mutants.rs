//! [Mutants](crate::mutants) of the server that a replay must find: trace after trace, until one differs.

use serde::Deserialize;

use super::command::SEGMENT_BYTES;
use super::live::Program;
use super::play::{Finding, PlayError, ReplayConfig, play};
use super::saved_traces::{self, SavedTrace};
use crate::mutants::build::MutantBuild;
use crate::mutants::{self, Error, Verdict};

/// How a bug is found.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finder {
    /// The model of the traces that find it.
    model: String,
    /// What the traces show that find it, if not any will do.
    property: Option<String>,
    /// Of what a difference is found, as the finding's words begin.
    finds: String,
}

impl Finder {
    fn is_meant(&self, kept: &SavedTrace) -> bool {
        self.model == kept.model && self.property.as_ref().is_none_or(|property| *property == kept.property)
    }
}

impl mutants::Finder for Finder {
    fn part(&self) -> &'static str {
        "replay"
    }

    fn run(&self, build: &MutantBuild<'_>) -> Result<Verdict, Error> {
        let mut kept = saved_traces::all(&saved_traces::folder()).map_err(|error| Error::Hunt(error.to_string()))?;
        kept.retain(|kept| self.is_meant(kept));
        let config = |build: &MutantBuild<'_>| ReplayConfig {
            program: Program { file: build.server(), on: build.on() },
            segment_bytes: SEGMENT_BYTES,
        };
        for kept in &kept {
            let title = kept.title();
            let failed = |error: &dyn std::fmt::Display| Error::Hunt(format!("{title}: {error}"));
            let trace = saved_traces::told(kept).map_err(|error| failed(&error))?;
            match play(&config(build), &trace) {
                Ok(_) => {}
                Err(PlayError::Found(finding)) => {
                    // What is found without the bug as well shows nothing.
                    return match play(&config(&build.sound()), &trace) {
                        Ok(_) => Ok(self.verdict(&title, &finding)),
                        Err(error @ PlayError::Found(_)) => {
                            Ok(Verdict::Otherwise(format!("{title}: {finding}, and without the mutant: {error}")))
                        }
                        Err(error @ PlayError::Stage(_)) => Err(failed(&error)),
                    };
                }
                Err(error @ PlayError::Stage(_)) => return Err(failed(&error)),
            }
        }
        if kept.is_empty() {
            return Err(Error::Hunt(format!("no trace of {} is kept that could find it", self.model)));
        }
        Ok(Verdict::Survived(format!("{} traces", kept.len())))
    }
}

impl Finder {
    fn verdict(&self, title: &str, finding: &Finding) -> Verdict {
        let how = format!("\"{}\" in step {} of {title}", finding.difference.what, finding.step);
        if finding.difference.what.starts_with(&self.finds) { Verdict::Caught(how) } else { Verdict::Otherwise(how) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::bugs_of;

    /// The lists cannot rot unnoticed.
    #[test]
    fn every_bug_has_a_trace() {
        let kept = saved_traces::all(&saved_traces::folder()).unwrap();
        for (entry, finder) in bugs_of::<Finder>("replay").unwrap() {
            assert!(
                kept.iter().any(|kept| finder.is_meant(kept)),
                "{}: no trace is kept that could find it",
                entry.name
            );
        }
    }
}
