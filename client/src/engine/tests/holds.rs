//! Several guards of one grant: each has a hold that the server counts.

use super::*;

fn release_of(number: u64) -> Op {
    let grant = wire::Release { session: session(7), token: 1 };
    Op::Release { keys: "key".into(), grant, number: Some(number) }
}

/// Goal: guards of one grant are counted at the server: each further one by a reentrant acquire, which leaves the value as
/// it is, and each that ends by a release. The lock is held until the last one ends, and that one's session is used again.
#[test]
fn each_guard_of_a_grant_has_one_hold() {
    let mut fixture = Fixture::with_guard(TTL);
    fake::suspend(TTL / 10);
    let (sent, mut answer) = (fake::clock(), fixture.hold_again());
    let asked = fixture.asked();
    let options = wire::Acquire { session: Some(session(7)), reentrant: true, ..wire::Acquire::default() };
    assert_eq!(asked.op, Op::Acquire { keys: "key".into(), options, number: Some(2) });
    fake::suspend(TTL / 10);
    receive(&mut fixture.engine, asked.id, Outcome::Ok(acquired(1)));
    let second = answer.try_recv().expect("it was answered").expect("it is granted");
    assert_eq!((second.token(), second.session(), second.keys()), (1, session(7), fixture.guard.keys()));
    assert_eq!(fixture.guard.trusted_until(), Some(sent + (TTL - crate::margin(TTL))), "the acquire renews the lease");
    assert_eq!(second.trusted_until(), fixture.guard.trusted_until());

    drop(second);
    fixture.drops();
    let asked = fixture.asked();
    assert_eq!(asked.op, release_of(3));
    receive(&mut fixture.engine, asked.id, Outcome::Ok(Answer::StillHeld { holds: 1 }));
    assert!(fixture.guard.is_valid());

    let (reply, mut released) = oneshot::channel();
    fixture.engine.command(fake::clock(), Command::Release { claim: 1, reply: Some(reply) });
    let asked = fixture.asked();
    assert_eq!(asked.op, release_of(4));
    receive(&mut fixture.engine, asked.id, Outcome::Ok(Answer::Released));
    assert_eq!(released.try_recv(), Ok(Ok(())));
    fixture.guard.released = true;
    assert!(fixture.engine.is_idle());
}

/// Goal: a hold that no caller waits for is given back, whether the caller has gone or was told that no server answers; and
/// its acquire is sent again under its number until it is answered, for it may have been done.
#[test]
fn a_hold_without_a_caller_is_given_back() {
    for is_told in [false, true] {
        let mut fixture = Fixture::with_guard(10 * TTL);
        let mut answer = fixture.hold_again();
        let first = fixture.asked();
        if is_told {
            fake::suspend(Options::default().request_timeout);
            fixture.engine.advance(fake::clock());
            assert!(matches!(answer.try_recv(), Ok(Err(Error::Unreachable { .. }))));
            requests(&mut fixture.engine);
        } else {
            drop(answer);
        }
        fixture.engine.disconnected("cut".into());
        fixture.engine.connected(fake::clock(), "another node");
        let again = fixture.asked();
        assert_eq!(again.op, first.op);
        receive(&mut fixture.engine, again.id, Outcome::Ok(acquired(1)));
        fixture.drops();
        let asked = fixture.asked();
        assert_eq!(asked.op, release_of(3), "told: {is_told}");
        receive(&mut fixture.engine, asked.id, Outcome::Ok(Answer::StillHeld { holds: 1 }));
        assert!(fixture.guard.is_valid());
    }
}

