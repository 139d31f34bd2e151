//! Ends a connection whose client reads too slowly. An answer of some megabytes stays in memory until it is read, and
//! [`TimeoutWriter`](tokio_io_timeout::TimeoutWriter) alone would let a client that takes a little of it now and then
//! keep it for hours.
//!
//! A client has some time for which writes may wait for it, and more for what it reads while they wait. The time comes
//! back while no write waits. So one that reads at the lowest permitted rate may go on for as long as it likes.

use std::io::{self, ErrorKind};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::limits::{ANSWER_GRACE, ANSWER_RATE};

/// For how long writes may still wait.
#[derive(Debug)]
pub(super) struct Pace {
    most: Duration,
    /// That time, as it was at `since`.
    left: Duration,
    since: Instant,
    /// Whether a write has waited from then on.
    waits: bool,
    /// Bytes written from then on.
    written: u64,
}

impl Pace {
    /// The pace of a new connection.
    pub(super) fn for_connection() -> Pace {
        Pace::new(ANSWER_GRACE, Instant::now())
    }

    fn new(most: Duration, now: Instant) -> Pace {
        Pace { most, left: most, since: now, waits: false, written: 0 }
    }

    /// What was written since earns time, and so does time without a write that waits.
    fn earned(&mut self) -> Duration {
        let nanoseconds = std::mem::take(&mut self.written).saturating_mul(1_000_000_000) / ANSWER_RATE;
        self.left + Duration::from_nanos(nanoseconds)
    }

    /// A write waits for the client.
    fn begin_wait(&mut self, now: Instant) {
        let idle = now.saturating_duration_since(self.since);
        self.left = self.earned().saturating_add(idle).min(self.most);
        (self.since, self.waits) = (now, true);
    }

    /// A write that has waited is done, in part at least. Returns whether the client reads fast enough.
    fn end_wait(&mut self, now: Instant) -> bool {
        let waited = now.saturating_duration_since(self.since);
        let left = self.earned().checked_sub(waited);
        self.left = left.unwrap_or_default().min(self.most);
        (self.since, self.waits) = (now, false);
        left.is_some()
    }

    /// The result of a write.
    pub(super) fn check(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            // The clock is not read for a write that does not wait.
            Poll::Pending if !self.waits => self.begin_wait(Instant::now()),
            Poll::Ready(Ok(bytes)) => {
                self.written += *bytes as u64;
                if self.waits && !self.end_wait(Instant::now()) {
                    return Poll::Ready(Err(ErrorKind::TimedOut.into()));
                }
            }
            Poll::Pending | Poll::Ready(Err(_)) => {}
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{sleep, timeout};

    use super::super::client_stream::ClientStream;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// For how many seconds a client goes on that reads so many bytes every second, while there is always more for it;
    /// a thousand at most.
    fn goes_on_for(bytes: u64) -> u32 {
        let start = Instant::now();
        let mut pace = Pace::new(10 * SECOND, start);
        let goes_on = |second: &u32| {
            pace.begin_wait(start + (*second - 1) * SECOND);
            pace.written += bytes;
            pace.end_wait(start + *second * SECOND)
        };
        u32::try_from((1..=1_000).take_while(goes_on).count()).unwrap()
    }

    /// Goal: an answer is in memory for no longer than its size accounts for, however little of it the client reads at
    /// a time.
    #[test]
    fn client_has_a_grace_and_the_time_for_what_it_reads() {
        assert_eq!(goes_on_for(1), 10, "4 MiB were in memory for weeks");
        assert_eq!(goes_on_for(ANSWER_RATE / 2), 20);
        assert_eq!((goes_on_for(ANSWER_RATE), goes_on_for(ANSWER_RATE * 10)), (1_000, 1_000));
    }

    /// Goal: a connection with small answers now and then, each read late, stays.
    #[test]
    fn time_without_a_write_that_waits_counts_for_the_client() {
        let mut now = Instant::now();
        let mut pace = Pace::new(10 * SECOND, now);
        for _ in 0..100 {
            now += 9 * SECOND;
            pace.begin_wait(now);
            now += 9 * SECOND;
            assert!(pace.end_wait(now));
        }
        pace.begin_wait(now + 3_600 * SECOND);
        assert!(!pace.end_wait(now + 3_611 * SECOND), "no more than the grace is kept");
    }

    /// Goal: writes to a client that reads a byte now and then end with the error of one that reads nothing.
    #[tokio::test]
    async fn slow_client_is_cut_off() {
        let (mut client, server) = duplex(1_000);
        let pace = Pace::new(Duration::from_millis(100), Instant::now());
        let mut server = ClientStream::new(server, None, pace);
        let reading = tokio::spawn(async move {
            while client.read_u8().await.is_ok() {
                sleep(Duration::from_millis(5)).await;
            }
        });
        let written = timeout(10 * SECOND, server.write_all(&[b'x'; 100_000])).await.expect("it is cut off");
        let error = written.unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::TimedOut, None));
        drop(server);
        reading.abort();
    }
}
