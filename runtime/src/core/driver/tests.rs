//! Drivers in virtual time: three nodes with real files, messages that take a millisecond, and
//! snapshot transfers that take as long as the test sets.

use std::collections::BTreeMap;

use crossbeam_channel::Receiver;
use palisade_client::wire::{
    Acquire, Answer, Code, Consistency, Failure, MemberChange, Op, OpenSession, SessionId, Transfer,
};
use palisade_spec::lock::{Key, Principal};
use palisade_spec::raft::{Body, Change, Index, Position, Progress, ReadRound, Snapshot, Stamp};
use parking_lot::Mutex;
use rand::SeedableRng;
use tokio::sync::oneshot;

use super::*;
use crate::core::{ConnectionId, Request, Responder};
use crate::storage::{DataDir, Identity};

const MILLISECOND: Duration = Duration::from_millis(1);
const ELECTION: Duration = Duration::from_millis(100);

type Reply = oneshot::Receiver<Result<Answer, Failure>>;

/// The messages in flight, and the running nodes.
#[derive(Debug, Default)]
struct Network {
    messages: Vec<Message<LockTable>>,
    /// Requested snapshot transfers: sender, receiver and term.
    snapshots: Vec<(NodeId, NodeId, Term)>,
    running: Vec<NodeId>,
    /// Nodes that stand still, with their connections open.
    frozen: Vec<NodeId>,
}

struct Wire(NodeId, Arc<Mutex<Network>>);

impl Transport for Wire {
    fn send(&self, message: Message<LockTable>) {
        self.1.lock().messages.push(message);
    }

    fn send_snapshot(&self, to: NodeId, term: Term) -> bool {
        self.1.lock().snapshots.push((self.0, to, term));
        self.is_connected(to)
    }

    fn set_members(&self, _: &Members, _: &Arc<Members>) {}

    fn is_connected(&self, id: NodeId) -> bool {
        let network = self.1.lock();
        network.running.contains(&id) || network.frozen.contains(&id)
    }

    fn is_known_to(&self, _: &[NodeId]) -> bool {
        true
    }

    fn client_addr(&self, id: NodeId) -> Option<String> {
        Some(id.to_string())
    }
}

struct Server {
    driver: Driver<Wire>,
    /// The snapshots that its driver asks to write.
    taken: Receiver<Snapshot<LockTable>>,
    inbox: Batch,
}

/// A snapshot in transfer: its arrival time, sender, receiver, term and content.
struct Transit {
    at: Duration,
    from: NodeId,
    to: NodeId,
    term: Term,
    snapshot: Arc<Snapshot<LockTable>>,
}

struct World {
    _directory: tempfile::TempDir,
    servers: BTreeMap<NodeId, Server>,
    network: Arc<Mutex<Network>>,
    zero: Instant,
    now: Duration,
    /// Time of a snapshot transfer, until the follower has loaded the snapshot.
    sending: Duration,
    transits: Vec<Transit>,
    /// The newest snapshot that each node has written.
    newest: BTreeMap<NodeId, Arc<Snapshot<LockTable>>>,
    /// Number of snapshots that have arrived.
    arrived: usize,
    connections: u64,
    /// Reply channels that no test reads; a request without a reply channel is not taken.
    unread: Vec<Reply>,
}

impl World {
    fn start(size: u32, snapshots: SnapshotPolicy) -> World {
        let directory = tempfile::tempdir().unwrap();
        let ids: Vec<NodeId> = (1..=size).map(NodeId).collect();
        let network = Arc::new(Mutex::new(Network { running: ids.clone(), ..Network::default() }));
        let zero = Instant::now();
        let server = |&id: &NodeId| {
            let path = directory.path().join(id.to_string());
            let data = DataDir::open(path, &Identity::of(7, id)).unwrap();
            let blank = Durable::blank(LockTable::default(), Members::of(ids.iter().copied()));
            let (wal, durable, _) = Wal::open_with_segments_of(4096, data, blank).unwrap();
            let (writer, taken) = crossbeam_channel::bounded(1);
            let parts = DriverParts {
                config: Config::new(id),
                durable,
                wal,
                log_bytes: 0,
                founders: Vec::new(),
                timing: Timing::with_election_timeout(ELECTION),
                jitter: SmallRng::seed_from_u64(u64::from(id.0)),
                snapshots,
                writer: Box::new(writer),
                transport: Wire(id, Arc::clone(&network)),
                view: Arc::default(),
                metrics: Metrics::new(),
                quotas: Quotas::default(),
                observer: None,
                audit: None,
                watches: None,
            };
            (id, Server { driver: Driver::new(parts, zero), taken, inbox: Batch::default() })
        };
        let servers = ids.iter().map(server).collect();
        World {
            _directory: directory,
            servers,
            network,
            zero,
            now: Duration::ZERO,
            sending: Duration::ZERO,
            transits: Vec::new(),
            newest: BTreeMap::new(),
            arrived: 0,
            connections: 0,
            unread: Vec::new(),
        }
    }

