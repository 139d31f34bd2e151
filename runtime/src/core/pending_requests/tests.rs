use palisade_client::wire::{self, Acquired, Answer, Op, SessionId};
use palisade_spec::raft::{Config, Durable, Input, Members, NodeId, Output};
use tokio::sync::oneshot;

use super::*;

type Reply = oneshot::Receiver<Result<Answer, Failure>>;

/// A desk at a node that is its whole cluster: it applies at once what is proposed.
struct Fixture {
    node: Node<LockTable>,
    requests: PendingRequests,
}

impl Fixture {
    fn open() -> Fixture {
        let mut node =
            Node::recover(Config::new(NodeId(1)), Durable::blank(LockTable::default(), Members::of([NodeId(1)])));
        node.step(Input::ElectionTimeout, &mut Vec::new());
        Fixture { node, requests: PendingRequests::new(Metrics::new(), limits::SESSIONS, Space::of_tests(1, 0)) }
    }

    /// A request is taken in, to be proposed in the next round.
    fn take(&mut self, connection: u64, op: Op) -> Reply {
        let (sender, receiver) = oneshot::channel();
        let responder = Responder::once(ConnectionId(connection), sender);
        self.requests.take(&self.node, Request::from_wire(op).unwrap(), responder);
        receiver
    }

    /// The round's proposals reach the node.
    fn propose(&mut self) -> Vec<Output<LockTable>> {
        let mut outputs = Vec::new();
        self.requests.tick(&self.node, Instant::now());
        let proposals = self.requests.proposals();
        if !proposals.is_empty() {
            self.node.step(Input::Propose(proposals), &mut outputs);
        }
        // What one step cannot commit, the next ones do.
        while self.node.commit() < self.node.log().last().index {
            self.node.step(Input::HeartbeatTimeout, &mut outputs);
        }
        outputs.retain(|output| matches!(output, Output::Accepted { .. } | Output::Applied { .. }));
        outputs
    }

    fn carry_out(&mut self, outputs: Vec<Output<LockTable>>) {
        for output in outputs {
            match output {
                Output::Accepted { first, term } => self.requests.accepted(first, term),
                Output::Applied { index, term, outcome, .. } => self.requests.applied(&self.node, index, term, outcome),
                other => unreachable!("{other:?}"),
            }
        }
    }

    fn round(&mut self) {
        let outputs = self.propose();
        self.carry_out(outputs);
    }

    /// A request in a round of its own.
    fn request(&mut self, connection: u64, op: Op) -> Reply {
        let reply = self.take(connection, op);
        self.round();
        reply
    }

    fn open_session(&mut self) -> SessionId {
        let open = wire::OpenSession { ttl_ms: 60_000, owner: String::new() };
        match self.request(1, Op::OpenSession(open)).try_recv() {
            Ok(Ok(Answer::Session(lease))) => lease.session,
            other => panic!("no session: {other:?}"),
        }
    }

    /// Acquires asked for, granted, and run out of time.
    fn counted(&self) -> (u64, u64, u64) {
        let Metrics { acquire_attempts, grants, acquire_timeouts, .. } = &*self.requests.metrics;
        (acquire_attempts.get(), grants.get(), acquire_timeouts.get())
    }
}

/// An acquire that opens a session for itself.
fn acquire(key: &str, wait_ms: u64) -> Op {
    let options = wire::Acquire { wait_ms, ..wire::Acquire::default() };
    Op::Acquire { key: key.to_string(), options, number: None }
}

/// A session's first operation, which may be repeated.
fn first_acquire(session: SessionId, wait_ms: u64) -> Op {
    let options = wire::Acquire { session: Some(session), wait_ms, ..wire::Acquire::default() };
    Op::Acquire { key: "key".to_string(), options, number: Some(1) }
}

fn release(session: SessionId, token: u64) -> Op {
    Op::Release { key: "key".to_string(), grant: wire::Release { session, token }, number: None }
}

fn granted(reply: &mut Reply) -> Acquired {
    match reply.try_recv() {
        Ok(Ok(Answer::Acquired(grant))) => grant,
        other => panic!("not a grant: {other:?}"),
    }
}

