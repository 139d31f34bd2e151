//! The names and numbers of the lock table.

use alloc::sync::Arc;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::raft::number;

number! {
    /// A fencing token: the number of a grant, counted over the whole cluster. Tokens of later
    /// grants are greater, whatever the key. The first is 1.
    Token(u64)
}

number! {
    /// The number of an operation within its session. At least 1; numbers only grow.
    Sequence(u64)
}

number! {
    /// A time-to-live in milliseconds of cluster time.
    Ttl(u64)
}

/// Declares a shared, immutable string type: cheap to clone, because the same text occurs many
/// times.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text! {
    /// The name of a lock. The server limits its length.
    Key
}

text! {
    /// A session's human-readable name. Means nothing to the protocol.
    Owner
}

/// A session's identity: a number that the table never reuses, and the proposer's random nonce,
/// which makes the identity impossible to guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId {
    /// Counted by the table, from 1.
    pub number: u64,
    /// Drawn by the proposer of the session.
    pub nonce: u64,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.number, self.nonce)
    }
}
