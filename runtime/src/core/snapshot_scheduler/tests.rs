//! A scheduler beside a node that is its own majority, with virtual time.

use crossbeam_channel::Receiver;
use palisade_spec::raft::{
    Address, Body, Change, Config, Durable, Input, Members, Message, NodeId, Payload, Position, ReadRound, RequestId,
};
use tokio::sync::oneshot;

use super::*;
use crate::storage::{DataDir, Identity, Wal};

const POLICY: SnapshotPolicy = SnapshotPolicy { log_bytes: 1_000_000, interval: Duration::from_secs(60), margin: 10 };

struct Fixture {
    _directory: tempfile::TempDir,
    node: Node<LockTable>,
    scheduler: SnapshotScheduler,
    handed: Receiver<Snapshot<LockTable>>,
    snapshots: Arc<Snapshots>,
    now: Instant,
}

impl Fixture {
    fn open() -> Fixture {
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
        Fixture { _directory: directory, node, scheduler, handed, snapshots, now }
    }

    /// Applies entries.
    fn apply(&mut self, entries: usize) {
        self.node.step(Input::Propose { id: RequestId(1), payloads: vec![Payload::Noop; entries] }, &mut Vec::new());
        // One step commits a bounded number of entries; the next steps commit the rest.
        while self.node.commit() < self.node.log().last().index {
            self.node.step(Input::HeartbeatTimeout, &mut Vec::new());
        }
    }

    /// Ends an iteration after this much time; returns the snapshot taken in it.
    fn maybe_take(&mut self, after: Duration) -> Option<Snapshot<LockTable>> {
        self.now += after;
        self.scheduler.maybe_take(&self.node, self.now);
        self.handed.try_recv().ok()
    }

    fn write(&mut self, snapshot: &Snapshot<LockTable>) {
        let written = self.snapshots.write(snapshot);
        self.scheduler.written(written, self.now);
    }

    fn request(&mut self) -> oneshot::Receiver<Result<SnapshotInfo, Failure>> {
        let (reply, taken) = oneshot::channel();
        self.scheduler.request(reply);
        taken
    }

