//! Grants, refusals and timeouts of a wait, and the loss of one renewal.

use super::*;

/// Goal: a grant that an operator breaks before a guard was made of it makes no guard: the lock is asked for anew, and the
/// guard is that of the next grant.
#[test]
fn a_grant_that_is_broken_before_its_guard_makes_no_guard() {
    let mut fixture = Fixture::with_guard(TTL);
    let mut answer = fixture.lock("b", Wait::Forever);
    let (session, ttl_ms) = (session(8), millis(TTL));
    let lease = SessionLease { session, ttl_ms };
    answer_all(&mut fixture.engine, |_| Some(Answer::Session(lease)));
    let acquire = requests(&mut fixture.engine).pop().expect("it asks for the lock");
    fake::suspend(2 * TTL);
    let grant = |token| Answer::Acquired(Acquired { keys: "b".into(), token, session, ttl_ms, signed: Vec::new() });
    receive(&mut fixture.engine, acquire.id, Outcome::Ok(grant(2)));
    let keep_alive = requests(&mut fixture.engine).pop().expect("the lease is renewed first");

    let broken = Broken { key: "b".into(), token: 2, session: session.number(), principal: String::new() };
    receive(&mut fixture.engine, UNASKED, Outcome::Ok(Answer::Lost(broken)));
    receive(&mut fixture.engine, keep_alive.id, Outcome::Ok(Answer::Session(lease)));
    assert!(answer.try_recv().is_err(), "the grant is broken");
    let again = requests(&mut fixture.engine).pop().expect("it asks anew");
    assert!(matches!(again.op, Op::Acquire { number: Some(2), .. }), "{:?}", again.op);
    receive(&mut fixture.engine, again.id, Outcome::Ok(grant(3)));
    assert_eq!(answer.try_recv().expect("it was answered").expect("it is granted").token(), 3);
}

/// Goal: over the whole range of times-to-live, one keep-alive that gets no answer is no loss: when it is asked again,
/// the guard has not come to its end, nor `palisade lock` to the fifth of the TTL (5 s at most) before it.
#[test]
fn one_lost_keepalive_is_no_loss() {
    for ttl in [100, 150, 200, 500, 1_000, 10_000, 100_000, 1_000_000, 86_400_000].map(Duration::from_millis) {
        let mut fixture = Fixture::with_guard(ttl);
        let mut asked = Vec::new();
        while asked.len() < 2 {
            assert!(fixture.guard.remaining() > (ttl / 5).min(Duration::from_secs(5)), "ttl {ttl:?}: {asked:?}");
            fake::suspend(ttl / 1000);
            asked.extend(fixture.advance());
        }
    }
}

/// Goal: a node refuses an acquire for the moment, and the wait ends before the next attempt is sent: while the loop
/// slept, or because the pause is longer than what is left of the wait. The caller learns of the refusal then: the client
/// has asked no node for another answer. It withdraws an earlier attempt, which a node may still apply.
#[test]
fn a_refusal_is_final_when_the_wait_ends_before_another_attempt() {
    // The first two are longer than two pauses, which such refusals lengthen; the last one is shorter than any pause.
    let waits = [3_000, 3_000, 100, 10].map(Duration::from_millis);
    for (code, wait) in [Code::NoSpace, Code::TooSoon, Code::Overloaded, Code::Overloaded].into_iter().zip(waits) {
        for attempts in if wait > waits[3] { 1..=2 } else { 1..=1 } {
            let mut fixture = Fixture::with_guard(TTL);
            let mut answer = fixture.lock("b", Wait::For(wait));
            answer_all(&mut fixture.engine, |_| {
                Some(Answer::Session(SessionLease { session: session(8), ttl_ms: millis(TTL) }))
            });
            for attempt in 1..=attempts {
                let asked = requests(&mut fixture.engine);
                let [Request { id, op: Op::Acquire { .. } }] = asked[..] else { panic!("it asks: {asked:?}") };
                receive(&mut fixture.engine, id, Outcome::Error(Failure::new(code, "for the moment")));
                if attempt < attempts {
                    let pause = fixture.engine.next_wake().expect("it asks again") - fake::clock();
                    assert!(code == Code::Overloaded || pause >= Duration::from_millis(500), "{code:?}: {pause:?}");
                    fake::suspend(pause);
                    fixture.engine.advance(fake::clock());
                }
            }
            assert!(answer.try_recv().is_err(), "the wait goes on");
            let until = fixture.engine.next_wake().expect("the wait ends") - fake::clock();
            assert!(until <= wait, "it wakes in {until:?}");
            fake::suspend(wait);
            fixture.engine.advance(fake::clock());
            let Ok(Err(Error::Refused(failure))) = answer.try_recv() else { panic!("it was not refused") };
            assert_eq!(failure.error, code);
            let withdrawals = requests(&mut fixture.engine);
            assert!(withdrawals.iter().all(|request| matches!(request.op, Op::Withdraw { .. })), "{withdrawals:?}");
            assert_eq!(withdrawals.len(), attempts - 1, "{code:?}");
        }
    }
}

/// Goal: the error names the configured wait, not the time that went by: whether the node's answer comes late, or none
/// comes and the client's own deadline is noticed late.
#[test]
fn a_timeout_names_the_configured_wait() {
    for is_answered in [true, false] {
        let mut fixture = Fixture::with_guard(TTL);
        let mut answer = fixture.lock("b", Wait::For(Duration::from_millis(300)));
        answer_all(&mut fixture.engine, |_| {
            Some(Answer::Session(SessionLease { session: session(8), ttl_ms: millis(TTL) }))
        });
        let asked = requests(&mut fixture.engine);
        let [Request { id, op: Op::Acquire { .. } }] = asked[..] else { panic!("it asks: {asked:?}") };
        if is_answered {
            fake::suspend(Duration::from_millis(301));
            receive(&mut fixture.engine, id, Outcome::Error(Failure::new(Code::Timeout, "the wait is over")));
        } else {
            fake::suspend(Duration::from_millis(301) + Options::default().attempt_timeout);
            fixture.engine.advance(fake::clock());
        }
        let Ok(Err(error)) = answer.try_recv() else { panic!("it was not refused") };
        assert_eq!(error.to_string(), "the lock was not granted within 300 ms");
    }
}
