//! The errors of all calls.
//!
//! One type for all calls, because a program reacts to the kind of failure and not to the call that returned it. Each
//! call documents its errors.

use std::time::Duration;

use crate::tls::TlsError;
use crate::wire::{Answer, Code, Failure, HeldBy, waiters};

/// Why a call failed.
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
    /// TLS cannot be used: a file of [`Security`](crate::Security) is missing or broken, or an endpoint demands TLS and
    /// no CA is given.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Every node refused this client's identity, or this client refused the nodes': to repeat the call is of no use.
    /// Nothing was done.
    #[error("no connection to a node was accepted: {trouble}")]
    Unauthenticated {
        /// The last refusal, as a sentence.
        trouble: String,
    },
    /// No leader answered in time. It is unknown whether the request was applied; a lock that it may have acquired is
    /// released in the background.
    #[error("no leader answered within {} ms; the last problem was: {trouble}", after.as_millis())]
    Unreachable {
        /// The configured time limit.
        after: Duration,
        /// What went wrong last, as a sentence: a refusal of this client, if a node has refused it and none has accepted it
        /// since.
        trouble: String,
    },
    /// A request that changes something was sent, and its answer was lost: it is done, or may be done later, or is not. The
    /// client did not send it again, because that might do it twice, or a repetition was refused, or not answered in time.
    #[error("it is unknown whether the request was done; read what it changes before you repeat it: {trouble}")]
    UnknownOutcome {
        /// What happened to the answer, as a sentence.
        trouble: String,
    },
    /// The wait for a lock ended without a grant; the claim is withdrawn in the background.
    #[error("the lock was not granted within {} ms", after.as_millis())]
    TimedOut {
        /// The configured wait.
        after: Duration,
    },
    /// Another session holds the lock, and the call did not wait.
    #[error("the lock is held by {}; {}", holder_name(.holder.as_ref()), waiters(*.queue))]
    Held {
        /// The holder, if the server named it.
        holder: Option<HeldBy>,
        /// How many wait for it.
        queue: u64,
    },
    /// The session ended, or no longer holds the lock: another session may hold it.
    #[error("the lock was lost before it was released: its session had ended, or could not be renewed in time")]
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

/// Refuses a request of so many bytes if it is over the limit: it is not sent, because a node would end the connection,
/// which all calls and guards of a client share.
pub(crate) fn check_length(bytes: usize, limit: usize) -> Result<(), Error> {
    if bytes <= limit {
        return Ok(());
    }
    let message = format!("the request has {bytes} bytes, and no node takes more than {limit}: it was not sent");
    Err(Error::Refused(Failure::new(Code::TooLarge, message)))
}

/// The failure that stands for an answer of the wrong kind, which only a broken server gives.
pub(crate) fn unexpected(answer: &Answer) -> Failure {
    Failure::new(Code::Invalid, format!("the server's answer is of another kind than the request: {answer:?}"))
}
