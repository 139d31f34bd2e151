//! One request until it is answered, however often it has to be sent.
//!
//! An exchange is sent when there is a connection, sent again when an answer is late, and sent once more on every new
//! connection. Its owner supplies the operation (the same one under the same number each time) and the pace.
//!
//! A prompt exchange is in the link's window, or waits for room in it. A patient one, which may wait in a queue at the
//! server for hours, is not: the server does not count it either. Its repetition replaces the attempt before, on both
//! sides, so that it costs one request however long it waits. A keep-alive never waits for the window.

use std::time::Duration;

use super::Task;
use super::link::{Link, Part};
use crate::clock::BootInstant;
use crate::wire::Op;

/// Number of unanswered attempts, with no other answer meanwhile, after which the client closes the connection.
const SILENT_ATTEMPTS: usize = 2;
/// Shortest silence after which the client closes a connection: a server's disk may stall for less.
const SHORTEST_SILENCE: Duration = Duration::from_millis(100);
/// How often the pause between two attempts of a patient exchange is doubled. More doublings would save little, and a
/// waiter whose grant was lost would learn of it later, while all waiters behind it wait too.
const DOUBLINGS: u32 = 4;

/// How soon an answer is expected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// Within this time; after that the connection is suspect.
    Prompt(Duration),
    /// Perhaps much later. It is asked again after this time, then after twice as long, up to 16 times as long.
    Patient(Duration),
}

/// A request and its attempts.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    first_sent: Option<BootInstant>,
    attempts: u32,
    /// The attempts on this connection that are not answered; of a patient exchange only the last.
    open: Vec<u64>,
    /// How often it was sent on this connection.
    sent_here: u32,
    /// Whether it is under way in the link's window.
    in_window: bool,
    /// When the first of those was sent.
    open_since: Option<BootInstant>,
    /// Not before; `None`: as soon as there is a connection.
    again_at: Option<BootInstant>,
}

impl Exchange {
    /// When it was sent for the first time ever.
    pub(super) fn first_sent(&self) -> Option<BootInstant> {
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
    pub(super) fn again_at(&self) -> Option<BootInstant> {
        self.again_at
    }

    /// Sends it if it is time and there is a connection.
    pub(super) fn send_if_due(
        &mut self,
        now: BootInstant,
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
                if part == Part::Step && !self.in_window {
                    if !link.enter(task) {
                        return;
                    }
                    self.in_window = true;
                }
                let silent = |since: BootInstant| link.last_answer() <= since && now >= since + SHORTEST_SILENCE;
                if self.open_since.is_some_and(silent) && self.open.len() >= SILENT_ATTEMPTS {
                    link.doubt("the node does not answer");
                }
                pause
            }
            Pace::Patient(pause) => {
                self.open.drain(..).for_each(|id| link.forget(id));
                pause.saturating_mul(1 << self.sent_here.min(DOUBLINGS))
            }
        };
        self.open.push(link.send(now, task, part, op()));
        self.attempts = self.attempts.saturating_add(1);
        self.sent_here = self.sent_here.saturating_add(1);
        self.first_sent.get_or_insert(now);
        self.open_since.get_or_insert(now);
        self.again_at = Some(now + pause);
    }

    /// The connection is gone: whatever was on its way is sent again on the next one.
    pub(super) fn disconnected(&mut self) {
        self.open.clear();
        self.sent_here = 0;
        self.in_window = false;
        self.open_since = None;
        self.again_at = None;
    }

    /// The server refused it for the moment. It is sent again, not before `not_before`, and remains the same exchange:
    /// an earlier attempt may still be done.
    pub(super) fn put_off(&mut self, link: &mut Link, not_before: BootInstant) {
        let kept = (self.first_sent, self.attempts, self.sent_here);
        self.restart(link, Some(not_before));
        (self.first_sent, self.attempts, self.sent_here) = kept;
    }

    /// Ends the attempts under way. What follows is a new exchange, sent not before `not_before`.
    pub(super) fn restart(&mut self, link: &mut Link, not_before: Option<BootInstant>) {
        self.open.iter().for_each(|&id| link.forget(id));
        if self.in_window {
            link.leave();
        }
        *self = Exchange { again_at: not_before, ..Exchange::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: (Task, Part) = (Task::Claim(1), Part::Step);

    /// Goal: a waiter that asks again for days has one open request, not one for each attempt; and a grant
    /// still counts from the first.
    #[test]
    fn a_patient_exchange_has_one_open_request() {
        let start = BootInstant::now();
        let mut link = Link::new(start);
        link.connected(start);
        let mut exchange = Exchange::default();
        let (mut now, mut pauses) = (start, Vec::new());
        for _ in 0..1000 {
            exchange.send_if_due(now, &mut link, TASK, Pace::Patient(Duration::from_secs(2)), || Op::Status);
            assert_eq!(link.open_flights(), 1);
            let again_at = exchange.again_at().expect("it was sent");
            pauses.push(again_at - now);
            now = again_at;
        }
        assert_eq!((exchange.first_sent(), exchange.attempts()), (Some(start), 1000));
        assert_eq!(pauses[..6], [2, 4, 8, 16, 32, 32].map(Duration::from_secs));
        assert_eq!(pauses.last(), Some(&Duration::from_secs(32)));
    }

    /// Goal: an exchange that is put off keeps what counts for the lease, and its place in the window goes to the next.
    #[test]
    fn an_exchange_that_is_put_off_remains_the_same() {
        let start = BootInstant::now();
        let mut link = Link::new(start);
        link.connected(start);
        let mut exchange = Exchange::default();
        exchange.send_if_due(start, &mut link, TASK, Pace::Prompt(Duration::from_secs(1)), || Op::Status);
        let later = start + Duration::from_secs(5);
        exchange.put_off(&mut link, later);
        assert_eq!((exchange.first_sent(), exchange.attempts(), exchange.is_open()), (Some(start), 1, false));
        assert_eq!((exchange.again_at(), link.open_flights(), link.under_way()), (Some(later), 0, 0));
    }
}
