//! A holder's values and records: each has a number, and is done once.

use super::*;

/// Goal: a new value is asked for again under its number until it is answered, and the next one has a greater number: so
/// an attempt that arrives late does not undo it.
#[test]
fn each_value_has_a_number_of_its_own() {
    let mut fixture = Fixture::with_guard(TTL);
    let mut first = fixture.proclaim("one");
    let asked = requests(&mut fixture.engine).pop().expect("it is asked for");
    let proclaimed = |value: &str, number| {
        let proclamation = wire::Proclaim { session: session(7), token: 1, value: value.into() };
        Op::Proclaim { key: "key".into(), proclamation, number: Some(number) }
    };
    assert_eq!(asked.op, proclaimed("one", 2));
    fixture.engine.disconnected("cut".into());
    fixture.engine.connected(fake::clock(), "another node");
    let mut again = Vec::new();
    while again.is_empty() {
        fake::suspend(Duration::from_millis(10));
        fixture.engine.advance(fake::clock());
        again.extend(requests(&mut fixture.engine).into_iter().filter(|it| matches!(it.op, Op::Proclaim { .. })));
    }
    assert_eq!(again[0].op, proclaimed("one", 2));
    receive(&mut fixture.engine, again[0].id, Outcome::Ok(Answer::Proclaimed));
    assert_eq!(first.try_recv().expect("it was answered").ok(), Some(Answer::Proclaimed));

    drop(fixture.proclaim("two"));
    let mut third = fixture.proclaim("three");
    let asked = requests(&mut fixture.engine);
    assert_eq!(asked.last().expect("it is asked for").op, proclaimed("three", 4));
    receive(&mut fixture.engine, asked.last().expect("as above").id, Outcome::Ok(Answer::Proclaimed));
    assert_eq!(third.try_recv().expect("it was answered").ok(), Some(Answer::Proclaimed));
    assert!(fixture.guard.is_valid());
}

/// Goal: a holder learns from the refusal of a value that its lock is lost; and when no server answers, it learns that in
/// time.
#[test]
fn a_value_that_is_refused_or_not_answered_is_an_error() {
    for code in [Code::NotHolder, Code::NoSession] {
        let mut fixture = Fixture::with_guard(TTL);
        let mut answer = fixture.proclaim("one");
        let asked = requests(&mut fixture.engine).pop().expect("it is asked for");
        receive(&mut fixture.engine, asked.id, Outcome::Error(Failure::new(code, "it has passed on")));
        assert!(
            answer.try_recv().is_err() && !fixture.guard.is_valid(),
            "the sender is gone, which says that it is lost"
        );
        assert_eq!(fixture.engine.link.under_way(), 0, "no request is left behind");
    }
    let mut fixture = Fixture::with_guard(TTL);
    let mut answer = fixture.proclaim("one");
    drop(requests(&mut fixture.engine));
    fake::suspend(Options::default().request_timeout);
    fixture.engine.advance(fake::clock());
    assert!(matches!(answer.try_recv(), Ok(Err(Error::Unreachable { .. }))));
    let asked = requests(&mut fixture.engine);
    assert!(asked.iter().all(|request| !matches!(request.op, Op::Proclaim { .. })), "{asked:?}");

    // The lease ends, or the grant is broken, while the value is on its way.
    for is_broken in [false, true] {
        let mut fixture = Fixture::with_guard(TTL);
        let mut answer = fixture.proclaim("one");
        drop(requests(&mut fixture.engine));
        if is_broken {
            let broken = Broken { key: "key".into(), token: 1, session: 7, principal: String::new() };
            receive(&mut fixture.engine, UNASKED, Outcome::Ok(Answer::Lost(broken)));
        } else {
            fake::suspend(TTL);
        }
        fixture.engine.advance(fake::clock());
        assert!(matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Closed)) && !fixture.guard.is_valid());
        assert_eq!(fixture.engine.link.under_way(), 0, "no request is left behind");
    }

    let mut fixture = Fixture::with_guard(TTL);
    let mut answer = fixture.proclaim(&"v".repeat(5_000));
    let asked = requests(&mut fixture.engine).pop().expect("it is asked for");
    receive(&mut fixture.engine, asked.id, Outcome::Error(Failure::new(Code::Invalid, "the value is too long")));
    assert!(matches!(answer.try_recv(), Ok(Err(Error::Refused(_)))) && fixture.guard.is_valid());
}

