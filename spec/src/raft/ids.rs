//! The numbers of the protocol, each with its own type, so that the compiler rejects mix-ups.

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

/// A node's identity in its cluster. It belongs to one disk and is never reused: a new disk would
/// not hold the old one's votes. The protocol only compares identities.
///
/// An identity consists of the **number** that the operator chose (the low 16 bits) and a
/// **generation** (the high 16 bits). The generation starts at 0 and grows by one each time the
/// server returns without its disk ([`Change::Replace`](super::Change::Replace)). Displayed as the
/// number, followed by a dot and the generation if that is not 0: `3`, `3.1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

number! {
    /// An election term (§3.3): a logical clock that counts leaderships. 0 is before the first
    /// election.
    Term(u64)
}

number! {
    /// An entry's position in the log. The first entry has index 1; 0 is the position before it.
    Index(u64)
}

number! {
    /// A moment of cluster time, in milliseconds since the cluster's first leader. It passes only
    /// while a leader measures it, and never faster than real time (docs/protocol.md, "Cluster
    /// time").
    Stamp(u64)
}

number! {
    /// The number of a leader's ReadIndex round, in its term. 0 is before the first round.
    ReadRound(u64)
}

number! {
    /// The driver's number for a request to a node. The node repeats it in its answers; otherwise
    /// it means nothing to the protocol.
    RequestId(u64)
}

/// The greatest number that a node accepts from a peer or a client (R37). A node increments its own
/// numbers from there by single steps, so none overflows.
pub const MAX_NUMBER: u64 = 1 << 62;

/// The maximum by which a message's term may exceed a node's own, unless the node has no history
/// (R37). Otherwise one false message could exhaust the terms and so prevent every later election.
pub const MAX_TERM_ADVANCE: u64 = 1 << 32;

/// Whether none of the numbers is greater than [`MAX_NUMBER`].
pub(crate) fn in_range<const N: usize>(numbers: [u64; N]) -> bool {
    numbers.into_iter().all(|number| number <= MAX_NUMBER)
}

impl NodeId {
    /// The identity of a number and a generation.
    pub fn new(number: u16, generation: u16) -> NodeId {
        NodeId(u32::from(generation) << 16 | u32::from(number))
    }

    /// The number that the operator chose.
    pub fn number(self) -> u16 {
        (self.0 & 0xFFFF) as u16
    }

    /// How often the server with this number has returned without its disk.
    pub fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The same number in its next generation; `None` after the last generation.
    pub fn next_generation(self) -> Option<NodeId> {
        Some(NodeId::new(self.number(), self.generation().checked_add(1)?))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation() {
            0 => self.number().fmt(f),
            generation => write!(f, "{}.{generation}", self.number()),
        }
    }
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
    /// This moment plus `milliseconds`, saturating.
    pub fn plus(self, milliseconds: u64) -> Stamp {
        Stamp(self.0.saturating_add(milliseconds))
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::NodeId;

    #[test]
    fn identity_has_a_number_and_a_generation() {
        let (first, second) = (NodeId(3), NodeId(3).next_generation().unwrap());
        assert_eq!((first.number(), first.generation(), first.to_string().as_str()), (3, 0, "3"));
        assert_eq!((second.number(), second.generation(), second.to_string().as_str()), (3, 1, "3.1"));
        assert_eq!(NodeId::new(u16::MAX, u16::MAX).number(), u16::MAX);
        assert_eq!(NodeId::new(u16::MAX, u16::MAX).next_generation(), None, "no identity comes back");
    }
}
