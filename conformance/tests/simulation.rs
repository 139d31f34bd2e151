//! The simulation itself: it is deterministic, it produces every kind of event, and a few seeds
//! hold.
//!
//! The mutants show how much it finds (`palisade-conformance mutants`).

use std::thread;
use std::time::Duration;

use palisade_conformance::sim::{Tally, simulate};

/// Two storms and two calms.
const TIME: Duration = Duration::from_secs(100);

#[test]
fn same_seed_gives_the_same_run() {
    let (first, second, other) = (simulate(3, TIME), simulate(3, TIME), simulate(4, TIME));
    assert_eq!((first.hash, first.tally), (second.hash, second.tally), "the same seed gave another run");
    assert_ne!(first.hash, other.hash);
}

#[test]
fn every_property_holds_and_every_fault_occurs() {
    let tally_of = |seed| {
        let outcome = simulate(seed, TIME);
        if let Some(failure) = outcome.failure {
            panic!("seed {seed}: {} is violated: {}\n{}", failure.property, failure.what, failure.events);
        }
        outcome.tally
    };
    let mut sum = Tally::default();
    thread::scope(|scope| {
        let halves = [1..=6, 7..=12].map(|seeds| scope.spawn(|| seeds.map(tally_of).collect::<Vec<_>>()));
        let tallies = halves.into_iter().flat_map(|half| half.join().expect("the output names a seed"));
        tallies.for_each(|tally| sum += tally);
    });
    let Tally { kills, power_failures, in_the_middle, stops, disk_stops, failed_syncs, .. } = sum;
    let Tally { lost, repeated, cuts, pauses, naps, deaths, rotten, refused_writes, lost_names, .. } = sum;
    let faults = [kills, power_failures, in_the_middle, stops, disk_stops, failed_syncs, lost, repeated, cuts, pauses];
    let Tally { torn_writes, lost_writes, streams_broken, .. } = sum;
    let others = [naps, deaths, rotten, refused_writes, lost_names, torn_writes, lost_writes, streams_broken];
    assert!(faults.into_iter().chain(others).all(|count| count > 0), "{sum}");
    let Tally {
        grants_heard, reads, sessions_lost, accesses_refused, elections, snapshots, installed, removed, ..
    } = sum;
    let Tally { streams, joined, transfers, changes, expiries, releases_heard, repetitions, calms, states, .. } = sum;
    let Tally { breaks, breaks_missed, rules_set, denials, .. } = sum;
    assert!([breaks, breaks_missed, rules_set, denials].into_iter().all(|count| count > 0), "{sum}");
    let Tally { grants_shared, grants_of_permits, grants_of_several, grants_with_value, grants_beside_others, .. } =
        sum;
    let Tally { claims_beside, holds_added, holds_dropped, short_queues, other_claims, accesses_of_readers, .. } = sum;
    let claims = [
        grants_shared,
        grants_of_permits,
        grants_of_several,
        grants_with_value,
        grants_beside_others,
        accesses_of_readers,
    ];
    let others = [claims_beside, holds_added, holds_dropped, short_queues, other_claims];
    assert!(claims.into_iter().chain(others).all(|count| count > 0), "{sum}");
    let Tally { writes, writes_of_holders, writes_refused, reads_of_records, late_waits, returned, recoveries, .. } =
        sum;
    let Tally { writes_of_several, writes_compared, versions_refused, proclaimed, .. } = sum;
    assert!(
        [writes_of_several, writes_compared, versions_refused, proclaimed].into_iter().all(|count| count > 0),
        "{sum}"
    );
    let records = [writes, writes_of_holders, writes_refused, reads_of_records];
    let checks = [late_waits, returned, recoveries];
    assert!(records.into_iter().chain(checks).all(|count| count > 0), "{sum}");
    let Tally { events_watched, listings_watched, watches_resumed, watches_compacted, watches_cut_off, .. } = sum;
    let watches = [events_watched, listings_watched, watches_resumed, watches_compacted, watches_cut_off];
    assert!(watches.into_iter().all(|count| count > 0), "{sum}");
    let work = [grants_heard, reads, sessions_lost, accesses_refused, elections, snapshots, installed, removed];
    let more = [streams, joined, transfers, changes, expiries, releases_heard, repetitions, calms, states];
    assert!(work.into_iter().chain(more).all(|count| count > 0), "{sum}");
}
