//! Limits how often a refusal is recorded. A client that repeats what it may not do must not fill the disk: while the
//! audit log cannot be written, operators can do nothing administrative.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// Minimum time between two records of the same refusal.
const PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of different refusals that are remembered. Each is of a client that has proved its name, so a client
/// cannot make them up; a refusal beyond them is recorded each time.
const REMEMBERED: usize = 4096;

/// The refusals that were recorded lately.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<String, Recorded>>);

#[derive(Debug)]
struct Recorded {
    at: Instant,
    repeats: u64,
}

impl Recorded {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < PAUSE
    }
}

impl Refusals {
    /// Counts a refusal. Returns whether to record it: with the number of repetitions since it was last recorded.
    pub(super) fn due(&self, what: &str, now: Instant) -> Option<u64> {
        let mut refusals = self.0.lock();
        if let Some(recorded) = refusals.get_mut(what) {
            if recorded.is_recent(now) {
                recorded.repeats += 1;
                return None;
            }
            return Some(std::mem::replace(recorded, Recorded { at: now, repeats: 0 }).repeats);
        }
        if refusals.len() >= REMEMBERED {
            refusals.retain(|_, recorded| recorded.is_recent(now));
        }
        if refusals.len() < REMEMBERED {
            refusals.insert(what.to_owned(), Recorded { at: now, repeats: 0 });
        }
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetition_is_recorded_after_a_pause_with_their_number() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let due = |what: &str, at| refusals.due(what, start + at);
        let recorded = (0..20).filter(|_| due("worker-7 may not break", Duration::ZERO).is_some()).count();
        assert_eq!(recorded, 1);
        assert_eq!(due("worker-8 may not break", Duration::ZERO), Some(0), "another client has a pause of its own");
        assert_eq!(due("worker-7 may not break", PAUSE), Some(19));
        assert_eq!(due("worker-7 may not break", PAUSE), None);
    }

    /// Goal: no refusal is left out because many others were recorded before it.
    #[test]
    fn refusals_beyond_those_remembered_are_recorded() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let recorded = (0..2 * REMEMBERED).filter(|what| refusals.due(&what.to_string(), start).is_some()).count();
        assert_eq!((recorded, refusals.0.lock().len()), (2 * REMEMBERED, REMEMBERED));
        assert_eq!(refusals.due("later", start + PAUSE), Some(0));
        assert_eq!(refusals.0.lock().len(), 1, "old refusals make room");
    }
}
