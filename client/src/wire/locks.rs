//! The locks, as answers and events show them: holders, waiters, pages.

use serde::{Deserialize, Serialize};

use super::Mode;

/// A lock, as `GET /v1/locks/{key}` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockView {
    /// The lock's key.
    pub key: String,
    /// Whether a session holds it.
    pub held: bool,
    /// The first of the holders.
    pub holder: Option<HolderView>,
    /// All holders, in the order of their grants: an exclusive one is alone.
    #[serde(default)]
    pub holders: Vec<HolderView>,
    /// The waiters, in order of arrival.
    pub queue: Vec<WaiterView>,
}

/// A holder of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HolderView {
    /// The name its opener gave.
    pub owner: String,
    /// Its session's public number.
    pub session: u64,
    /// The grant's fencing token.
    pub token: u64,
    /// Milliseconds of cluster time until its session expires.
    pub expires_in_ms: u64,
    /// Whether others may hold the lock at the same time.
    #[serde(default)]
    pub mode: Mode,
    /// The permits that it takes, of a semaphore.
    #[serde(default)]
    pub permits: Option<u32>,
    /// All permits of the semaphore.
    #[serde(default)]
    pub of: Option<u32>,
    /// How many releases give it up.
    #[serde(default = "one")]
    pub holds: u32,
    /// All keys of the claim, if there are several.
    #[serde(default)]
    pub keys: Vec<String>,
    /// The value of the grant.
    #[serde(default)]
    pub value: Option<String>,
}

fn one() -> u32 {
    1
}

/// A waiter of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaiterView {
    /// The name its opener gave.
    pub owner: String,
    /// Its session's public number.
    pub session: u64,
    /// Whether others may hold the lock beside it.
    #[serde(default)]
    pub mode: Mode,
    /// The permits that it will take, of a semaphore.
    #[serde(default)]
    pub permits: Option<u32>,
    /// All permits of the semaphore.
    #[serde(default)]
    pub of: Option<u32>,
    /// All keys of the claim, if there are several.
    #[serde(default)]
    pub keys: Vec<String>,
}

/// A page of locks, in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockPage {
    /// The locks.
    pub locks: Vec<LockView>,
    /// Ask again with `after` at this key for the next page; none at the end.
    pub next_after: Option<String>,
}
