//! A network in the kernel: one network namespace for each node, each linked to this process's
//! namespace, which routes between them and drops packets.
//!
//! Packets are dropped silently, as when a switch or a host has died: no connection is reset, and
//! no node is notified. Everything is inside this process's own namespaces
//! ([`namespace`](super::super::namespace)): no name can be taken, and nothing remains when the
//! last process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Address, Direction, Lost, OUTSIDE};

/// Ports for clients and for peers.
const CLIENT_PORT: u16 = 7400;
const PEER_PORT: u16 = 7500;
/// Directory in which `ip` keeps the names of namespaces.
const NAMES: &str = "/run/netns";

/// Rules that drop packets from one address to another: all, or those to one port. They apply to
/// packets that pass through, arrive in, or leave this namespace.
const RULES: &str = "
table ip faults {
    counter dropped { }
    set everything { type ipv4_addr . ipv4_addr; }
    set messages { type ipv4_addr . ipv4_addr . inet_service; }
    chain judge {
        ip saddr . ip daddr @everything counter name dropped drop
        ip saddr . ip daddr . tcp dport @messages counter name dropped drop
    }
    chain passing { type filter hook forward priority 0; jump judge; }
    chain arriving { type filter hook input priority 0; jump judge; }
    chain leaving { type filter hook output priority 0; jump judge; }
}
";

/// The links of a cluster.
#[derive(Debug)]
pub(in super::super) struct Links {
    /// How often each direction is closed at present.
    closed: BTreeMap<(Direction, Lost), usize>,
}

impl Links {
    pub(super) fn new() -> io::Result<Links> {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        rules(RULES)?;
        Ok(Links { closed: BTreeMap::new() })
    }

    /// Creates a node's namespace with a link to this one.
    pub(super) fn address(&self, node: u16) -> io::Result<Address> {
        let (own, ours) = (address(node), gateway(node));
        let name = format!("node-{node}");
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add to-{node} type veth peer name outside netns {name}"))?;
        ip(&format!("address add {ours}/24 dev to-{node}"))?;
        ip(&format!("link set to-{node} up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} address add {own}/24 dev outside"))?;
        ip(&format!("-n {name} link set outside up"))?;
        ip(&format!("-n {name} route add default via {ours}"))?;
        let peer_addr = format!("{own}:{PEER_PORT}");
        Ok(Address {
            client_addr: format!("{own}:{CLIENT_PORT}"),
            advertised_addr: peer_addr.clone(),
            peer_addr,
            namespace: Some(PathBuf::from(NAMES).join(name)),
        })
    }

    /// Drops the traffic in these directions, until [`open`](Links::open) has been called as often.
    pub(super) fn close(&mut self, directions: &BTreeSet<Direction>, lost: Lost) -> io::Result<()> {
        let mut changes = String::new();
        for &direction in directions {
            let closed = self.closed.entry((direction, lost)).or_default();
            *closed += 1;
            if *closed == 1 {
                changes += &format!("add element {}\n", element(direction, lost));
            }
        }
        rules(&changes)
    }

    /// Undoes one [`close`](Links::close) of these directions.
    pub(super) fn open(&mut self, directions: &BTreeSet<Direction>, lost: Lost) -> io::Result<()> {
        let mut changes = String::new();
        for &direction in directions {
            let Some(closed) = self.closed.get_mut(&(direction, lost)) else { continue };
            *closed -= 1;
            if *closed == 0 {
                self.closed.remove(&(direction, lost));
                changes += &format!("delete element {}\n", element(direction, lost));
            }
        }
        rules(&changes)
    }

    /// Number of dropped packets.
    pub(super) fn dropped(&self) -> io::Result<u64> {
        let output = tool("nft").args(["list", "counter", "ip", "faults", "dropped"]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = text.split_whitespace().skip_while(|word| *word != "packets").nth(1);
        number
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| io::Error::other(format!("nft printed no packet count: {text}")))
    }
}

/// A node's address. All other hosts appear on its link as the gateway.
fn address(node: u16) -> String {
    format!("10.77.{node}.1")
}

fn gateway(node: u16) -> String {
    format!("10.77.{node}.254")
}

fn element((from, to): Direction, lost: Lost) -> String {
    let (source, destination) = match (from, to) {
        (OUTSIDE, node) => (gateway(node), address(node)),
        (node, OUTSIDE) => (address(node), gateway(node)),
        (one, other) => (address(one), address(other)),
    };
    match lost {
        Lost::Everything => format!("ip faults everything {{ {source} . {destination} }}"),
        Lost::Messages => format!("ip faults messages {{ {source} . {destination} . {PEER_PORT} }}"),
    }
}

/// A system tool that a Ctrl-C does not reach.
fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    command
}

fn ip(arguments: &str) -> io::Result<()> {
    let output = tool("ip").args(arguments.split(' ')).output()?;
    check("ip", arguments, output.status.success(), &output.stderr)
}

/// Applies rule changes atomically.
fn rules(changes: &str) -> io::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut nft = tool("nft");
    nft.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut nft = nft.spawn()?;
    nft.stdin.take().expect("it was asked for").write_all(changes.as_bytes())?;
    let output = nft.wait_with_output()?;
    check("nft", changes, output.status.success(), &output.stderr)
}

fn check(program: &str, arguments: &str, succeeded: bool, stderr: &[u8]) -> io::Result<()> {
    let failed = || io::Error::other(format!("{program} {arguments}: {}", String::from_utf8_lossy(stderr)));
    if succeeded { Ok(()) } else { Err(failed()) }
}
