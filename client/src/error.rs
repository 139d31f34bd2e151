//! What can come of a request instead of what was asked for.
//!
//! One type for all calls, because a program reacts to the kind of failure and not to the call that met it. Which call
//! can end how stands at the call.

use std::time::Duration;

use crate::wire::{Failure, HeldBy};

/// Why a call did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An endpoint is not `HOST:PORT`.
    #[error(
        "{endpoint:?} is not an endpoint: write HOST:PORT, or only PORT after a comma to repeat the host before it"
    )]
    BadEndpoint {
        /// What was given.
        endpoint: String,
    },
    /// No leader answered in time. Whether the request was carried out is not known; what it may have claimed is given
    /// back in the background.
    #[error("no leader answered within {} ms; the last trouble was: {trouble}", after.as_millis())]
    Unreachable {
        /// How long it was tried.
        after: Duration,
        /// What went wrong last, as a sentence.
        trouble: String,
    },
    /// The wait for a lock ended without a grant; the place in the queue is given up.
    #[error("the lock was not granted within {} ms", after.as_millis())]
    TimedOut {
        /// How long the caller waited.
        after: Duration,
    },
    /// The lock is held by somebody else, and the call did not wait.
    #[error("the lock is held by {} and {queue} wait for it", holder_name(.holder.as_ref()))]
    Held {
        /// Who holds it, if the server said.
        holder: Option<HeldBy>,
        /// How many wait for it.
        queue: u64,
    },
    /// The session ended, or the lock is no longer the session's: somebody else may hold it.
    #[error("the lock was lost before it was given back: its session had ended, or could not be renewed in time")]
    Lost,
    /// The server refused; nothing was done.
    #[error("the server refused: {0}")]
    Refused(#[from] Failure),
    /// The client was closed, or the runtime that it lives in was shut down.
    #[error("the client is closed")]
    Closed,
}

fn holder_name(holder: Option<&HeldBy>) -> String {
    match holder {
        Some(holder) if holder.owner.is_empty() => format!("an unnamed session with token {}", holder.token),
        Some(holder) => format!("{:?} with token {}", holder.owner, holder.token),
        None => "another session".to_owned(),
    }
}