/// Goal: a holder's changes of records are asked for under its token and a number of their own, the same in every attempt;
/// the refusal of the token says that the lock is lost, and another refusal does not.
#[test]
fn records_are_written_once_and_only_by_the_holder() {
    let changes = || vec![RecordChange::Put { key: "state".into(), value: "done".into() }];
    let version = || Condition::Version { key: "state".into(), version: 3 };
    let transaction = || Transaction { conditions: vec![version()], changes: changes(), ..Transaction::default() };
    let mut fixture = Fixture::with_guard(TTL);
    let mut answer = fixture.write(Write::Records(transaction()));
    let asked = requests(&mut fixture.engine).pop().expect("it is asked for");
    let held = Condition::Held { lock: "key".into(), token: 1 };
    let fenced = Transaction { session: Some(session(7)), conditions: vec![held, version()], changes: changes() };
    let expected = Op::Transact { transaction: fenced, number: Some(2) };
    assert_eq!(asked.op, expected);
    fixture.engine.disconnected("cut".into());
    fixture.engine.connected(fake::clock(), "another node");
    fixture.engine.advance(fake::clock());
    let again = requests(&mut fixture.engine).into_iter().find(|it| matches!(it.op, Op::Transact { .. }));
    let again = again.expect("it is asked for again");
    assert_eq!(again.op, expected);
    receive(&mut fixture.engine, again.id, Outcome::Ok(Answer::Written { version: 4 }));
    assert_eq!(answer.try_recv().expect("it was answered").ok(), Some(Answer::Written { version: 4 }));

    let refusals = [
        Failure::new(Code::OtherVersion, "it has another version"),
        Failure { seen: Some(9), got: Some(5), ..Failure::new(Code::StaleToken, "of another lock") },
        Failure { seen: Some(9), got: Some(1), ..Failure::new(Code::StaleToken, "its own") },
    ];
    for failure in refusals {
        let is_lost = failure.got == Some(1);
        let mut answer = fixture.write(Write::Records(transaction()));
        let asked = requests(&mut fixture.engine).pop().expect("it is asked for");
        receive(&mut fixture.engine, asked.id, Outcome::Error(failure));
        let received = answer.try_recv();
        assert_eq!(matches!(received, Ok(Err(Error::Refused(_)))), !is_lost, "{received:?}");
        assert_eq!(matches!(received, Err(oneshot::error::TryRecvError::Closed)), is_lost, "{received:?}");
        assert_eq!(fixture.guard.is_valid(), !is_lost);
    }
}

/// Goal: a holder's change of records that was sent, and that no node has answered in time, may be made: the caller is told
/// so. A change that was not sent, or waits behind that one, is not made.
#[test]
fn a_change_that_was_sent_and_not_answered_may_be_made() {
    for is_connected in [true, false] {
        let mut fixture = Fixture::with_guard(TTL);
        if !is_connected {
            fixture.engine.disconnected("cut".into());
        }
        let mut first = fixture.write(Write::Records(Transaction::default()));
        let mut second = fixture.write(Write::Records(Transaction::default()));
        fake::suspend(Options::default().request_timeout);
        fixture.engine.advance(fake::clock());
        let (first, second) = (first.try_recv(), second.try_recv());
        assert_eq!(matches!(first, Ok(Err(Error::UnknownOutcome { .. }))), is_connected, "{first:?}");
        assert_eq!(matches!(first, Ok(Err(Error::Unreachable { .. }))), !is_connected, "{first:?}");
        assert!(matches!(second, Ok(Err(Error::Unreachable { .. }))), "{second:?}");
        assert!(fixture.guard.is_valid());
    }
}

/// Goal: a node refuses a later attempt of a holder's write for the moment. An earlier one may be done, so the client asks
/// again under its number. The refusal of the only attempt is the answer.
#[test]
fn a_write_that_may_be_done_is_asked_for_again() {
    for code in [Code::NoSpace, Code::Limit] {
        let failed = || Outcome::Error(Failure::new(code, "for the moment"));
        let mut fixture = Fixture::with_guard(TTL);
        let mut answer = fixture.write(Write::Records(Transaction::default()));
        let first = fixture.asked();
        fixture.engine.disconnected("cut".into());
        fixture.engine.connected(fake::clock(), "another node");
        let again = fixture.asked();
        receive(&mut fixture.engine, again.id, failed());
        assert!(matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)), "{code:?}");
        fake::suspend(Duration::from_secs(1));
        let again = fixture.asked();
        assert_eq!(again.op, first.op);
        receive(&mut fixture.engine, again.id, Outcome::Ok(Answer::Written { version: 4 }));
        assert_eq!(answer.try_recv().expect("it was answered").ok(), Some(Answer::Written { version: 4 }));

        let mut answer = fixture.write(Write::Records(Transaction::default()));
        let only = fixture.asked();
        receive(&mut fixture.engine, only.id, failed());
        assert!(matches!(answer.try_recv(), Ok(Err(Error::Refused(_)))), "{code:?}");
    }
}

/// Goal: a holder's write that a node would answer with the end of the connection is refused, and not sent; the longest
/// one that a node reads is sent. The lock is held as before.
#[test]
fn what_no_node_reads_of_a_holder_is_not_sent() {
    let mut fixture = Fixture::with_guard(TTL);
    let transaction = |bytes| Transaction {
        changes: vec![RecordChange::Put { key: "state".into(), value: wire::Content(vec![7; bytes]) }],
        ..Transaction::default()
    };
    let written = fixture.guard.transact(transaction(wire::FRAME_BYTES)).now_or_never().map(|done| done.map(drop));
    let proclaimed = fixture.guard.proclaim("v".repeat(wire::FRAME_BYTES)).now_or_never();
    for refused in [written, proclaimed] {
        let Some(Err(Error::Refused(failure))) = refused else { panic!("{refused:?}") };
        assert_eq!(failure.error, Code::TooLarge, "{failure}");
    }
    assert!(fixture.inbox.try_recv().is_err(), "nothing is sent");

    assert!(fixture.guard.transact(transaction(wire::FRAME_BYTES - 2_048)).now_or_never().is_none());
    fixture.drops();
    let Some(Outgoing::Frame(frame)) = fixture.engine.outbox().pop_back() else { panic!("it is sent") };
    assert!(frame.len() <= wire::FRAME_BYTES);
    assert!(fixture.guard.is_valid());
}
