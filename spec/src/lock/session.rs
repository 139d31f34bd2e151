//! Sessions: the lease, the exactly-once window and the unit that dies, in one.

use serde::{Deserialize, Serialize};

use super::claims::Claims;
use super::{Key, Owner, Sequence, Ttl};
use crate::raft::Stamp;

/// A client's session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Session {
    /// A name for people.
    pub owner: Owner,
    /// How long it lives without a sign of life.
    pub ttl: Ttl,
    /// The last moment at which it still lives; strictly after it is due to expire.
    pub deadline: Stamp,
    /// The greatest operation number applied so far: all operations up to it are done, and are not done again.
    pub last: Option<Sequence>,
    /// Whether it was opened by an acquire, for that one lock, and ends with its claim.
    pub once: bool,
    /// The keys on which it has a claim, held or waiting, in order.
    pub(super) claims: Claims,
}

impl Session {
    /// Whether its deadline lies before `at`: then it cannot act any more, although it may not have ended yet.
    pub fn is_due(&self, at: Stamp) -> bool {
        self.deadline < at
    }

    /// The keys on which it has a claim, held or waiting, in order.
    pub fn claims(&self) -> &[Key] {
        self.claims.as_slice()
    }

    /// Whether it has a claim on `key`.
    pub fn claims_key(&self, key: &Key) -> bool {
        self.claims().binary_search(key).is_ok()
    }
}
