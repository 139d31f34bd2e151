//! A taker beside a node that is its own majority, and time that passes when a test says so.

use crossbeam_channel::Receiver;
use palisade_spec::raft::{
    Address, Body, Change, Config, Durable, Input, Members, Message, NodeId, Payload, Position, ReadRound,
};

use super::*;
use crate::storage::{DataDir, Identity, Wal};

const POLICY: SnapshotPolicy = SnapshotPolicy { log_bytes: 1_000_000, interval: Duration::from_secs(60), margin: 10 };

struct Scene {
    _directory: tempfile::TempDir,
    node: Node<LockTable>,
    scheduler: SnapshotScheduler,
    handed: Receiver<Snapshot<LockTable>>,
    snapshots: Arc<Snapshots>,
    now: Instant,
}

impl Scene {
    fn set() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity::of(7, NodeId(1));
        let data = DataDir::open(directory.path(), &identity).unwrap();
        let blank = Durable::blank(LockTable::default(), Members::of([NodeId(1)]));
        let (wal, _, _) = Wal::open_with_segments_of(4096, data, blank.clone()).unwrap();
        let snapshots = Arc::clone(wal.snapshots());
        let mut node = Node::recover(Config::new(NodeId(1)), blank);
        node.step(Input::ElectionTimeout, &mut Vec::new());
        assert!(node.is_leader());
        let (writer, handed) = crossbeam_channel::bounded(1);
        let now = Instant::now();
        let scheduler =
            SnapshotScheduler::new(POLICY, 0, Arc::clone(&snapshots), Box::new(writer), Metrics::new(), now);
        Scene { _directory: directory, node, scheduler, handed, snapshots, now }
    }

    /// Entries are applied.
    fn apply(&mut self, entries: usize) {
        self.node.step(Input::Propose(vec![Payload::Noop; entries]), &mut Vec::new());
        // What one step cannot commit, the next ones do.
        while self.node.commit() < self.node.log().last().index {
            self.node.step(Input::HeartbeatTimeout, &mut Vec::new());
        }
    }

    /// A round ends after so much time; what was taken in it.
    fn tend(&mut self, after: Duration) -> Option<Snapshot<LockTable>> {
        self.now += after;
        self.scheduler.tend(&self.node, self.now);
        self.handed.try_recv().ok()
    }

    fn write(&mut self, snapshot: &Snapshot<LockTable>) {
        let written = self.snapshots.write(snapshot);
        self.scheduler.written(written, self.now);
    }

    fn want(&mut self) -> oneshot::Receiver<Result<SnapshotInfo, Failure>> {
        let (reply, taken) = oneshot::channel();
        self.scheduler.want(reply);
        taken
    }

    /// Steps all compactions that the taker wants, and says how many there were.
    fn compact(&mut self) -> usize {
        let mut steps = 0;
        while let Some(through) = self.scheduler.compaction(&self.node) {
            self.node.step(Input::Compact(through), &mut Vec::new());
            steps += 1;
        }
        steps
    }
}

const MOMENT: Duration = Duration::from_millis(1);

fn at(node: &Node<LockTable>) -> Position {
    node.log().get(node.commit()).unwrap().position()
}

/// Goal: what is written for snapshots stays below what is written to the log, however large a snapshot is.
#[test]
fn one_is_taken_for_so_much_log() {
    let mut scene = Scene::set();
    scene.apply(3);
    scene.scheduler.count(999_999);
    assert!(scene.tend(MOMENT).is_none());
    scene.scheduler.count(1);
    let snapshot = scene.tend(MOMENT).expect("it is due");
    assert_eq!((snapshot.last, &snapshot.machine), (at(&scene.node), scene.node.machine()));
    assert_eq!(scene.scheduler.log_bytes(), 0);
    scene.write(&snapshot);
    // As if it were a large one.
    let bytes = scene.snapshots.newest().unwrap().bytes;
    scene.scheduler.policy.log_bytes = 1;
    scene.apply(1);
    scene.scheduler.count(usize::try_from(bytes).unwrap() - 1);
    assert!(scene.tend(MOMENT).is_none());
    scene.scheduler.count(1);
    assert!(scene.tend(MOMENT).is_some());
}

