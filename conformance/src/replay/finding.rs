//! A difference between a live node and the model, and the errors that end a replay.

use std::fmt;

use palisade_spec::raft::NodeId;

use super::difference::Difference;
use super::live::LiveError;

/// A difference between a live node and the model.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The step, counted from 1; 0 is the setup before the first step.
    pub step: usize,
    /// What happens in this step.
    pub sentence: String,
    /// The node.
    pub server: NodeId,
    /// The difference.
    pub difference: Difference,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { step, sentence, server, difference } = self;
        write!(f, "step {step} ({sentence}), node {server}: {difference}")
    }
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// A live node differs from the model.
    #[error("{0}")]
    Found(Box<Finding>),
    /// The processes or the gate could not be set up.
    #[error("the replay cluster cannot be set up: {0}")]
    Setup(String),
}

/// A result about one node; the error is its difference from the model.
pub(super) type NodeResult<T> = Result<T, (NodeId, Difference)>;

pub(super) fn found(step: usize, sentence: &str, server: NodeId, difference: Difference) -> PlayError {
    PlayError::Found(Box::new(Finding { step, sentence: sentence.to_owned(), server, difference }))
}

pub(super) fn stopped(server: NodeId, error: &LiveError) -> (NodeId, Difference) {
    (server, Difference::new("the process", "it answers the request", error.to_string()))
}

pub(super) fn bad_trace(server: NodeId, error: &dyn fmt::Display) -> (NodeId, Difference) {
    (server, Difference::new("the trace", "an event that can be replayed", error.to_string()))
}

pub(super) fn unknown_server(server: NodeId) -> (NodeId, Difference) {
    (server, Difference::new("the trace", "an event that can be replayed", format!("there is no server {server}")))
}