/// Goal: a keep-alive is answered after the end of the lease: a caller whose request is unanswered learns at once that the
/// lock is lost.
#[test]
fn late_keepalive_answer_fails_unanswered_requests() {
    let mut fixture = Fixture::with_guard(TTL);
    fake::suspend(TTL / 2);
    let keepalives = fixture.advance();
    fake::suspend(TTL / 4);
    let mut value = fixture.proclaim("one");
    let mut hold = fixture.hold_again();
    fake::suspend(TTL / 4);
    fixture.keep_alive(keepalives[0]);
    assert!(!fixture.guard.is_valid());
    assert!(matches!(value.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    assert!(matches!(hold.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    assert_eq!(fixture.engine.link.under_way(), 0, "no request is left behind");
}

/// Goal: a node refuses a later attempt of a hold for the moment. The cluster may have counted an earlier one, so the
/// client asks again under its number. The refusal of the only attempt is the answer.
#[test]
fn hold_that_may_be_counted_is_asked_for_again() {
    for code in [Code::NoSpace, Code::Limit] {
        let failed = || Outcome::Error(Failure::new(code, "for the moment"));
        let mut fixture = Fixture::with_guard(TTL);
        let mut answer = fixture.hold_again();
        let first = fixture.asked();
        fixture.engine.disconnected("cut".into());
        fixture.engine.connected(fake::clock(), "another node");
        let again = fixture.asked();
        receive(&mut fixture.engine, again.id, failed());
        assert!(matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)), "{code:?}");
        fake::suspend(Duration::from_secs(1));
        let again = fixture.asked();
        assert_eq!(again.op, first.op);
        receive(&mut fixture.engine, again.id, Outcome::Ok(acquired(1)));
        assert!(matches!(answer.try_recv(), Ok(Ok(_))), "{code:?}");
        fixture.drops();
        let release = fixture.asked();
        receive(&mut fixture.engine, release.id, Outcome::Ok(Answer::StillHeld { holds: 1 }));

        let mut answer = fixture.hold_again();
        let only = fixture.asked();
        receive(&mut fixture.engine, only.id, failed());
        assert!(matches!(answer.try_recv(), Ok(Err(Error::Refused(_)))), "{code:?}");
    }
}

/// Goal: a closed client gives no more holds, and its end waits until each hold that no guard has is given back: that of a
/// dropped guard, and that of a caller that got an error.
#[test]
fn close_waits_for_holds_that_are_given_back() {
    let mut fixture = Fixture::with_guard(TTL);
    drop(fixture.another_guard());
    fixture.drops();
    let mut pending = fixture.hold_again();
    let (reply, mut closed) = oneshot::channel();
    fixture.engine.command(fake::clock(), Command::Close { reply });
    assert!(matches!(pending.try_recv(), Ok(Err(Error::Closed))));
    assert!(matches!(fixture.hold_again().try_recv(), Ok(Err(Error::Closed))));
    for answer in [Answer::StillHeld { holds: 1 }, acquired(1), Answer::StillHeld { holds: 1 }] {
        let asked = fixture.asked();
        assert!(closed.try_recv().is_err(), "before {answer:?}");
        receive(&mut fixture.engine, asked.id, Outcome::Ok(answer));
    }
    fixture.engine.advance(fake::clock());
    assert_eq!(closed.try_recv(), Ok(()));
    assert!(fixture.guard.is_valid());
}

/// Goal: the last guard ends while an acquire of another hold is unanswered. The release replaces it, and takes the hold,
/// too, if the acquire was done.
#[test]
fn the_last_guard_takes_all_holds() {
    let mut fixture = Fixture::with_guard(TTL);
    drop(fixture.hold_again());
    fixture.asked();
    let (reply, mut released) = oneshot::channel();
    fixture.engine.command(fake::clock(), Command::Release { claim: 1, reply: Some(reply) });
    let asked = fixture.asked();
    assert_eq!(asked.op, release_of(3));
    receive(&mut fixture.engine, asked.id, Outcome::Ok(Answer::StillHeld { holds: 1 }));
    assert!(released.try_recv().is_err(), "the lock is held still");
    let asked = fixture.asked();
    assert_eq!(asked.op, release_of(4));
    receive(&mut fixture.engine, asked.id, Outcome::Ok(Answer::Released));
    assert_eq!(released.try_recv(), Ok(Ok(())));
    fixture.guard.released = true;
}

/// Goal: what several guards want is done one after the other, and nothing that a caller waits for is given up.
#[test]
fn guards_of_a_grant_wait_for_one_another() {
    let mut fixture = Fixture::with_guard(TTL);
    let second = fixture.another_guard();
    let mut first_value = fixture.proclaim("one");
    let mut second_value = fixture.proclaim("two");
    drop(second);
    fixture.drops();
    let mut numbers = Vec::new();
    for answer in [Answer::Proclaimed, Answer::Proclaimed, Answer::StillHeld { holds: 1 }] {
        let asked = fixture.asked();
        numbers.push(match asked.op {
            Op::Proclaim { number, .. } | Op::Release { number, .. } => number.expect("it has one"),
            other => panic!("{other:?}"),
        });
        receive(&mut fixture.engine, asked.id, Outcome::Ok(answer));
    }
    assert_eq!(numbers, [3, 4, 5]);
    for value in [&mut first_value, &mut second_value] {
        assert_eq!(value.try_recv().expect("it was answered").ok(), Some(Answer::Proclaimed));
    }
}

/// Goal: what says that the grant has gone is a loss for all guards of it: the refusal of another hold or of a release, and
/// a grant with another token, which no guard has and which ends with its session.
#[test]
fn a_lost_grant_is_lost_for_all_its_guards() {
    let failed = |code| Outcome::Error(Failure::new(code, "it has passed on"));
    for outcome in [failed(Code::NoSession), failed(Code::Held), failed(Code::Gone), Outcome::Ok(acquired(2))] {
        let mut fixture = Fixture::with_guard(TTL);
        let second = fixture.another_guard();
        let mut third = fixture.hold_again();
        let asked = fixture.asked();
        let is_granted = matches!(outcome, Outcome::Ok(_));
        receive(&mut fixture.engine, asked.id, outcome);
        assert!(matches!(third.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(!fixture.guard.is_valid() && !second.is_valid());
        if is_granted {
            assert_eq!(fixture.asked().op, Op::CloseSession { session: session(7) });
        }
    }
    for outcome in [failed(Code::NotHolder), failed(Code::Gone), Outcome::Ok(Answer::Released)] {
        let mut fixture = Fixture::with_guard(TTL);
        drop(fixture.another_guard());
        fixture.drops();
        let asked = fixture.asked();
        receive(&mut fixture.engine, asked.id, outcome);
        assert!(!fixture.guard.is_valid());
        let mut late = fixture.proclaim("late");
        assert!(matches!(late.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }
    // The session may have a grant that no guard has.
    let mut fixture = Fixture::with_guard(TTL);
    fixture.engine.command(fake::clock(), Command::Release { claim: 1, reply: None });
    let asked = fixture.asked();
    receive(&mut fixture.engine, asked.id, failed(Code::NotHolder));
    assert_eq!(fixture.asked().op, Op::CloseSession { session: session(7) });
    fixture.guard.released = true;
}
