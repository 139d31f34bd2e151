//! Crashes: the writes under way that they may leave, and their effect on messages.

use super::*;
use crate::checker::disk::may_hold;

/// Node 1, whose log is longer than any, requests the vote of node 2 in the first term, although a leader is alive.
fn vote_request() -> Input<LockTable> {
    let last = noop(9, 1).position();
    let body = Body::RequestVote { last, transfer: true };
    Input::Receive(Message { from: LEADER, to: FOLLOWER, term: Term(1), body })
}

/// The only message among the outputs.
fn reply(outputs: &[Output<LockTable>]) -> Message<LockTable> {
    let mut sent = outputs.iter().filter_map(|output| match output {
        Output::Send(message) => Some(message.clone()),
        _ => None,
    });
    let first = sent.next().unwrap();
    assert!(sent.next().is_none());
    first
}

impl Cluster {
    /// The node crashes and recovers what is reported durable.
    fn restart(&mut self, id: NodeId) {
        let disk = self.checker.disk(slot(id)).clone();
        self.checker.recovered(slot(id), id, &disk).unwrap();
        self.nodes.insert(id, Node::recover(Config::new(id), disk));
    }

    /// All writes under way are durable.
    fn write_all(&mut self, id: NodeId) {
        let writes: Vec<_> = self.checker.pending(slot(id)).unwrap().cloned().collect();
        self.checker.written(slot(id), &writes).unwrap();
    }
}

#[test]
fn reply_of_a_run_that_crashed_before_its_writes_is_that_of_the_next_run() {
    let mut cluster = Cluster::new(feed());
    let (judged, outputs) = cluster.take(FOLLOWER, vote_request());
    judged.unwrap();
    let sent = reply(&outputs);
    cluster.restart(FOLLOWER);
    violates(cluster.checker.received(slot(LEADER), &sent), Property::PersistBeforeSend);
    let (judged, outputs) = cluster.take(FOLLOWER, vote_request());
    judged.unwrap();
    assert_eq!(reply(&outputs), sent);
    violates(cluster.checker.received(slot(LEADER), &sent), Property::PersistBeforeSend);
    cluster.write_all(FOLLOWER);
    cluster.checker.received(slot(LEADER), &sent).unwrap();
}

/// The same message leaves twice, the second time with a write under way before it: it may be the first that arrives.
#[test]
fn repeated_message_needs_only_the_writes_before_the_first() {
    for restarts in [false, true] {
        let mut cluster = Cluster::new(feed());
        let (judged, outputs) = cluster.take(FOLLOWER, vote_request());
        judged.unwrap();
        let sent = reply(&outputs);
        if restarts {
            cluster.write_all(FOLLOWER);
            cluster.restart(FOLLOWER);
        }
        let (prev, entries) = (cluster.nodes[&FOLLOWER].log().last(), Vec::from([noop(1, 1)]));
        let body = Body::AppendEntries { prev, entries, commit: Index(0), stamp: Stamp(0), round: ReadRound(0) };
        let append = Message { from: LEADER, to: FOLLOWER, term: Term(1), body };
        cluster.take(FOLLOWER, Input::Receive(append)).0.unwrap();
        let (judged, outputs) = cluster.take(FOLLOWER, vote_request());
        judged.unwrap();
        assert_eq!(reply(&outputs), sent);
        if !restarts {
            let vote = cluster.checker.pending(slot(FOLLOWER)).unwrap().next().unwrap().clone();
            cluster.checker.written(slot(FOLLOWER), &[vote]).unwrap();
        }
        assert_ne!(cluster.checker.pending(slot(FOLLOWER)).unwrap().len(), 0);
        cluster.checker.received(slot(LEADER), &sent).unwrap();
    }
}

