use std::time::Duration;

use palisade_client::wire::{self, Acquired, Answer, MemberChange, Op, SessionId};
use palisade_spec::lock::{Key, Principal};
use palisade_spec::raft::{Config, Durable, Input, Members, NodeId, Output, Refusal};
use tokio::sync::oneshot;

use super::*;

mod claims;
mod clients;
mod credentials;

type Reply = oneshot::Receiver<Result<Answer, Failure>>;

/// Pending requests at a single-node cluster, which commits its proposals at once.
struct Fixture {
    node: Node<LockTable>,
    requests: PendingRequests,
}

impl Fixture {
    fn open() -> Fixture {
        Fixture::of(LockTable::default())
    }

    fn of(table: LockTable) -> Fixture {
        let mut node = Node::recover(Config::new(NodeId(1)), Durable::blank(table, Members::of([NodeId(1)])));
        node.step(Input::ElectionTimeout, &mut Vec::new());
        Fixture { node, requests: PendingRequests::new(Metrics::new(), Quotas::default(), Space::of_tests(1, 0)) }
    }

    /// Takes a request, to be proposed in the next iteration.
    fn take(&mut self, connection: u64, op: Op) -> Reply {
        self.take_from("", connection, op)
    }

    /// Takes a request of this client.
    fn take_from(&mut self, client: &str, connection: u64, op: Op) -> Reply {
        let (responder, receiver) = responder(connection);
        self.requests.take(&self.node, Request::from_wire(op, &Principal::from(client)).unwrap(), responder);
        receiver
    }

    /// Steps the node with the iteration's proposals.
    fn propose(&mut self) -> Vec<Output<LockTable>> {
        let mut outputs = Vec::new();
        self.requests.tick(&self.node, Instant::now());
        if let Some(proposals) = self.requests.proposals() {
            self.node.step(proposals, &mut outputs);
        }
        // One step commits a bounded number of entries; the next steps commit the rest.
        while self.node.commit() < self.node.log().last().index {
            self.node.step(Input::HeartbeatTimeout, &mut outputs);
        }
        outputs.retain(|output| matches!(output, Output::Accepted { .. } | Output::Applied { .. }));
        outputs
    }

    fn execute(&mut self, outputs: Vec<Output<LockTable>>) {
        for output in outputs {
            match output {
                Output::Accepted { id, first, term } => self.requests.accepted(id, first, term),
                Output::Applied { index, term, outcome, .. } => {
                    self.requests.applied(&self.node, index, term, outcome);
                }
                other => unreachable!("{other:?}"),
            }
        }
    }

    fn run_iteration(&mut self) {
        let outputs = self.propose();
        self.execute(outputs);
    }

    /// A request in an iteration of its own.
    fn request(&mut self, connection: u64, op: Op) -> Reply {
        let reply = self.take(connection, op);
        self.run_iteration();
        reply
    }

    fn request_from(&mut self, client: &str, connection: u64, op: Op) -> Reply {
        let reply = self.take_from(client, connection, op);
        self.run_iteration();
        reply
    }

    fn open_session(&mut self) -> SessionId {
        self.open_session_for("")
    }

    fn open_session_for(&mut self, client: &str) -> SessionId {
        let open = wire::OpenSession { ttl_ms: 60_000, owner: String::new() };
        match self.request_from(client, 1, Op::OpenSession(open)).try_recv() {
            Ok(Ok(Answer::Session(lease))) => lease.session,
            other => panic!("no session: {other:?}"),
        }
    }

    fn disconnect(&mut self, connection: u64) {
        self.requests.disconnected(ConnectionId(connection), Instant::now());
        self.run_iteration();
    }

    /// Counts of acquires requested, granted, and timed out.
    fn counted(&self) -> (u64, u64, u64) {
        let Metrics { acquire_attempts, grants, acquire_timeouts, .. } = &*self.requests.metrics;
        (acquire_attempts.get(), grants.get(), acquire_timeouts.get())
    }
}

/// The responder of a request of this connection, and where its answer arrives.
fn responder(connection: u64) -> (Responder, Reply) {
    let (sender, receiver) = oneshot::channel();
    (Responder::once(ConnectionId(connection), Instant::now(), sender), receiver)
}

