//! Good histories of records, and one wrong answer for each thing that is checked.

use super::super::test_history::{TTL_MS, TestHistory};
use super::NAME;
use crate::{Answer, Call, Change, End, History, Refusal};

fn write(change: Change, token: Option<u64>, number: Option<u64>) -> Call {
    let session = number.map(|_| "s1".into());
    Call::WriteRecord { record: "k".into(), change, token, session, number }
}

fn append(text: &str, token: Option<u64>) -> Call {
    write(Change::Append(text.into()), token, None)
}

fn put(text: &str) -> Call {
    write(Change::Put(text.into()), None, None)
}

fn read() -> Call {
    Call::ReadRecord { record: "k".into(), stale: false }
}

fn shows(version: u64, value: &str) -> End {
    End::Ok(Answer::Record { version, value: value.into() })
}

fn written(version: u64) -> End {
    End::Ok(Answer::Written { version })
}

/// Without an operation.
fn nothing() -> TestHistory {
    TestHistory::of(NAME)
}

/// A session has the lock from about 10 ms on, with token 1.
fn held() -> TestHistory {
    nothing().with_session().grant("s1", 1, 9, 10)
}

impl TestHistory {
    fn grant(self, session: &str, token: u64, from: u64, to: u64) -> TestHistory {
        let mut acquire = Call::acquire_one("k".into(), 50_000, None);
        if let Call::Acquire { session: of, .. } = &mut acquire {
            *of = Some(session.into());
        }
        self.with(acquire, from, to, End::Ok(Answer::Granted { session: session.into(), token }))
    }

    fn release(self, from: u64, to: u64) -> TestHistory {
        let release = Call::Release { keys: "k".into(), session: "s1".into(), token: 1, number: None };
        self.with(release, from, to, End::Ok(Answer::Released))
    }
}

#[test]
fn right_answers_are_accepted() {
    held()
        .with(append("a;", Some(1)), 20, 30, written(1))
        .with(append("b;", Some(1)), 31, 40, written(2))
        .with(read(), 41, 50, shows(2, "a;b;"))
        .release(51, 60)
        .with(append("late;", Some(1)), 61, 70, End::Fail(Refusal::StaleToken))
        .with(write(Change::Delete, None, None), 71, 80, written(3))
        .with(read(), 81, 90, End::Ok(Answer::NoRecord))
        .with(put("c;"), 91, 100, written(4))
        .with(read(), 101, 110, shows(4, "c;"))
        .is_accepted();
    // Changes that overlap have any order, and one without an answer may be there or not, or have removed the others.
    nothing()
        .with(append("a;", None), 10, 50, written(2))
        .with(append("b;", None), 20, 40, written(1))
        .unanswered(append("c;", None), 30)
        .with(read(), 60, 70, shows(3, "b;a;c;"))
        .is_accepted();
    nothing()
        .with(append("a;", None), 10, 20, written(1))
        .unanswered(put("b;"), 30)
        .with(read(), 40, 50, shows(1, "a;"))
        .with(append("c;", None), 60, 70, written(3))
        .with(read(), 80, 90, shows(3, "b;c;"))
        .is_accepted();
    // Without a number each sending may be done.
    nothing()
        .with(append("a;", None), 10, 20, written(2))
        .sent_again()
        .with(read(), 30, 40, shows(2, "a;a;"))
        .is_accepted();
    nothing()
        .with(append("a;", None), 10, 40, written(2))
        .sent_again()
        .with(read(), 20, 30, shows(1, "a;"))
        .is_accepted();
    nothing()
        .with(append("a;", None), 1, 5, written(1))
        .with(put("b;"), 10, 60, written(4))
        .sent_again()
        .with(append("c;", None), 20, 30, written(3))
        .with(read(), 40, 50, shows(3, "b;c;"))
        .is_accepted();
    // A stale read may show anything that was there.
    let stale = Call::ReadRecord { record: "k".into(), stale: true };
    nothing()
        .with(append("a;", None), 10, 20, written(1))
        .with(append("b;", None), 30, 40, written(2))
        .with(stale, 50, 60, shows(1, "a;"))
        .is_accepted();
}