#[test]
fn messages_that_leave_in_another_order_are_seen() {
    let mut cluster = Cluster::new(feed());
    let (judged, outputs) = cluster.take(LEADER, Input::ElectionTimeout);
    judged.unwrap();
    let sends = outputs.iter().filter_map(|output| match output {
        Output::Send(message) => Some(message.clone()),
        _ => None,
    });
    let sends: Vec<_> = sends.collect();
    violates(cluster.checker.sent(slot(LEADER), &sends[1]), Property::SendsMatchOutputs);
}

#[test]
fn message_of_an_unknown_server_is_counted() {
    let mut cluster = Cluster::elected();
    let message = cluster.message(NodeId(9), LEADER, Body::PreVoteReply { granted: true });
    cluster.checker.received(slot(LEADER), &message).unwrap();
    assert_eq!(cluster.checker.counts().uncounted, 1);
}

#[test]
fn written_entries_are_kept_as_long_as_the_feed_says() {
    let mut cluster = Cluster::new(Feed { written_kept: 1, ..feed() });
    cluster.checker.set_time(Some(Duration::from_millis(7)));
    cluster.step(LEADER, Input::ElectionTimeout).unwrap();
    cluster.settle().unwrap();
    let first = cluster.nodes[&LEADER].log().last();
    assert_eq!(cluster.checker.born(first), Some(Duration::from_millis(7)));
    cluster.propose([open(1)]).unwrap();
    assert_eq!(cluster.checker.born(first), None);
    let last = cluster.nodes[&LEADER].log().last();
    assert_eq!(cluster.checker.born(last), Some(Duration::from_millis(7)));
}

/// One write of three entries, of which a crash leaves some.
#[test]
fn part_of_a_write_may_remain_unless_batches_are_atomic() {
    let disk = Durable::blank(LockTable::default(), Members::of([LEADER]));
    let write = Persist::Entries((1..=3).map(|index| noop(index, 1)).collect());
    let pending = VecDeque::from([write]);
    for kept in 0..=3 {
        let mut found = disk.clone();
        (1..=kept).for_each(|index| found.log.push(noop(index, 1)));
        let may = |atomic| may_hold(&disk, &pending, atomic, Index(0), &found);
        assert_eq!([may(false), may(true)], [true, kept == 0 || kept == 3], "{kept} entries");
    }
    // None of these is the beginning of the write.
    for other in [noop(1, 2), Entry { stamp: Stamp(1), ..noop(1, 1) }] {
        let mut found = disk.clone();
        found.log.push(other);
        assert!(!may_hold(&disk, &pending, false, Index(0), &found));
    }
}

#[test]
fn log_that_begins_after_another_entry_is_seen() {
    let mut disk = Durable::blank(LockTable::default(), Members::of([LEADER]));
    disk.log.push(noop(1, 1));
    disk.snapshot = crate::checker::disk::snapshot_at(&disk, Index(1));
    let begins = |stamp| Log::starting_at(noop(1, 1).position(), Stamp(stamp), Arc::clone(&disk.snapshot.members));
    for (stamp, is_right) in [(0, true), (1, false)] {
        let mut found = disk.clone();
        found.log = begins(stamp);
        assert_eq!(may_hold(&disk, &VecDeque::new(), true, Index(1), &found), is_right, "{stamp}");
    }
}

/// A snapshot has its file before the log refers to it.
#[test]
fn file_of_an_installed_snapshot_may_remain_without_its_log() {
    let mut sender = Durable::blank(LockTable::default(), Members::of([LEADER]));
    (1..=2).for_each(|index| sender.log.push(noop(index, 1)));
    let snapshot = crate::checker::disk::snapshot_at(&sender, Index(2));
    let disk = Durable::blank(LockTable::default(), Members::of([LEADER]));
    let pending = VecDeque::from([Persist::Snapshot(Arc::new(snapshot.clone()))]);
    let mut found = disk.clone();
    found.snapshot = snapshot;
    found.settle();
    assert!(may_hold(&disk, &pending, true, Index(0), &found));
    found.hard.term = Term(9);
    assert!(!may_hold(&disk, &pending, true, Index(0), &found));
}
