//! The network between the nodes, and what does not get through it.
//!
//! There are two. [`Links`] is the system's own: each node in a network namespace of its own, and packets that vanish on the
//! way. It needs root. [`Proxies`] is for everybody: they hold what nodes say to one another.

mod links;
mod proxies;

use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;

use links::Links;
use proxies::Proxies;

use super::namespace;

/// Who says something to whom.
pub(super) type Direction = (u16, u16);

/// Stands for everybody who is no node: clients, operators, and who tortures.
pub(super) const OUTSIDE: u16 = 0;

/// Of what is said in a direction, what does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lost {
    /// Nothing arrives, not even an acknowledgement of what the other says.
    Everything,
    /// What a node says over the connections that it has dialled. Its acknowledgements do arrive, so what the *other* says
    /// goes on for as long as the fault.
    Messages,
}

/// Where a node is, and how it is reached.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) client_addr: String,
    /// Where it listens for other nodes.
    pub(super) peer_addr: String,
    /// Where they dial it.
    pub(super) reached_at: String,
    /// Its network namespace.
    pub(super) within: Option<PathBuf>,
}

/// A cluster's network.
#[derive(Debug)]
pub(super) enum Network {
    Links(Links),
    Proxies(Proxies),
}

impl Network {
    /// The system's, if this process may make one.
    pub(super) fn new() -> io::Result<Network> {
        if namespace::has_network() { Links::new().map(Network::Links) } else { Proxies::new().map(Network::Proxies) }
    }

    /// A place for a node.
    pub(super) fn seat(&self, node: u16) -> io::Result<Address> {
        match self {
            Network::Links(links) => links.seat(node),
            Network::Proxies(proxies) => proxies.seat(node),
        }
    }

    /// What is said in these directions does not arrive, until as many calls of [`open`](Network::open) have been made.
    pub(super) fn close(&mut self, directions: &BTreeSet<Direction>, lost: Lost) -> io::Result<()> {
        match self {
            Network::Links(links) => links.close(directions, lost),
            Network::Proxies(proxies) => {
                proxies.close(directions);
                Ok(())
            }
        }
    }

    /// It arrives again. Of what was held, proxies deliver all, or let the connections break, as `breaks` says; the system's own
    /// network has lost it, and TCP says it again if it has not given up.
    pub(super) fn open(&mut self, directions: &BTreeSet<Direction>, lost: Lost, breaks: bool) -> io::Result<()> {
        match self {
            Network::Links(links) => links.open(directions, lost),
            Network::Proxies(proxies) => {
                proxies.open(directions, breaks);
                Ok(())
            }
        }
    }

    /// Whether a node can be cut off from clients as well.
    pub(super) fn reaches_outside(&self) -> bool {
        matches!(self, Network::Links(_))
    }

    /// How much did not get through, in words.
    pub(super) fn tally(&self) -> io::Result<String> {
        Ok(match self {
            Network::Links(links) => format!("{} packets lost between network namespaces", links.dropped()?),
            Network::Proxies(proxies) => {
                format!(
                    "{} pieces held by proxies, for network namespaces need root, iproute2 and nftables",
                    proxies.held()
                )
            }
        })
    }
}

/// An address of the loopback device on which nobody listens.
fn free_address() -> io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
