//! The traces that are kept: paths that a model tells again from the choices made on them ([`palisade_model::saved_traces`]).
//!
//! | file in `conformance/traces` | what it has | found by |
//! |---|---|---|
//! | `witnesses.jsonl` | of every model that is explored, a shortest path to each thing that must be possible | `palisade-model keep` |
//! | `walks.jsonl` | random walks through the models that are made for them | `palisade-model keep` |
//! | `mutant_traces.jsonl` | of every mutant of the protocol, the path on which it shows, as far as there is one without it | `palisade-model mutants --traces` |

use std::path::{Path, PathBuf};

pub use palisade_model::saved_traces::{SavedTrace, SavedTraceError, read_all as all};

use super::trace::{Trace, TraceError};

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum ToldError {
    /// There is no such path.
    #[error(transparent)]
    SavedTrace(#[from] SavedTraceError),
    /// The model tells what is no trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// The trace, told by the model.
///
/// # Errors
/// If the model has no such path.
pub fn told(kept: &SavedTrace) -> Result<Trace, ToldError> {
    Ok(Trace::read(kept.trace()?.lines(&kept.model))?)
}

/// Where the project's own are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")
}
