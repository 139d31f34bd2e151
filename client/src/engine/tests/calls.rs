//! Requests that concern no claim: which of them are sent again, and what the caller is told.

use super::*;

/// Goal: an append or a release without a number is not sent again while its first attempt is only late, because it would
/// be done twice. On another connection its answer cannot come any more: a release is sent again, and of an append the
/// caller is told that it may be done. A read is sent again at once.
#[test]
fn what_counts_twice_is_sent_once_on_a_connection() {
    let grant = wire::Release { session: session(8), token: 1 };
    let release = Op::Release { keys: "reentrant".into(), grant, number: None };
    for (op, counts_twice) in [(append(&[]), true), (release, true), (Op::ShowAccess, false)] {
        let mut fixture = Fixture::with_guard(TTL);
        let mut answer = fixture.call(&op);
        assert_eq!(fixture.sent(&op).len(), 1);
        fake::suspend(Options::default().attempt_timeout * 2);
        assert_eq!(fixture.sent(&op).is_empty(), counts_twice, "{op:?}");
        fixture.engine.disconnected("cut".into());
        fixture.engine.connected(fake::clock(), "another node");
        let is_unknown = matches!(op, Op::Transact { .. });
        assert_eq!(fixture.sent(&op).len(), usize::from(!is_unknown), "{op:?}");
        if is_unknown {
            assert!(matches!(answer.try_recv(), Ok(Err(Error::UnknownOutcome { .. }))), "{op:?}");
        } else {
            assert!(answer.try_recv().is_err(), "{op:?}");
            fake::suspend(Options::default().request_timeout);
            fixture.sent(&op);
            assert!(matches!(answer.try_recv(), Ok(Err(Error::Unreachable { .. }))), "{op:?}");
        }
        assert_eq!(fixture.engine.link.under_way(), 0, "{op:?}");
    }
}

/// An append to a record, with these conditions on versions.
fn append(versions: &[(&str, u64)]) -> Op {
    let condition = |&(key, version): &(&str, u64)| Condition::Version { key: key.to_owned(), version };
    let conditions = versions.iter().map(condition).collect();
    let changes = vec![RecordChange::Append { key: "log".into(), value: "line".into() }];
    Op::Transact { transaction: Transaction { session: None, conditions, changes }, number: None }
}

/// Goal: a transaction without a number is sent again after its connection was lost only if it compares a version of a
/// record that it changes, and not version 0, which comes back. The refusal of its repetition says nothing about the
/// first attempt, and neither does the end of the call's time; a node that does not lead has done nothing.
#[test]
fn a_write_whose_answer_is_lost_is_not_made_twice() {
    let reconnect = |fixture: &mut Fixture| {
        fixture.engine.disconnected("cut".into());
        fixture.engine.connected(fake::clock(), "another node");
    };
    let other_version = || Outcome::Error(Failure::new(Code::OtherVersion, "it has another version"));
    for (versions, is_repeated) in [(vec![("log", 4)], true), (vec![("log", 0)], false), (vec![("other", 4)], false)] {
        let op = append(&versions);
        let mut fixture = Fixture::with_guard(TTL);
        let mut answer = fixture.call(&op);
        assert_eq!(fixture.sent(&op).len(), 1);
        reconnect(&mut fixture);
        let again = fixture.sent(&op);
        assert_eq!(again.len(), usize::from(is_repeated), "{op:?}");
        if let Some(&id) = again.first() {
            receive(&mut fixture.engine, id, other_version());
        }
        assert!(matches!(answer.try_recv(), Ok(Err(Error::UnknownOutcome { .. }))), "{op:?}");

        let mut refused = fixture.call(&op);
        let only = fixture.sent(&op);
        receive(&mut fixture.engine, only[0], other_version());
        assert!(matches!(refused.try_recv(), Ok(Err(Error::Refused(_)))), "{op:?}");
    }

    let op = append(&[]);
    let mut fixture = Fixture::with_guard(TTL);
    let mut answer = fixture.call(&op);
    let turned_away = fixture.sent(&op);
    let not_leader = Failure::new(Code::NotLeader, "another node leads");
    receive(&mut fixture.engine, turned_away[0], Outcome::Error(not_leader));
    reconnect(&mut fixture);
    assert_eq!(fixture.sent(&op).len(), 1, "no node has done it");
    fake::suspend(Options::default().request_timeout);
    fixture.sent(&op);
    assert!(matches!(answer.try_recv(), Ok(Err(Error::UnknownOutcome { .. }))));

    let mut fixture = Fixture::with_guard(TTL);
    fixture.engine.disconnected("cut".into());
    let mut answer = fixture.call(&op);
    fake::suspend(Options::default().request_timeout);
    fixture.sent(&op);
    assert!(matches!(answer.try_recv(), Ok(Err(Error::Unreachable { .. }))), "it was never sent");
}

/// Goal: a release by credential, or a break, is sent again, and there is nothing left to release or to break: the first
/// attempt may have done it. The refusal of the only attempt is the answer.
#[test]
fn what_may_be_done_is_not_told_as_refused() {
    let grant = wire::Release { session: session(8), token: 1 };
    let release = Op::Release { keys: "key".into(), grant, number: None };
    let order = wire::Break { token: 1, reason: "it hangs".into() };
    let breaking = Op::Break { key: "key".into(), order };
    for (op, code) in [(&release, Code::NotHolder), (&release, Code::NoSession), (&breaking, Code::NotHolder)] {
        let refusal = || Outcome::Error(Failure::new(code, "nothing is held"));
        let mut fixture = Fixture::with_guard(TTL);
        let mut answer = fixture.call(op);
        assert_eq!(fixture.sent(op).len(), 1);
        fixture.engine.disconnected("cut".into());
        fixture.engine.connected(fake::clock(), "another node");
        let again = fixture.sent(op);
        receive(&mut fixture.engine, again[0], refusal());
        assert!(matches!(answer.try_recv(), Ok(Err(Error::UnknownOutcome { .. }))), "{op:?}, {code:?}");

        let mut answer = fixture.call(op);
        let only = fixture.sent(op);
        receive(&mut fixture.engine, only[0], refusal());
        assert!(matches!(answer.try_recv(), Ok(Err(Error::Refused(_)))), "{op:?}, {code:?}");
    }

    // A break is sent twice on one connection, too, when its answer is late.
    let mut fixture = Fixture::with_guard(TTL);
    let mut answer = fixture.call(&breaking);
    assert_eq!(fixture.sent(&breaking).len(), 1);
    fake::suspend(Options::default().attempt_timeout);
    let again = fixture.sent(&breaking);
    receive(&mut fixture.engine, again[0], Outcome::Error(Failure::new(Code::NotHolder, "nothing is held")));
    assert!(matches!(answer.try_recv(), Ok(Err(Error::UnknownOutcome { .. }))));
}
