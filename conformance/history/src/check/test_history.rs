//! Histories that the tests of checkers build, call by call.

use super::check_fast;
use crate::{Answer, Call, Client, End, History, Note, OpId, Operation, Time};

/// The time-to-live of its sessions.
pub(super) const TTL_MS: u64 = 60_000;

/// A history of one client, and the checker that judges it.
pub(super) struct TestHistory {
    checker: &'static str,
    pub(super) history: History,
}

impl TestHistory {
    /// Without an operation, for the checker of this name.
    pub(super) fn of(checker: &'static str) -> TestHistory {
        TestHistory { checker, history: History::default() }
    }

    /// An operation from one millisecond to another.
    pub(super) fn with(mut self, call: Call, from: u64, to: u64, end: End) -> TestHistory {
        let id = OpId(self.history.operations.len() as u64);
        let end = Some((Time(0).plus_ms(to), end));
        let (client, invoked) = (Client::from("a"), Time(0).plus_ms(from));
        self.history.operations.push(Operation { id, client, invoked, call, notes: Vec::new(), end });
        self
    }

    /// Session `s1` is opened in the first millisecond.
    pub(super) fn with_session(self) -> TestHistory {
        self.with(Call::OpenSession { ttl_ms: TTL_MS }, 0, 1, End::Ok(Answer::Opened { session: "s1".into() }))
    }

    /// An operation that is never answered.
    pub(super) fn unanswered(mut self, call: Call, from: u64) -> TestHistory {
        self = self.with(call, from, from, End::Info(String::new()));
        self.last().end = None;
        self
    }

    /// The last operation was sent again.
    pub(super) fn sent_again(mut self) -> TestHistory {
        let last = self.last();
        last.notes.push((last.invoked, Note::Disconnected));
        self
    }

    fn last(&mut self) -> &mut Operation {
        self.history.operations.last_mut().expect("it has one")
    }

    /// What the checker finds; the history must be well-formed, and nothing for others to accuse.
    fn finds(&self) -> Vec<String> {
        let mut history = History::from_events(self.history.events()).expect("it is well-formed");
        history.operations.sort_by_key(|operation| operation.invoked);
        let mut found = Vec::new();
        for verdict in check_fast(&history) {
            let violations = verdict.violations.into_iter().map(|violation| violation.0);
            if verdict.checker == self.checker {
                found.extend(violations);
            } else {
                assert_eq!(violations.collect::<Vec<_>>(), [""; 0], "{}", verdict.checker);
            }
        }
        found
    }

    #[track_caller]
    pub(super) fn is_accepted(&self) {
        assert_eq!(self.finds(), [""; 0]);
    }

    /// The checker finds something, and a violation says this.
    #[track_caller]
    pub(super) fn is_refused(&self, says: &str) {
        let found = self.finds();
        assert!(found.iter().any(|violation| violation.contains(says)), "{found:?}");
    }
}