    fn node(&self, id: NodeId) -> &Node<LockTable> {
        self.servers[&id].driver.node()
    }

    fn leader(&self) -> Option<NodeId> {
        self.servers.keys().copied().find(|&id| self.node(id).is_leader())
    }

    fn wait_for_leader(&mut self) -> NodeId {
        self.run_until("a leader", |world| world.leader().is_some_and(|id| world.node(id).commit().0 > 0));
        self.leader().unwrap()
    }

    fn other_than(&self, leader: NodeId) -> NodeId {
        self.servers.keys().copied().find(|&id| id != leader).unwrap()
    }

    /// The followers in a cluster of three.
    fn followers(&self, leader: NodeId) -> [NodeId; 2] {
        let others: Vec<NodeId> = self.servers.keys().copied().filter(|&id| id != leader).collect();
        others.try_into().unwrap()
    }

    /// What a leader knows of a follower.
    fn progress(&self, leader: NodeId, follower: NodeId) -> Progress {
        let Role::Leader(leadership) = self.node(leader).role() else { panic!("node {leader} does not lead") };
        leadership.progress[&follower]
    }

    /// The nodes that are missing for the removal of a member.
    fn missing(&self, leader: NodeId, removed: NodeId) -> Vec<NodeId> {
        self.servers[&leader].driver.missing_for(&Change::Remove(removed))
    }

    fn stop(&self, id: NodeId) {
        self.network.lock().running.retain(|&other| other != id);
    }

    /// The node stands still, and its connections stay open.
    fn freeze(&self, id: NodeId) {
        self.stop(id);
        self.network.lock().frozen.push(id);
    }

    fn resume(&self, id: NodeId) {
        let mut network = self.network.lock();
        network.frozen.retain(|&other| other != id);
        network.running.push(id);
    }

    fn run_until(&mut self, what: &str, mut is_so: impl FnMut(&mut World) -> bool) {
        let end = self.now + Duration::from_secs(10);
        while !is_so(self) {
            assert!(self.now < end, "ten seconds without {what}");
            self.step();
        }
    }

    /// Advances time by a millisecond: messages arrive, and every node with work runs an iteration.
    fn step(&mut self) {
        self.now += MILLISECOND;
        let shared = Arc::clone(&self.network);
        let mut network = shared.lock();
        let Network { messages, snapshots, running, .. } = &mut *network;
        for message in messages.drain(..).filter(|message| running.contains(&message.to)) {
            self.servers.get_mut(&message.to).unwrap().inbox.messages.push(message);
        }
        for (from, to, term) in snapshots.drain(..).filter(|(_, to, _)| running.contains(to)) {
            if !self.transits.iter().any(|transit| transit.to == to) {
                let (at, snapshot) = (self.now + self.sending, Arc::clone(&self.newest[&from]));
                self.transits.push(Transit { at, from, to, term, snapshot });
            }
        }
        let now = self.now;
        for Transit { from, to, term, snapshot, .. } in self.transits.extract_if(.., |transit| transit.at <= now) {
            let message = Message { from, to, term, body: Body::InstallSnapshot { snapshot } };
            self.servers.get_mut(&to).unwrap().inbox.messages.push(message);
            self.arrived += 1;
        }
        let running = running.clone();
        drop(network);
        running.into_iter().for_each(|id| self.run_iteration(id));
    }

