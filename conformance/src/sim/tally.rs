//! What happened, in numbers.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident: $words:literal),+ $(,)?) => {
        /// Counts of everything.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            /// Cluster time.
            pub time: Duration,
            $($(#[$doc])* pub $name: u64,)+
        }

        impl AddAssign for Tally {
            fn add_assign(&mut self, other: Tally) {
                self.time += other.time;
                $(self.$name += other.$name;)+
            }
        }

        impl fmt::Display for Tally {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                writeln!(f, "{:>12.2} cluster-hours", self.time.as_secs_f64() / 3600.0)?;
                $(writeln!(f, "{:>12} {}", self.$name, $words)?;)+
                Ok(())
            }
        }
    };
}

tally! {
    /// What was stepped.
    steps: "steps",
    /// What clients asked for.
    operations: "operations of clients",
    /// Those that were asked again.
    repetitions: "repetitions",
    /// Grants that clients heard of.
    grants_heard: "grants heard of",
    /// Releases that clients heard of.
    releases_heard: "releases heard of",
    /// Reads answered.
    reads: "reads answered",
    /// Sessions that clients found lost.
    sessions_lost: "sessions lost",
    /// Waits that ran out, and were watched until their leader answered.
    late_waits: "waits that ran out, watched until they were answered",
    /// Accesses to a resource that it let in.
    accesses: "accesses to resources",
    /// Those that it refused for their token.
    accesses_refused: "accesses refused: an old token",
    /// Entries committed.
    entries: "entries committed",
    /// Grants in the log.
    grants: "grants",
    /// Sessions that expired.
    expiries: "sessions expired",
    /// Leaders elected.
    elections: "elections won",
    /// Changes of members that nodes saw.
    changes: "changes of members seen",
    /// Handovers asked for.
    transfers: "handovers asked for",
    /// Servers that joined.
    joined: "servers joined",
    /// Servers that were removed for good.
    removed: "servers removed for good",
    /// Snapshots that nodes took.
    snapshots: "snapshots taken",
    /// Snapshots that reached a follower's disk.
    streams: "snapshots streamed",
    /// Streams that broke off.
    streams_broken: "snapshot streams broken off",
    /// Snapshots of leaders that were installed.
    installed: "snapshots installed",
    /// Messages between nodes.
    messages: "messages between nodes",
    /// Those that were lost.
    lost: "messages lost",
    /// Those that came twice.
    repeated: "messages that came twice",
    /// Links that were cut.
    cuts: "links cut",
    /// Processes that were killed.
    kills: "processes killed",
    /// Power failures.
    power_failures: "power failures",
    /// Of both, those in the middle of something.
    in_the_middle: "of both, in the middle of something",
    /// Graceful stops.
    stops: "processes stopped in order",
    /// Starts from a disk.
    starts: "starts from a disk",
    /// Nodes that stopped because of their disks.
    disk_stops: "stops and failed starts for the disk's sake",
    /// Syncs.
    syncs: "syncs",
    /// Syncs that failed.
    failed_syncs: "syncs that failed",
    /// Writes that found no room.
    refused_writes: "writes that found no room",
    /// Writes torn by power failures.
    torn_writes: "writes torn",
    /// Writes lost in power failures.
    lost_writes: "writes lost that were not synced",
    /// Names lost in power failures.
    lost_names: "names lost that were not synced",
    /// Disks that rotted, and were refused.
    rotten: "rotten disks refused",
    /// Servers that came back with nothing after that.
    returned: "servers that came back after that",
    /// Disks that rotted where nothing is read.
    rot_harmless: "rot that touched nothing",
    /// Nodes that stood still.
    pauses: "nodes that stood still",
    /// Clients that fell asleep.
    naps: "clients that fell asleep",
    /// Clients that died.
    deaths: "clients that died",
    /// Calm times, in which the cluster had to recover.
    calms: "calm times in which the cluster recovered",
    /// Whole states compared.
    states: "whole states compared",
    /// Starts whose disk was compared with what was promised.
    recoveries: "recoveries compared with what was durable",
}