/// Goal: what the desk proposes by itself, while the outputs of a round are carried out, is no part of that round's
/// proposals. If it were counted among them, everybody after it would get another one's answer.
#[test]
fn a_withdrawal_in_the_middle_of_a_round_shifts_nobodys_answer() {
    let mut fixture = Fixture::open();
    let mut first = fixture.request(1, acquire("key", 0));
    assert_eq!(granted(&mut first).key, "key");

    // Somebody joins the queue, and is gone when that is applied, in the round in which somebody else asks.
    let waiter = fixture.take(1, acquire("key", 60_000));
    let mut late = fixture.propose();
    let applied = late.split_off(1);
    fixture.carry_out(late);
    drop(waiter);
    let mut second = fixture.take(1, acquire("second", 0));
    let outputs = [applied, fixture.propose()].concat();
    fixture.carry_out(outputs);
    assert_eq!(granted(&mut second).key, "second");

    let mut third = fixture.request(1, acquire("third", 0));
    assert_eq!(granted(&mut third).key, "third");
    assert!(fixture.node.machine().lock(&Key::from("key")).unwrap().queue.is_empty(), "the waiter was withdrawn");
}

/// Goal: an index is answered for the entry that was proposed there, not for one that another leader has put in its place.
#[test]
fn another_leaders_entry_answers_nobody() {
    let mut fixture = Fixture::open();
    let mut reply = fixture.take(1, acquire("key", 0));
    let outputs = fixture.propose();
    for output in outputs {
        let (index, term, outcome) = match output {
            Output::Accepted { first, term } => {
                fixture.requests.accepted(first, term);
                continue;
            }
            Output::Applied { index, term, outcome, .. } => (index, Term(term.0 + 1), outcome),
            other => unreachable!("{other:?}"),
        };
        fixture.requests.applied(&fixture.node, index, term, outcome);
    }
    match reply.try_recv() {
        Ok(Err(failure)) => assert_eq!(failure.error, Code::NoLeader),
        other => panic!("it was answered: {other:?}"),
    }
}

/// Goal: a snapshot that is installed in the round in which the node loses its leadership may include the entry that was
/// proposed, or another leader's entry in its place. To say that nothing was done would be a guess.
#[test]
fn an_entry_that_a_snapshot_covers_has_an_unknown_outcome() {
    let mut fixture = Fixture::open();
    let mut reply = fixture.take(1, acquire("key", 0));
    for output in fixture.propose() {
        match output {
            Output::Accepted { first, term } => fixture.requests.accepted(first, term),
            // The snapshot includes this entry; the first one after it is applied.
            Output::Applied { index, term, outcome, .. } => {
                fixture.requests.applied(&fixture.node, index.next(), Term(term.0 + 1), outcome);
            }
            other => unreachable!("{other:?}"),
        }
    }
    match reply.try_recv() {
        Ok(Err(failure)) => assert_eq!(failure.error, Code::LeadershipLost, "{failure}"),
        other => panic!("it was answered: {other:?}"),
    }
}

/// What the desk proposes by itself at this moment, and the leader refuses.
fn refused(fixture: &mut Fixture, now: Instant) -> Vec<Payload<Command>> {
    fixture.requests.tick(&fixture.node, now);
    let proposals = fixture.requests.proposals();
    if !proposals.is_empty() {
        fixture.requests.refused(None, now);
    }
    proposals
}

/// Goal: nobody repeats for the desk what it proposed by itself and what was refused. It tries again, a moment later and not
/// at once, until it is taken: a wait that ran out is answered, and one whose connection is gone leaves the queue.
#[test]
fn a_withdrawal_that_is_refused_is_proposed_again() {
    let mut fixture = Fixture::open();
    let [holder, patient] = [(); 2].map(|()| fixture.open_session());
    granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let mut short = fixture.request(2, acquire("key", 1000));
    let gone = fixture.request(3, first_acquire(patient, 60_000));
    let mut now = Instant::now() + Duration::from_secs(2);
    assert_eq!(refused(&mut fixture, now).len(), 1, "the short wait ran out");
    assert_eq!(refused(&mut fixture, now), [], "not at once");
    assert_eq!(fixture.requests.next(&fixture.node, now), Some(now + limits::OWN_PROPOSAL_RETRY));

    // The other client goes away meanwhile.
    drop(gone);
    fixture.requests.disconnected(ConnectionId(3), now);
    assert_eq!(refused(&mut fixture, now).len(), 1, "what is new is tried");
    for _ in 0..3 {
        now += limits::OWN_PROPOSAL_RETRY;
        assert_eq!(refused(&mut fixture, now).len(), 2);
    }
    assert_eq!(fixture.requests.waits(), 2);
    now += limits::OWN_PROPOSAL_RETRY;
    fixture.requests.tick(&fixture.node, now);
    fixture.round();
    assert!(matches!(short.try_recv(), Ok(Err(Failure { error: Code::Timeout, .. }))));
    assert_eq!(fixture.requests.waits(), 0);
    assert!(fixture.node.machine().lock(&Key::from("key")).unwrap().queue.is_empty());
}