#[test]
fn one_is_taken_when_the_last_is_old_and_something_was_applied() {
    let mut scene = Scene::set();
    assert!(scene.tend(POLICY.interval - MOMENT).is_none());
    let first = scene.tend(MOMENT).expect("it is due");
    scene.write(&first);
    assert!(scene.tend(POLICY.interval * 2).is_none(), "nothing was applied since");
    scene.apply(1);
    assert!(scene.tend(MOMENT).is_some());
}

#[test]
fn one_is_taken_at_a_time_and_each_request_gets_one_that_was_taken_after_it() {
    let mut scene = Scene::set();
    let mut first = scene.want();
    let snapshot = scene.tend(MOMENT).expect("somebody wants it");
    scene.apply(1);
    let mut second = scene.want();
    assert!(scene.tend(POLICY.interval).is_none(), "one is being written");
    scene.write(&snapshot);
    assert_eq!(first.try_recv().unwrap().unwrap().last, snapshot.last);
    assert!(second.try_recv().is_err());
    let later = scene.tend(MOMENT).expect("somebody wants it");
    assert!(later.last.index > snapshot.last.index);
    scene.write(&later);
    assert_eq!(second.try_recv().unwrap().unwrap().last, later.last);
    // Nothing new: the newest is the answer.
    let mut third = scene.want();
    assert!(scene.tend(MOMENT).is_none());
    assert_eq!(third.try_recv().unwrap().unwrap().last, later.last);
    let mut last = scene.want();
    scene.scheduler.shut_down();
    assert_eq!(last.try_recv().unwrap().unwrap_err().error, Code::ShuttingDown);
}

/// Goal: a disk that is full costs a line in the log every now and then, and nothing else.
#[test]
fn one_that_could_not_be_written_is_tried_again_later() {
    let mut scene = Scene::set();
    scene.apply(100);
    let mut told = scene.want();
    scene.tend(MOMENT).expect("somebody wants it");
    let error = StorageError::Poisoned { first: "the disk is full".into() };
    scene.scheduler.written(Err(error), scene.now);
    assert!(told.try_recv().unwrap().unwrap_err().message.contains("the disk is full"));
    assert_eq!(scene.compact(), 0, "the log stays as it is");
    assert!(scene.tend(limits::SNAPSHOT_RETRY - MOMENT).is_none());
    let again = scene.tend(MOMENT).expect("it is tried again");
    scene.write(&again);
    assert!(scene.compact() > 0);
}

#[test]
fn the_log_is_shortened_piece_by_piece_up_to_the_margin() {
    let mut scene = Scene::set();
    let entries = 2 * usize::try_from(limits::ROUND_COMPACTION).unwrap() + 100;
    scene.apply(entries);
    let _wanted = scene.want();
    let snapshot = scene.tend(MOMENT).expect("somebody wants it");
    assert_eq!(scene.compact(), 0, "it is not durable yet");
    scene.write(&snapshot);
    assert!(scene.scheduler.next(&scene.node, scene.now).is_some());
    assert_eq!(scene.compact(), 3);
    assert_eq!(scene.node.log().entries().len() as u64, POLICY.margin);
    assert!(scene.scheduler.next(&scene.node, scene.now).is_none());
    scene.apply(5);
    assert_eq!(scene.compact(), 0);
}

const LEARNER: NodeId = NodeId(2);

impl Scene {
    /// There is a follower, which a snapshot is sent to. Returns the last entry that the snapshot includes.
    fn send_snapshot(&mut self) -> Index {
        let change = Change::Add { id: LEARNER, address: Address::from("learner:1") };
        self.node.step(Input::Change(change), &mut Vec::new());
        let sent = self.take_one_more();
        self.compact();
        self.scheduler.sends(LEARNER, self.now);
        sent
    }

    /// A hundred entries more, and a snapshot that includes them.
    fn take_one_more(&mut self) -> Index {
        self.apply(100);
        let _wanted = self.want();
        let snapshot = self.tend(MOMENT).expect("somebody wants it");
        self.write(&snapshot);
        snapshot.last.index
    }

