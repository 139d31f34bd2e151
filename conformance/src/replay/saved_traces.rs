//! The saved traces: the model rebuilds each path from the choices saved
//! ([`palisade_model::saved_traces`]).
//!
//! | file in `conformance/traces` | contents | written by |
//! |---|---|---|
//! | `witnesses.jsonl` | for every explored model, a shortest path to each witness | `palisade-model keep` |
//! | `walks.jsonl` | random walks through the models of the random tier | `palisade-model keep` |
//! | `mutant_traces.jsonl` | for every mutant of the protocol, the path that shows it, if the path exists without the mutant too | `palisade-model mutants --traces` |

use std::path::{Path, PathBuf};

pub use palisade_model::saved_traces::{SavedTrace, SavedTraceError, read_all as all};

use super::trace::{Trace, TraceError};

/// Why a trace could not be rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The model has no such path.
    #[error(transparent)]
    SavedTrace(#[from] SavedTraceError),
    /// The rebuilt lines are not a trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Rebuilds the trace with its model.
///
/// # Errors
/// If the model has no such path.
pub fn rebuild(kept: &SavedTrace) -> Result<Trace, RebuildError> {
    Ok(Trace::read(kept.trace()?.lines(&kept.model))?)
}

/// The folder of the project's saved traces.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")
}