    fn run_iteration(&mut self, id: NodeId) {
        let server = self.servers.get_mut(&id).unwrap();
        let (now, inbox) = (self.zero + self.now, &mut server.inbox);
        if inbox.messages.is_empty() && inbox.events.is_empty() && server.driver.next_alarm() > now {
            return;
        }
        server.driver.iterate(inbox, now).unwrap();
        if let Ok(snapshot) = server.taken.try_recv() {
            let written = server.driver.wal().snapshots().write(&snapshot);
            inbox.events.push(Event::SnapshotWritten(written));
            self.newest.insert(id, Arc::new(snapshot));
        }
    }

    /// Sends a request to a node, over a connection of its own.
    fn request(&mut self, id: NodeId, op: Op) -> (ConnectionId, Reply) {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let (sender, reply) = oneshot::channel();
        let responder = Responder::once(connection, self.zero + self.now, sender);
        self.hand(id, Event::Request(Request::from_wire(op, &Principal::default()).unwrap(), responder));
        (connection, reply)
    }

    fn hand(&mut self, id: NodeId, event: Event) {
        self.servers.get_mut(&id).unwrap().inbox.events.push(event);
    }

    fn answer(&mut self, id: NodeId, op: Op) -> Answer {
        self.outcome(id, op).unwrap()
    }

    /// The answer or the refusal.
    fn outcome(&mut self, id: NodeId, op: Op) -> Result<Answer, Failure> {
        let (_, mut reply) = self.request(id, op);
        let mut answer = None;
        self.run_until("an answer", |_| {
            answer = reply.try_recv().ok();
            answer.is_some()
        });
        answer.unwrap()
    }

    fn open_session(&mut self, id: NodeId) -> SessionId {
        match self.answer(id, Op::OpenSession(OpenSession { ttl_ms: 3_600_000, owner: String::new() })) {
            Answer::Session(lease) => lease.session,
            other => panic!("no session: {other:?}"),
        }
    }

    /// The age that a node gives its state.
    fn age(&mut self, id: NodeId) -> Duration {
        match self.answer(id, Op::ShowLock { key: "key".into(), consistency: Consistency::Stale }) {
            Answer::StaleLock(stale) => Duration::from_millis(stale.age_ms.expect("the node has heard from others")),
            other => panic!("no stale read: {other:?}"),
        }
    }

    fn queue(&self, id: NodeId) -> usize {
        self.node(id).machine().lock(&Key::from("key")).unwrap().queue.len()
    }
}

fn acquire(session: Option<SessionId>, wait: Duration) -> Op {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap();
    Op::Acquire { keys: "key".into(), options: Acquire { session, wait_ms, ..Acquire::default() }, number: None }
}

/// Goal: what a leader sent before it was replaced does not make a follower's state current, however late it arrives.
#[test]
fn message_of_an_earlier_term_does_not_make_the_state_current() {
    let mut world = World::start(3, SnapshotPolicy::default());
    let old = world.wait_for_leader();
    let [one, two] = world.followers(old);
    let term = world.node(old).term();
    world.stop(old);
    world.run_until("the next leader", |world| world.node(one).is_leader() || world.node(two).is_leader());
    let (new, follower) = if world.node(one).is_leader() { (one, two) } else { (two, one) };
    world.run_until("it is followed", |world| world.node(follower).leader() == Some(new));
    world.stop(new);
    // Shorter than an election timeout.
    (0..20).for_each(|_| world.step());
    let (prev, commit, stamp, round) = (Position::default(), Index(0), Stamp(0), ReadRound(0));
    let body = Body::AppendEntries { prev, entries: Vec::new(), commit, stamp, round };
    world.servers.get_mut(&follower).unwrap().inbox.messages.push(Message { from: old, to: follower, term, body });
    assert!(world.age(follower) >= 19 * MILLISECOND);
    assert_eq!(world.node(follower).leader(), Some(new));
}