/// An acquire that opens a session for itself.
fn acquire(key: &str, wait_ms: u64) -> Op {
    let options = wire::Acquire { wait_ms, ..wire::Acquire::default() };
    Op::Acquire { keys: key.into(), options, number: None }
}

/// A session's first operation, which may be repeated.
fn first_acquire(session: SessionId, wait_ms: u64) -> Op {
    let options = wire::Acquire { session: Some(session), wait_ms, ..wire::Acquire::default() };
    Op::Acquire { keys: "key".into(), options, number: Some(1) }
}

fn release(session: SessionId, token: u64) -> Op {
    Op::Release { keys: "key".into(), grant: wire::Release { session, token }, number: None }
}

fn granted(reply: &mut Reply) -> Acquired {
    match reply.try_recv() {
        Ok(Ok(Answer::Acquired(grant))) => grant,
        other => panic!("not a grant: {other:?}"),
    }
}

/// Goal: a proposal that the node makes by itself, while it executes the outputs of an iteration,
/// is not one of that iteration's proposals. If it were counted among them, every later
/// requester would get the answer of another one.
#[test]
fn withdrawal_during_outputs_is_not_answered_as_a_proposal_of_the_iteration() {
    let mut fixture = Fixture::open();
    let mut first = fixture.request(1, acquire("key", 0));
    assert_eq!(granted(&mut first).keys.single(), Some("key"));

    // A client joins the queue, and is gone when that is applied, in the iteration in which another
    // client makes a request.
    let waiter = fixture.take(1, acquire("key", 60_000));
    let mut late = fixture.propose();
    let applied = late.split_off(1);
    fixture.execute(late);
    drop(waiter);
    let mut second = fixture.take(1, acquire("second", 0));
    let outputs = [applied, fixture.propose()].concat();
    fixture.execute(outputs);
    assert_eq!(granted(&mut second).keys.single(), Some("second"));

    let mut third = fixture.request(1, acquire("third", 0));
    assert_eq!(granted(&mut third).keys.single(), Some("third"));
    assert!(fixture.node.machine().lock(&Key::from("key")).unwrap().queue.is_empty(), "the waiter was withdrawn");
}

/// Goal: a reply answers the request that it names, in whatever order replies come. A reply to a
/// request that has no requester here is dropped.
#[test]
fn reply_answers_the_request_that_it_names() {
    let mut fixture = Fixture::open();
    let failed = |reply: &mut Reply| reply.try_recv().ok().map(|answer| answer.unwrap_err().error);

    let mut transfers = [2, 3, 4].map(|to| fixture.take(1, Op::Transfer(wire::Transfer { to: Some(to) })));
    let ids = [(); 3].map(|()| fixture.requests.next_transfer(&fixture.node).unwrap().0);
    fixture.requests.transfer_refused(&fixture.node, ids[1], true, None);
    assert_eq!(transfers.each_mut().map(failed), [None, Some(Code::NoMember), None]);

    let mut changes = [2, 3].map(|id| fixture.take(1, Op::ChangeMembers(MemberChange::Promote { id })));
    let ids = [(); 2].map(|()| fixture.requests.change(&fixture.node).unwrap().0);
    fixture.requests.change_refused(&fixture.node, ids[1], Refusal::NotThere, None);
    assert_eq!(changes.each_mut().map(failed), [None, Some(Code::NoMember)]);
    fixture.requests.change_loses_majority(ids[0], &[NodeId(3)]);
    assert_eq!(failed(&mut changes[0]), Some(Code::NoMajority));

    let mut reads = [(); 2].map(|()| {
        let read = fixture.take(1, Op::ShowLock { key: "key".into(), consistency: Consistency::Linearizable });
        let Some(id) = fixture.requests.read() else { panic!("a read was requested") };
        (read, id)
    });
    fixture.requests.read_refused(reads[1].1, None);
    assert_eq!(reads.each_mut().map(|(read, _)| failed(read)), [None, Some(Code::NoLeader)]);

    let mut acquire = fixture.take(1, acquire("key", 0));
    let Some(Input::Propose { id, .. }) = fixture.requests.proposals() else { panic!("an acquire was requested") };
    let stepped_by_hand = fixture.requests.next_id();
    fixture.requests.accepted(stepped_by_hand, Index(7), Term(1));
    fixture.requests.refused(stepped_by_hand, None, Instant::now());
    assert!(fixture.requests.inflight.is_empty());
    assert_eq!(failed(&mut acquire), None);
    fixture.requests.refused(id, None, Instant::now());
    assert_eq!(failed(&mut acquire), Some(Code::NoLeader));
}