/// Goal: the session of a wait is renewed by the desk, and by nobody else: a renewal that was refused does not wait for the
/// next one's time.
#[test]
fn a_renewal_that_is_refused_is_proposed_again() {
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

/// Goal: a grant that nobody received, of a session that nobody knows, is given back: also if the leader refuses that at
/// first.
#[test]
fn a_grant_that_nobody_received_is_given_back() {
    let mut fixture = Fixture::open();
    let lost = fixture.take(1, acquire("key", 0));
    let outputs = fixture.propose();
    drop(lost);
    fixture.carry_out(outputs);
    let now = Instant::now();
    assert_eq!(refused(&mut fixture, now).len(), 1);
    assert_eq!(refused(&mut fixture, now).len(), 1);
    fixture.round();
    granted(&mut fixture.request(2, acquire("key", 0)));
}

/// Goal: a wait lasts for those who are still there. Whoever asked for longer, and is gone, does not make them wait longer.
#[test]
fn a_wait_ends_with_the_last_who_is_there() {
    let mut fixture = Fixture::open();
    let [holder, session] = [(); 2].map(|()| fixture.open_session());
    granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let long = fixture.request(2, first_acquire(session, 3_600_000));
    let mut short = fixture.request(3, first_acquire(session, 1000));
    let now = Instant::now() + Duration::from_secs(2);
    fixture.requests.tick(&fixture.node, now);
    assert!(fixture.requests.proposals().is_empty(), "the longer wait goes on, for both");
    drop(long);
    fixture.requests.disconnected(ConnectionId(2), now);
    fixture.requests.tick(&fixture.node, now);
    fixture.round();
    assert!(matches!(short.try_recv(), Ok(Err(Failure { error: Code::Timeout, .. }))));
    assert!(fixture.node.machine().lock(&Key::from("key")).unwrap().queue.is_empty());
}

/// Goal: whoever asks for a place while an earlier wait for it runs out joins that wait. A withdrawal that is applied after
/// the later request would take its place away.
#[test]
fn a_wait_that_runs_out_is_not_withdrawn_under_a_later_request() {
    let mut fixture = Fixture::open();
    let [holder, session] = [(); 2].map(|()| fixture.open_session());
    granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let mut short = fixture.request(2, first_acquire(session, 1000));
    let now = Instant::now() + Duration::from_secs(2);
    let mut long = fixture.take(3, first_acquire(session, 60_000));
    fixture.requests.tick(&fixture.node, now);
    fixture.round();
    assert!(short.try_recv().is_err() && long.try_recv().is_err(), "both wait");
    assert_eq!(fixture.node.machine().lock(&Key::from("key")).unwrap().queue.len(), 1);

    // Together they end with the later one.
    let now = now + Duration::from_secs(60);
    fixture.requests.tick(&fixture.node, now);
    fixture.round();
    for reply in [&mut short, &mut long] {
        assert!(matches!(reply.try_recv(), Ok(Err(Failure { error: Code::Timeout, .. }))));
    }
}

/// Goal: who asks again over another connection keeps its place, although the old connection's end is noticed in the
/// same round.
#[test]
fn a_place_that_is_asked_for_again_is_kept() {
    let mut fixture = Fixture::open();
    let [holder, session] = [(); 2].map(|()| fixture.open_session());
    let grant = granted(&mut fixture.request(1, first_acquire(holder, 0)));
    let _first = fixture.request(2, first_acquire(session, 60_000));
    let mut second = fixture.take(3, first_acquire(session, 60_000));
    fixture.requests.disconnected(ConnectionId(2), Instant::now());
    fixture.round();
    assert!(second.try_recv().is_err(), "it waits");
    drop(fixture.request(4, release(holder, grant.token)));
    assert_eq!(granted(&mut second).session, session);
}

/// Goal: what is counted is acquires, not requests. Who asks again, on the same connection or on another one, and gets a
/// lock or runs out of time, has done so once.
#[test]
fn an_acquire_that_is_repeated_counts_once() {
    let mut fixture = Fixture::open();
    let [holder, waiter, late] = [(); 3].map(|()| fixture.open_session());
    let grants = [1, 1, 2].map(|connection| granted(&mut fixture.request(connection, first_acquire(holder, 0))));
    assert_eq!(fixture.counted(), (1, 1, 0));

    let mut waiting = [1, 1, 2, 2].map(|connection| fixture.request(connection, first_acquire(waiter, 60_000)));
    let mut overdue = [1, 2].map(|connection| fixture.request(connection, first_acquire(late, 1)));
    assert_eq!((fixture.counted(), fixture.requests.waits()), ((3, 1, 0), 2));
    fixture.requests.tick(&fixture.node, Instant::now() + Duration::from_secs(1));
    fixture.round();
    for reply in &mut overdue {
        assert!(matches!(reply.try_recv(), Ok(Err(Failure { error: Code::Timeout, .. }))));
    }
    assert_eq!(fixture.counted(), (3, 1, 1));

    drop(fixture.request(1, release(holder, grants[0].token)));
    assert_eq!(fixture.counted(), (3, 2, 1));
    // Of each connection the last request is answered: it took the place of those before it.
    let answered = waiting.each_mut().map(|reply| matches!(reply.try_recv(), Ok(Ok(Answer::Acquired(_)))));
    assert_eq!(answered, [false, true, false, true]);
}

/// Goal: a release by somebody who does not hold the lock is counted, also if its session is gone. A withdrawal that
/// finds nothing is not: it claims to hold nothing.
#[test]
fn releases_by_those_who_do_not_hold_the_lock_are_counted() {
    let mut fixture = Fixture::open();
    let (session, nobody) = (fixture.open_session(), SessionId::from_u128(7));
    let withdraw = |session| Op::Withdraw { key: "key".to_string(), session, number: None };
    let asked = [(release(session, 1), 1), (release(nobody, 1), 2), (withdraw(session), 2), (withdraw(nobody), 2)];
    for (op, counted) in asked {
        drop(fixture.request(1, op.clone()));
        assert_eq!(fixture.requests.metrics.releases_by_non_owner.get(), counted, "{op:?}");
    }
}

/// Goal: one connection may stand in so many queues and no more, and is told so. Others go on, and so does who asks
/// again for a place that it has.
#[test]
fn the_waits_of_one_connection_have_a_limit() {
    let mut fixture = Fixture::open();
    let [holder, patient] = [(); 2].map(|()| fixture.open_session());
    granted(&mut fixture.request(2, first_acquire(holder, 0)));
    let mut waiting = vec![fixture.request(1, first_acquire(patient, 60_000))];
    waiting.extend((1..limits::CONNECTION_WAITS).map(|_| fixture.take(1, acquire("key", 60_000))));
    fixture.round();
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

/// Goal: the limit on sessions is the one that the node was given; whoever asks for no session of its own goes on.
#[test]
fn sessions_have_the_limit_that_the_node_was_given() {
    let mut fixture = Fixture::open();
    fixture.requests.max_sessions = 2;
    let first = fixture.open_session();
    granted(&mut fixture.request(1, acquire("own", 0)));
    for op in [acquire("other", 0), Op::OpenSession(wire::OpenSession { ttl_ms: 60_000, owner: String::new() })] {
        let refused = fixture.request(1, op).try_recv().unwrap().unwrap_err();
        assert_eq!(refused.error, Code::Limit);
        assert!(refused.message.contains("the limit of 2 sessions"), "{refused}");
    }
    granted(&mut fixture.request(1, first_acquire(first, 0)));
}

/// Goal: without disk space a leader takes nothing on that it would have to end later. Whatever ends something or keeps
/// it goes on: releases, keepalives, closes, withdrawals, and an acquire that finds its own place again.
#[test]
fn no_space_refuses_only_what_is_new() {
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

    for op in [Op::KeepAlive { session: idle }, Op::CloseSession { session: idle }] {
        fixture.request(3, op).try_recv().unwrap().unwrap();
    }
    assert_eq!(granted(&mut fixture.request(3, first_acquire(holder, 0))), grant, "its own lock is found again");
    let mut again = fixture.request(3, first_acquire(waiter, 60_000));
    fixture.request(1, release(holder, grant.token)).try_recv().unwrap().unwrap();
    assert_eq!(granted(&mut again).session, waiter, "a waiter is granted what is released");
    let withdraw = Op::Withdraw { key: "key".to_string(), session: waiter, number: None };
    fixture.request(3, withdraw).try_recv().unwrap().unwrap();

    fixture.requests.space.demand(0);
    granted(&mut fixture.request(1, acquire("own", 0)));
}