/// Goal: an operator may repeatedly ask a leader to transfer leadership to a failed voter. The
/// leader takes proposals only for a moment between two attempts, and rejects them otherwise. Still
/// every wait that times out is answered, and a disconnected client leaves the queue.
#[test]
fn waits_end_during_transfers_to_a_failed_voter() {
    let mut world = World::start(3, SnapshotPolicy::default());
    let leader = world.wait_for_leader();
    let holder = world.open_session(leader);
    world.answer(leader, acquire(Some(holder), Duration::ZERO));
    let dead = world.other_than(leader);
    world.stop(dead);
    let waits = (1..=10).map(|number| world.request(leader, acquire(None, number * 50 * MILLISECOND)).1);
    let mut waits: Vec<Reply> = waits.collect();
    let leaving = world.open_session(leader);
    let (connection, _gone) = world.request(leader, acquire(Some(leaving), Duration::from_secs(3600)));
    world.run_until("all clients in the queue", |world| world.queue(leader) == 11);

    let transfer = Op::Transfer(Transfer { to: Some(dead.number()) });
    let (_, mut transferred) = world.request(leader, transfer.clone());
    let (end, mut failed, mut leaves) = (world.now + Duration::from_secs(2), 0, Some(connection));
    while world.now < end {
        world.step();
        if let Ok(answer) = transferred.try_recv() {
            assert!(matches!(answer, Err(Failure { error: Code::NotTransferred, .. })));
            failed += 1;
            transferred = world.request(leader, transfer.clone()).1;
        }
        if failed == 2
            && let Some(connection) = leaves.take()
        {
            world.hand(leader, Event::Disconnected(connection));
        }
    }
    assert_eq!(world.leader(), Some(leader));
    assert!(failed > 5, "the leader is transferring leadership nearly all the time");
    for (number, wait) in (1..).zip(&mut waits) {
        match wait.try_recv() {
            Ok(Err(Failure { error: Code::Timeout, .. })) => {}
            other => panic!("wait {number} ended long ago, and was answered with {other:?}"),
        }
    }
    assert_eq!(world.queue(leader), 0);
}

/// Goal: a follower that needs longer to receive and load a snapshot than the cluster needs to
/// write the log for the next one catches up with the first snapshot that it is sent.
#[test]
fn slow_follower_catches_up_with_its_first_snapshot() {
    let policy = SnapshotPolicy { log_bytes: 1024, interval: Duration::from_secs(3600), margin: 10 };
    let mut world = World::start(3, policy);
    world.sending = Duration::from_millis(300);
    let leader = world.wait_for_leader();
    let session = world.open_session(leader);
    let late = world.other_than(leader);
    world.stop(late);
    let write = |world: &mut World| {
        if world.now.as_millis().is_multiple_of(4) {
            let (_, reply) = world.request(leader, Op::CloseSession { session });
            world.unread.push(reply);
        }
    };
    world.run_until("a log that lacks what the follower needs", |world| {
        write(world);
        world.node(leader).log().base().index.0 > world.node(late).log().last().index.0 + 50
    });
    world.resume(late);
    world.run_until("a follower that has caught up", |world| {
        write(world);
        world.node(late).commit().0 + 10 >= world.node(leader).commit().0
    });
    assert_eq!(world.arrived, 1, "one snapshot was enough");
    world.run_until("a short log again", |world| {
        write(world);
        world.node(leader).log().entries().len() < 100
    });
}

/// Goal: cluster time is measured by leaders. The time that a node measured before its election
/// does not count, not even a fraction of a millisecond.
#[test]
fn cluster_time_excludes_time_before_the_election() {
    let mut world = World::start(1, SnapshotPolicy::default());
    let [driver] = [&mut world.servers.get_mut(&NodeId(1)).unwrap().driver];
    let elected = world.zero + 3 * ELECTION + Duration::from_micros(900);
    let mut iteration = |at: Instant| {
        driver.iterate(&mut Batch::default(), at).unwrap();
        (driver.node().is_leader(), driver.node().clock())
    };
    assert!(!iteration(elected - 50 * MILLISECOND).0, "a late timer gets a grace period");
    assert_eq!(iteration(elected), (true, Stamp(0)));
    assert_eq!(iteration(elected + Duration::from_micros(999)).1, Stamp(0), "the leader has not led for a millisecond");
    assert_eq!(iteration(elected + Duration::from_micros(1000)).1, Stamp(1));
    assert_eq!(iteration(elected + Duration::from_micros(5900)).1, Stamp(5));
}