/// Goal: an index answers the request that was proposed there only if the entry is of the same
/// term, not one that another leader has put in its place.
#[test]
fn entry_of_another_term_does_not_answer_the_request() {
    let mut fixture = Fixture::open();
    let mut reply = fixture.take(1, acquire("key", 0));
    let outputs = fixture.propose();
    for output in outputs {
        let (index, term, outcome) = match output {
            Output::Accepted { id, first, term } => {
                fixture.requests.accepted(id, first, term);
                continue;
            }
            Output::Applied { index, term, outcome, .. } => (index, Term(term.0 + 1), outcome),
            other => unreachable!("{other:?}"),
        };
        fixture.requests.applied(&fixture.node, index, term, outcome);
    }
    match reply.try_recv() {
        Ok(Err(failure)) => assert_eq!(failure.error, Code::NoLeader),
        other => panic!("the request was answered with {other:?}"),
    }
}

/// Goal: a snapshot that is installed in the iteration in which the node loses leadership may
/// include the proposed entry, or another leader's entry in its place. The outcome is unknown, so
/// the answer must not claim that nothing was done.
#[test]
fn entry_included_in_a_snapshot_has_an_unknown_outcome() {
    let mut fixture = Fixture::open();
    let mut reply = fixture.take(1, acquire("key", 0));
    for output in fixture.propose() {
        match output {
            Output::Accepted { id, first, term } => fixture.requests.accepted(id, first, term),
            // The snapshot includes this entry; the first one after it is applied.
            Output::Applied { index, term, outcome, .. } => {
                fixture.requests.applied(&fixture.node, index.next(), Term(term.0 + 1), outcome);
            }
            other => unreachable!("{other:?}"),
        }
    }
    match reply.try_recv() {
        Ok(Err(failure)) => assert_eq!(failure.error, Code::LeadershipLost, "{failure}"),
        other => panic!("the request was answered with {other:?}"),
    }
}

/// The proposals that the node makes by itself at this moment, and rejects.
fn refused(fixture: &mut Fixture, now: Instant) -> Vec<Payload<Command>> {
    fixture.requests.tick(&fixture.node, now);
    let Some(Input::Propose { id, payloads }) = fixture.requests.proposals() else { return Vec::new() };
    fixture.requests.refused(id, None, now);
    payloads
}

/// Goal: no client repeats a rejected proposal of the node's own. The node repeats it, after a
/// pause and not at once, until it is accepted: a wait that timed out is answered, and one without
/// a connection leaves the queue.
#[test]
fn rejected_withdrawal_is_proposed_again() {
    let mut fixture = Fixture::open();
    let [holder, patient] = [(); 2].map(|()| fixture.open_session());
    granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let mut short = fixture.request(2, acquire("key", 1000));
    let gone = fixture.request(3, first_acquire(patient, 60_000));
    let mut now = Instant::now() + Duration::from_secs(2);
    assert_eq!(refused(&mut fixture, now).len(), 1, "the short wait ran out");
    assert_eq!(refused(&mut fixture, now), [], "the node does not repeat its proposal at once");
    assert_eq!(fixture.requests.next(&fixture.node, now), Some(now + limits::OWN_PROPOSAL_RETRY));

    // Meanwhile the other client disconnects.
    drop(gone);
    fixture.requests.disconnected(ConnectionId(3), now);
    assert_eq!(refused(&mut fixture, now).len(), 1, "a new withdrawal is proposed at once");
    for _ in 0..3 {
        now += limits::OWN_PROPOSAL_RETRY;
        assert_eq!(refused(&mut fixture, now).len(), 2);
    }
    assert_eq!(fixture.requests.waits(), 2);
    now += limits::OWN_PROPOSAL_RETRY;
    fixture.requests.tick(&fixture.node, now);
    fixture.run_iteration();
    assert!(matches!(short.try_recv(), Ok(Err(Failure { error: Code::Timeout, .. }))));
    assert_eq!(fixture.requests.waits(), 0);
    assert!(fixture.node.machine().lock(&Key::from("key")).unwrap().queue.is_empty());
}

