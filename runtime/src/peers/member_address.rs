//! A member's address, as the log has it: where the other nodes reach it, and, for one that joined, which data directory is
//! meant. The protocol only carries it along.
//!
//! `HOST:PORT`, or `HOST:PORT/INCARNATION` with 16 hexadecimal digits.

use std::fmt;

use palisade_spec::raft::Address;

use crate::storage::Incarnation;

/// Where a member is, and who.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddress {
    /// `host:port` for nodes.
    pub peer_addr: String,
    /// Its data directory, if that was said when it was added.
    pub incarnation: Option<Incarnation>,
}

impl MemberAddress {
    /// Reads an address of the log. What this program has not written has no incarnation.
    pub fn of(address: &Address) -> MemberAddress {
        let text = address.as_str();
        let split = text.rsplit_once('/').and_then(|(peer_addr, digits)| Some((peer_addr, digits.parse().ok()?)));
        match split {
            Some((peer_addr, incarnation)) => {
                MemberAddress { peer_addr: peer_addr.to_owned(), incarnation: Some(incarnation) }
            }
            None => MemberAddress { peer_addr: text.to_owned(), incarnation: None },
        }
    }

    /// As an address for the log.
    pub fn address(&self) -> Address {
        Address::from(self.to_string().as_str())
    }

    /// Whether the server that is to be added here is there already: an operator who added it by hand did not know its directory.
    pub fn is_of(&self, added: &MemberAddress) -> bool {
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
    fn a_place_comes_back_from_the_log() {
        for incarnation in [None, Some(Incarnation(0xC0FFEE))] {
            let place = MemberAddress { peer_addr: "10.0.0.4:7500".into(), incarnation };
            assert_eq!(MemberAddress::of(&place.address()), place);
        }
        assert_eq!(MemberAddress::of(&Address::from("10.0.0.4:7500/what")).peer_addr, "10.0.0.4:7500/what");
    }

    #[test]
    fn another_directory_at_the_same_address_is_another_server() {
        let place = |incarnation: Option<u64>| MemberAddress {
            peer_addr: "a:1".into(),
            incarnation: incarnation.map(Incarnation),
        };
        assert!(place(None).is_of(&place(Some(1))) && place(Some(1)).is_of(&place(Some(1))));
        assert!(!place(Some(1)).is_of(&place(Some(2))) && !place(Some(1)).is_of(&place(None)));
        assert!(!place(None).is_of(&MemberAddress { peer_addr: "b:1".into(), incarnation: None }));
    }
}
