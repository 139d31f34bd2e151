//! The network between the nodes, and its faults.
//!
//! There are two implementations. [`Links`] uses the kernel: a network namespace for each node, and
//! dropped packets. It needs root. [`Proxies`] needs no privileges: proxies hold the traffic
//! between nodes.

mod links;
mod proxies;

use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;

use links::Links;
use proxies::Proxies;

use super::namespace;

/// Sender and receiver.
pub(super) type Direction = (u16, u16);

/// Stands for all hosts that are no nodes: clients, operators, and the torture itself.
pub(super) const OUTSIDE: u16 = 0;

/// Which traffic of a closed direction is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lost {
    /// All packets, including acknowledgements of the other node's traffic.
    Everything,
    /// A node's traffic on the connections that it has dialled. Its acknowledgements arrive, so the
    /// *other* node's traffic goes on during the fault.
    Messages,
}

/// A node's addresses.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) client_addr: String,
    /// The address at which it listens for other nodes.
    pub(super) peer_addr: String,
    /// The address that other nodes dial.
    pub(super) advertised_addr: String,
    /// The node's network namespace.
    pub(super) namespace: Option<PathBuf>,
}

/// A cluster's network.
#[derive(Debug)]
pub(super) enum Network {
    Links(Links),
    Proxies(Proxies),
}

impl Network {
    /// The kernel's network if this process may configure one, otherwise proxies.
    pub(super) fn new() -> io::Result<Network> {
        if namespace::has_network() { Links::new().map(Network::Links) } else { Proxies::new().map(Network::Proxies) }
    }

    /// Sets up a node's addresses.
    pub(super) fn address(&self, node: u16) -> io::Result<Address> {
        match self {
            Network::Links(links) => links.address(node),
            Network::Proxies(proxies) => proxies.address(node),
        }
    }

    /// Closes these directions, until [`open`](Network::open) has been called as often.
    pub(super) fn close(&mut self, directions: &BTreeSet<Direction>, lost: Lost) -> io::Result<()> {
        match self {
            Network::Links(links) => links.close(directions, lost),
            Network::Proxies(proxies) => {
                proxies.close(directions);
                Ok(())
            }
        }
    }

    /// Opens these directions. Proxies deliver the traffic that they held, or break the connections
    /// if `breaks` is set; the kernel's network has lost it, and TCP retransmits it if it has not
    /// given up.
    pub(super) fn open(&mut self, directions: &BTreeSet<Direction>, lost: Lost, breaks: bool) -> io::Result<()> {
        match self {
            Network::Links(links) => links.open(directions, lost),
            Network::Proxies(proxies) => {
                proxies.open(directions, breaks);
                Ok(())
            }
        }
    }

    /// Whether the network can also cut a node off from clients.
    pub(super) fn reaches_outside(&self) -> bool {
        matches!(self, Network::Links(_))
    }

    /// The amount of affected traffic, as text.
    pub(super) fn tally(&self) -> io::Result<String> {
        Ok(match self {
            Network::Links(links) => format!("{} packets lost between network namespaces", links.dropped()?),
            Network::Proxies(proxies) => {
                format!(
                    "{} chunks held by proxies (network namespaces need root, iproute2 and nftables)",
                    proxies.held()
                )
            }
        })
    }
}

/// A free loopback address.
fn free_address() -> io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
