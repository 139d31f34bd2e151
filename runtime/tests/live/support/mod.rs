//! Support for tests of real processes: clusters that clean up after themselves, and HTTP by hand.

#![allow(unreachable_pub, reason = "nothing outside this program can reach it")]

pub mod certificates;
pub mod cluster;
pub mod description;
pub mod events;
pub mod http;
pub mod https;
pub mod journal;
pub mod load;
pub mod locks;
pub mod metrics;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod terminal;
pub mod wall_clock;
pub mod watch;
pub mod websocket;
pub mod wires;

use std::time::{Duration, Instant};

/// Calls `probe` until it answers something; fails with `what` if it does not within a minute. Time
/// decides nothing here but when to give up.
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        // A probe costs both sides processor time, which other tests need.
        std::thread::sleep(Duration::from_millis(25));
    }
}
