//! Claims in modes, on several keys, with holds and with values.

use super::*;
use crate::core::access::tests as rules;

/// An acquire of these keys in this mode.
fn acquire_in(keys: &[&str], mode: wire::Mode, wait_ms: u64) -> Op {
    let options = wire::Acquire { mode, wait_ms, ..wire::Acquire::default() };
    Op::Acquire { keys: keys.into(), options, number: None }
}

/// Goal: a lock that many share admits no more, at whichever of its keys a request meets it. A request for
/// the lock alone is admitted, and waits.
#[test]
fn holders_of_one_lock_are_limited() {
    let mut fixture = Fixture::open();
    let _held: Vec<Reply> =
        (0..limits::HOLDERS).map(|_| fixture.take(1, acquire_in(&["key"], wire::Mode::Shared, 0))).collect();
    fixture.run_iteration();
    for wait_ms in [0, 60_000] {
        let request = acquire_in(&["another", "key"], wire::Mode::Shared, wait_ms);
        let refused = fixture.request(2, request).try_recv().unwrap().unwrap_err();
        assert_eq!(refused.error, Code::Limit);
        assert!(refused.message.contains("the limit of 1000 holders of one lock"), "{refused}");
    }
    let _waiting = fixture.request(2, acquire("key", 60_000));
    assert_eq!(fixture.requests.waits(), 1);
}

