//! The clock that leases are counted on: it goes on while the machine sleeps.
//!
//! The clock behind the `Instant`s of std and tokio, `CLOCK_MONOTONIC`, stands still while the machine is suspended. A
//! lease does not: the cluster goes on counting. So every moment of a lease is a [`BootInstant`], a reading of
//! `CLOCK_BOOTTIME`, and the client's other deadlines are counted on the same clock, so that there is one only.
//!
//! Timers are tokio's, and do not count a suspend. So a sleep until a [`BootInstant`] is made of sleeps of at most
//! [`RECHECK_EVERY`], each followed by a look at the clock.
//!
//! On systems other than Linux and Android this is the monotonic clock, and a suspend is not counted.

use std::ops::{Add, Sub};
use std::time::Duration;

/// How late a suspend is noticed at the most, after the machine has resumed.
pub(crate) const RECHECK_EVERY: Duration = Duration::from_millis(200);

/// A moment on the clock that all processes of a machine share and that goes on while the machine sleeps
/// (`CLOCK_BOOTTIME`; on systems other than Linux and Android a monotonic clock of this process).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// Reads the clock.
    #[must_use]
    pub fn now() -> BootInstant {
        BootInstant(read())
    }

    /// The moment that is so long after the start of the machine.
    #[must_use]
    pub fn from_boot(since: Duration) -> BootInstant {
        BootInstant(since)
    }

    /// How long after the start of the machine this is, suspends included.
    #[must_use]
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this; zero if `earlier` is later.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: BootInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `duration` later, unless that is out of range.
    pub(crate) fn checked_add(self, duration: Duration) -> Option<BootInstant> {
        self.0.checked_add(duration).map(BootInstant)
    }

    /// The moment `duration` earlier; at the earliest the start of the machine.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> BootInstant {
        BootInstant(self.0.saturating_sub(duration))
    }
}

impl Add<Duration> for BootInstant {
    type Output = BootInstant;

    fn add(self, duration: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(duration))
    }
}

impl Sub for BootInstant {
    type Output = Duration;

    fn sub(self, earlier: BootInstant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Sleeps until `deadline`. If the machine is suspended meanwhile and resumes after the deadline, this returns at most
/// 200 ms after the resume.
pub async fn sleep_until(deadline: BootInstant) {
    sleep_until_by(BootInstant::now, deadline).await;
}

/// What reads the clock. Tests put another function in its place.
pub(crate) type Clock = fn() -> BootInstant;

/// [`sleep_until`], by a clock of the caller's choice.
pub(crate) async fn sleep_until_by(clock: Clock, deadline: BootInstant) {
    loop {
        let left = deadline.saturating_duration_since(clock());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(RECHECK_EVERY)).await;
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn read() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn read() -> Duration {
    static BASE: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    BASE.elapsed()
}

#[cfg(test)]
pub(crate) mod fake {
    //! A clock that a test moves: to timers, it is as if the machine was suspended. Each test's thread has its own.

    use std::cell::Cell;
    use std::time::Duration;

    use super::BootInstant;

    thread_local! {
        static NOW: Cell<Duration> = const { Cell::new(Duration::from_secs(3600)) };
    }

    pub(crate) fn clock() -> BootInstant {
        BootInstant(NOW.get())
    }

    /// The machine is suspended for so long.
    pub(crate) fn suspend(duration: Duration) {
        NOW.set(NOW.get() + duration);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set for the copy of this test that runs in a time namespace.
    const INSIDE: &str = "PALISADE_TEST_TIME_NAMESPACE";

    /// Goal: leases are counted on CLOCK_BOOTTIME, which `/proc/uptime` shows. A machine that was never suspended cannot
    /// tell it from CLOCK_MONOTONIC, so where `unshare` may make a time namespace, the comparison is made again in one
    /// whose CLOCK_BOOTTIME is 1,000,000 s ahead.
    #[test]
    fn the_clock_is_boottime() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime = Duration::from_secs_f64(uptime.split(' ').next().unwrap().parse().unwrap());
        let read = BootInstant::now().since_boot();
        assert!(read.abs_diff(uptime) < Duration::from_secs(10), "the clock shows {read:?}, /proc/uptime {uptime:?}");
        if std::env::var_os(INSIDE).is_some() {
            assert!(read > Duration::from_secs(1_000_000), "this is no time namespace");
            return;
        }
        let namespace = ["--time", "--boottime", "1000000", "--fork"];
        if !Command::new("unshare").args(namespace).arg("true").status().is_ok_and(|status| status.success()) {
            eprintln!("no time namespace can be made here: only compared outside one");
            return;
        }
        let mut again = Command::new("unshare");
        again.args(namespace).arg(std::env::current_exe().unwrap());
        again.args(["--exact", "clock::tests::the_clock_is_boottime"]).env(INSIDE, "1");
        let output = again.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
