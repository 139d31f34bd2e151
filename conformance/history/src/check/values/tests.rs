//! Good histories of values, and one wrong answer for each thing that is checked.

use super::super::test_history::TestHistory;
use super::NAME;
use crate::{Answer, Call, End, Holder, Mode, Refusal};

fn acquire(session: Option<&str>, value: Option<&str>) -> Call {
    let mut acquire = Call::acquire_one("k".into(), 50_000, None);
    if let Call::Acquire { session: of, value: given, .. } = &mut acquire {
        (*of, *given) = (session.map(Into::into), value.map(Into::into));
    }
    acquire
}

fn granted(token: u64) -> End {
    End::Ok(Answer::Granted { session: "s1".into(), token })
}

fn proclaim(token: u64, value: &str) -> Call {
    Call::Proclaim { key: "k".into(), session: "s1".into(), token, value: value.into(), number: None }
}

fn shows(token: u64, value: Option<&str>) -> End {
    let (session, value) = ("s1".into(), value.map(Into::into));
    let holders = vec![Holder { session, token, mode: Mode::Exclusive, value }];
    End::Ok(Answer::Lock { holders, queue: Vec::new(), age_ms: None })
}

/// A session, with nothing done yet.
fn opened() -> TestHistory {
    TestHistory::of(NAME).with_session()
}

/// The session has the lock from about 10 ms on, with token 1 and this value.
fn held(value: Option<&str>) -> TestHistory {
    opened().with(acquire(Some("s1"), value), 9, 10, granted(1))
}

impl TestHistory {
    fn proclaimed(self, value: &str, from: u64, to: u64) -> TestHistory {
        self.with(proclaim(1, value), from, to, End::Ok(Answer::Proclaimed))
    }

    fn lost(self, call: Call, from: u64) -> TestHistory {
        self.with(call, from, from, End::Info("lost".into()))
    }

    fn read(self, value: Option<&str>, from: u64, to: u64) -> TestHistory {
        self.with(Call::Read { key: "k".into(), stale: false }, from, to, shows(1, value))
    }

    fn read_stale(self, value: Option<&str>, from: u64, to: u64) -> TestHistory {
        self.with(Call::Read { key: "k".into(), stale: true }, from, to, shows(1, value))
    }
}

const NOTHING: &str = "nothing gave that of token 1 this one";
const REPLACED: &str = "had been replaced";

#[test]
fn values_that_were_given_are_accepted() {
    held(None).read(None, 20, 21).is_accepted();
    held(Some("a")).read(Some("a"), 20, 21).proclaimed("b", 30, 31).read(Some("b"), 40, 41).is_accepted();
    // The read and the proclamation overlap: either comes first.
    for shown in ["a", "b"] {
        held(Some("a")).proclaimed("b", 20, 40).read(Some(shown), 39, 50).is_accepted();
        held(Some("a")).read(Some(shown), 20, 31).proclaimed("b", 30, 40).is_accepted();
    }
    // Two proclamations overlap: either is the last.
    for shown in ["b", "c"] {
        held(None).proclaimed("b", 20, 40).proclaimed("c", 30, 50).read(Some(shown), 60, 61).is_accepted();
    }
}

#[test]
fn value_that_nothing_gave_is_refused() {
    held(Some("a")).read(Some("b"), 20, 21).is_refused(NOTHING);
    held(Some("a")).read(None, 20, 21).is_refused(NOTHING);
    held(None).read(Some("a"), 20, 21).is_refused(NOTHING);
    // It is given later, under another token, or it was refused.
    held(None).read(Some("b"), 20, 21).proclaimed("b", 30, 31).is_refused(NOTHING);
    held(None).lost(proclaim(2, "b"), 15).read(Some("b"), 20, 21).is_refused(NOTHING);
    let refused = End::Fail(Refusal::NotTaken { message: "no leader".into() });
    held(None).with(proclaim(1, "b"), 15, 16, refused).read(Some("b"), 20, 21).is_refused(NOTHING);
    held(None).read_stale(Some("b"), 20, 21).is_refused(NOTHING);
}

