//! Fast clocks: libfaketime (the Debian package `faketime`) makes time pass faster for some nodes.
//!
//! The library intercepts calls to the C library, so the node's `Instant`s run fast, and with them
//! its timers and, while it leads, the cluster's time: leases end early by all other clocks. Two
//! things are not affected. Recordings ask the kernel for the time ([`palisade::recording`]). A
//! thread that sleeps until a moment compares it with the true clock, so an idle node wakes up
//! late, the later the longer it runs. Under load there is always an event that wakes it.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Rate of a fast clock. It exceeds the 1% that clients allow for: with the times-to-live of a run,
/// at most 5 s, the margin is 12%, and the rest of the drift comes out of its reaction time
/// (`palisade_client::margin`). With a time-to-live above 36 s, such a clock would exceed the
/// margin.
pub(super) const RATE: f64 = 1.05;
/// The drift for histories, in millionths. A lease is shortened by less than that.
pub(super) const DRIFT_PPM: u32 = 50_000;
/// Directory in which Debian installs the library, one subdirectory for each architecture.
const LIBRARIES: &str = "/usr/lib";
const FAKETIME: &str = "faketime/libfaketime.so.1";

/// Whether a node has a fast clock: one of three founders, and every third later node.
pub(super) fn has_fast_clock(node: u16) -> bool {
    node % 3 == 2
}

/// Whether the library is installed.
pub(super) fn is_available() -> bool {
    library().is_some()
}

fn library() -> Option<PathBuf> {
    let machines = std::fs::read_dir(LIBRARIES).ok()?;
    machines.filter_map(|machine| Some(machine.ok()?.path().join(FAKETIME))).find(|library| library.exists())
}

/// Prefix of a command that runs with a fast clock. It uses `env`, so that only the command itself
/// is affected.
pub(super) fn command_prefix() -> Vec<OsString> {
    let Some(library) = library() else { return Vec::new() };
    let mut preload = OsString::from("LD_PRELOAD=");
    preload.push(library);
    // The library has one offset for all clocks. To keep the start of the monotonic clock, the time
    // of day begins in 1970, which shows only in the log.
    let [day, monotonic] = [ClockId::Realtime, ClockId::Monotonic].map(|clock| seconds(clock_gettime(clock)));
    let faketime = format!("FAKETIME=-{:.6} x{RATE}", day - monotonic);
    vec!["env".into(), preload, faketime.into(), "FAKETIME_NO_CACHE=1".into()]
}

fn seconds(time: Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
