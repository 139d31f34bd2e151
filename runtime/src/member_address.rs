//! A member's address in the log: where the other nodes reach it, and, for a member that joined,
//! the incarnation of its data directory. The protocol only carries it.
//!
//! `HOST:PORT`, or `HOST:PORT/INCARNATION` with 16 hexadecimal digits.

use std::fmt;

use palisade_spec::raft::Address;

use crate::storage::Incarnation;

/// A member's network address and data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberAddress {
    /// The address for other nodes: `host:port`.
    pub(crate) peer_addr: String,
    /// The incarnation of its data directory, if known when it was added.
    pub(crate) incarnation: Option<Incarnation>,
}

impl MemberAddress {
    /// Parses an address of the log. An address that this program has not written has no
    /// incarnation.
    pub(crate) fn of(address: &Address) -> MemberAddress {
        let text = address.as_str();
        let split = text.rsplit_once('/').and_then(|(peer_addr, digits)| Some((peer_addr, digits.parse().ok()?)));
        match split {
            Some((peer_addr, incarnation)) => {
                MemberAddress { peer_addr: peer_addr.to_owned(), incarnation: Some(incarnation) }
            }
            None => MemberAddress { peer_addr: text.to_owned(), incarnation: None },
        }
    }

    /// Formats it as an address for the log.
    pub(crate) fn address(&self) -> Address {
        Address::from(self.to_string().as_str())
    }

    /// Whether this member is the server `added`. An operator who added it by hand did not know its
    /// data directory.
    pub(crate) fn is_of(&self, added: &MemberAddress) -> bool {
        self.peer_addr == added.peer_addr && (self.incarnation.is_none() || self.incarnation == added.incarnation)
    }
}

impl fmt::Display for MemberAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation {
            Some(incarnation) => write!(f, "{}/{incarnation}", self.peer_addr),
            None => f.write_str(&self.peer_addr),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_address_round_trips_through_the_log() {
        for incarnation in [None, Some(Incarnation(0xC0FFEE))] {
            let member = MemberAddress { peer_addr: "10.0.0.4:7500".into(), incarnation };
            assert_eq!(MemberAddress::of(&member.address()), member);
        }
        assert_eq!(MemberAddress::of(&Address::from("10.0.0.4:7500/what")).peer_addr, "10.0.0.4:7500/what");
    }

    #[test]
    fn same_address_with_another_directory_is_another_server() {
        let member = |incarnation: Option<u64>| MemberAddress {
            peer_addr: "a:1".into(),
            incarnation: incarnation.map(Incarnation),
        };
        assert!(member(None).is_of(&member(Some(1))) && member(Some(1)).is_of(&member(Some(1))));
        assert!(!member(Some(1)).is_of(&member(Some(2))) && !member(Some(1)).is_of(&member(None)));
        assert!(!member(None).is_of(&MemberAddress { peer_addr: "b:1".into(), incarnation: None }));
    }
}
