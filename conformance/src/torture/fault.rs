//! The faults: their kinds, and how they are drawn.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::damage::Damage;
use super::network::{Direction, Lost, OUTSIDE};

/// A fault. It begins, lasts for a while, and ends.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// SIGKILL; restarted at the end.
    Kill(u16),
    /// SIGKILL and damage to the log; restarted at the end. The node returns to the cluster by itself.
    Damage(u16, Damage),
    /// SIGSTOP; SIGCONT at the end.
    Freeze(u16),
    /// Traffic in these directions is lost or held.
    Partition(Cut, BTreeSet<Direction>),
    /// A partition that opens and closes repeatedly.
    Flap(BTreeSet<Direction>),
    /// A full disk, with room again at the end. A node that stopped because of it is restarted.
    Fill(u16),
    /// Each sync of the node's log takes this much longer.
    Slow(u16, Duration),
    /// The next sync of the node's log fails: the node must stop at once. Restarted at the end.
    FailSync(u16),
    /// A leadership transfer is requested.
    Transfer,
    /// A node is asked to take a snapshot.
    Snapshot(u16),
    /// A server joins and becomes a voter.
    Add,
    /// A voter is removed.
    Remove(u16),
}

/// The shape of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// One node is cut off from all other nodes, in both directions.
    Full,
    /// One node is cut off from nodes and clients: as if its host had vanished.
    Host,
    /// One node's traffic is lost, or the traffic to one node.
    OneWay,
    /// One node's messages are lost, or the messages to it; but acknowledgements arrive.
    Mute,
    /// Two nodes are cut off from each other, and reach all others.
    Partial,
}

/// The faults that are possible now.
#[derive(Clone, Debug)]
pub(super) struct Possible {
    /// Voters without a fault.
    pub(super) healthy: Vec<u16>,
    /// All running nodes.
    pub(super) all: Vec<u16>,
    /// Voters without a fault whose disk can be filled.
    pub(super) disks: Vec<u16>,
    pub(super) may_add: bool,
    pub(super) may_remove: bool,
    /// Whether a log can be damaged: a majority of sound nodes must take its node back.
    pub(super) may_damage: bool,
    /// Whether syncs can be delayed and made to fail.
    pub(super) may_trace: bool,
    /// Whether a node can be cut off from clients.
    pub(super) reaches_outside: bool,
}

impl Cut {
    /// The traffic that this kind of partition loses.
    pub(super) fn lost(self) -> Lost {
        match self {
            Cut::Full | Cut::Host | Cut::OneWay | Cut::Partial => Lost::Everything,
            Cut::Mute => Lost::Messages,
        }
    }
}

impl Fault {
    /// Draws a fault and its duration.
    pub(super) fn draw(random: &mut SmallRng, possible: &Possible) -> Option<(Fault, Duration)> {
        let lasts = Duration::from_millis(random.random_range(100..2_500));
        let one = possible.healthy.get(random.random_range(0..possible.healthy.len().max(1))).copied()?;
        let others: Vec<u16> = possible.all.iter().copied().filter(|&other| other != one).collect();
        let other = others.get(random.random_range(0..others.len().max(1))).copied()?;
        let to: BTreeSet<Direction> = others.iter().map(|&other| (one, other)).collect();
        let from: BTreeSet<Direction> = others.iter().map(|&other| (other, one)).collect();
        let one_of_them = |random: &mut SmallRng| if random.random_bool(0.5) { to.clone() } else { from.clone() };
        let both: BTreeSet<Direction> = to.union(&from).copied().collect();
        let delay = Duration::from_millis(random.random_range(5..300));
        let fault = match random.random_range(0..100) {
            0..4 if possible.may_damage => Fault::Damage(one, Damage::draw(random)),
            4..18 => Fault::Kill(one),
            18..28 => Fault::Freeze(one),
            28..36 => Fault::Partition(Cut::Full, both),
            36..41 if possible.reaches_outside => {
                Fault::Partition(Cut::Host, both.into_iter().chain([(one, OUTSIDE), (OUTSIDE, one)]).collect())
            }
            41..46 => Fault::Partition(Cut::OneWay, one_of_them(random)),
            46..50 => Fault::Partition(Cut::Mute, one_of_them(random)),
            50..57 => Fault::Partition(Cut::Partial, [(one, other), (other, one)].into()),
            57..64 => Fault::Flap(to),
            64..70 if possible.disks.contains(&one) => Fault::Fill(one),
            70..75 if possible.may_trace => Fault::Slow(one, delay),
            75..79 if possible.may_trace => Fault::FailSync(one),
            79..86 => Fault::Transfer,
            86..90 => Fault::Snapshot(one),
            90..96 if possible.may_add => Fault::Add,
            96..100 if possible.may_remove => Fault::Remove(one),
            _ => return None,
        };
        let lasts = match fault {
            // The node notices a full disk when the log needs its next segment.
            Fault::Fill(_) => lasts * 4,
            // Some partitions last until nodes give up their connections.
            Fault::Partition(..) if random.random_bool(0.2) => lasts * 3,
            _ => lasts,
        };
        Some((fault, lasts))
    }

    /// The name under which the fault is counted.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Fault::Kill(_) => "kill -9",
            Fault::Damage(_, damage) => damage.name(),
            Fault::Freeze(_) => "SIGSTOP",
            Fault::Partition(Cut::Full, _) => "full partition",
            Fault::Partition(Cut::Host, _) => "host cut off",
            Fault::Partition(Cut::OneWay, _) => "one-way partition",
            Fault::Partition(Cut::Mute, _) => "one-way partition of messages",
            Fault::Partition(Cut::Partial, _) => "partial partition",
            Fault::Flap(_) => "flapping link",
            Fault::Fill(_) => "full disk",
            Fault::Slow(..) => "slow disk",
            Fault::FailSync(_) => "failing sync",
            Fault::Transfer => "leader transfer",
            Fault::Snapshot(_) => "snapshot",
            Fault::Add => "member added",
            Fault::Remove(_) => "member removed",
        }
    }

    /// The process that the fault affects.
    pub(super) fn victim(&self) -> Option<u16> {
        match self {
            Fault::Kill(id)
            | Fault::Damage(id, _)
            | Fault::Freeze(id)
            | Fault::Fill(id)
            | Fault::Slow(id, _)
            | Fault::FailSync(id)
            | Fault::Remove(id) => Some(*id),
            Fault::Partition(..) | Fault::Flap(_) | Fault::Transfer | Fault::Snapshot(_) | Fault::Add => None,
        }
    }
}