    /// Steps all compactions that the scheduler wants, and returns their number.
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

/// Goal: snapshots write no more than the log does, however large a snapshot is.
#[test]
fn snapshot_is_due_after_log_bytes() {
    let mut fixture = Fixture::open();
    fixture.apply(3);
    fixture.scheduler.count(999_999);
    assert!(fixture.maybe_take(MOMENT).is_none());
    fixture.scheduler.count(1);
    let snapshot = fixture.maybe_take(MOMENT).expect("a snapshot is due");
    assert_eq!((snapshot.last, &snapshot.machine), (at(&fixture.node), fixture.node.machine()));
    assert_eq!(fixture.scheduler.log_bytes(), 0);
    fixture.write(&snapshot);
    // Pretend that it is a large snapshot.
    let bytes = fixture.snapshots.newest().unwrap().bytes;
    fixture.scheduler.policy.log_bytes = 1;
    fixture.apply(1);
    fixture.scheduler.count(usize::try_from(bytes).unwrap() - 1);
    assert!(fixture.maybe_take(MOMENT).is_none());
    fixture.scheduler.count(1);
    assert!(fixture.maybe_take(MOMENT).is_some());
}

#[test]
fn snapshot_is_due_after_interval_if_entries_were_applied() {
    let mut fixture = Fixture::open();
    assert!(fixture.maybe_take(POLICY.interval - MOMENT).is_none());
    let first = fixture.maybe_take(MOMENT).expect("a snapshot is due");
    fixture.write(&first);
    assert!(fixture.maybe_take(POLICY.interval * 2).is_none(), "nothing was applied since");
    fixture.apply(1);
    assert!(fixture.maybe_take(MOMENT).is_some());
}

#[test]
fn snapshots_are_sequential_and_newer_than_their_requests() {
    let mut fixture = Fixture::open();
    let mut first = fixture.request();
    let snapshot = fixture.maybe_take(MOMENT).expect("a snapshot was requested");
    fixture.apply(1);
    let mut second = fixture.request();
    assert!(fixture.maybe_take(POLICY.interval).is_none(), "a snapshot is being written");
    fixture.write(&snapshot);
    assert_eq!(first.try_recv().unwrap().unwrap().last, snapshot.last);
    assert!(second.try_recv().is_err());
    let later = fixture.maybe_take(MOMENT).expect("a snapshot was requested");
    assert!(later.last.index > snapshot.last.index);
    fixture.write(&later);
    assert_eq!(second.try_recv().unwrap().unwrap().last, later.last);
    // No entry was applied since: the newest snapshot is the answer.
    let mut third = fixture.request();
    assert!(fixture.maybe_take(MOMENT).is_none());
    assert_eq!(third.try_recv().unwrap().unwrap().last, later.last);
    let mut last = fixture.request();
    fixture.scheduler.shut_down();
    assert_eq!(last.try_recv().unwrap().unwrap_err().error, Code::ShuttingDown);
}

/// Goal: a full disk causes only a log line at each attempt.
#[test]
fn failed_snapshot_is_retried_later() {
    let mut fixture = Fixture::open();
    fixture.apply(100);
    let mut reply = fixture.request();
    fixture.maybe_take(MOMENT).expect("a snapshot was requested");
    let error = StorageError::Poisoned { first: "the disk is full".into() };
    fixture.scheduler.written(Err(error), fixture.now);
    assert!(reply.try_recv().unwrap().unwrap_err().message.contains("the disk is full"));
    assert_eq!(fixture.compact(), 0, "the log stays as it is");
    assert!(fixture.maybe_take(limits::SNAPSHOT_RETRY - MOMENT).is_none());
    let again = fixture.maybe_take(MOMENT).expect("the snapshot is retried");
    fixture.write(&again);
    assert!(fixture.compact() > 0);
}

/// Goal: the pause after a failure is the same when the snapshot before was larger than the log that makes one due.
#[test]
fn failed_snapshot_after_a_large_one_is_retried_later() {
    let mut fixture = Fixture::open();
    fixture.apply(1);
    let _wanted = fixture.request();
    let large = fixture.maybe_take(MOMENT).expect("a snapshot was requested");
    fixture.write(&large);
    fixture.scheduler.policy.log_bytes = 1;
    fixture.apply(1);
    fixture.scheduler.count(usize::try_from(fixture.snapshots.newest().unwrap().bytes).unwrap());
    fixture.maybe_take(MOMENT).expect("a snapshot is due");
    let error = StorageError::Poisoned { first: "the disk is full".into() };
    fixture.scheduler.written(Err(error), fixture.now);
    assert!(fixture.maybe_take(limits::SNAPSHOT_RETRY - MOMENT).is_none());
    let again = fixture.maybe_take(MOMENT).expect("the snapshot is retried");
    fixture.write(&again);
    fixture.apply(1);
    assert!(fixture.maybe_take(limits::SNAPSHOT_RETRY).is_none(), "the next one has its own reason");
}

/// Goal: requests in a loop make a node with a full disk write no more than its own attempts do, and each is answered at
/// once.
#[test]
fn requests_do_not_shorten_the_pause_after_a_failure() {
    let mut fixture = Fixture::open();
    fixture.apply(1);
    let _wanted = fixture.request();
    fixture.maybe_take(MOMENT).expect("a snapshot was requested");
    let mut meanwhile = fixture.request();
    let error = StorageError::Poisoned { first: "the disk is full".into() };
    fixture.scheduler.written(Err(error), fixture.now);
    let mut later = fixture.request();
    assert!(fixture.maybe_take(limits::SNAPSHOT_RETRY - 2 * MOMENT).is_none(), "the pause is not over");
    for reply in [&mut meanwhile, &mut later] {
        let refusal = reply.try_recv().unwrap().unwrap_err();
        assert_eq!(refusal.error, Code::Overloaded);
        assert!(refusal.message.contains("the disk is full") && refusal.message.contains("in 1 s"), "{refusal}");
    }
    assert!(fixture.maybe_take(MOMENT).is_none(), "the requests that were refused are gone");
    let mut last = fixture.request();
    let again = fixture.maybe_take(MOMENT).expect("the snapshot is retried");
    fixture.write(&again);
    assert_eq!(last.try_recv().unwrap().unwrap().last, again.last);
}

#[test]
fn compaction_is_gradual_and_stops_at_margin() {
    let mut fixture = Fixture::open();
    let entries = 2 * usize::try_from(limits::ITERATION_COMPACTION).unwrap() + 100;
    fixture.apply(entries);
    let _wanted = fixture.request();
    let snapshot = fixture.maybe_take(MOMENT).expect("a snapshot was requested");
    assert_eq!(fixture.compact(), 0, "the snapshot is not durable yet");
    fixture.write(&snapshot);
    assert!(fixture.scheduler.next(&fixture.node, fixture.now).is_some());
    assert_eq!(fixture.compact(), 3);
    assert_eq!(fixture.node.log().entries().len() as u64, POLICY.margin);
    assert!(fixture.scheduler.next(&fixture.node, fixture.now).is_none());
    fixture.apply(5);
    assert_eq!(fixture.compact(), 0);
}

const LEARNER: NodeId = NodeId(2);

impl Fixture {
    /// Adds a follower that is sent a snapshot. Returns the last entry that the snapshot includes.
    fn send_snapshot(&mut self) -> Index {
        let change = Change::Add { id: LEARNER, address: Address::from("learner:1") };
        self.node.step(Input::Change { id: RequestId(1), change }, &mut Vec::new());
        let sent = self.take_one_more();
        self.compact();
        self.scheduler.sends(LEARNER, self.now);
        sent
    }

