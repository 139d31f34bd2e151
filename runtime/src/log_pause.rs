//! Limits how often the log, or the audit log, repeats a line. What goes wrong once a second (a peer
//! that refuses this node, connections above a limit) is logged at once, and then at intervals with
//! the number of repetitions.
//!
//! Strangers may make up lines, so the lines have a limited number of places. A new line takes the place of the
//! oldest one, if that has had it for [`KEPT`]: in this time the log grows by as many lines as there are places at
//! the most. The lines of one address have a part of the places, so that they silence no line of another address. An
//! event whose line gets no place, and the repetitions that a displaced line has counted, are left out, and a line of
//! their own says how many.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::addresses::ClientAddress;
use crate::per_address::part;
use crate::sync::Mutex;

/// Maximum number of different lines that are remembered: others may make them up.
const LINES: usize = 64;
/// The same where each line is of a client that has proved its name, so that a client cannot make them up.
const LINES_OF_CLIENTS: usize = 4096;
/// For how long a line has its place at least, while its pause lasts.
const KEPT: Duration = Duration::from_secs(5);
/// Minimum time between two lines about what was left out.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

/// The lines that were logged lately.
#[derive(Debug)]
pub(crate) struct LogPause {
    recent: Mutex<Recent>,
    /// Maximum number of lines.
    most: usize,
    /// Whether a line without a place is logged each time, or never.
    logs_beyond: bool,
}

impl Default for LogPause {
    fn default() -> LogPause {
        LogPause { recent: Mutex::default(), most: LINES, logs_beyond: false }
    }
}

#[derive(Debug, Default)]
struct Recent {
    lines: BTreeMap<String, Logged>,
    left_out: LeftOut,
}

#[derive(Debug)]
struct Logged {
    at: Instant,
    /// For how long it is not repeated.
    pause: Duration,
    repeats: u64,
    /// The address of the program that causes it, if it is one's.
    source: Option<ClientAddress>,
}

impl Logged {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    fn is_recent(&self, now: Instant) -> bool {
        self.age(now) < self.pause
    }
}

/// Events that no line has told.
#[derive(Debug, Default)]
struct LeftOut {
    events: u64,
    reported: Option<Instant>,
}

impl LeftOut {
    /// The number of events since the last report, if it is time for the next one.
    fn due(&mut self, now: Instant) -> Option<u64> {
        let is_paused = self.reported.is_some_and(|at| now.saturating_duration_since(at) < REPORT_PAUSE);
        if self.events == 0 || is_paused {
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.events))
    }
}

impl Recent {
    /// The lines of this source, or all.
    fn of(&self, source: Option<ClientAddress>) -> impl Iterator<Item = (&String, &Logged)> {
        self.lines.iter().filter(move |(_, logged)| source.is_none() || logged.source == source)
    }

    /// Makes room for one more line of this source, or of all, which may have `most`. Returns whether there is room.
    fn make_room(&mut self, source: Option<ClientAddress>, most: usize, displaces: bool, now: Instant) -> bool {
        if self.of(source).count() < most {
            return true;
        }
        self.forget(|_, logged| !logged.is_recent(now));
        if self.of(source).count() < most || !displaces {
            return self.of(source).count() < most;
        }
        let oldest = self.of(source).min_by_key(|(_, logged)| logged.at);
        let displaced = oldest.filter(|(_, logged)| logged.age(now) >= KEPT).map(|(line, _)| line.clone());
        let Some(displaced) = displaced else { return false };
        self.forget(|line, _| line == displaced);
        true
    }

    fn forget(&mut self, is_past: impl Fn(&str, &Logged) -> bool) {
        let Recent { lines, left_out } = self;
        lines.retain(|line, logged| {
            let is_past = is_past(line, logged);
            if is_past {
                left_out.events += logged.repeats;
            }
            !is_past
        });
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
        self.due_of(None, line, pause, now)
    }

    /// The same for an event that a program at this address causes. The addresses of an IPv6 network share a line.
    pub(crate) fn due_from(&self, address: IpAddr, line: &str, pause: Duration, now: Instant) -> Option<u64> {
        let source = ClientAddress::of(address);
        self.due_of(Some(source), &format!("{source} {line}"), pause, now)
    }

    fn due_of(&self, source: Option<ClientAddress>, line: &str, pause: Duration, now: Instant) -> Option<u64> {
        let due = self.count(source, line, pause, now);
        let left_out = self.recent.lock().left_out.due(now);
        if let Some(left_out) = left_out {
            warn!(
                left_out,
                "refusals and failures were left out of the log, because too many different ones came: keep programs that \
                 do not belong to the cluster away from its ports"
            );
        }
        due
    }