/// Goal: a stale read at the leader is as fresh as at a follower, but for the way of a message: the leader knows its
/// state to be current as of the last heartbeat that a majority has confirmed, not as of an election timeout.
#[test]
fn leader_is_as_fresh_as_its_last_confirmed_heartbeat() {
    for size in [1, 3] {
        let mut world = World::start(size, SnapshotPolicy::default());
        let leader = world.wait_for_leader();
        let (begin, heartbeat) = (world.now + ELECTION, ELECTION / 5);
        world.run_until("the first heartbeats", |world| world.now > begin);
        for _ in 0..200 {
            for id in (1..=size).map(NodeId) {
                let age = world.age(id);
                assert!(age <= heartbeat + 5 * MILLISECOND, "node {id} of {size}, led by {leader}: {age:?}");
            }
        }
        assert_eq!(world.leader(), Some(leader));
    }
}

/// Goal: a follower that refused linearizable reads and leads later is as fresh as any other leader:
/// the refused reads do not count as reads that a majority is about to confirm.
#[test]
fn refused_reads_make_no_later_leader_stale() {
    let mut world = World::start(3, SnapshotPolicy::default());
    let leader = world.wait_for_leader();
    let followers: Vec<NodeId> = world.servers.keys().copied().filter(|&id| id != leader).collect();
    for follower in followers {
        let (_, mut reply) =
            world.request(follower, Op::ShowLock { key: "key".into(), consistency: Consistency::Linearizable });
        world.run_until("a redirect to the leader", |_| {
            reply.try_recv().is_ok_and(|answer| answer.unwrap_err().error == Code::NotLeader)
        });
    }
    let (_, transferred) = world.request(leader, Op::Transfer(Transfer { to: None }));
    world.unread.push(transferred);
    world.run_until("another leader", |world| world.leader().is_some_and(|now| now != leader));
    let (next, elected) = (world.leader().unwrap(), world.now);
    world.run_until("some heartbeats", |world| world.now > elected + 2 * ELECTION);
    let age = world.age(next);
    assert!(age <= ELECTION / 5 + 5 * MILLISECOND, "{age:?}");
}

/// Goal: the age is a true upper bound. Answers that followers sent before they left, and that
/// arrive late and again and again, renew its leadership; they do not make its state younger,
/// because the followers may have elected another leader since.
#[test]
fn late_answers_make_no_state_younger() {
    let mut world = World::start(3, SnapshotPolicy::default());
    let leader = world.wait_for_leader();
    let sends = |world: &World| {
        let network = world.network.lock();
        network.messages.iter().filter(|message| message.to == leader).cloned().collect::<Vec<_>>()
    };
    world.run_until("answers on their way", |world| !sends(world).is_empty());
    let late = sends(&world);
    let others: Vec<NodeId> = world.servers.keys().copied().filter(|&id| id != leader).collect();
    others.iter().for_each(|&id| world.stop(id));
    let left = world.now;
    world.run_until("a second alone", |world| {
        world.network.lock().messages.extend(late.iter().cloned());
        world.now > left + 10 * ELECTION
    });
    assert_eq!(world.leader(), Some(leader), "it does not know that it is alone");
    let age = world.age(leader);
    assert!(age >= world.now - left - MILLISECOND, "{age:?} is younger than the last contact");
}

/// Goal: each reason why leadership cannot be transferred has its own sentence.
#[test]
fn refused_transfer_says_why() {
    let refusal = |world: &mut World, leader: NodeId, to: Option<u16>| {
        let failure = world.outcome(leader, Op::Transfer(Transfer { to })).unwrap_err();
        assert_eq!(failure.error, Code::NoMember);
        failure.message
    };
    let mut world = World::start(3, SnapshotPolicy::default());
    let leader = world.wait_for_leader();
    let to_itself = refusal(&mut world, leader, Some(leader.number()));
    assert!(to_itself.contains("is the leader already"), "{to_itself}");
    let to_a_stranger = refusal(&mut world, leader, Some(9));
    assert!(to_a_stranger.contains("the cluster has no member 9"), "{to_a_stranger}");
    let mut alone = World::start(1, SnapshotPolicy::default());
    let leader = alone.wait_for_leader();
    let to_any = refusal(&mut alone, leader, None);
    assert!(to_any.contains("is the only voter"), "{to_any}");
}