    /// Applies a hundred entries more, and takes a snapshot that includes them.
    fn take_one_more(&mut self) -> Index {
        self.apply(100);
        let _wanted = self.request();
        let snapshot = self.maybe_take(MOMENT).expect("a snapshot was requested");
        self.write(&snapshot);
        snapshot.last.index
    }

    /// The follower acknowledges everything up to an entry.
    fn acknowledge(&mut self, matched: Index) {
        let body = Body::AppendAccepted { matched, round: ReadRound::default() };
        let message = Message { from: LEARNER, to: NodeId(1), term: self.node.term(), body };
        self.node.step(Input::Receive(message), &mut Vec::new());
        self.maybe_take(MOMENT);
    }

    /// The log's base after all compactions.
    fn log_begins_after(&mut self) -> Index {
        self.compact();
        self.node.log().base().index
    }
}

/// Goal: a follower that loads a snapshot for longer than the cluster needs to write the next one
/// finds the entries after its snapshot, and those written while it catches up.
#[test]
fn log_keeps_entries_after_a_snapshot_in_transfer() {
    let mut fixture = Fixture::open();
    let sent = fixture.send_snapshot();
    assert_eq!(fixture.log_begins_after(), Index(sent.0 - POLICY.margin));
    fixture.take_one_more();
    fixture.scheduler.sends(LEARNER, fixture.now);
    fixture.take_one_more();
    assert_eq!(fixture.log_begins_after(), sent, "the snapshot is in transfer");
    assert!(fixture.scheduler.next(&fixture.node, fixture.now).is_none(), "no compaction is due during the transfer");
    fixture.acknowledge(sent);
    let newest = fixture.take_one_more();
    assert_eq!(fixture.log_begins_after(), sent, "the log keeps the entries after the snapshot");
    fixture.acknowledge(Index(sent.0 + 50));
    assert_eq!(fixture.log_begins_after(), Index(sent.0 + 50));
    fixture.acknowledge(Index(newest.0 - POLICY.margin));
    let newest = fixture.take_one_more();
    assert_eq!(
        fixture.log_begins_after(),
        Index(newest.0 - POLICY.margin),
        "a follower that has caught up needs no kept entries"
    );
}

/// Goal: no follower delays compaction forever: neither one that failed during the transfer, nor
/// one that is sent one snapshot after the other without progress, nor a removed one, nor a
/// follower of a node that no longer leads.
#[test]
fn stalled_follower_does_not_delay_compaction_forever() {
    let kept = |fixture: &mut Fixture, sent: Index| {
        fixture.take_one_more();
        fixture.log_begins_after() == sent
    };
    let mut dead = Fixture::open();
    let sent = dead.send_snapshot();
    dead.maybe_take(limits::SNAPSHOT_RESUMED_WITHIN - 10 * MOMENT);
    assert!(kept(&mut dead, sent));
    dead.maybe_take(10 * MOMENT);
    assert!(!kept(&mut dead, sent));

    let mut slow = Fixture::open();
    let sent = slow.send_snapshot();
    for _ in 0..5 {
        slow.maybe_take(limits::SNAPSHOT_RESUMED_WITHIN - MOMENT);
        slow.scheduler.sends(LEARNER, slow.now);
    }
    slow.scheduler.count(usize::try_from(limits::CATCH_UP_LOG_BYTES).unwrap() - 1);
    assert!(kept(&mut slow, sent));
    slow.scheduler.count(1);
    assert!(!kept(&mut slow, sent));

    let mut removed = Fixture::open();
    let sent = removed.send_snapshot();
    assert!(kept(&mut removed, sent));
    removed.node.step(Input::Change { id: RequestId(1), change: Change::Remove(LEARNER) }, &mut Vec::new());
    assert!(!kept(&mut removed, sent));

    let mut deposed = Fixture::open();
    let sent = deposed.send_snapshot();
    let newest = deposed.take_one_more();
    assert_eq!(deposed.log_begins_after(), sent);
    let (term, body) = (deposed.node.term().next(), Body::PreVoteReply { granted: false });
    let message = Message { from: LEARNER, to: NodeId(1), term, body };
    deposed.node.step(Input::Receive(message), &mut Vec::new());
    assert!(!deposed.node.is_leader());
    deposed.maybe_take(MOMENT);
    assert_eq!(deposed.log_begins_after(), Index(newest.0 - POLICY.margin));
}
