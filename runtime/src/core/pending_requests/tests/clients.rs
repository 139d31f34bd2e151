//! Limits of one client, a principal or an address, at the leader.

use futures_util::FutureExt;
use palisade_spec::lock::Principal;

use super::*;
use crate::accounts::{AccountName, Accounts, ClientLimits};
use crate::addresses::ClientAddress;

fn clients() -> [AccountName; 2] {
    let address = ClientAddress::of([10, 0, 0, 7].into());
    [AccountName::Principal("worker".into()), AccountName::Address(address)]
}

impl Fixture {
    /// A request of this client, in an iteration of its own.
    fn request_of(&mut self, client: &AccountName, connection: u64, op: Op) -> Reply {
        let (responder, receiver) = responder(connection);
        let request = Request::from_wire(op, &Principal::default()).unwrap();
        self.requests.take(&self.node, request, responder.of(Some(client.clone()), None));
        self.run_iteration();
        receiver
    }

    #[track_caller]
    fn refusal(&mut self, client: &AccountName, connection: u64, op: Op) -> String {
        let failure = self.request_of(client, connection, op).try_recv().unwrap().unwrap_err();
        assert_eq!(failure.error, Code::Limit);
        failure.message
    }

    /// The leader after this one, with its table.
    fn next_leader(&self) -> Fixture {
        let mut fixture = Fixture::of(self.node.machine().clone());
        fixture.requests.quotas = self.requests.quotas;
        fixture.begin_to_lead();
        fixture
    }

    fn begin_to_lead(&mut self) {
        self.requests.began_to_lead(Instant::now());
        self.requests.recount_sessions(&self.node);
    }
}

fn open() -> Op {
    Op::OpenSession(wire::OpenSession { ttl_ms: 60_000, owner: String::new() })
}

/// Goal: a client opens as many sessions as it may, by itself or by acquires; another client's are counted
/// apart, and a session that has ended makes room.
#[test]
fn sessions_of_one_client_are_limited() {
    let mut fixture = Fixture::open();
    fixture.requests.quotas.max_sessions_per_client = Some(2);
    let [worker, address] = clients();
    let opened = fixture.request_of(&worker, 1, open()).try_recv();
    let Ok(Ok(Answer::Session(lease))) = opened else { panic!("no session: {opened:?}") };
    granted(&mut fixture.request_of(&worker, 2, acquire("own", 0)));
    for op in [open(), acquire("other", 0)] {
        let message = fixture.refusal(&worker, 3, op);
        assert!(message.contains("2 sessions of one client is reached by client `worker`"), "{message}");
        assert!(message.contains("--max-sessions-per-client"), "{message}");
    }
    granted(&mut fixture.request_of(&address, 3, acquire("other", 0)));
    granted(&mut fixture.request_of(&worker, 3, first_acquire(lease.session, 0)));
    fixture.request_of(&worker, 3, Op::CloseSession { session: lease.session }).try_recv().unwrap().unwrap();
    fixture.request_of(&worker, 3, open()).try_recv().unwrap().unwrap();
    fixture.refusal(&worker, 3, open());
}

/// Goal: a change of leader gives a principal no further sessions: the new leader counts those that it has, until they
/// end.
#[test]
fn sessions_of_a_principal_count_at_the_next_leader() {
    let mut before = Fixture::open();
    before.requests.quotas.max_sessions_per_client = Some(2);
    let sessions = [(); 2].map(|()| before.open_session_for("worker"));
    let mut fixture = before.next_leader();
    let [worker, address] = clients();
    let message = fixture.refusal(&worker, 1, open());
    assert!(message.contains("2 sessions of one client is reached by client `worker`"), "{message}");
    fixture.request_of(&address, 2, open()).try_recv().unwrap().unwrap();
    let close = Op::CloseSession { session: sessions[0] };
    fixture.request_from("worker", 1, close).try_recv().unwrap().unwrap();
    fixture.request_of(&worker, 1, open()).try_recv().unwrap().unwrap();
    fixture.refusal(&worker, 1, open());
}

/// Goal: the next leader knows no addresses of the sessions that it finds. An address may open its share of what they
/// leave, so that it cannot open all sessions by changes of the leader; a principal has its share of all.
#[test]
fn sessions_of_unknown_addresses_leave_a_share_of_the_rest() {
    let mut before = Fixture::open();
    before.requests.quotas.max_sessions = 40;
    let [worker, address] = clients();
    let opened = |fixture: &mut Fixture, client: &AccountName| {
        (0..).find(|_| fixture.request_of(client, 1, open()).try_recv().unwrap().is_err()).unwrap()
    };
    for _ in 0..20 {
        before.open_session();
    }
    let mut fixture = before.next_leader();
    assert_eq!([opened(&mut fixture, &address), opened(&mut fixture, &worker)], [2, 4]);
    let message = fixture.refusal(&address, 1, open());
    assert!(message.contains("what 20 sessions leave that began under other leaders"), "{message}");
    assert!(message.contains("--max-sessions"), "{message}");

    // A number that the operator has set holds as long as there is room for that.
    for (number, expected) in [(1, 1), (2, 2), (3, 2), (10, 5), (40, 20)] {
        before.requests.quotas.max_sessions_per_client = Some(number);
        assert_eq!(opened(&mut before.next_leader(), &address), expected, "{number}");
    }
}