/// Goal: only the node renews the session of a wait, so a rejected renewal does not wait for the
/// next renewal's time.
#[test]
fn rejected_renewal_is_proposed_again() {
    let mut fixture = Fixture::open();
    granted(&mut fixture.request(1, acquire("key", 0)));
    let asked = Instant::now();
    let _waiting = fixture.request(2, acquire("key", 3_600_000));
    let ttl = Duration::from_millis(wire::Acquire::default().ttl_ms);
    let now = asked + ttl / 3 + Duration::from_secs(1);
    let renewal = refused(&mut fixture, now);
    assert!(matches!(renewal[..], [Payload::Command(Command::KeepAlive { .. })]), "{renewal:?}");
    let again = now + limits::OWN_PROPOSAL_RETRY;
    assert_eq!(fixture.requests.next(&fixture.node, now), Some(again));
    assert_eq!(refused(&mut fixture, again), renewal);
}

/// Goal: a grant that reached no client, of a session that no client knows, is released: also if
/// the leader first rejects the close.
#[test]
fn undelivered_grant_of_a_once_session_is_released() {
    let mut fixture = Fixture::open();
    let lost = fixture.take(1, acquire("key", 0));
    let outputs = fixture.propose();
    drop(lost);
    fixture.execute(outputs);
    let now = Instant::now();
    assert_eq!(refused(&mut fixture, now).len(), 1);
    assert_eq!(refused(&mut fixture, now).len(), 1);
    fixture.run_iteration();
    granted(&mut fixture.request(2, acquire("key", 0)));
}

/// Goal: a holder keeps its lock when the answer to another acquire of its session is lost: it knows the session, which its
/// first acquire has opened for itself, and may find the grant by repeating the request.
#[test]
fn lost_answer_ends_no_session_that_its_client_knows() {
    for hangs_up in [false, true] {
        let mut fixture = Fixture::open();
        let lease = granted(&mut fixture.request(1, acquire("first", 0)));
        let holder = fixture.open_session();
        let grant = granted(&mut fixture.request(2, first_acquire(holder, 0)));
        let options = wire::Acquire { session: Some(lease.session), wait_ms: 60_000, ..wire::Acquire::default() };
        let waits = fixture.request(3, Op::Acquire { keys: "key".into(), options, number: None });
        drop(waits);
        if hangs_up {
            // The node has learned of it, and has not proposed the withdrawal yet.
            fixture.requests.disconnected(ConnectionId(3), Instant::now());
        }
        let _released = fixture.take(2, release(holder, grant.token));
        let outputs = {
            let mut outputs = Vec::new();
            let proposals = fixture.requests.proposals().expect("the release");
            fixture.node.step(proposals, &mut outputs);
            outputs.retain(|output| matches!(output, Output::Accepted { .. } | Output::Applied { .. }));
            outputs
        };
        fixture.execute(outputs);
        fixture.run_iteration();
        fixture.run_iteration();
        assert!(fixture.node.machine().lock(&Key::from("first")).is_some(), "{hangs_up}");
    }
}

/// Goal: a wait ends with the latest timeout of its connected clients. A disconnected client that
/// asked for a longer wait does not extend it.
#[test]
fn wait_ends_with_its_last_connected_client() {
    let mut fixture = Fixture::open();
    let [holder, session] = [(); 2].map(|()| fixture.open_session());
    granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let long = fixture.request(2, first_acquire(session, 3_600_000));
    let mut short = fixture.request(3, first_acquire(session, 1000));
    let now = Instant::now() + Duration::from_secs(2);
    fixture.requests.tick(&fixture.node, now);
    assert!(fixture.requests.proposals().is_none(), "both wait until the later timeout");
    drop(long);
    fixture.requests.disconnected(ConnectionId(2), now);
    fixture.requests.tick(&fixture.node, now);
    fixture.run_iteration();
    assert!(matches!(short.try_recv(), Ok(Err(Failure { error: Code::Timeout, .. }))));
    assert!(fixture.node.machine().lock(&Key::from("key")).unwrap().queue.is_empty());
}

