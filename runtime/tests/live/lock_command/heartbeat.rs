//! Shell scripts that record when they were alive, on a clock that they share with the test.
//!
//! A test cannot observe a process all the time to learn when it died; but a process that writes
//! the time repeatedly was alive at the last time that it wrote. The clock is `/proc/uptime`: one
//! clock for all processes, in hundredths of a second, which a shell can read without another
//! program.

use std::time::Duration;

use super::Fixture;

/// A shell command that writes the time to the file `name` until it is killed.
pub(crate) fn beat(name: &str) -> String {
    format!("while :; do read now idle < /proc/uptime; echo $now >> {name}; sleep 0.02; done")
}

/// The times in the file, in the order in which they were written.
pub(crate) fn beats(fixture: &Fixture, name: &str) -> Vec<Duration> {
    // The last line may have been cut off in the middle by the writer's death.
    let text = fixture.read(name);
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{line} is no time"))).collect()
}

/// The time now.
pub(crate) fn now() -> Duration {
    parse(&std::fs::read_to_string("/proc/uptime").expect("there is a /proc")).expect("a time")
}

fn parse(text: &str) -> Option<Duration> {
    text.split(' ').next()?.trim().parse().ok().map(Duration::from_secs_f64)
}
