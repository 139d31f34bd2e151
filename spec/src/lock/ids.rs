//! The names and numbers of the lock table.

use alloc::sync::Arc;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::raft::number;

number! {
    /// A fencing token: the number of a grant, counted over the whole cluster. Tokens of later grants are greater,
    /// whatever the key. The first is 1.
    Token(u64)
}

number! {
    /// The number of an operation within its session. The first is 1 or more; numbers only grow.
    Sequence(u64)
}

number! {
    /// A time-to-live in milliseconds of cluster time.
    Ttl(u64)
}

/// Declares a shared, immutable string of its own type: cheap to clone, for the same text stands in many places.
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
    /// What is locked. Its length is the server's concern.
    Key
}

text! {
    /// A session's name for people. Means nothing to the protocol.
    Owner
}

/// A session's identity: the table's next number, so that it never comes back, and its opener's random nonce, so that
/// it cannot be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId {
    /// Counted by the table, from 1.
    pub number: u64,
    /// Drawn by whoever proposed the session.
    pub nonce: u64,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.number, self.nonce)
    }
}