    fn count(&self, source: Option<ClientAddress>, line: &str, pause: Duration, now: Instant) -> Option<u64> {
        let mut recent = self.recent.lock();
        let logged = Logged { at: now, pause, repeats: 0, source };
        if let Some(known) = recent.lines.get_mut(line) {
            if known.is_recent(now) {
                known.repeats += 1;
                return None;
            }
            return Some(std::mem::replace(known, logged).repeats);
        }
        let of_source = source.map_or(self.most, |source| part(self.most, source));
        // Where a line without a place is logged all the same, none needs to be displaced.
        let keeps = !self.logs_beyond;
        if recent.make_room(source, of_source, keeps, now) && recent.make_room(None, self.most, keeps, now) {
            recent.lines.insert(line.to_owned(), logged);
        } else if !self.logs_beyond {
            recent.left_out.events += 1;
            return None;
        }
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(10);
    const MILLISECOND: Duration = Duration::from_millis(1);

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
        assert_eq!((logged, pauses.recent.lock().lines.len()), (LINES, LINES));
        assert_eq!(pauses.due("later", PAUSE, start + PAUSE), Some(0), "old lines make room");
    }

    /// Goal: invented lines with long pauses silence no new line for as long as these pauses.
    #[test]
    fn new_line_takes_the_place_of_the_oldest() {
        let (pauses, start) = (LogPause::default(), Instant::now());
        let due = |line: &str, after: Duration| pauses.due(line, 10 * KEPT, start + after);
        assert_eq!(due("oldest", Duration::ZERO), Some(0));
        let logged = (1..LINES).filter(|line| due(&line.to_string(), MILLISECOND).is_some()).count();
        assert_eq!(logged, LINES - 1);
        assert_eq!(due("new", KEPT - MILLISECOND), None, "each line keeps its place for a while");
        assert_eq!(due("new", KEPT), Some(0));
        assert_eq!((due("new", KEPT), due("1", KEPT)), (None, None), "both are remembered");
        assert!(!pauses.recent.lock().lines.contains_key("oldest"));
    }

    /// Goal: invented lines do not fill the disk either.
    #[test]
    fn invented_lines_have_a_bounded_rate() {
        let (pauses, start) = (LogPause::default(), Instant::now());
        let due = |after: u32| pauses.due(&after.to_string(), PAUSE, start + after * MILLISECOND).is_some();
        let logged = (0..60_000).filter(|after| due(*after)).count();
        assert_eq!(logged, LINES * 60 / 5, "as many as there are places in each five seconds");
    }

    /// Goal: a program at one address that makes up lines silences no line about another address or the node.
    #[test]
    fn one_address_leaves_places_to_others() {
        let (pauses, start) = (LogPause::default(), Instant::now());
        let due = |address: &str, line: u32, after: Duration| {
            pauses.due_from(address.parse().unwrap(), &line.to_string(), PAUSE, start + after).is_some()
        };
        let logged = (0..1000).filter(|line| due("10.0.0.1", *line, Duration::ZERO)).count();
        assert_eq!(logged, LINES / 8);
        assert!(due("10.0.0.2", 1, Duration::ZERO) && pauses.due("of no address", PAUSE, start).is_some());
        let logged = (1000..2000).filter(|line| due("10.0.0.1", *line, KEPT)).count();
        assert_eq!(logged, LINES / 8, "its new lines take the places of its own");
        assert!(!due("10.0.0.2", 1, KEPT), "the line of the other address is remembered");
    }

    /// Goal: what the log leaves out is counted, and the number is logged at once and then at intervals.
    #[test]
    fn events_that_are_left_out_are_counted() {
        let (pauses, start) = (LogPause::default(), Instant::now());
        let count = |line: &str, after: Duration| pauses.count(None, line, PAUSE, start + after);
        let left_out = |after: Duration| pauses.recent.lock().left_out.due(start + after);
        assert_eq!(left_out(Duration::ZERO), None);
        assert_eq!(count("first", Duration::ZERO), Some(0));
        let logged = (0..LINES + 99).filter(|line| count(&line.to_string(), MILLISECOND).is_some()).count();
        assert_eq!(logged, LINES - 1);
        assert_eq!(left_out(MILLISECOND), Some(100));
        assert_eq!(count("beyond", MILLISECOND), None);
        assert_eq!(left_out(REPORT_PAUSE), None);
        assert_eq!(left_out(REPORT_PAUSE + MILLISECOND), Some(1));
        assert_eq!((count("first", MILLISECOND), count("first", MILLISECOND)), (None, None));
        assert_eq!(count("beyond", KEPT), Some(0), "it displaces the first line");
        assert_eq!(left_out(3 * REPORT_PAUSE), Some(2), "the repetitions of the first line");
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
        assert_eq!((logged, pauses.recent.lock().lines.len()), (2 * LINES_OF_CLIENTS, LINES_OF_CLIENTS));
        assert_eq!(due(0), None, "a remembered line is not repeated");
    }
}
