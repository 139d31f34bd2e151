//! The difference between a server's wall clock and this machine's, as the server itself shows it.
//!
//! Whether an offset has reached the server, only the server can say: a program that reads the clock without the C
//! library never notices it. So [`Cluster::clock_offset`] looks at a time that the server itself states.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Cluster;
use crate::servers::error::{Error, file};
use crate::servers::kinds;

/// Offsets are seen within half of this. Logs state local times, and time zones differ by its multiples.
const CYCLE_MS: i64 = 15 * 60 * 1000;
/// How long a server may take to write the line that it was made to write.
const PATIENCE: Duration = Duration::from_secs(60);

impl Cluster {
    /// By how many milliseconds a node's wall clock is ahead of this process's, as the node itself shows: Redis states
    /// its time; etcd, ZooKeeper and Palisade are made to write a line into their log. Multiples of 15 minutes are not
    /// seen.
    ///
    /// # Errors
    /// The node cannot be reached, or states no time. Palisade does so only if its state has changed since the last time.
    pub async fn clock_offset(&self, node: usize) -> Result<i64, Error> {
        let unfit = |reason| Error::Unfit { node: self.name(node).to_owned(), reason };
        let log = self.log(node);
        let written = || fs::read_to_string(&log).map_err(file("cannot read", &log));
        let before = written()?.len();
        let stated = kinds::state_time(self.kind(), self.address(node)).await.map_err(unfit)?;
        let asked = Instant::now();
        let stated = loop {
            let text = written()?;
            let line = text.get(before..).unwrap_or_default();
            match stated.or_else(|| line.lines().rev().find_map(time_of_day)) {
                Some(stated) => break stated,
                None if asked.elapsed() >= PATIENCE => {
                    return Err(unfit(format!("it has written no time into {} within {PATIENCE:?}", log.display())));
                }
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        Ok(ahead(stated, now_ms()))
    }
}

/// This process's wall clock, in milliseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the wall clocks of servers are compared with it; nothing is timed by it"
)]
fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// The first time of the form `hh:mm:ss.mmm` in a line, in milliseconds since midnight.
fn time_of_day(line: &str) -> Option<i64> {
    let time = |at: usize| {
        let text = line.get(at..at + 12)?;
        let separators = [(2, b':'), (5, b':'), (8, b'.')];
        separators.iter().all(|&(index, byte)| text.as_bytes()[index] == byte).then_some(())?;
        let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
        Some(((number(0, 2)? * 60 + number(3, 5)?) * 60 + number(6, 8)?) * 1000 + number(9, 12)?)
    };
    (0..line.len()).find_map(time)
}

/// The difference of two times, between minus and plus half a cycle.
fn ahead(stated: i64, now: i64) -> i64 {
    (stated - now + CYCLE_MS / 2).rem_euclid(CYCLE_MS) - CYCLE_MS / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_logs_are_found() {
        let noon = 12 * 3_600_000 + 5_250;
        for line in [
            "2026-11-24T12:00:05.250703Z  INFO palisade::core::snapshot_scheduler: took a snapshot",
            "{\"level\":\"info\",\"ts\":\"2026-11-24T12:00:05.250Z\",\"caller\":\"mvcc/index.go:189\"}",
            "12:00:05.250 [NIOWorkerThread-3] INFO Processing srvr command from /127.0.0.1:47806",
        ] {
            assert_eq!(time_of_day(line), Some(noon), "{line}");
        }
        assert_eq!(time_of_day("took 12:00 h, ü"), None);
    }

    #[test]
    fn offset_is_seen_in_any_time_zone_and_over_midnight() {
        let day = 24 * 3_600_000;
        assert_eq!(ahead(60_000, 20_000 * day), 60_000);
        assert_eq!(ahead(2 * 3_600_000 - 60_000, 20_000 * day), -60_000);
        assert_eq!(ahead(30_000, 20_000 * day - 30_000), 60_000);
    }
}
