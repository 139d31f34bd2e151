//! The engine on a machine that is suspended: its clock jumps between two events, and no timer knows.

use futures_util::FutureExt;

use super::*;
use crate::clock::fake;
use crate::wire::{self, Acquired, Condition, Failure, RecordChange, Request, SessionLease, UNASKED};

mod holds;

const TTL: Duration = Duration::from_secs(30);

fn session(number: u64) -> SessionId {
    SessionId::new(number, [7; 10]).expect("it is small")
}

/// An engine with a connection, one guard that it has handed out, and what the server is asked.
struct Fixture {
    engine: Engine,
    commands: mpsc::UnboundedSender<Command>,
    inbox: mpsc::UnboundedReceiver<Command>,
    guard: Guard,
}

impl Fixture {
    fn with_guard(ttl: Duration) -> Fixture {
        let mut engine = Engine::new(Options::default(), fake::clock);
        let (commands, inbox) = mpsc::unbounded_channel();
        let (reply, mut answer) = oneshot::channel();
        let (spec, owner) = (LockSpec::exclusive("key"), String::new());
        let request = LockRequest { claim: 1, spec, ttl, wait: Wait::No, owner, reply, commands: commands.clone() };
        engine.connected(fake::clock(), "node");
        engine.command(fake::clock(), Command::Lock(request));
        let (session, ttl_ms) = (session(7), millis(ttl));
        answer_all(&mut engine, |op| match op {
            Op::OpenSession(_) => Some(Answer::Session(SessionLease { session, ttl_ms })),
            _ => None,
        });
        answer_all(&mut engine, |op| match op {
            Op::Acquire { keys, .. } => {
                Some(Answer::Acquired(Acquired { keys, token: 1, session, ttl_ms, signed: Vec::new() }))
            }
            _ => None,
        });
        let guard = answer.try_recv().expect("it was answered").expect("it is granted");
        assert!(guard.is_valid());
        Fixture { engine, commands, inbox, guard }
    }

    /// What the engine does when its loop runs again, and the keep-alives that it sends then.
    fn advance(&mut self) -> Vec<u64> {
        self.engine.advance(fake::clock());
        let requests = requests(&mut self.engine).into_iter();
        requests.filter(|request| matches!(request.op, Op::KeepAlive { .. })).map(|request| request.id).collect()
    }

    fn proclaim(&mut self, value: &str) -> oneshot::Receiver<Result<Answer, Error>> {
        self.write(Write::Value(value.into()))
    }

    fn write(&mut self, what: Write) -> oneshot::Receiver<Result<Answer, Error>> {
        let (reply, answer) = oneshot::channel();
        self.engine.command(fake::clock(), Command::Write { claim: 1, what, reply });
        answer
    }

    /// Asks for one more hold, as [`Guard::hold_again`] does.
    fn hold_again(&mut self) -> oneshot::Receiver<Result<Guard, Error>> {
        drop(self.guard.hold_again().now_or_never());
        let Ok(Command::Hold { guard, .. }) = self.inbox.try_recv() else { panic!("it asks for a hold") };
        let (reply, answer) = oneshot::channel();
        self.engine.command(fake::clock(), Command::Hold { guard, reply });
        answer
    }

    /// A guard that has one more hold.
    fn another_guard(&mut self) -> Guard {
        let mut answer = self.hold_again();
        let asked = self.asked();
        receive(&mut self.engine, asked.id, Outcome::Ok(acquired(1)));
        answer.try_recv().expect("it was answered").expect("it is granted")
    }

    /// Passes on what guards have said that were dropped.
    fn drops(&mut self) {
        while let Ok(command) = self.inbox.try_recv() {
            self.engine.command(fake::clock(), command);
        }
    }

    /// The only request that is sent, apart from keep-alives and questions about the cluster.
    fn asked(&mut self) -> Request {
        self.engine.advance(fake::clock());
        let mut asked = requests(&mut self.engine);
        asked.retain(|request| !matches!(request.op, Op::KeepAlive { .. } | Op::Status));
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.pop().expect("there is one")
    }

    /// Asks for another lock, in a session of its own.
    fn lock(&mut self, key: &str, wait: Wait) -> oneshot::Receiver<Result<Guard, Error>> {
        let (reply, answer) = oneshot::channel();
        let (spec, owner, commands) = (LockSpec::exclusive(key), "another".to_owned(), self.commands.clone());
        let request = LockRequest { claim: 2, spec, ttl: TTL, wait, owner, reply, commands };
        self.engine.command(fake::clock(), Command::Lock(request));
        answer
    }

    /// Asks for something that concerns no claim.
    fn call(&mut self, op: &Op) -> oneshot::Receiver<Result<Answer, Error>> {
        let (reply, answer) = oneshot::channel();
        let call = Command::Call { op: op.clone(), within: Options::default().request_timeout, reply };
        self.engine.command(fake::clock(), call);
        answer
    }

    /// The requests with this operation that are sent now.
    fn sent(&mut self, op: &Op) -> Vec<u64> {
        self.engine.advance(fake::clock());
        let sent = requests(&mut self.engine).into_iter().filter(|request| request.op == *op);
        sent.map(|request| request.id).collect()
    }

    fn keep_alive(&mut self, id: u64) {
        let session = self.guard.session();
        let lease = SessionLease { session, ttl_ms: millis(TTL) };
        receive(&mut self.engine, id, Outcome::Ok(Answer::Session(lease)));
    }
}

fn acquired(token: u64) -> Answer {
    let (keys, session) = ("key".into(), session(7));
    Answer::Acquired(Acquired { keys, token, session, ttl_ms: millis(TTL), signed: Vec::new() })
}

fn requests(engine: &mut Engine) -> Vec<Request> {
    let frames = engine.outbox().drain(..).filter_map(|outgoing| match outgoing {
        Outgoing::Frame(frame) => Some(frame),
        Outgoing::Text(_) | Outgoing::Ping => None,
    });
    frames.map(|frame| codec::decode(&frame).expect("a request")).collect()
}

fn receive(engine: &mut Engine, id: u64, result: Outcome) {
    let mut frame = Vec::new();
    codec::encode_into(&Response { id, result }, &mut frame);
    engine.received(fake::clock(), &Incoming::Frame(frame.into()));
}

fn answer_all(engine: &mut Engine, answer: impl Fn(Op) -> Option<Answer>) {
    for Request { id, op } in requests(engine) {
        let answer = answer(op).expect("an answer");
        receive(engine, id, Outcome::Ok(answer));
    }
}

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

impl LockSpec {
    fn exclusive(key: &str) -> LockSpec {
        LockSpec { keys: key.into(), share: Share::default(), max_queue: None, value: None }
    }
}
