//! The names and numbers of the lock table.

use alloc::sync::Arc;
use core::fmt;
use core::num::NonZeroU64;

use serde::{Deserialize, Serialize, Serializer};

use crate::raft::number;

number! {
    /// A fencing token: the number of a grant, counted over the whole cluster. Tokens of later
    /// grants are greater, whatever the key. The first is 1.
    Token(u64)
}

number! {
    /// A time-to-live in milliseconds of cluster time.
    Ttl(u64)
}

number! {
    /// How often the access rules were changed. 0 before the first change.
    Revision(u64)
}

number! {
    /// The number of a transaction of the store. All records that it changes have it. The first is 1.
    Version(u64)
}

/// The number of an operation within its session. At least 1, so that an `Option` of it takes no more
/// memory; numbers only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sequence(NonZeroU64);

impl Sequence {
    /// The operation with this number; `None` for 0.
    pub fn new(number: u64) -> Option<Sequence> {
        NonZeroU64::new(number).map(Sequence)
    }
}

impl From<Sequence> for u64 {
    fn from(Sequence(number): Sequence) -> u64 {
        number.get()
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
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
    /// The name of a lock, or of a record. The server limits its length.
    Key
}

text! {
    /// A session's human-readable name. Means nothing to the protocol.
    Owner
}

text! {
    /// The value of a claim, for other clients to read: the address of a leader, for instance. Means nothing
    /// to the protocol.
    Value
}

text! {
    /// The name of a role: a set of principals to which access rules give rights together.
    Role
}

text! {
    /// The beginning of keys, to which an access rule applies.
    Prefix
}

/// The authenticated name of a client: `worker-7`; `admin/alice` with the certificate of an
/// administrator; `node/3` for a node; none for a client that has proved no name.
///
/// The server authenticates. None takes no memory, because without TLS no session has a principal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(from = "Arc<str>")]
pub struct Principal(Option<Arc<str>>);

impl Principal {
    /// The name; empty if there is none.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether the client has proved no name.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it is the name of an administrator's certificate: such a principal has every right,
    /// whatever the rules say.
    pub fn is_administrator(&self) -> bool {
        self.as_str().starts_with("admin/")
    }

    /// Whether it is the name of a client to which rules apply: no such name has a slash.
    pub fn is_client(&self) -> bool {
        !self.is_none() && !self.as_str().contains('/')
    }
}

impl From<Arc<str>> for Principal {
    fn from(name: Arc<str>) -> Principal {
        Principal((!name.is_empty()).then_some(name))
    }
}

impl From<&str> for Principal {
    fn from(name: &str) -> Principal {
        Principal((!name.is_empty()).then(|| name.into()))
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Proves that a request comes from the client that opened the session.
///
/// The table compares proofs, and knows nothing of their making. The server computes a proof from
/// the secret that the client presents, with a function that has no inverse: so a proof that is read
/// in a log or a snapshot opens nothing. Two halves, so that a [`SessionId`] takes 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Proof([u64; 2]);

impl From<u128> for Proof {
    fn from(bits: u128) -> Proof {
        let [high, low] = [bits >> 64, bits & u128::from(u64::MAX)];
        Proof([high, low].map(|half| u64::try_from(half).expect("a half has 64 bits")))
    }
}

impl From<Proof> for u128 {
    fn from(Proof([high, low]): Proof) -> u128 {
        u128::from(high) << 64 | u128::from(low)
    }
}

impl fmt::LowerHex for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&u128::from(*self), f)
    }
}

/// A session's identity: a number that the table never reuses, and the proof that a request is of
/// the session's own client.
///
/// The number is public. A request that names the number with another proof names another session,
/// which does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId {
    /// Counted by the table, from 1.
    pub number: u64,
    /// Given by the proposer of the session.
    pub proof: Proof,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.number, self.proof)
    }
}

#[cfg(test)]
mod tests {
    use super::{Principal, Proof, Sequence, SessionId};

    #[test]
    fn principal_without_a_name_has_one_form() {
        assert_eq!(Principal::from(""), Principal::default());
        assert_eq!(Principal::from(alloc::sync::Arc::from("")), Principal::default());
        assert_eq!(size_of::<Principal>(), 16);
        for (name, is_client, is_administrator) in
            [("", false, false), ("worker-7", true, false), ("admin/alice", false, true), ("node/3", false, false)]
        {
            let principal = Principal::from(name);
            assert_eq!(principal, Principal::from(alloc::sync::Arc::from(name)));
            let is = (principal.as_str(), principal.is_client(), principal.is_administrator());
            assert_eq!(is, (name, is_client, is_administrator));
        }
    }

    #[test]
    fn proof_has_all_its_bits() {
        for bits in [0, 1, u128::from(u64::MAX), 1 << 64, u128::MAX, 0x0123_4567_89ab_cdef_0011_2233_4455_6677] {
            assert_eq!(u128::from(Proof::from(bits)), bits);
        }
        assert!(Proof::from(1) < Proof::from(1 << 64));
        assert_eq!(alloc::format!("{}", SessionId { number: 7, proof: Proof::from(0xa) }), "7.a");
    }

    #[test]
    fn identity_takes_24_bytes() {
        assert_eq!(size_of::<SessionId>(), 24);
    }

    /// Goal: each session and each claim has the number of an operation, or none, in 8 bytes.
    #[test]
    fn absent_number_of_an_operation_takes_no_more_memory() {
        assert_eq!(size_of::<Option<Sequence>>(), 8);
        assert_eq!(
            [0, 1, u64::MAX].map(|number| Sequence::new(number).map(u64::from)),
            [None, Some(1), Some(u64::MAX)]
        );
        assert!(Sequence::new(1) < Sequence::new(2) && Sequence::new(0) < Sequence::new(1));
    }
}
