//! Counters of a run.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident: $words:literal),+ $(,)?) => {
        /// Counters of a simulation; [`AddAssign`] sums those of several.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            /// Virtual time of the cluster.
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
    /// Inputs stepped.
    steps: "steps",
    /// Operations that clients began.
    operations: "operations of clients",
    /// Requests that clients repeated.
    repetitions: "repetitions",
    /// Grants that clients learned of.
    grants_heard: "grants learned of",
    /// Of them, shared ones.
    grants_shared: "of them, shared",
    /// Of them, permits of a semaphore.
    grants_of_permits: "of them, permits of a semaphore",
    /// Of them, grants of several keys.
    grants_of_several: "of them, of several keys",
    /// Of them, answers to an acquire with a value.
    grants_with_value: "of them, with a value",
    /// Grants to sessions that held another lock.
    claims_beside: "of them, beside another lock of the session",
    /// Grants that clients acquired once more.
    holds_added: "holds added to grants",
    /// Releases that left a hold.
    holds_dropped: "holds dropped, and others left",
    /// Acquires refused because the queue was as long as they permit.
    short_queues: "acquires refused because of a long queue",
    /// Acquires of a lock of another size, or of what the session holds otherwise.
    other_claims: "acquires refused because of another claim",
    /// Releases that clients learned of.
    releases_heard: "releases learned of",
    /// Breaks that clients learned of.
    breaks: "grants broken",
    /// Breaks whose grant had ended, or was never made.
    breaks_missed: "breaks of grants that were not there",
    /// Access rules that clients have set.
    rules_set: "changes of the access rules",
    /// Requests that the access rules denied.
    denials: "requests denied by the access rules",
    /// Reads answered.
    reads: "reads answered",
    /// Changes of records that clients learned of.
    writes: "changes of records learned of",
    /// Of them, those under a token.
    writes_of_holders: "of them, by holders",
    /// Of them, those of two records together.
    writes_of_several: "of them, of two records",
    /// Of them, those that compared a version.
    writes_compared: "of them, with a version compared",
    /// Changes that were refused because a record had another version.
    versions_refused: "changes refused because of another version",
    /// Values that replaced those of grants.
    proclaimed: "values proclaimed",
    /// Changes that were refused because the lock was not held with the token.
    writes_refused: "changes refused without a token that was held",
    /// Reads of records answered.
    reads_of_records: "reads of records answered",
    /// Sessions that clients found expired or closed.
    sessions_lost: "sessions lost",
    /// Waits that ran out and were watched until their leader answered.
    late_waits: "waits that ran out, watched until they were answered",
    /// Accesses that a resource accepted.
    accesses: "accesses to resources",
    /// Of them, those that only read.
    accesses_of_readers: "of them, by readers",
    /// Accesses that a resource refused because of an old token.
    accesses_refused: "accesses refused because of an old token",
    /// Events that watchers were told of.
    events_watched: "events watched",
    /// Listings that watches began with.
    listings_watched: "listings watched",
    /// Watches that were resumed, at the same node or another one.
    watches_resumed: "watches resumed",
    /// Watchers that were told that they lack events.
    watches_compacted: "watches told of a gap",
    /// Watches that ended because their client did not read.
    watches_cut_off: "watches cut off",
    /// Entries committed.
    entries: "entries committed",
    /// Grants in the log.
    grants: "grants",
    /// Of them, grants of a lock that others held.
    grants_beside_others: "of them, beside other holders",
    /// Sessions that expired.
    expiries: "sessions expired",
    /// Leaders elected.
    elections: "elections won",
    /// Membership changes that nodes saw.
    changes: "membership changes seen",
    /// Leadership transfers requested.
    transfers: "leadership transfers requested",
    /// Servers that joined.
    joined: "servers joined",
    /// Servers removed for good.
    removed: "servers removed for good",
    /// Snapshots that nodes took.
    snapshots: "snapshots taken",
    /// Snapshots that reached a follower's disk.
    streams: "snapshots streamed",
    /// Snapshot streams that broke.
    streams_broken: "snapshot streams broken",
    /// Snapshots from leaders that were installed.
    installed: "snapshots installed",
    /// Messages between nodes.
    messages: "messages between nodes",
    /// Messages that the network lost.
    lost: "messages lost",
    /// Messages that the network duplicated.
    repeated: "messages duplicated",
    /// Links that were cut.
    cuts: "links cut",
    /// Processes that were killed.
    kills: "processes killed",
    /// Power failures.
    power_failures: "power failures",
    /// Of kills and power failures, those at a crash point.
    in_the_middle: "of both, at a crash point",
    /// Graceful stops.
    stops: "graceful stops",
    /// Starts from a disk.
    starts: "starts from a disk",
    /// Stops and failed starts because of disk faults.
    disk_stops: "stops and failed starts because of disk faults",
    /// Syncs.
    syncs: "syncs",
    /// Syncs that failed.
    failed_syncs: "syncs that failed",
    /// Writes refused because the disk was full.
    refused_writes: "writes refused by a full disk",
    /// Writes torn by power failures.
    torn_writes: "writes torn",
    /// Writes lost in power failures.
    lost_writes: "unsynced writes lost",
    /// Name changes lost in power failures.
    lost_names: "unsynced name changes lost",
    /// Damaged disks that servers refused to start on.
    rotten: "damaged disks refused",
    /// Servers that returned with an empty disk after that.
    returned: "servers that returned after that",
    /// Disk damage in places that are never read.
    rot_harmless: "damage that was never read",
    /// Pauses of nodes.
    pauses: "pauses of nodes",
    /// Pauses of clients.
    naps: "pauses of clients",
    /// Deaths of clients.
    deaths: "deaths of clients",
    /// Calms, in each of which the cluster had to recover.
    calms: "calms in which the cluster recovered",
    /// Whole states compared.
    states: "whole states compared",
    /// Starts whose recovered state was compared with the durable one.
    recoveries: "recoveries compared with what was durable",
}