/// Goal: a request for a slot whose earlier wait is timing out joins that wait. A withdrawal
/// applied after the later request would remove its claim.
#[test]
fn later_request_joins_a_wait_that_times_out() {
    let mut fixture = Fixture::open();
    let [holder, session] = [(); 2].map(|()| fixture.open_session());
    granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let mut short = fixture.request(2, first_acquire(session, 1000));
    let now = Instant::now() + Duration::from_secs(2);
    let mut long = fixture.take(3, first_acquire(session, 60_000));
    fixture.requests.tick(&fixture.node, now);
    fixture.run_iteration();
    assert!(short.try_recv().is_err() && long.try_recv().is_err(), "both wait");
    assert_eq!(fixture.node.machine().lock(&Key::from("key")).unwrap().queue.len(), 1);

    // Both end with the later timeout.
    let now = now + Duration::from_secs(60);
    fixture.requests.tick(&fixture.node, now);
    fixture.run_iteration();
    for reply in [&mut short, &mut long] {
        assert!(matches!(reply.try_recv(), Ok(Err(Failure { error: Code::Timeout, .. }))));
    }
}

/// Goal: a client that repeats its request over another connection keeps its slot, although the end
/// of the old connection is noticed in the same iteration.
#[test]
fn repeated_request_keeps_its_slot() {
    let mut fixture = Fixture::open();
    let [holder, session] = [(); 2].map(|()| fixture.open_session());
    let grant = granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let _first = fixture.request(2, first_acquire(session, 60_000));
    let mut second = fixture.take(3, first_acquire(session, 60_000));
    fixture.requests.disconnected(ConnectionId(2), Instant::now());
    fixture.run_iteration();
    assert!(second.try_recv().is_err(), "the repeated request waits");
    drop(fixture.request(4, release(holder, grant.token)));
    assert_eq!(granted(&mut second).session, session);
}

/// Goal: the metrics count acquires, not requests. An acquire that is repeated, on the same
/// connection or on another one, and is granted or times out, counts once.
#[test]
fn repeated_acquire_counts_once() {
    let mut fixture = Fixture::open();
    let [holder, waiter, late] = [(); 3].map(|()| fixture.open_session());
    let grants = [1, 1, 2].map(|connection| granted(&mut fixture.request(connection, first_acquire(holder, 0))));
    assert_eq!(fixture.counted(), (1, 1, 0));

    let mut waiting = [1, 1, 2, 2].map(|connection| fixture.request(connection, first_acquire(waiter, 60_000)));
    let mut overdue = [1, 2].map(|connection| fixture.request(connection, first_acquire(late, 1)));
    assert_eq!((fixture.counted(), fixture.requests.waits()), ((3, 1, 0), 2));
    fixture.requests.tick(&fixture.node, Instant::now() + Duration::from_secs(1));
    fixture.run_iteration();
    for reply in &mut overdue {
        assert!(matches!(reply.try_recv(), Ok(Err(Failure { error: Code::Timeout, .. }))));
    }
    assert_eq!(fixture.counted(), (3, 1, 1));

    drop(fixture.request(1, release(holder, grants[0].token)));
    assert_eq!(fixture.counted(), (3, 2, 1));
    // Only the last request of each connection is answered: it replaced the earlier ones.
    let answered = waiting.each_mut().map(|reply| matches!(reply.try_recv(), Ok(Ok(Answer::Acquired(_)))));
    assert_eq!(answered, [false, true, false, true]);
}

/// Goal: a release by a session that does not hold the lock is counted, also if the session has
/// ended. A withdrawal that finds no claim is not counted: it does not claim to hold the lock.
#[test]
fn releases_by_non_holders_are_counted() {
    let mut fixture = Fixture::open();
    let (session, unknown) = (fixture.open_session(), SessionId::new(7, [0; 10]).unwrap());
    let withdraw = |session| Op::Withdraw { keys: "key".into(), session, number: None };
    let asked = [(release(session, 1), 1), (release(unknown, 1), 2), (withdraw(session), 2), (withdraw(unknown), 2)];
    for (op, counted) in asked {
        drop(fixture.request(1, op.clone()));
        assert_eq!(fixture.requests.metrics.releases_by_non_owner.get(), counted, "{op:?}");
    }
}