/// Goal: a lock that passes to all its waiters at once passes as many keys as a node can pass in an entry: a request for
/// several waits in short queues only.
#[test]
fn waiters_for_several_keys_find_less_room() {
    let mut fixture = Fixture::open();
    let keys: Vec<String> = (0..32).map(|number| format!("key-{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let _held = fixture.request(1, acquire("key-0", 0));
    let room = limits::QUEUE / keys.len();
    let mut waiting: Vec<Reply> = (0..room).map(|_| fixture.take(1, acquire("key-0", 60_000))).collect();
    fixture.run_iteration();
    waiting.push(fixture.request(1, acquire_in(&keys, wire::Mode::Exclusive, 60_000)));
    assert_eq!(fixture.requests.waits(), room + 1, "one more finds room");
    let refused = fixture.request(1, acquire_in(&keys, wire::Mode::Exclusive, 60_000)).try_recv().unwrap().unwrap_err();
    assert!(refused.error == Code::Limit && refused.message.contains("the limit of 312 waiters"), "{refused}");
    waiting.push(fixture.request(1, acquire("key-0", 60_000)));
    assert_eq!(fixture.requests.waits(), room + 2, "there is room for one key");
}

/// Goal: a withdrawal that names a part of a claim is refused, as often as it is repeated, and not answered as if the claim
/// were gone. One whose claim was gone is not refused because of a later claim.
#[test]
fn withdrawal_of_a_part_of_a_claim_is_refused() {
    let mut fixture = Fixture::open();
    let session = fixture.open_session();
    let acquire = |keys: &[&str], number| {
        let options = wire::Acquire { session: Some(session), ..wire::Acquire::default() };
        Op::Acquire { keys: keys.into(), options, number: Some(number) }
    };
    let withdraw = |keys: &[&str], number| Op::Withdraw { keys: keys.into(), session, number };
    granted(&mut fixture.request(1, acquire(&["a", "b"], 1)));
    for number in [Some(2), Some(2), None] {
        let refused = fixture.request(1, withdraw(&["a"], number)).try_recv().unwrap().unwrap_err();
        assert_eq!(refused.error, Code::Invalid, "{number:?}: {refused}");
    }
    let mut ask = |op: Op| fixture.request(1, op).try_recv().unwrap().unwrap();
    assert_eq!(ask(withdraw(&["a", "b"], Some(3))), Answer::Withdrawn);
    assert_eq!(ask(withdraw(&["a"], Some(4))), Answer::Withdrawn);
    assert!(matches!(ask(acquire(&["a", "b"], 5)), Answer::Acquired(_)));
    assert_eq!(ask(withdraw(&["a"], Some(4))), Answer::Withdrawn, "the claim is a later one");
}

/// Goal: the claims of all clients have a bound in bytes. A claim or a value that would pass it is refused; what adds
/// nothing is not, and what ends makes room.
#[test]
fn bytes_of_all_claims_are_limited() {
    let mut fixture = Fixture::open();
    // Of "key" with a value of ten bytes, and of a free key of three.
    fixture.requests.quotas.max_claim_bytes = (3 + 10 + 64) + (3 + 64);
    let session = fixture.open_session();
    let acquire_with = |value: &str, keys: &[&str]| {
        let (session, value) = (Some(session), Some(value.to_owned()));
        let options = wire::Acquire { session, value, ..wire::Acquire::default() };
        Op::Acquire { keys: keys.into(), options, number: None }
    };
    let token = granted(&mut fixture.request(1, acquire_with("0123456789", &["key"]))).token;
    let proclaim = |value: &str| {
        let proclamation = wire::Proclaim { session, token, value: value.to_owned() };
        Op::Proclaim { key: "key".into(), proclamation, number: None }
    };
    let longer = "v".repeat(10 + 3 + 64 + 1);
    let refused = [
        acquire("four", 0),
        acquire_in(&["a", "b"], wire::Mode::Exclusive, 60_000),
        acquire_with("", &["four"]),
        acquire_with(&longer, &["key"]),
        proclaim(&longer),
    ];
    let is_refused = |fixture: &mut Fixture, op: Op| {
        let refused = fixture.request(1, op.clone()).try_recv().unwrap().expect_err("there is no room");
        assert_eq!(refused.error, Code::Limit, "{op:?}");
        assert!(refused.message.contains("the limit of 144 bytes of all claims"), "{refused}");
    };
    refused.into_iter().for_each(|op| is_refused(&mut fixture, op));
    assert_eq!(fixture.node.machine().claimed_bytes(), 3 + 10 + 64);
    let other = granted(&mut fixture.request(1, acquire("two", 0)));
    assert_eq!(fixture.node.machine().claimed_bytes(), fixture.requests.quotas.max_claim_bytes);
    // The same claim and values that are no longer.
    granted(&mut fixture.request(1, acquire_with("9876543210", &["key"])));
    fixture.request(1, proclaim("short")).try_recv().unwrap().unwrap();
    is_refused(&mut fixture, acquire_in(&["two"], wire::Mode::Exclusive, 60_000));
    let end = wire::Release { session: other.session, token: other.token };
    fixture.request(1, Op::Release { keys: "two".into(), grant: end, number: None }).try_recv().unwrap().unwrap();
    granted(&mut fixture.request(1, acquire("four", 0)));
}

/// Goal: a claim that is under way to its end makes no room for a larger one with one of its keys; neither does a
/// token that is not the grant's turn a refused holder into one without room.
#[test]
fn bytes_of_a_claim_that_ends_are_not_those_of_another() {
    let mut fixture = Fixture::open();
    fixture.requests.quotas.max_claim_bytes = 100;
    let session = fixture.open_session();
    let acquire = |keys: &[&str]| {
        let options = wire::Acquire { session: Some(session), wait_ms: 60_000, ..wire::Acquire::default() };
        Op::Acquire { keys: keys.into(), options, number: None }
    };
    let token = granted(&mut fixture.request(1, acquire(&["key"]))).token;
    let mut released = fixture.take(1, release(session, token));
    let refused = fixture.take(1, acquire(&["another", "key"])).try_recv().unwrap().unwrap_err();
    assert_eq!(refused.error, Code::Limit);
    fixture.run_iteration();
    released.try_recv().unwrap().unwrap();
    assert_eq!(fixture.node.machine().claimed_bytes(), 0);

    let current = granted(&mut fixture.request(1, acquire(&["key"]))).token;
    let proclaim = |token| {
        let proclamation = wire::Proclaim { session, token, value: "v".repeat(100) };
        Op::Proclaim { key: "key".into(), proclamation, number: None }
    };
    for (token, code) in [(token, Code::NotHolder), (current, Code::Limit)] {
        let refused = fixture.request(1, proclaim(token)).try_recv().unwrap().unwrap_err();
        assert_eq!(refused.error, code);
    }
}

/// Goal: a wait for several keys is one wait: it is answered once, at the end of the wait it leaves the
/// queues of all keys, and nothing is remembered of it.
#[test]
fn wait_for_several_keys_is_one_wait() {
    let mut fixture = Fixture::open();
    let grant = granted(&mut fixture.request(1, acquire("b", 0)));
    let mut timed_out = fixture.request(2, acquire_in(&["c", "b", "a"], wire::Mode::Exclusive, 1));
    let queues = |fixture: &Fixture| {
        let length = |key: &str| fixture.node.machine().lock(&Key::from(key)).map_or(0, |lock| lock.queue.len());
        ["a", "b", "c"].map(length)
    };
    assert_eq!((fixture.requests.waits(), queues(&fixture)), (1, [1, 1, 1]));
    std::thread::sleep(Duration::from_millis(2));
    fixture.run_iteration();
    assert_eq!(timed_out.try_recv().unwrap().unwrap_err().error, Code::Timeout);
    assert_eq!((fixture.requests.waits(), queues(&fixture)), (0, [0, 0, 0]));

    let mut waiting = fixture.request(2, acquire_in(&["c", "b", "a"], wire::Mode::Exclusive, 60_000));
    let release = wire::Release { session: grant.session, token: grant.token };
    drop(fixture.request(1, Op::Release { keys: "b".into(), grant: release, number: None }));
    let grant = granted(&mut waiting);
    assert_eq!(grant.keys, ["a", "b", "c"].into());
    assert_eq!((fixture.requests.waits(), fixture.requests.waits.other_keys()), (0, 0));
}

/// Goal: a release that is repeated says that the session holds the lock on by the same grant. A
/// withdrawal that is repeated says so, too, and is done when the session has asked for the lock again.
#[test]
fn repetitions_tell_of_their_own_claim() {
    let mut fixture = Fixture::open();
    let session = fixture.open_session();
    let acquire = |number| {
        let options = wire::Acquire { session: Some(session), reentrant: true, ..wire::Acquire::default() };
        Op::Acquire { keys: "key".into(), options, number: Some(number) }
    };
    let token = granted(&mut fixture.request(1, acquire(1))).token;
    granted(&mut fixture.request(1, acquire(2)));
    let release =
        |number| Op::Release { keys: "key".into(), grant: wire::Release { session, token }, number: Some(number) };
    let withdraw = |number| Op::Withdraw { keys: "key".into(), session, number: Some(number) };
    let mut ask = |op: Op| fixture.request(1, op).try_recv().unwrap().unwrap();
    for _ in 0..2 {
        assert_eq!(ask(release(3)), Answer::StillHeld { holds: 1 });
    }
    assert!(matches!(ask(acquire(4)), Answer::Acquired(_)));
    for _ in 0..2 {
        assert_eq!(ask(withdraw(5)), Answer::StillHeld { holds: 1 });
    }
    assert_eq!(ask(withdraw(6)), Answer::Withdrawn);
    assert_eq!(ask(release(3)), Answer::Released);
    assert!(matches!(ask(acquire(7)), Answer::Acquired(_)));
    for number in [5, 6] {
        assert_eq!(ask(withdraw(number)), Answer::Withdrawn);
    }
    assert_eq!(ask(release(3)), Answer::Released);
}

/// Goal: an entry may end a wait of the very session whose new acquire it is. The old wait is told why, and
/// the new one is another wait.
#[test]
fn wait_that_begins_has_no_part_in_the_end_of_an_earlier_one() {
    let mut fixture = Fixture::open();
    granted(&mut fixture.request(1, acquire_in(&["a"], wire::Mode::Shared, 0)));
    let other = granted(&mut fixture.request(1, acquire("b", 0)));
    let session = fixture.open_session_for("ann");
    let wait = |keys: &[&str], mode| {
        let options = wire::Acquire { session: Some(session), mode, wait_ms: 60_000, ..wire::Acquire::default() };
        Op::Acquire { keys: keys.into(), options, number: None }
    };
    let mut old = fixture.request_from("ann", 2, wait(&["a", "b"], wire::Mode::Shared));
    let rules = vec![wire::AccessRule { subject: "*".into(), prefix: "a".into(), rights: vec![wire::Right::Acquire] }];
    let rules = wire::AccessRules { enabled: true, rules, ..wire::AccessRules::default() };
    drop(fixture.request_from("admin/root", 1, Op::SetAccess(rules)));
    assert_eq!(fixture.requests.waits(), 1, "a waiter is denied at its turn");

    let mut new = fixture.request_from("ann", 2, wait(&["a"], wire::Mode::Exclusive));
    assert_eq!(old.try_recv().unwrap().unwrap_err().error, Code::Denied);
    let answer = new.try_recv();
    assert!(answer.is_err(), "it waits for the shared holder: {answer:?}");
    let queues = ["a", "b"].map(|key| fixture.node.machine().lock(&Key::from(key)).map_or(0, |lock| lock.queue.len()));
    assert_eq!((fixture.requests.waits(), fixture.requests.waits.other_keys(), queues), (1, 0, [1, 0]));
    drop(other);
}

/// Goal: a holder replaces the value of its grant, exactly once; a session that does not hold the lock is told so.
#[test]
fn value_is_proclaimed_once() {
    let mut fixture = Fixture::open();
    let [session, other] = [(); 2].map(|()| fixture.open_session());
    let options = wire::Acquire { session: Some(session), value: Some("old".into()), ..wire::Acquire::default() };
    let token = granted(&mut fixture.request(1, Op::Acquire { keys: "key".into(), options, number: Some(1) })).token;
    let value = |fixture: &Fixture| {
        let lock = fixture.node.machine().lock(&Key::from("key")).unwrap();
        lock.holders[0].value().map(ToString::to_string)
    };
    assert_eq!(value(&fixture).as_deref(), Some("old"));
    let proclaim = |session, token, value: &str, number| {
        let proclamation = wire::Proclaim { session, token, value: value.into() };
        Op::Proclaim { key: "key".into(), proclamation, number: Some(number) }
    };
    for (said, number, expected) in [("one", 2, "one"), ("two", 3, "two"), ("one", 2, "two")] {
        let answer = fixture.request(1, proclaim(session, token, said, number)).try_recv().unwrap();
        assert_eq!((answer.unwrap(), value(&fixture).as_deref()), (Answer::Proclaimed, Some(expected)));
    }
    for (session, token) in [(session, token + 1), (other, token), (SessionId::new(7, [0; 10]).unwrap(), token)] {
        let refused = fixture.request(1, proclaim(session, token, "foreign", 9)).try_recv().unwrap().unwrap_err();
        assert_eq!(refused.error, Code::NotHolder);
    }
    assert_eq!(value(&fixture).as_deref(), Some("two"));
    let long = "v".repeat(limits::VALUE_BYTES + 1);
    let refused = Request::from_wire(proclaim(session, token, &long, 10), &Principal::default()).unwrap_err();
    assert!(refused.message.contains("the value has 4097 bytes; it may have 4096"), "{refused}");
}

/// Goal: a client that may break a lock learns of the other keys of its grant only those that it may read.
#[test]
fn refused_break_names_no_key_that_its_client_may_not_read() {
    let rule = |subject: &str, prefix: &str, right| wire::AccessRule {
        subject: subject.into(),
        prefix: prefix.into(),
        rights: vec![right],
    };
    let mut fixture = Fixture::of(rules::table(vec![
        rule("ann", "", wire::Right::Acquire),
        rule("bob", "ops/", wire::Right::Break),
        rule("bob", "it/", wire::Right::Read),
    ]));
    let mut refusal = |keys: &[&str], key: &str| {
        let acquire = acquire_in(keys, wire::Mode::Exclusive, 0);
        let token = granted(&mut fixture.request_from("ann", 1, acquire)).token;
        let order = wire::Break { token, reason: "it hangs".into() };
        let mut reply = fixture.request_from("bob", 2, Op::Break { key: key.into(), order });
        let refused = reply.try_recv().unwrap().unwrap_err();
        assert_eq!(refused.error, Code::Denied);
        refused.message
    };
    assert_eq!(
        refusal(&["hr/payroll-merger", "ops/a"], "ops/a"),
        "bob may not break ops/a with this token: the grant holds other keys, too, and the access rules do not permit \
         it to break all of them"
    );
    assert_eq!(
        refusal(&["hr/b", "it/b", "ops/b"], "ops/b"),
        "bob may not break it/b: the rule for prefix it/ gives it read"
    );
    assert_eq!(
        refusal(&["hr/a", "hr/c"], "hr/c"),
        "bob may not break hr/c: no rule for this key applies to it",
        "the key of the request decides"
    );
}
