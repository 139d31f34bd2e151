//! A client has a wall clock of its own, which is set while it holds a lock: a lease is counted on
//! another clock.

use std::thread;

use super::adapter::Adapter;
use super::clusters::{KEPT, LONG, NOW, WAIT, await_queue, holder};
use super::links::Links;
use super::program::{Kind, Program};
use crate::support::wall_clock::WallClock;

const KEY: &str = "nightly";
const HOUR: i64 = 3600;

/// Goal: a client whose wall clock is set an hour ahead keeps its lock. A client whose wall clock is set
/// back by two hours, when it has just lost its network, tells its loss in time all the same.
pub fn setting_the_wall_clock_changes_nothing(program: &Program) {
    match WallClock::ahead(0) {
        Ok(clock) => set_ahead_and_back(program, &clock),
        // Not a tool of a client's language.
        Err(missing) => eprintln!("SKIPPED: {missing}"),
    }
}

fn set_ahead_and_back(program: &Program, clock: &WallClock) {
    let (links, cluster) = Links::before_cluster();
    let leader = cluster.client_addr(cluster.wait_ready());
    let (set, other) =
        (Adapter::start_with_clock(program, links.endpoints(), clock), Adapter::start(program, &[leader]));
    let first = set.acquire("set", KEY, KEPT, NOW);
    clock.set(HOUR);
    thread::sleep(KEPT);
    let state = set.state("set");
    let within = state.remaining_ms > 0.0 && state.remaining_ms <= KEPT.as_secs_f64() * 1_000.0;
    assert!(state.valid && within, "the lease is no shorter and no longer than before: {state:?}");
    assert_eq!((set.losses("set"), holder(&cluster, KEY)), (0, Some(first.token)));

    let waiting = other.ask("other", KEY, LONG, WAIT);
    await_queue(&cluster, KEY, 1);
    links.freeze();
    clock.set(-HOUR);
    let second = waiting.granted();
    let ahead = match program.kind {
        // It takes the time of day once, at its start, and adds what a monotonic clock says.
        Kind::TypeScript => 0,
        _ => -HOUR,
    };
    let lost = set.lost("set").checked_add_signed(-ahead * 1_000_000).expect("a time of day");
    assert!(lost <= second.at_us, "the loss was told {} us after the next grant", lost - second.at_us);
    assert!(!set.state("set").valid);
    links.thaw();
    set.release("set").refused("lost");
    assert_eq!(set.losses("set"), 1, "it is told once");
    other.release("other").ok();
}