    /// The follower acknowledges everything up to an entry.
    fn acknowledge(&mut self, matched: Index) {
        let body = Body::AppendAccepted { matched, round: ReadRound::default() };
        let message = Message { from: LEARNER, to: NodeId(1), term: self.node.term(), body };
        self.node.step(Input::Receive(message), &mut Vec::new());
        self.tend(MOMENT);
    }

    /// Where the log begins, when it has lost all that it may lose.
    fn log_begins_after(&mut self) -> Index {
        self.compact();
        self.node.log().base().index
    }
}

/// Goal: a follower that loads a snapshot for longer than it takes to write the next one finds the entries behind it, and
/// those that are written while it catches up.
#[test]
fn the_log_keeps_what_a_follower_needs_behind_its_snapshot() {
    let mut scene = Scene::set();
    let sent = scene.send_snapshot();
    assert_eq!(scene.log_begins_after(), Index(sent.0 - POLICY.margin));
    scene.take_one_more();
    scene.scheduler.sends(LEARNER, scene.now);
    scene.take_one_more();
    assert_eq!(scene.log_begins_after(), sent, "it is on its way");
    assert!(scene.scheduler.next(&scene.node, scene.now).is_none(), "nothing is to be done until it has arrived");
    scene.acknowledge(sent);
    let newest = scene.take_one_more();
    assert_eq!(scene.log_begins_after(), sent, "it is there, and the entries behind it are not");
    scene.acknowledge(Index(sent.0 + 50));
    assert_eq!(scene.log_begins_after(), Index(sent.0 + 50));
    scene.acknowledge(Index(newest.0 - POLICY.margin));
    let newest = scene.take_one_more();
    assert_eq!(scene.log_begins_after(), Index(newest.0 - POLICY.margin), "it is as good as any other follower");
}

/// Goal: no follower keeps the log from being shortened for ever: one that died on the way, one that is sent one snapshot
/// after the other and never arrives anywhere, one that is removed, one that this node does not lead any more.
#[test]
fn a_follower_that_does_not_catch_up_keeps_the_log_so_long_and_no_longer() {
    let kept = |scene: &mut Scene, sent: Index| {
        scene.take_one_more();
        scene.log_begins_after() == sent
    };
    let mut dead = Scene::set();
    let sent = dead.send_snapshot();
    dead.tend(limits::SNAPSHOT_RESUMED_WITHIN - 10 * MOMENT);
    assert!(kept(&mut dead, sent));
    dead.tend(10 * MOMENT);
    assert!(!kept(&mut dead, sent));

    let mut slow = Scene::set();
    let sent = slow.send_snapshot();
    for _ in 0..5 {
        slow.tend(limits::SNAPSHOT_RESUMED_WITHIN - MOMENT);
        slow.scheduler.sends(LEARNER, slow.now);
    }
    slow.scheduler.count(usize::try_from(limits::CATCH_UP_LOG_BYTES).unwrap() - 1);
    assert!(kept(&mut slow, sent));
    slow.scheduler.count(1);
    assert!(!kept(&mut slow, sent));

    let mut removed = Scene::set();
    let sent = removed.send_snapshot();
    assert!(kept(&mut removed, sent));
    removed.node.step(Input::Change(Change::Remove(LEARNER)), &mut Vec::new());
    assert!(!kept(&mut removed, sent));

    let mut deposed = Scene::set();
    let sent = deposed.send_snapshot();
    let newest = deposed.take_one_more();
    assert_eq!(deposed.log_begins_after(), sent);
    let (term, body) = (deposed.node.term().next(), Body::PreVoteReply { granted: false });
    let message = Message { from: LEARNER, to: NodeId(1), term, body };
    deposed.node.step(Input::Receive(message), &mut Vec::new());
    assert!(!deposed.node.is_leader());
    deposed.tend(MOMENT);
    assert_eq!(deposed.log_begins_after(), Index(newest.0 - POLICY.margin));
}