/// Goal: a transfer is answered although its leader loses the majority, and hears of no other leader.
#[test]
fn transfer_of_a_leader_without_a_majority_is_answered() {
    let mut world = World::start(3, SnapshotPolicy::default());
    let leader = world.wait_for_leader();
    let others: Vec<NodeId> = world.servers.keys().copied().filter(|&id| id != leader).collect();
    others.into_iter().for_each(|id| world.stop(id));
    let mut replies = Vec::new();
    world.run_until("a leader that steps down", |world| {
        replies.push(world.request(leader, Op::Transfer(Transfer { to: None })).1);
        !world.node(leader).is_leader()
    });
    world.run_until("the answers", |_| {
        replies.retain_mut(|reply| reply.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        replies.is_empty()
    });
}

fn remove(id: NodeId) -> Op {
    Op::ChangeMembers(MemberChange::Remove { id: id.number() })
}

/// Goal: a voter that stands still is connected, and counts for no change. The removal of the voter that answers
/// would not be committed before the other one goes on, and would stop the cluster until then.
#[test]
fn voter_that_does_not_answer_counts_for_no_change() {
    let mut world = World::start(3, SnapshotPolicy::default());
    let leader = world.wait_for_leader();
    let [frozen, other] = world.followers(leader);
    world.run_until("answers of all", |world| world.missing(leader, other).is_empty());
    world.freeze(frozen);
    let noticed = world.now + 4 * ELECTION + 10 * MILLISECOND;
    world.run_until("two quorum checks", |world| world.now > noticed);
    assert_eq!(world.leader(), Some(leader));
    let refused = world.outcome(leader, remove(other)).unwrap_err();
    assert_eq!(refused.error, Code::NoMajority);
    assert!(refused.message.contains(&format!("Missing: node {frozen}.")), "{refused}");
    assert_eq!(world.missing(leader, frozen), [], "the voters that stay all answer");

    world.resume(frozen);
    world.run_until("an answer", |world| world.missing(leader, other).is_empty());
    world.outcome(leader, remove(other)).unwrap();
}

/// Goal: a leader that has just checked its quorum, and has not heard from its followers since, does not refuse to
/// change the members of a cluster in which all answer.
#[test]
fn voters_that_answer_are_never_missing() {
    let mut world = World::start(3, SnapshotPolicy::default());
    let leader = world.wait_for_leader();
    let followers = world.followers(leader);
    let all = |world: &World| followers.iter().all(|&id| world.missing(leader, id).is_empty());
    world.run_until("the first answers", |world| all(world));
    let mut just_checked = 0;
    for _ in 0..1_000 {
        world.step();
        assert!(all(&world) && world.missing(leader, leader).is_empty(), "after {:?}", world.now);
        just_checked += usize::from(followers.iter().all(|&id| !world.progress(leader, id).active));
    }
    assert!(just_checked > 5, "{just_checked}");
}

/// Goal: a voter that answers and still loads a snapshot counts for no change: it commits nothing before that.
#[test]
fn voter_that_lags_counts_for_no_change() {
    let policy = SnapshotPolicy { log_bytes: 1024, interval: Duration::from_secs(3600), margin: 10 };
    let mut world = World::start(3, policy);
    world.sending = Duration::from_secs(1);
    let leader = world.wait_for_leader();
    let session = world.open_session(leader);
    let [late, other] = world.followers(leader);
    world.stop(late);
    let batch = world.node(leader).config().max_batch as u64;
    world.run_until("a log that lacks what the voter needs", |world| {
        for _ in 0..20 {
            let (_, reply) = world.request(leader, Op::CloseSession { session });
            world.unread.push(reply);
        }
        world.node(leader).log().base().index.0 > world.node(late).log().last().index.0 + batch
    });
    world.resume(late);
    let answered = world.now + 2 * ELECTION;
    world.run_until("its answers", |world| world.now > answered && world.progress(leader, late).active);
    assert_eq!((world.arrived, world.missing(leader, other)), (0, vec![late]));
    world.run_until("a voter that has caught up", |world| world.missing(leader, other).is_empty());
    assert_eq!(world.arrived, 1);
}
