//! Limits how often the log repeats a line. What goes wrong once a second (a peer that refuses this
//! node, connections above a limit) is logged at once, and then at intervals with the number of
//! repetitions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// Maximum number of different lines that are remembered: others may make them up.
const LINES: usize = 64;

/// The lines that were logged lately.
#[derive(Debug, Default)]
pub(crate) struct LogPause(Mutex<BTreeMap<String, Logged>>);

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
    /// Counts an event that this line describes. Returns whether to log it: with the number of
    /// repetitions since it was last logged, if that was `pause` ago or never.
    pub(crate) fn due(&self, line: &str, pause: Duration, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock();
        if let Some(logged) = lines.get_mut(line) {
            if logged.is_recent(now) {
                logged.repeats += 1;
                return None;
            }
            return Some(std::mem::replace(logged, Logged { at: now, pause, repeats: 0 }).repeats);
        }
        if lines.len() >= LINES {
            lines.retain(|_, logged| logged.is_recent(now));
        }
        if lines.len() >= LINES {
            return None;
        }
        lines.insert(line.to_owned(), Logged { at: now, pause, repeats: 0 });
        Some(0)
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
        assert_eq!((logged, pauses.0.lock().len()), (LINES, LINES));
        assert_eq!(pauses.due("later", PAUSE, start + PAUSE), Some(0), "old lines make room");
    }
}