#[test]
fn versions_that_fall_or_are_given_twice_are_found() {
    nothing()
        .with(append("a;", None), 10, 20, written(2))
        .with(append("b;", None), 30, 40, written(1))
        .is_refused("a later change has a greater version");
    nothing()
        .with(append("a;", None), 10, 40, written(2))
        .with(append("b;", None), 20, 30, written(2))
        .is_refused("two changes have different versions");
}

#[test]
fn changes_by_sessions_without_the_lock_are_found() {
    held()
        .release(20, 30)
        .with(append("late;", Some(1)), 40, 50, written(1))
        .is_refused("while its grant lasts, but this one had ended");
    // The later holder is known; how the former lost the lock is not.
    held()
        .with(Call::OpenSession { ttl_ms: TTL_MS }, 11, 12, End::Ok(Answer::Opened { session: "s2".into() }))
        .grant("s2", 2, TTL_MS, TTL_MS + 100)
        .with(append("new;", Some(2)), TTL_MS + 110, TTL_MS + 200, written(1))
        .with(append("late;", Some(1)), TTL_MS + 120, TTL_MS + 190, written(2))
        .is_refused("a former holder writes nothing after its successor");
    nothing()
        .with_session()
        .with(append("early;", Some(1)), 2, 5, written(1))
        .grant("s1", 1, 9, 10)
        .is_refused("after the grant of the token");
    held()
        .with(append("a;", Some(1)), 20, 30, End::Fail(Refusal::StaleToken))
        .is_refused("a holder's change is not refused");
}

#[test]
fn reads_of_the_past_and_of_the_future_are_found() {
    let two = || nothing().with(append("a;", None), 10, 20, written(1)).with(append("b;", None), 30, 40, written(2));
    let old = "a read shows what was there before it began";
    two().with(read(), 50, 60, shows(1, "a;")).is_refused(old);
    two().with(read(), 50, 60, End::Ok(Answer::NoRecord)).is_refused(old);
    two()
        .unanswered(append("c;", None), 41)
        .with(read(), 50, 60, shows(3, "a;b;c;"))
        .with(read(), 61, 70, shows(2, "a;b;"))
        .is_refused(old);
    let deleted = || two().with(write(Change::Delete, None, None), 50, 60, written(3));
    deleted().with(read(), 70, 80, shows(2, "a;b;")).is_refused(old);
    deleted().with(read(), 70, 80, shows(3, "")).is_refused("that was deleted");
    nothing()
        .with(read(), 5, 9, shows(1, "a;"))
        .with(append("a;", None), 10, 20, written(1))
        .is_refused("no client made this one");
}

#[test]
fn contents_of_other_changes_are_found() {
    let two = |shown: &str| {
        nothing().with(append("a;", None), 10, 20, written(1)).with(append("b;", None), 30, 40, written(2)).with(
            read(),
            50,
            60,
            shows(2, shown),
        )
    };
    two("a;b;").is_accepted();
    two("b;a;").is_refused("ends with its last change");
    two("b;").is_refused("one is missing");
    two("a;a;b;").is_refused("more often than it was written");
    two("x;b;").is_refused("texts that were written");
    nothing()
        .with(append("a;", None), 10, 20, written(1))
        .with(put("b;"), 30, 40, written(2))
        .with(read(), 50, 60, shows(2, "a;b;"))
        .is_refused("a put replaces the content");
    nothing()
        .with(append("a;", None), 10, 20, written(1))
        .with(append("b;", None), 21, 30, written(2))
        .with(append("c;", None), 31, 40, written(3))
        .with(read(), 50, 60, shows(3, "b;a;c;"))
        .is_refused("in the order of their versions");
    // With a number it is done once, however often it is sent.
    held()
        .with(write(Change::Append("a;".into()), Some(1), Some(5)), 20, 30, written(1))
        .sent_again()
        .with(read(), 40, 50, shows(1, "a;a;"))
        .is_refused("more often than it was written");
}

#[test]
fn malformed_texts_are_refused() {
    for text in ["", "a", "a;b;", "a;b"] {
        let test_history = nothing().with(append(text, None), 10, 20, written(1));
        assert!(History::from_events(test_history.history.events()).is_err(), "{text:?}");
    }
}
