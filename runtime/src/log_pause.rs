//! Limits how often the log, or the audit log, repeats a line. What goes wrong once a second (a peer
//! that refuses this node, connections above a limit) is logged at once, and then at intervals with
//! the number of repetitions.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::addresses::ClientAddress;
use crate::sync::Mutex;

/// Maximum number of different lines that are remembered: others may make them up.
const LINES: usize = 64;
/// The same where each line is of a client that has proved its name, so that a client cannot make them up.
const LINES_OF_CLIENTS: usize = 4096;

/// The lines that were logged lately.
#[derive(Debug)]
pub(crate) struct LogPause {
    lines: Mutex<BTreeMap<String, Logged>>,
    /// Maximum number of lines.
    most: usize,
    /// Whether a line beyond them is logged each time, or never.
    logs_beyond: bool,
}

impl Default for LogPause {
    fn default() -> LogPause {
        LogPause { lines: Mutex::default(), most: LINES, logs_beyond: false }
    }
}

#[derive(Debug)]
struct Logged {
    at: Instant,
    /// For how long it is not repeated.
    pause: Duration,
    repeats: u64,
}

impl Logged {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < self.pause
    }
}

impl LogPause {
    /// Leaves out no line because many others were logged before it.
    pub(crate) fn of_clients() -> LogPause {
        LogPause { most: LINES_OF_CLIENTS, logs_beyond: true, ..LogPause::default() }
    }

    /// Counts an event that this line describes. Returns whether to log it: with the number of
    /// repetitions since it was last logged, if that was `pause` ago or never.
    pub(crate) fn due(&self, line: &str, pause: Duration, now: Instant) -> Option<u64> {
        let mut lines = self.lines.lock();
        if let Some(logged) = lines.get_mut(line) {
            if logged.is_recent(now) {
                logged.repeats += 1;
                return None;
            }
            return Some(std::mem::replace(logged, Logged { at: now, pause, repeats: 0 }).repeats);
        }
        if lines.len() >= self.most {
            lines.retain(|_, logged| logged.is_recent(now));
        }
        if lines.len() >= self.most {
            return self.logs_beyond.then_some(0);
        }
        lines.insert(line.to_owned(), Logged { at: now, pause, repeats: 0 });
        Some(0)
    }

    /// The same for an event that a program at this address causes. All addresses that one IPv6 host has share a line.
    pub(crate) fn due_from(&self, address: IpAddr, line: &str, pause: Duration, now: Instant) -> Option<u64> {
        self.due(&format!("{} {line}", ClientAddress::of(address)), pause, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(10);

    #[test]
    fn repetition_is_logged_after_a_pause_with_their_number() {
        let (pauses, start) = (LogPause::default(), Instant::now());
        let due = |line: &str, seconds| pauses.due(line, PAUSE, start + Duration::from_secs(seconds));
        assert_eq!(due("one", 0), Some(0));
        assert_eq!(due("two", 1), Some(0), "another line has a pause of its own");
        assert_eq!((due("one", 1), due("one", 9)), (None, None));
        assert_eq!(due("one", 10), Some(2));
        assert_eq!(due("one", 11), None);
        assert_eq!(due("one", 21), Some(1));
    }

    #[test]
    fn invented_lines_take_no_memory() {
        let (pauses, start) = (LogPause::default(), Instant::now());
        let logged = (0..10_000).filter(|line| pauses.due(&line.to_string(), PAUSE, start).is_some()).count();
        assert_eq!((logged, pauses.lines.lock().len()), (LINES, LINES));
        assert_eq!(pauses.due("later", PAUSE, start + PAUSE), Some(0), "old lines make room");
    }

    /// Goal: an IPv6 host, which has as many addresses as it likes in its network, causes no line for each of them.
    #[test]
    fn addresses_of_one_network_of_ipv6_share_a_line() {
        let (pauses, start) = (LogPause::default(), Instant::now());
        let due = |address: &str| pauses.due_from(address.parse().unwrap(), "no hello", PAUSE, start);
        assert_eq!((due("2001:db8:1:2::1"), due("2001:db8:1:2:3:4:5:6")), (Some(0), None));
        assert_eq!((due("2001:db8:1:3::1"), due("10.0.0.1"), due("10.0.0.2")), (Some(0), Some(0), Some(0)));
        assert_eq!(due("::ffff:10.0.0.1"), None);
    }

    /// Goal: no line of a client that has proved its name is left out because many others were logged before it.
    #[test]
    fn lines_of_clients_beyond_those_remembered_are_logged() {
        let (pauses, start) = (LogPause::of_clients(), Instant::now());
        let due = |line: usize| pauses.due(&line.to_string(), PAUSE, start);
        let logged = (0..2 * LINES_OF_CLIENTS).filter(|&line| due(line) == Some(0)).count();
        assert_eq!((logged, pauses.lines.lock().len()), (2 * LINES_OF_CLIENTS, LINES_OF_CLIENTS));
        assert_eq!(due(0), None, "a remembered line is not repeated");
    }
}