#[test]
fn replaced_value_is_refused_unless_the_read_is_stale() {
    let replaced = || held(Some("a")).proclaimed("b", 20, 21);
    replaced().read(Some("a"), 30, 31).is_refused(REPLACED);
    replaced().read_stale(Some("a"), 30, 31).is_accepted();
    held(None).proclaimed("b", 20, 21).read(None, 30, 31).is_refused(REPLACED);
    // It is given again, or the other one was not answered.
    replaced().proclaimed("a", 22, 23).read(Some("a"), 30, 31).is_accepted();
    held(Some("a")).lost(proclaim(1, "b"), 20).read(Some("a"), 30, 31).read(Some("b"), 32, 33).is_accepted();
    // An acquire of what is held gives it a value, too.
    let again = |value| held(Some("a")).with(acquire(Some("s1"), value), 20, 21, granted(1));
    again(Some("b")).read(Some("a"), 30, 31).is_refused(REPLACED);
    again(None).read(Some("a"), 30, 31).is_accepted();
}

#[test]
fn value_is_not_lost() {
    // An acquire of what is held keeps the value, if it has none.
    let again = held(Some("a")).with(acquire(Some("s1"), None), 20, 21, granted(1));
    again.read(None, 30, 31).is_refused(REPLACED);
    // Whatever other sessions asked for.
    let other = || held(Some("a")).lost(acquire(None, None), 12);
    other().read(None, 30, 31).is_refused(NOTHING);
    other().proclaimed("b", 20, 21).read(None, 30, 31).is_refused(NOTHING);
    held(None).lost(acquire(None, Some("x")), 12).read(Some("x"), 30, 31).is_refused(NOTHING);
}

#[test]
fn proclamation_that_was_sent_again_without_a_number_may_be_done_again() {
    let twice = |number| {
        let mut call = proclaim(1, "b");
        if let Call::Proclaim { number: of, .. } = &mut call {
            *of = number;
        }
        held(None).with(call, 20, 21, End::Ok(Answer::Proclaimed)).sent_again()
    };
    twice(None).proclaimed("c", 30, 31).read(Some("b"), 40, 41).is_accepted();
    twice(Some(2)).proclaimed("c", 30, 31).read(Some("b"), 40, 41).is_refused(REPLACED);
}

#[test]
fn acquire_without_an_answer_may_have_given_the_value() {
    opened().lost(acquire(Some("s1"), Some("a")), 9).read(Some("a"), 20, 21).is_accepted();
    opened().lost(acquire(Some("s1"), Some("a")), 9).read(Some("b"), 20, 21).is_refused(NOTHING);
    TestHistory::of(NAME).lost(acquire(None, Some("a")), 9).read(Some("a"), 20, 21).is_accepted();
    opened().lost(acquire(Some("s1"), Some("a")), 9).read(None, 20, 21).is_refused(NOTHING);
    // An earlier sending of the acquire, or an earlier acquire, made the grant.
    let earlier = opened().lost(acquire(Some("s1"), Some("a")), 5);
    earlier.with(acquire(Some("s1"), None), 9, 10, granted(1)).read(Some("a"), 20, 21).is_accepted();
    held(Some("a")).sent_again().read(Some("a"), 20, 21).is_accepted();
    let again = held(Some("a")).sent_again().proclaimed("b", 20, 21);
    again.read(Some("a"), 30, 31).is_accepted();
    // Not one that was done once, under its number.
    let mut numbered = acquire(Some("s1"), Some("a"));
    if let Call::Acquire { number, .. } = &mut numbered {
        *number = Some(1);
    }
    let once = opened().with(numbered, 9, 10, granted(1)).sent_again().proclaimed("b", 20, 21);
    once.read(Some("a"), 30, 31).is_refused(REPLACED);
}

#[test]
fn holder_that_is_refused_is_seen() {
    let refused = || held(None).with(proclaim(1, "b"), 20, 21, End::Fail(Refusal::NotHolder));
    refused().is_refused("a holder's proclamation is not refused");
    let release = Call::Release { keys: "k".into(), session: "s1".into(), token: 1, number: None };
    let released = refused().with(release, 15, 16, End::Ok(Answer::Released));
    released.is_accepted();
    // It is no holder's: another key, or another session.
    let refused = |call| held(None).with(call, 20, 21, End::Fail(Refusal::NotHolder));
    let call = |key: &str, session: &str| Call::Proclaim {
        key: key.into(),
        session: session.into(),
        token: 1,
        value: "b".into(),
        number: None,
    };
    refused(call("k", "s2")).is_accepted();
    refused(call("m", "s1")).is_accepted();
    refused(call("k", "s1")).is_refused("a holder's proclamation is not refused");
}
