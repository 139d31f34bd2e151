//! One request until it is answered, however often it has to be sent.
//!
//! An exchange is sent when there is a connection, sent again when an answer is late, and sent once more on every new
//! connection. Who owns it says what is sent (the same operation under the same number each time) and at which pace.

use std::time::Duration;

use tokio::time::Instant;

use super::Task;
use super::link::{Link, Part};
use crate::wire::Op;

/// So many unanswered attempts, with nothing else answered meanwhile, and the connection is given up.
const SILENT_ATTEMPTS: usize = 2;
/// But a disk that stalls for so long is no reason to give a connection up.
const SHORTEST_SILENCE: Duration = Duration::from_millis(100);
/// The longest pause between two attempts of a patient exchange.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How soon an answer is expected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// Within this time; silence speaks against the connection.
    Prompt(Duration),
    /// Perhaps much later. It is asked again after this time, then after twice as long, and so on.
    Patient(Duration),
}

/// A request and its attempts.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    first_sent: Option<Instant>,
    attempts: u32,
    /// The attempts on this connection that are not answered.
    open: Vec<u64>,
    /// When the first of those was sent.
    open_since: Option<Instant>,
    /// Not before; `None`: as soon as there is a connection.
    again_at: Option<Instant>,
}

impl Exchange {
    /// When it was sent for the first time ever.
    pub(super) fn first_sent(&self) -> Option<Instant> {
        self.first_sent
    }

    /// How often it was sent, on this connection and earlier ones.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether it is on its way on this connection.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// When it is to be sent (again); `None`: as soon as there is a connection.
    pub(super) fn again_at(&self) -> Option<Instant> {
        self.again_at
    }

    /// Sends it if it is time and there is a connection.
    pub(super) fn send_if_due(
        &mut self,
        now: Instant,
        link: &mut Link,
        (task, part): (Task, Part),
        pace: Pace,
        op: impl FnOnce() -> Op,
    ) {
        if !link.is_up() || self.again_at.is_some_and(|at| now < at) {
            return;
        }
        let pause = match pace {
            Pace::Prompt(pause) => {
                let silent = |since: Instant| link.last_answer() <= since && now >= since + SHORTEST_SILENCE;
                if self.open_since.is_some_and(silent) && self.open.len() >= SILENT_ATTEMPTS {
                    link.doubt("the node does not answer");
                }
                pause
            }
            Pace::Patient(pause) => {
                let doublings = u32::try_from(self.open.len()).unwrap_or(u32::MAX).min(16);
                pause.saturating_mul(1 << doublings).min(LONGEST_PAUSE.max(pause))
            }
        };
        self.open.push(link.send(now, task, part, op()));
        self.attempts = self.attempts.saturating_add(1);
        self.first_sent.get_or_insert(now);
        self.open_since.get_or_insert(now);
        self.again_at = Some(now + pause);
    }

    /// The connection is gone: whatever was on its way is sent again on the next one.
    pub(super) fn disconnected(&mut self) {
        self.open.clear();
        self.open_since = None;
        self.again_at = None;
    }

    /// Ends the attempts under way. What follows is a new exchange, sent not before `not_before`.
    pub(super) fn restart(&mut self, link: &mut Link, not_before: Option<Instant>) {
        self.open.iter().for_each(|&id| link.forget(id));
        *self = Exchange { again_at: not_before, ..Exchange::default() };
    }
}
