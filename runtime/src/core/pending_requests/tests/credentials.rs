//! Only the client that presents a session's secret may use the session.

use palisade_spec::lock::Principal;
use palisade_spec::raft::MAX_NUMBER;

use super::*;
use crate::core::read::Age;
use crate::core::{NO_PRINCIPAL, session_id};

/// The credential of a stranger who has read the session's number in a list.
fn forged(session: SessionId) -> SessionId {
    SessionId::new(session.number(), [9; 10]).unwrap()
}

fn withdraw(session: SessionId, number: Option<u64>) -> Op {
    Op::Withdraw { keys: "key".into(), session, number }
}

/// Goal: a session's client gets the same credential in every answer that has one: also when its
/// acquire waited, or has joined the wait of another connection, or opened a session for itself.
#[test]
fn client_gets_its_own_credential() {
    let mut fixture = Fixture::open();
    let session = fixture.open_session();
    let once = granted(&mut fixture.request(1, acquire("key", 0)));
    assert_eq!((session.number(), once.session.number()), (1, 2));
    assert_ne!(once.session.secret(), session.secret());

    let mut waiting = [1, 2].map(|connection| fixture.request(connection, first_acquire(session, 60_000)));
    match fixture.request(3, Op::KeepAlive { session }).try_recv() {
        Ok(Ok(Answer::Session(lease))) => assert_eq!(lease.session, session),
        other => panic!("not renewed: {other:?}"),
    }
    let mut once_waiting = fixture.request(3, acquire("key", 60_000));
    drop(fixture.request(1, release(once.session, once.token)));
    let grants = waiting.each_mut().map(granted);
    assert!(grants.iter().all(|grant| grant.session == session));
    drop(fixture.request(1, release(session, grants[0].token)));
    let grant = granted(&mut once_waiting);
    assert_eq!(grant.session.number(), 3);
    fixture.request(1, release(grant.session, grant.token)).try_recv().unwrap().unwrap();
}

/// Goal: whatever a stranger asks for with the number of another client's session changes nothing,
/// and the answer says that the session is not the stranger's.
#[test]
fn stranger_changes_nothing_and_is_told_why() {
    let mut fixture = Fixture::open();
    let [holder, waiter] = [(); 2].map(|()| fixture.open_session());
    let grant = granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let mut waiting = fixture.request(1, first_acquire(waiter, 60_000));
    let before = fixture.node.machine().clone();

    for session in [forged(holder), forged(waiter)] {
        for op in [
            Op::CloseSession { session },
            Op::KeepAlive { session },
            Op::ShowSession { session },
            first_acquire(session, 0),
            first_acquire(session, 60_000),
            release(session, grant.token),
            withdraw(session, None),
            withdraw(session, Some(MAX_NUMBER)),
        ] {
            let mut reply = fixture.request(2, op.clone());
            if let Some(read) = fixture.requests.read() {
                fixture.requests.read_ready(read);
                fixture.requests.answer_reads(&fixture.node, Age(None));
            }
            let failure = reply.try_recv().unwrap().unwrap_err();
            assert_eq!(failure.error, Code::NoSession, "{op:?}");
            let whose = format!("session {} is another client's", session.number());
            assert!(failure.message.starts_with(&whose), "{op:?}: {failure}");
            assert_eq!(*fixture.node.machine(), before, "{op:?}");
        }
    }
    let refused = Request::from_wire(withdraw(forged(holder), Some(u64::MAX)), &Principal::default()).unwrap_err();
    assert!(refused.message.starts_with("number is 18446744073709551615; it may be 1 to "), "{refused}");

    fixture.request(1, release(holder, grant.token)).try_recv().unwrap().unwrap();
    assert_eq!(granted(&mut waiting).session, waiter);
}

/// Goal: a session of one principal is no session to another one that knows the secret.
#[test]
fn session_of_another_principal_is_not_found() {
    let mut fixture = Fixture::open();
    let session = fixture.open_session();
    assert!(fixture.node.machine().session(session_id(session, NO_PRINCIPAL)).is_some());
    assert!(fixture.node.machine().session(session_id(session, "mallory")).is_none());
}

/// Goal: an ended session counts as no other client's, so its own client is told that it has ended.
#[test]
fn client_of_an_ended_session_is_told_so() {
    let mut fixture = Fixture::open();
    let [session, _later] = [(); 2].map(|()| fixture.open_session());
    for _ in 0..2 {
        fixture.request(1, Op::CloseSession { session }).try_recv().unwrap().unwrap();
    }
    let failure = fixture.request(1, Op::KeepAlive { session }).try_recv().unwrap().unwrap_err();
    assert!(failure.message.starts_with("the session does not exist: it expired"), "{failure}");
}

/// Goal: a leader opens no session whose number does not fit into a credential.
#[test]
fn numbers_of_sessions_are_limited() {
    let mut table = serde_json::to_value(LockTable::default()).unwrap();
    table["next_session"] = (limits::SESSION_NUMBERS - 1).into();
    let mut fixture = Fixture::of(serde_json::from_value(table).unwrap());
    let last = fixture.open_session();
    assert_eq!(last.number(), limits::SESSION_NUMBERS - 1);
    let open = Op::OpenSession(wire::OpenSession { ttl_ms: 60_000, owner: String::new() });
    for op in [open, acquire("own", 0)] {
        let refused = fixture.request(1, op).try_recv().unwrap().unwrap_err();
        assert_eq!(refused.error, Code::Limit);
        assert!(refused.message.contains("has opened 281474975662079 sessions"), "{refused}");
    }
    granted(&mut fixture.request(1, first_acquire(last, 0)));
}
