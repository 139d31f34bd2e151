//! Clocks that run fast: libfaketime (the Debian package `faketime`) tells some nodes of more time than has passed.
//!
//! It stands between a process and the C library, so that the node's own `Instant`s run fast, and with them its timers and the
//! cluster's time while it leads: leases end early by everybody else's clock. What it does not touch are recordings, for which
//! the node asks the kernel ([`palisade::recording`]), and how long a thread sleeps until a moment: that is compared with the true
//! clock, so a node that has nothing to do wakes up late, the later the longer it runs. Under load something always
//! wakes it.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// How fast such a clock runs. That is more than the 1% that clients allow for: with the times-to-live of a run, 5 s at the
/// most, the margin is 12%, and the rest of the drift comes out of its reaction time (`palisade_client::margin`). Of a
/// time-to-live above 36 s such a clock would take more than the margin has.
pub(super) const RATE: f64 = 1.05;
/// The same for histories, in millionths. A lease is shorter by less than that.
pub(super) const DRIFT_PPM: u32 = 50_000;
/// Where Debian puts it, for one machine or another.
const LIBRARIES: &str = "/usr/lib";
const FAKETIME: &str = "faketime/libfaketime.so.1";

/// Whose: of three founders one, of those who come later every third.
pub(super) fn hurries(node: u16) -> bool {
    node % 3 == 2
}

/// Whether there is a library for it.
pub(super) fn may_hurry() -> bool {
    library().is_some()
}

fn library() -> Option<PathBuf> {
    let machines = std::fs::read_dir(LIBRARIES).ok()?;
    machines.filter_map(|machine| Some(machine.ok()?.path().join(FAKETIME))).find(|library| library.exists())
}

/// What stands before a command that is to run by a fast clock. `env`, so that nothing but the command itself does.
pub(super) fn hurried() -> Vec<OsString> {
    let Some(library) = library() else { return Vec::new() };
    let mut preload = OsString::from("LD_PRELOAD=");
    preload.push(library);
    // The library takes one clock for all. So that the monotonic one begins where it is, the time of day begins in 1970, which
    // only the log shows.
    let [day, monotonic] = [ClockId::Realtime, ClockId::Monotonic].map(|clock| seconds(clock_gettime(clock)));
    let faketime = format!("FAKETIME=-{:.6} x{RATE}", day - monotonic);
    vec!["env".into(), preload, faketime.into(), "FAKETIME_NO_CACHE=1".into()]
}

fn seconds(time: Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