/// Goal: the number of waits of one connection is limited, and the error names the limit. Other
/// connections are not affected, nor is a repeated request for a slot that the connection already
/// waits for.
#[test]
fn waits_of_one_connection_are_limited() {
    let mut fixture = Fixture::open();
    let [holder, patient] = [(); 2].map(|()| fixture.open_session());
    granted(&mut fixture.request(2, first_acquire(holder, 0)));
    let mut waiting = vec![fixture.request(1, first_acquire(patient, 60_000))];
    waiting.extend((1..limits::CONNECTION_WAITS).map(|_| fixture.take(1, acquire("key", 60_000))));
    fixture.run_iteration();
    assert_eq!(fixture.requests.waits(), limits::CONNECTION_WAITS);

    let refused = fixture.request(1, acquire("other", 60_000)).try_recv().unwrap().unwrap_err();
    assert_eq!(refused.error, Code::Limit);
    assert!(refused.message.contains("waiting acquires of one connection"), "{refused}");
    granted(&mut fixture.request(1, acquire("not waiting", 0)));
    granted(&mut fixture.request(2, acquire("other", 60_000)));
    let mut again = fixture.request(1, first_acquire(patient, 60_000));
    drop(fixture.request(2, release(holder, 1)));
    granted(&mut again);
}

/// Goal: the limit on sessions is the configured one; requests that open no session are not
/// affected.
#[test]
fn sessions_have_the_configured_limit() {
    let mut fixture = Fixture::open();
    fixture.requests.quotas.max_sessions = 2;
    let first = fixture.open_session();
    granted(&mut fixture.request(1, acquire("own", 0)));
    for op in [acquire("other", 0), Op::OpenSession(wire::OpenSession { ttl_ms: 60_000, owner: String::new() })] {
        let refused = fixture.request(1, op).try_recv().unwrap().unwrap_err();
        assert_eq!(refused.error, Code::Limit);
        assert!(refused.message.contains("the limit of 2 sessions"), "{refused}");
    }
    granted(&mut fixture.request(1, first_acquire(first, 0)));
}

/// Goal: without disk space a leader accepts nothing that it would have to end later. It accepts
/// whatever ends or keeps something: releases, keepalives, closes, withdrawals, and a repeated
/// acquire that finds its claim.
#[test]
fn no_space_refuses_only_new_claims_and_sessions() {
    let mut fixture = Fixture::open();
    let [holder, waiter, idle] = [(); 3].map(|()| fixture.open_session());
    let grant = granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let _first = fixture.request(2, first_acquire(waiter, 60_000));

    fixture.requests.space.demand(2);
    let mut refused = 0;
    let open = Op::OpenSession(wire::OpenSession { ttl_ms: 60_000, owner: String::new() });
    for op in [open, acquire("own", 0), acquire("own", 60_000), first_acquire(idle, 0), first_acquire(idle, 60_000)] {
        let failure = fixture.request(3, op).try_recv().unwrap().unwrap_err();
        assert_eq!(failure.error, Code::NoSpace);
        assert!(failure.message.contains("1 bytes are free, and 2 are needed"), "{failure}");
        refused += 1;
        assert_eq!(fixture.requests.metrics.refused_no_space.get(), refused);
    }

    // Values take space, too; a repetition brings none.
    let asks = |value: Option<&str>| {
        let (session, value) = (Some(holder), value.map(Into::into));
        let options = wire::Acquire { session, value, ..wire::Acquire::default() };
        Op::Acquire { keys: "key".into(), options, number: None }
    };
    let proclamation = wire::Proclaim { session: holder, token: grant.token, value: "new".into() };
    for op in [asks(Some("new")), Op::Proclaim { key: "key".into(), proclamation, number: None }] {
        assert_eq!(fixture.request(1, op).try_recv().unwrap().unwrap_err().error, Code::NoSpace);
    }
    assert_eq!(granted(&mut fixture.request(1, asks(None))), grant);

    for op in [Op::KeepAlive { session: idle }, Op::CloseSession { session: idle }] {
        fixture.request(3, op).try_recv().unwrap().unwrap();
    }
    assert_eq!(granted(&mut fixture.request(3, first_acquire(holder, 0))), grant, "a repeated acquire finds its lock");
    let mut again = fixture.request(3, first_acquire(waiter, 60_000));
    fixture.request(1, release(holder, grant.token)).try_recv().unwrap().unwrap();
    assert_eq!(granted(&mut again).session, waiter, "a waiter is granted what is released");
    let withdraw = Op::Withdraw { keys: "key".into(), session: waiter, number: None };
    fixture.request(3, withdraw).try_recv().unwrap().unwrap();

    fixture.requests.space.demand(0);
    granted(&mut fixture.request(1, acquire("own", 0)));
}
