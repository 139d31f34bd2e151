//! The numbers of the protocol, each in a type of its own, so that one cannot stand where another belongs.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Declares a number of the protocol: ordered, hashable, printed bare.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
pub(crate) use number;

number! {
    /// A node's number, unique in its cluster. Chosen by the operator, never reused.
    NodeId(u16)
}

number! {
    /// An election term (§3.3): a logical clock that counts leaderships. 0 is before the first election.
    Term(u64)
}

number! {
    /// An entry's position in the log. The first entry has index 1; 0 is the position before it.
    Index(u64)
}

number! {
    /// A moment of cluster time, in milliseconds since the cluster's first leader. It passes only while a leader
    /// measures it, and never faster than real time (docs/protocol.md, "Cluster time").
    Stamp(u64)
}

number! {
    /// The number of a leader's round of confirmation, in its term. 0 is before the first.
    Round(u64)
}

number! {
    /// A read, as the driver calls it. Means nothing to the protocol.
    ReadId(u64)
}

/// The greatest number that a node takes from a peer or a client (R37). Its own numbers go on from there by single steps, so
/// none overflows.
pub const LARGEST: u64 = 1 << 62;

/// The furthest that a message's term may be ahead of a node's own, unless the node has no past (R37). One false message may
/// not use up the terms that there are: nobody could be elected any more.
pub const LEAP: u64 = 1 << 32;

/// Whether none of them is greater than [`LARGEST`].
pub(crate) fn in_range<const N: usize>(numbers: [u64; N]) -> bool {
    numbers.into_iter().all(|number| number <= LARGEST)
}

impl Term {
    /// The term after this one.
    pub fn next(self) -> Term {
        Term(self.0 + 1)
    }
}

impl Index {
    /// The index after this one.
    pub fn next(self) -> Index {
        Index(self.0 + 1)
    }

    /// The index before this one.
    ///
    /// # Panics
    /// At index 0, which has none.
    pub fn previous(self) -> Index {
        Index(self.0.checked_sub(1).expect("index 0 has no predecessor"))
    }
}

impl Stamp {
    /// This moment plus `milliseconds`; the end of time is not passed.
    pub fn plus(self, milliseconds: u64) -> Stamp {
        Stamp(self.0.saturating_add(milliseconds))
    }
}
