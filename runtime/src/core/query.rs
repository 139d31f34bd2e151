//! Reads of the lock table that clients ask for, after validation.

use palisade_spec::lock::{Key, Keys, Principal, Right, SessionId};

use super::credential::Secret;

/// A query of the lock table.
#[derive(Clone, Debug)]
pub enum Query {
    /// One session.
    Session(SessionId),
    /// The grant by which a session holds exactly these keys.
    Grant {
        /// The session.
        session: SessionId,
        /// Its secret, for the answer.
        secret: Secret,
        /// The keys.
        keys: Keys,
    },
    /// One lock.
    Lock(Key),
    /// A page of locks.
    Locks {
        /// Only keys with this prefix.
        prefix: String,
        /// Only keys after this one.
        after: Option<Key>,
        /// Maximum number of locks.
        limit: usize,
    },
    /// One record.
    Record(Key),
    /// A page of records.
    Records {
        /// Only keys with this prefix.
        prefix: String,
        /// Only keys after this one.
        after: Option<Key>,
        /// Maximum number of records.
        limit: usize,
    },
    /// A watch's listing of one key: the lock, as far as it is held or waited for, and the record.
    Listing(Key),
    /// A part of a watch's listing.
    ListingOf {
        /// Only keys with this prefix.
        prefix: String,
        /// Only keys after this one.
        after: Option<Key>,
    },
    /// The access rules.
    Access,
    /// Whether the access rules permit something.
    Permits {
        /// To this principal.
        principal: Principal,
        /// The right.
        right: Right,
        /// To this key.
        key: String,
    },
}
