//! What goes wrong: drawn from a seed, begun, and made good again.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::network::Direction;

/// A fault. It begins, lasts for a while, and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// kill -9; started again at the end.
    Kill(u16),
    /// Stopped where it stands (SIGSTOP); goes on at the end.
    Freeze(u16),
    /// What is said in these directions does not arrive.
    Partition(Cut, BTreeSet<Direction>),
    /// The same, on and off.
    Flap(BTreeSet<Direction>),
    /// No room on its disk; room at the end, and started again, for it has stopped itself.
    Fill(u16),
    /// The leader is asked to hand over.
    Transfer,
    /// A node is asked to take a snapshot.
    Snapshot(u16),
    /// A server joins, and becomes a voter.
    Add,
    /// A voter is removed.
    Remove(u16),
}

/// The shape of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// One node neither hears nor is heard.
    Full,
    /// One node is not heard, or does not hear.
    OneWay,
    /// Two nodes do not hear one another, and everybody else does.
    Partial,
}

/// What can go wrong at the moment.
#[derive(Clone, Debug)]
pub(super) struct Possible {
    /// Members that vote, and that nothing is wrong with.
    pub(super) well: Vec<u16>,
    /// All nodes that run.
    pub(super) all: Vec<u16>,
    /// Those whose disk can be full.
    pub(super) disks: Vec<u16>,
    pub(super) may_add: bool,
    pub(super) may_remove: bool,
}

impl Fault {
    /// Draws one, and how long it lasts.
    pub(super) fn draw(random: &mut SmallRng, possible: &Possible) -> Option<(Fault, Duration)> {
        let lasts = Duration::from_millis(random.random_range(100..2_500));
        let one = possible.well.get(random.random_range(0..possible.well.len().max(1))).copied()?;
        let others: Vec<u16> = possible.all.iter().copied().filter(|&other| other != one).collect();
        let other = others.get(random.random_range(0..others.len().max(1))).copied()?;
        let to: BTreeSet<Direction> = others.iter().map(|&other| (one, other)).collect();
        let from: BTreeSet<Direction> = others.iter().map(|&other| (other, one)).collect();
        let fault = match random.random_range(0..100) {
            0..22 => Fault::Kill(one),
            22..34 => Fault::Freeze(one),
            34..44 => Fault::Partition(Cut::Full, to.union(&from).copied().collect()),
            44..52 => Fault::Partition(Cut::OneWay, if random.random_bool(0.5) { to } else { from }),
            52..60 => Fault::Partition(Cut::Partial, [(one, other), (other, one)].into()),
            60..68 => Fault::Flap(to),
            68..74 if possible.disks.contains(&one) => Fault::Fill(one),
            74..82 => Fault::Transfer,
            82..88 => Fault::Snapshot(one),
            88..95 if possible.may_add => Fault::Add,
            95..100 if possible.may_remove => Fault::Remove(one),
            _ => return None,
        };
        // A full disk is noticed when the log needs its next segment.
        let lasts = if let Fault::Fill(_) = fault { lasts * 4 } else { lasts };
        Some((fault, lasts))
    }

    /// How it is counted.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Fault::Kill(_) => "kill -9",
            Fault::Freeze(_) => "SIGSTOP",
            Fault::Partition(Cut::Full, _) => "full partition",
            Fault::Partition(Cut::OneWay, _) => "one-way partition",
            Fault::Partition(Cut::Partial, _) => "partial partition",
            Fault::Flap(_) => "flapping link",
            Fault::Fill(_) => "full disk",
            Fault::Transfer => "leader transfer",
            Fault::Snapshot(_) => "snapshot",
            Fault::Add => "member added",
            Fault::Remove(_) => "member removed",
        }
    }

    /// The process that it happens to.
    pub(super) fn victim(&self) -> Option<u16> {
        match self {
            Fault::Kill(id) | Fault::Freeze(id) | Fault::Fill(id) | Fault::Remove(id) => Some(*id),
            Fault::Partition(..) | Fault::Flap(_) | Fault::Transfer | Fault::Snapshot(_) | Fault::Add => None,
        }
    }
}
