//! A machine that is suspended: its clock jumps between two events, and no timer knows.

use super::*;

/// Goal: the keep-alive is sent, the machine is suspended past the end of the lease, and when it resumes the answer is
/// there: it is read before anything looks at the clock. The guard is lost, for good: after a suspend of hours, and after
/// one that ends when the lease would still last if the answer counted.
#[test]
fn an_answer_that_lay_there_during_a_suspend_brings_no_guard_back() {
    for suspend in [TTL / 2, 3600 * TTL] {
        let mut fixture = Fixture::with_guard(TTL);
        fake::suspend(TTL / 2);
        let asked = fixture.advance();
        assert_eq!(asked.len(), 1, "half of the lease is over: it is renewed at once");
        fake::suspend(suspend);
        fixture.keep_alive(asked[0]);
        assert!(!fixture.guard.is_valid() && fixture.guard.trusted_until().is_none(), "after {suspend:?}");
        assert!(fixture.advance().is_empty(), "what is lost is not kept alive");
        assert!(!fixture.guard.is_valid());
    }
}

/// Goal: a suspend within the lease takes from it what it lasts, at once; the keep-alive is sent at once, and its answer
/// extends the lease from the sending, not from the answer.
#[test]
fn a_suspend_within_the_lease_is_survived() {
    let mut fixture = Fixture::with_guard(TTL);
    let before = fixture.guard.remaining();
    fake::suspend(TTL / 2);
    assert_eq!(fixture.guard.remaining(), before - TTL / 2);
    let sent = fake::clock();
    let asked = fixture.advance();
    fake::suspend(TTL / 10);
    fixture.keep_alive(asked[0]);
    assert_eq!(fixture.guard.trusted_until(), Some(sent + (TTL - crate::margin(TTL))));
}

/// Goal: no number of suspends lengthens a lease without renewals: each takes a part of it.
#[test]
fn many_suspends_give_nothing_back() {
    let mut fixture = Fixture::with_guard(TTL);
    let until = fixture.guard.trusted_until();
    for _ in 0..8 {
        fake::suspend(TTL / 10);
        fixture.advance();
        assert_eq!(fixture.guard.trusted_until(), until);
    }
    fake::suspend(TTL / 5);
    fixture.advance();
    assert!(!fixture.guard.is_valid());
}

/// Goal: a grant whose answer lay there during a suspend is renewed before a guard is made of it; if the session is gone,
/// the lock is asked for anew.
#[test]
fn a_grant_that_lay_there_during_a_suspend_makes_no_guard() {
    let mut fixture = Fixture::with_guard(TTL);
    let mut answer = fixture.lock("b", Wait::Forever);
    let (session, ttl_ms) = (session(8), millis(TTL));
    answer_all(&mut fixture.engine, |_| Some(Answer::Session(SessionLease { session, ttl_ms })));
    let acquire = requests(&mut fixture.engine).pop().expect("it asks for the lock");
    fake::suspend(2 * TTL);
    let grant = Acquired { keys: "b".into(), token: 2, session, ttl_ms, signed: Vec::new() };
    receive(&mut fixture.engine, acquire.id, Outcome::Ok(Answer::Acquired(grant)));
    assert!(answer.try_recv().is_err(), "the lease of the grant is over");
    let keep_alive = requests(&mut fixture.engine).pop().expect("the lease is renewed first");
    assert_eq!(keep_alive.op, Op::KeepAlive { session });
    receive(&mut fixture.engine, keep_alive.id, Outcome::Error(Failure::new(Code::NoSession, "it has expired")));
    let opened = requests(&mut fixture.engine).pop().expect("it begins anew");
    assert!(matches!(opened.op, Op::OpenSession(_)));
}