/// Goal: a node that leads again counts the sessions that addresses have opened at it before, until a snapshot replaces
/// its table.
#[test]
fn sessions_of_an_address_count_when_the_node_leads_again() {
    let mut fixture = Fixture::open();
    fixture.requests.quotas.max_sessions_per_client = Some(2);
    let [_, address] = clients();
    (0..2).for_each(|_| drop(fixture.request_of(&address, 1, open()).try_recv().unwrap().unwrap()));
    fixture.requests.lost_leadership();
    fixture.begin_to_lead();
    fixture.refusal(&address, 1, open());
    fixture.requests.lost_leadership();
    fixture.requests.snapshot_installed();
    fixture.begin_to_lead();
    fixture.request_of(&address, 1, open()).try_recv().unwrap().unwrap();
}

/// Goal: a client waits for as many locks as it may, over any connections; another client's waits are
/// counted apart. A wait that was granted, or whose connection has ended, makes room. An acquire that does
/// not wait, and the repetition of one that waits, are not refused.
#[test]
fn waits_of_one_client_are_limited() {
    let mut fixture = Fixture::open();
    fixture.requests.quotas.max_waiters_per_client = Some(3);
    let [worker, address] = clients();
    let [holder, patient] = [(); 2].map(|()| fixture.open_session());
    let grant = granted(&mut fixture.request(9, first_acquire(holder, 0)));
    let mut first = fixture.request_of(&worker, 2, first_acquire(patient, 60_000));
    let _two = [(); 2].map(|()| fixture.request_of(&worker, 1, acquire("key", 60_000)));
    let message = fixture.refusal(&worker, 2, acquire("key", 60_000));
    assert!(message.contains("3 waiting acquires of one client is reached by client `worker`"), "{message}");
    assert!(message.contains("--max-waiters-per-client"), "{message}");
    let _other = fixture.request_of(&address, 3, acquire("key", 60_000));
    granted(&mut fixture.request_of(&worker, 2, acquire("free", 0)));
    let mut again = fixture.request_of(&worker, 2, first_acquire(patient, 60_000));
    assert_eq!((fixture.requests.waits.of_client(&worker), fixture.requests.waits.of_client(&address)), (3, 1));

    fixture.disconnect(1);
    assert_eq!(fixture.requests.waits.of_client(&worker), 1);
    drop(fixture.request(9, release(holder, grant.token)));
    granted(&mut again);
    assert!(first.try_recv().is_err(), "the repetition has replaced it");
    assert_eq!(fixture.requests.waits.of_client(&worker), 0);
    let _three = [(); 3].map(|()| fixture.request_of(&worker, 4, acquire("key", 60_000)));
    fixture.refusal(&worker, 4, acquire("key", 60_000));
    fixture.requests.lost_leadership();
    assert_eq!((fixture.requests.waits.of_client(&worker), fixture.requests.waits.of_client(&address)), (0, 0));
}

/// Goal: a request has its turn until it is answered. One that waits in a queue gives it back then: its
/// answer may be hours away.
#[test]
fn turn_ends_with_the_answer_or_with_a_wait() {
    let mut fixture = Fixture::open();
    let limits = ClientLimits { unanswered_requests: 2, ..ClientLimits::default() };
    let accounts = Accounts::new(limits, 800, &Metrics::new());
    let [account, other] = ["worker", "other"].map(|name| accounts.of(AccountName::Principal(name.into())));
    let turn = || account.turn().now_or_never().flatten();
    // The account is not alone, so it has two turns.
    let available = || {
        drop(other.turn().now_or_never());
        std::iter::from_fn(turn).take(3).collect::<Vec<_>>().len()
    };
    let mut request = |op| {
        let (responder, receiver) = responder(1);
        assert_eq!(available(), 2, "the requests before have given theirs back");
        let turn = turn().unwrap();

        let request = Request::from_wire(op, &Principal::default()).unwrap();
        fixture.requests.take(&fixture.node, request, responder.of(None, Some(turn)));
        assert_eq!(available(), 1, "it is under way");
        fixture.run_iteration();
        assert_eq!(available(), 2);
        receiver
    };
    granted(&mut request(acquire("key", 0)));
    let mut waiting = request(acquire("key", 60_000));
    assert!(waiting.try_recv().is_err());
}
