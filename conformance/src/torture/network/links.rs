//! A network of the system's own: one namespace for each node, a link from each to the namespace of this process, which routes
//! between them and loses the packets that it is told to.
//!
//! What is lost is lost without a word, as by a switch or a host that has died: nobody's connection breaks, nobody is told. All
//! of it is inside of this process's own namespaces ([`namespace`](super::super::namespace)): no name can be taken already, and nothing
//! is left when its last process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Address, Direction, Lost, OUTSIDE};

/// Where nodes serve clients, and one another.
const CLIENT_PORT: u16 = 7400;
const PEER_PORT: u16 = 7500;
/// Where `ip` keeps the names of namespaces.
const NAMES: &str = "/run/netns";

/// What is lost: packets from one address to another, all of them or those to a port. Wherever one passes through here.
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
    /// How often each direction was closed and not opened again.
    closed: BTreeMap<(Direction, Lost), usize>,
}

impl Links {
    pub(super) fn new() -> io::Result<Links> {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        rules(RULES)?;
        Ok(Links { closed: BTreeMap::new() })
    }

    /// A namespace with a link to this one.
    pub(super) fn seat(&self, node: u16) -> io::Result<Address> {
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
            reached_at: peer_addr.clone(),
            peer_addr,
            within: Some(PathBuf::from(NAMES).join(name)),
        })
    }

    /// What is said in these directions is lost, until as many calls of [`open`](Links::open) have been made.
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

    /// It arrives again.
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

    /// How many packets were lost.
    pub(super) fn dropped(&self) -> io::Result<u64> {
        let output = tool("nft").args(["list", "counter", "ip", "faults", "dropped"]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = text.split_whitespace().skip_while(|word| *word != "packets").nth(1);
        number.and_then(|number| number.parse().ok()).ok_or_else(|| io::Error::other(format!("nft says: {text}")))
    }
}

/// A node's address, and that of everybody else on its link.
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

/// A program of the system's, which a Ctrl-C is not for.
fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    command
}

fn ip(arguments: &str) -> io::Result<()> {
    let output = tool("ip").args(arguments.split(' ')).output()?;
    said("ip", arguments, output.status.success(), &output.stderr)
}

/// Changes the rules, all at once.
fn rules(changes: &str) -> io::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut nft = tool("nft");
    nft.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut nft = nft.spawn()?;
    nft.stdin.take().expect("it was asked for").write_all(changes.as_bytes())?;
    let output = nft.wait_with_output()?;
    said("nft", changes, output.status.success(), &output.stderr)
}

fn said(program: &str, asked: &str, done: bool, answer: &[u8]) -> io::Result<()> {
    let refused = || io::Error::other(format!("{program} {asked}: {}", String::from_utf8_lossy(answer)));
    if done { Ok(()) } else { Err(refused()) }
}
