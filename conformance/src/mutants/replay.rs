//! Mutants of the server that a replay must find: it replays trace after trace until one differs.

use serde::Deserialize;

use super::error::Error;
use super::mutant::{self, Verdict};
use super::programs::MutantBuild;
use crate::replay::command::SEGMENT_BYTES;
use crate::replay::finding::{Finding, PlayError};
use crate::replay::live::Program;
use crate::replay::nodes::ReplayConfig;
use crate::replay::play::play;
use crate::replay::saved_traces::{self, SavedTrace};

/// How a replay finds a mutant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finder {
    /// The model whose traces find it.
    model: String,
    /// The property of the traces that find it; `None` for any.
    property: Option<String>,
    /// The beginning of the finding's subject.
    finds: String,
}

impl Finder {
    fn is_meant(&self, kept: &SavedTrace) -> bool {
        self.model == kept.model && self.property.as_ref().is_none_or(|property| *property == kept.property)
    }
}

impl mutant::Finder for Finder {
    fn part(&self) -> &'static str {
        "replay"
    }

    fn run(&self, build: &MutantBuild<'_>) -> Result<Verdict, Error> {
        let mut kept = saved_traces::all(&saved_traces::folder()).map_err(|error| Error::Run(error.to_string()))?;
        kept.retain(|kept| self.is_meant(kept));
        let config = |build: &MutantBuild<'_>| ReplayConfig {
            program: Program { file: build.conformance_program(), on: build.on() },
            previous: None,
            segment_bytes: SEGMENT_BYTES,
        };
        for kept in &kept {
            let title = kept.title();
            let failed = |error: &dyn std::fmt::Display| Error::Run(format!("{title}: {error}"));
            let trace = saved_traces::rebuild(kept).map_err(|error| failed(&error))?;
            match play(&config(build), &trace) {
                Ok(_) => {}
                Err(PlayError::Found(finding)) => {
                    let control = match play(&config(&build.sound()), &trace) {
                        Ok(_) => Ok(()),
                        Err(PlayError::Found(also)) => Err(also.to_string()),
                        Err(error @ PlayError::Setup(_)) => return Err(failed(&error)),
                    };
                    let Finding { step, difference, .. } = *finding;
                    let how = format!("\"{}\" in step {step} of {title}", difference.what);
                    return Ok(Verdict::of_finding(how, control, difference.what.starts_with(&self.finds)));
                }
                Err(error @ PlayError::Setup(_)) => return Err(failed(&error)),
            }
        }
        if kept.is_empty() {
            return Err(Error::Run(format!("no saved trace of {} could find it", self.model)));
        }
        Ok(Verdict::Survived(format!("{} traces", kept.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::list::entries;

    /// Goal: every mutant in the lists has a saved trace.
    #[test]
    fn every_mutant_has_a_saved_trace() {
        let kept = saved_traces::all(&saved_traces::folder()).unwrap();
        for (entry, finder) in entries::<Finder>("replay").unwrap() {
            assert!(kept.iter().any(|kept| finder.is_meant(kept)), "{}: no saved trace could find it", entry.name);
        }
    }
}
