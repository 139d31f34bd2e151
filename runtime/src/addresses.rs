//! `HOST:PORT`: the addresses on which a node listens, and those at which others reach it.
//!
//! A node may listen on a wildcard address (`0.0.0.0`, `[::]`), that is on all of its machine's
//! addresses. No other machine can reach it there: to a machine that dials, a wildcard means itself. So a
//! wildcard is never an address that a node gives to clients or to other nodes.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::limits;

/// Parses an address to listen on.
///
/// # Errors
/// The reason why it is none, for the operator who wrote it.
pub fn listen_address(text: &str) -> Result<String, String> {
    let text = text.trim();
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    let is_host = !host.is_empty() && (is_bracketed || !host.contains(':')) && !host.contains(['/', '@', ' ']);
    if !is_port || !is_host || text.len() > limits::ADDRESS_BYTES {
        return Err(format!(
            "`{text}` is not HOST:PORT, with a port from 1 to 65535 (an IPv6 address as [ADDRESS]:PORT)"
        ));
    }
    Ok(text.to_owned())
}

/// Parses an address at which others reach a node.
///
/// # Errors
/// The reason why it is none, for the operator who wrote it.
pub fn reachable_address(text: &str) -> Result<String, String> {
    let address = listen_address(text)?;
    if is_wildcard(&address) {
        return Err(format!(
            "`{address}` means every address of the machine that uses it, so no other machine reaches the node there: \
             give the node's own address or host name"
        ));
    }
    Ok(address)
}

/// Whether the address means every address of a machine.
pub fn is_wildcard(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_unspecified())
}

/// Parses a host name, without a port: letters, digits, `-`, `_` and `.`.
///
/// # Errors
/// The reason why it is none, for the operator who wrote it.
pub fn host_name(text: &str) -> Result<String, String> {
    let is_part_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.trim_matches('.').is_empty() || text.len() > limits::ADDRESS_BYTES || !text.chars().all(is_part_of_name) {
        return Err(format!("`{text}` is not a host name: give a name such as locks.example, without a port"));
    }
    Ok(text.to_owned())
}

/// The host of `HOST` or `HOST:PORT`, as a name to compare: in lower case, without the dot that may
/// end a name and without the brackets around an IPv6 address. `None` if the text is neither.
pub fn host_of(text: &str) -> Option<String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, port)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let digits = if port.is_empty() { port } else { port.strip_prefix(':')? };
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| host.to_ascii_lowercase())
}

/// The address and the port of a client's connection.
pub type RemoteAddress = SocketAddr;

/// The address of a client, as its sessions are counted: an IPv6 host has as many addresses as it
/// likes in its network of 64 bits, so these are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddress(IpAddr);

impl ClientAddress {
    /// The address of a client's connection.
    pub fn of(address: IpAddr) -> ClientAddress {
        ClientAddress(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                IpAddr::V6((u128::from(address) & !u128::from(u64::MAX)).into())
            }
            other => other,
        })
    }

    /// Whether the client runs on this machine.
    pub fn is_loopback(&self) -> bool {
        self.0.is_loopback()
    }
}

impl From<SocketAddr> for ClientAddress {
    fn from(address: SocketAddr) -> ClientAddress {
        ClientAddress::of(address.ip())
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(address) if !address.is_loopback() => write!(f, "{address}/64"),
            address => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_client() {
        let counted = |address: &str| ClientAddress::of(address.parse().unwrap()).to_string();
        assert_eq!(counted("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(counted("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!((counted("::1").as_str(), counted("127.0.0.1").as_str()), ("::1", "127.0.0.1"));
    }

    #[test]
    fn host_name_has_no_port_and_no_wildcard() {
        for good in ["locks", "locks.example", "node-1.a_b.", "10.0.0.1"] {
            assert_eq!(host_name(good), Ok(good.to_owned()));
        }
        for bad in ["", ".", "a:80", "*.example", "a/b", "a b", "http://a", "ü.example", &"a".repeat(300)] {
            assert!(host_name(bad).unwrap_err().contains("is not a host name"), "{bad}");
        }
    }

    #[test]
    fn address_is_host_and_port() {
        for good in ["127.0.0.1:7400", "node-1.example:1", "[::1]:65535", "[::]:80", " 10.0.0.1:7400 "] {
            assert_eq!(listen_address(good), Ok(good.trim().to_owned()));
        }
        for bad in
            ["", "7400", "host", "host:", ":7400", "host:0", "host:65536", "host:+1", "::1:7400", "http://host:1"]
        {
            let refusal = listen_address(bad).unwrap_err();
            assert!(refusal.contains(&format!("`{bad}` is not HOST:PORT")), "{refusal}");
        }
    }

    #[test]
    fn wildcard_is_not_reachable() {
        for wildcard in ["0.0.0.0:7400", "[::]:7400", "[0:0:0:0:0:0:0:0]:7400", "[::ffff:0.0.0.0]:7400"] {
            let refusal = reachable_address(wildcard).unwrap_err();
            assert!(refusal.contains("give the node's own address"), "{refusal}");
        }
        for reachable in ["127.0.0.1:7400", "[::1]:7400", "localhost:7400", "0.0.0.0.example:7400"] {
            assert_eq!(reachable_address(reachable), Ok(reachable.to_owned()));
        }
    }
}
