//! Stores that check the fencing token themselves: a PostgreSQL table and an object store.
//!
//! The lab's own [`resource`](crate::resource) is made to check tokens. These two stores know nothing
//! of locks: the check is a condition of an ordinary write, so that an application needs no process
//! of its own in front of its data.
//!
//! | file | contents |
//! |---|---|
//! | [`postgres`] | a row with a column `fence`: one conditional statement |
//! | [`objects`] | an object that contains its token: compare-and-swap on its ETag |
//! | `running` | [`StoreServer`]: the store's server, as the experiment and the tests start it |
//!
//! Both keep one rule: a write is accepted if its token is above the stored one, or if nothing is
//! stored. The stored token therefore never falls, as long as no client deletes the row or the
//! object: a deletion forgets the token. Both refuse an equal token. A writer that lost the answer to its
//! write and repeats it is refused by its own token: [`Answer::Stale`] with `seen` equal to its token
//! says that a write with this token was accepted before.

pub mod objects;
pub mod postgres;
mod running;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use self::running::StoreServer;
use crate::resource::rule::Fence;
use crate::servers;

/// How long a store may take for one read, or for one write with all its attempts.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The kinds of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A row of a PostgreSQL table.
    Postgres,
    /// An object of a store that speaks S3.
    Objects,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Postgres, Kind::Objects];

    /// The name in tables and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.server().name()
    }

    /// The server that keeps it.
    #[must_use]
    pub fn server(self) -> servers::Kind {
        match self {
            Kind::Postgres => servers::Kind::Postgres,
            Kind::Objects => servers::Kind::Objects,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is stored under a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The token of the last write that was accepted.
    pub fence: u64,
    /// The value of that write.
    pub value: String,
}

/// What a store said about a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The value and the token are stored.
    Accepted {
        /// Number of conditional writes that it took: above 1 if other writers came in between.
        attempts: u32,
    },
    /// The token is not above the stored one; nothing was changed.
    Stale {
        /// The stored token. It may have grown between the refusal and the look at it.
        seen: u64,
        /// Number of conditional writes that the store had refused before. PostgreSQL refuses by its
        /// first; a writer of objects that reads a higher token sends none.
        attempts: u32,
    },
}

/// A store with one value and one token per key.
pub trait Store: fmt::Debug + Send + Sync {
    /// Which store it is.
    fn kind(&self) -> Kind;

    /// What is stored; `None` if nothing is.
    ///
    /// # Errors
    /// The store could not be reached, or holds something else under this key.
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, String>>;

    /// Writes the value with its token. With [`Fence::Off`] the store accepts every write: the unsafe
    /// baseline, for comparison.
    ///
    /// # Errors
    /// The store could not be reached or has answered with an error: whether the write was done is
    /// unknown.
    fn write<'a>(
        &'a self,
        key: &'a str,
        value: &'a str,
        token: u64,
        fence: Fence,
    ) -> BoxFuture<'a, Result<Answer, String>>;
}

/// Ends a request that takes too long.
async fn in_time<T>(store: &str, what: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let done = tokio::time::timeout(TIMEOUT, what).await;
    done.unwrap_or_else(|_| Err(format!("{store} has not answered within {TIMEOUT:?}; look at its log")))
}
