//! Sessions: the lease and the exactly-once window of a client; its claims end together with it.

use serde::{Deserialize, Serialize};

use super::claims::Claims;
use super::{Key, Owner, Principal, Sequence, Ttl};
use crate::raft::Stamp;

/// A client's session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Session {
    /// A human-readable name.
    pub owner: Owner,
    /// The client that opened it, to which the access rules apply.
    #[serde(default)]
    pub principal: Principal,
    /// How long the session lives without a renewal (keepalive, grant, or new acquire of a held
    /// lock).
    pub ttl: Ttl,
    /// The last moment at which the session still lives; after it, the session is due to expire.
    pub deadline: Stamp,
    /// The greatest operation number applied so far: operations up to it are done, and are not done
    /// again.
    pub last: Option<Sequence>,
    /// Whether an acquire opened the session for one lock; then the session ends with that claim.
    pub once: bool,
    /// The keys that the session holds or waits for, in order.
    pub(super) claims: Claims,
}

impl Session {
    /// Whether the deadline lies before `at`: then the session cannot act any more, although it may
    /// not have ended yet.
    pub fn is_due(&self, at: Stamp) -> bool {
        self.deadline < at
    }

    /// The keys that the session holds or waits for, in order.
    pub fn claims(&self) -> &[Key] {
        self.claims.as_slice()
    }

    /// Whether the session holds or waits for `key`.
    pub fn claims_key(&self, key: &Key) -> bool {
        self.claims().binary_search(key).is_ok()
    }
}
