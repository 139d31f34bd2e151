//! A good run is judged good, and one wrong event in it is judged by the property that it violates.

mod changes;
mod crashes;
mod feeds;
mod inputs;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::{ClusterChecker, Feed, Slot};
use crate::invariants::states::noop;
use crate::invariants::{Check, Property};
use crate::lock::{Command, LockTable, Opening, Owner, Principal, Proof, Ttl};
use crate::raft::{
    Body, Config, Durable, Entry, Index, Input, Log, Members, Message, Node, NodeId, Output, Payload, Persist,
    ReadRound, RequestId, Stamp, StateMachine, Term,
};

const LEADER: NodeId = NodeId(1);
const FOLLOWER: NodeId = NodeId(2);
const OTHER: NodeId = NodeId(3);

fn slot(id: NodeId) -> Slot {
    Slot(id.0.into())
}

/// Three nodes with their disks. Every event goes to the checker; a test can leave one out, or
/// change it.
struct Cluster {
    checker: ClusterChecker<LockTable>,
    nodes: BTreeMap<NodeId, Node<LockTable>>,
    flight: VecDeque<Message<LockTable>>,
    /// The node that no message reaches.
    cut_off: Option<NodeId>,
    steps: u64,
}

impl Cluster {
    fn new(feed: Feed<LockTable>) -> Cluster {
        Cluster::of(&[LEADER, FOLLOWER, OTHER], feed)
    }

    fn of(ids: &[NodeId], feed: Feed<LockTable>) -> Cluster {
        let mut cluster = Cluster {
            checker: ClusterChecker::new(feed),
            nodes: BTreeMap::new(),
            flight: VecDeque::new(),
            cut_off: None,
            steps: 0,
        };
        for &id in ids {
            let disk = Durable::blank(LockTable::default(), Members::of(ids.iter().copied()));
            cluster.checker.recovered(slot(id), id, &disk).unwrap();
            cluster.nodes.insert(id, Node::recover(Config::new(id), disk));
        }
        cluster
    }

    /// A cluster whose leader has committed the first entry of its term, everywhere.
    fn elected() -> Cluster {
        Cluster::elected_with(feed())
    }

    fn elected_with(feed: Feed<LockTable>) -> Cluster {
        let mut cluster = Cluster::new(feed);
        cluster.step(LEADER, Input::ElectionTimeout).unwrap();
        cluster.settle().unwrap();
        cluster.step(LEADER, Input::HeartbeatTimeout).unwrap();
        cluster.settle().unwrap();
        assert!(cluster.nodes.values().all(|node| node.commit() == Index(1)));
        cluster
    }

    /// A node takes a step, of which only the checker's view is returned; no output is executed.
    fn take(&mut self, id: NodeId, input: Input<LockTable>) -> (Check, Vec<Output<LockTable>>) {
        let (node, mut outputs) = (self.nodes.get_mut(&id).unwrap(), Vec::new());
        node.step(input.clone(), &mut outputs);
        self.steps += 1;
        (self.checker.stepped(slot(id), node, &input, &outputs), outputs)
    }

    fn step(&mut self, id: NodeId, input: Input<LockTable>) -> Check {
        let (judged, outputs) = self.take(id, input);
        judged?;
        for output in outputs {
            match output {
                Output::Persist(write) => self.checker.written(slot(id), &[write])?,
                Output::Send(message) => {
                    self.checker.sent(slot(id), &message)?;
                    self.flight.push_back(message);
                }
                Output::SendSnapshot { to, term } => {
                    let snapshot = Arc::new(self.checker.disk(slot(id)).snapshot.clone());
                    let message = Message { from: id, to, term, body: Body::InstallSnapshot { snapshot } };
                    self.checker.sent(slot(id), &message)?;
                    self.flight.push_back(message);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn settle(&mut self) -> Check {
        while let Some(message) = self.flight.pop_front() {
            if self.cut_off == Some(message.to) {
                continue;
            }
            self.checker.received(slot(message.to), &message)?;
            self.step(message.to, Input::Receive(message))?;
        }
        Ok(())
    }

    /// The leader proposes these commands, and the others learn that they are committed.
    fn propose(&mut self, commands: impl IntoIterator<Item = Command>) -> Check {
        let payloads = commands.into_iter().map(Payload::Command).collect();
        self.step(LEADER, Input::Propose { id: RequestId(1), payloads })?;
        self.settle()?;
        self.step(LEADER, Input::HeartbeatTimeout)?;
        self.settle()
    }

    /// The first messages of an election that the node wins by replies which no node has sent.
    fn elect_by_lies(&mut self, id: NodeId) -> Check {
        self.step(id, Input::ElectionTimeout)?;
        for body in [Body::PreVoteReply { granted: true }, Body::RequestVoteReply { granted: true }] {
            let reply = Message { from: FOLLOWER, to: id, term: self.nodes[&id].term(), body };
            self.step(id, Input::Receive(reply))?;
        }
        Ok(())
    }

    fn compare(&mut self, id: NodeId, node: &Node<LockTable>) -> Check {
        self.checker.compare(slot(id), node, self.nodes.values().filter(|other| other.id() != id))
    }

    /// A message of the leader's term.
    fn message(&self, from: NodeId, to: NodeId, body: Body<LockTable>) -> Message<LockTable> {
        Message { from, to, term: self.nodes[&LEADER].term(), body }
    }

    /// The leader appends an entry to the follower's log.
    fn append(&self, payload: Payload<Command>) -> Input<LockTable> {
        let node = &self.nodes[&FOLLOWER];
        let (prev, term) = (node.log().last(), node.term());
        let entries = Vec::from([Entry { term, index: prev.index.next(), stamp: node.clock(), payload }]);
        let body = Body::AppendEntries { prev, entries, commit: Index(1), stamp: node.clock(), round: ReadRound(0) };
        Input::Receive(self.message(LEADER, FOLLOWER, body))
    }
}

fn open(proof: u128) -> Command {
    let (owner, principal) = (Owner::from("a"), Principal::default());
    Command::Open { opening: Opening { proof: Proof::from(proof), owner, principal, ttl: Ttl(100) } }
}

fn feed() -> Feed<LockTable> {
    Feed { fingerprint: Some(fingerprint), ..Feed::of_everything() }
}

/// The text is short enough for a test that no two messages have the same.
fn fingerprint(message: &Message<LockTable>) -> u64 {
    let text = alloc::format!("{message:?}");
    text.bytes().fold(7, |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn violates(check: Check, property: Property) {
    assert_eq!(check.map_err(|violation| violation.property), Err(property));
}

#[test]
fn good_run_is_judged_good() {
    let mut cluster = Cluster::elected();
    for id in [LEADER, FOLLOWER, OTHER] {
        cluster.compare(id, &cluster.nodes[&id].clone()).unwrap();
    }
    let counts = cluster.checker.counts();
    assert_eq!(counts.steps, cluster.steps);
    assert_eq!((counts.elections, counts.commits, counts.recoveries, counts.restarts), (1, 1, 3, 0));
    assert!(counts.sent == counts.received && counts.received > 8 && counts.states >= 6);
    let agreed = cluster.checker.reference().unwrap();
    assert_eq!((agreed.last(), agreed.executed()), (Index(1), (1, 1)));
}

#[test]
fn message_before_its_writes_is_seen() {
    let mut cluster = Cluster::new(feed());
    cluster.step(LEADER, Input::ElectionTimeout).unwrap();
    let pre_vote = cluster.flight.pop_front().unwrap();
    cluster.step(FOLLOWER, Input::Receive(pre_vote)).unwrap();
    let reply = cluster.flight.pop_back().unwrap();
    let (judged, outputs) = cluster.take(LEADER, Input::Receive(reply));
    judged.unwrap();
    let sent = outputs.iter().find_map(|output| match output {
        Output::Send(message) => Some(message.clone()),
        _ => None,
    });
    violates(cluster.checker.received(slot(FOLLOWER), &sent.clone().unwrap()), Property::PersistBeforeSend);
    violates(cluster.checker.sent(slot(LEADER), &sent.unwrap()), Property::PersistBeforeSend);
}

#[test]
fn messages_and_writes_that_no_output_asked_for_are_seen() {
    let mut cluster = Cluster::elected();
    let made_up = cluster.message(FOLLOWER, LEADER, Body::PreVoteReply { granted: true });
    violates(cluster.checker.sent(slot(FOLLOWER), &made_up), Property::SendsMatchOutputs);
    violates(cluster.checker.received(slot(LEADER), &made_up), Property::NoSpuriousMessage);
    violates(cluster.checker.offered(slot(LEADER), OTHER, Term(1)), Property::SendsMatchOutputs);
    let hard = cluster.nodes[&OTHER].hard_state();
    let write = Persist::HardState(hard);
    violates(cluster.checker.written(slot(OTHER), &[write]), Property::WritesMatchOutputs);
}

#[test]
fn disk_that_lost_what_it_acknowledged_is_seen() {
    let mut cluster = Cluster::elected();
    let disk = cluster.checker.disk(slot(OTHER)).clone();
    let mut forgot = disk.clone();
    forgot.hard.vote = None;
    let mut lost = disk.clone();
    lost.log.truncate(Index(1));
    cluster.checker.recovered(slot(OTHER), OTHER, &disk).unwrap();
    assert_eq!(cluster.checker.counts().restarts, 1);
    violates(cluster.checker.recovered(slot(OTHER), OTHER, &lost), Property::AcknowledgedWritesSurvive);
    let mut cluster = Cluster::elected();
    violates(cluster.checker.recovered(slot(OTHER), OTHER, &forgot), Property::AcknowledgedWritesSurvive);
}

/// A batch of two writes of which a crash leaves the first: the model's disk may, the server's may
/// not.
#[test]
fn prefix_of_a_batch_may_remain_unless_batches_are_atomic() {
    for batches_are_atomic in [false, true] {
        let mut cluster = Cluster::elected();
        cluster.checker.feed.batches_are_atomic = batches_are_atomic;
        cluster.checker.messages_are_made_up();
        let before = cluster.checker.disk(slot(FOLLOWER)).clone();
        for proof in [1, 2] {
            let (judged, _) = cluster.take(FOLLOWER, cluster.append(Payload::Command(open(proof))));
            judged.unwrap();
        }
        let pending: Vec<_> = cluster.checker.pending(slot(FOLLOWER)).unwrap().cloned().collect();
        let mut torn = before.clone();
        torn.apply(&pending[0]);
        let mut whole = torn.clone();
        pending[1..].iter().for_each(|write| whole.apply(write));
        assert!(torn != before && torn != whole, "the batch has two parts");
        let judge = |found: &Durable<LockTable>| {
            let server = &cluster.checker.servers[&slot(FOLLOWER)];
            super::disk::may_hold(&server.disk, &server.pending, batches_are_atomic, server.released, found)
        };
        assert_eq!([judge(&before), judge(&torn), judge(&whole)], [true, !batches_are_atomic, true]);
    }
}

#[test]
fn snapshot_taken_meanwhile_may_be_found_if_it_is_right() {
    let cluster = Cluster::elected();
    let server = &cluster.checker.servers[&slot(FOLLOWER)];
    let mut found = server.disk.clone();
    found.snapshot = super::disk::snapshot_at(&server.disk, Index(1));
    let may_hold = |released, found: &_| super::disk::may_hold(&server.disk, &server.pending, true, released, found);
    assert!(may_hold(Index(1), &found));
    assert!(!may_hold(Index(0), &found), "the entry is not released");
    found.snapshot.machine.apply(Stamp(0), &open(7));
    assert!(!may_hold(Index(1), &found), "the state is another");
}

#[test]
fn elections_without_votes_and_second_leaders_are_seen() {
    let mut cluster = Cluster::new(feed());
    violates(cluster.elect_by_lies(LEADER), Property::ElectedByMajority);
    assert!(cluster.nodes[&LEADER].is_leader());

    // Another disk under the ID of a node that voted for the leader.
    let mut cluster = Cluster::elected();
    let (slot, disk) = (Slot(9), Durable::blank(LockTable::default(), Members::of([LEADER, FOLLOWER, OTHER])));
    cluster.checker.recovered(slot, OTHER, &disk).unwrap();
    let mut second = Node::recover(Config::new(OTHER), disk);
    let vote = |term, body| Input::Receive(Message { from: FOLLOWER, to: OTHER, term, body });
    for input in [
        Input::ElectionTimeout,
        vote(Term(0), Body::PreVoteReply { granted: true }),
        vote(Term(1), Body::RequestVoteReply { granted: true }),
    ] {
        let mut outputs = Vec::new();
        second.step(input.clone(), &mut outputs);
        let judged = cluster.checker.stepped(slot, &second, &input, &outputs);
        if second.is_leader() { violates(judged, Property::ElectionSafety) } else { judged.unwrap() }
    }
    assert!(second.is_leader() && second.term() == cluster.nodes[&LEADER].term());
}

#[test]
fn commit_without_a_majority_is_seen() {
    let mut cluster = Cluster::new(feed());
    cluster.step(LEADER, Input::ElectionTimeout).unwrap();
    let mut judged = Ok(());
    while judged.is_ok() && cluster.nodes[&LEADER].commit() == Index(0) {
        let Some(message) = cluster.flight.pop_front() else { panic!("the leader commits") };
        // The followers' disks lose what they acknowledge.
        if let Body::AppendAccepted { .. } = message.body {
            for follower in [FOLLOWER, OTHER].map(slot) {
                let mut disk = cluster.checker.disk(follower).clone();
                disk.log.truncate(Index(1));
                cluster.checker.disk_changed(follower, disk);
            }
        }
        judged = cluster.step(message.to, Input::Receive(message));
    }
    violates(judged, Property::CommittedByMajority);
}

#[test]
fn other_outcomes_and_entries_are_seen() {
    let mut cluster = Cluster::new(feed());
    cluster.step(LEADER, Input::ElectionTimeout).unwrap();
    cluster.settle().unwrap();
    let (judged, outputs) = cluster.take(LEADER, Input::HeartbeatTimeout);
    judged.unwrap();
    let heartbeat = outputs.into_iter().find_map(|output| match output {
        Output::Send(message) if message.to == FOLLOWER => Some(Input::Receive(message)),
        _ => None,
    });
    let heartbeat = heartbeat.unwrap();
    let (node, mut outputs) = (cluster.nodes.get_mut(&FOLLOWER).unwrap(), Vec::new());
    node.step(heartbeat.clone(), &mut outputs);
    let applied = outputs.iter().position(|output| matches!(output, Output::Applied { .. })).unwrap();
    let mut other_outcome = outputs.clone();
    if let Output::Applied { outcome, .. } = &mut other_outcome[applied] {
        outcome.reply = Some(crate::lock::Reply::Closed);
    }
    let mut other_term = outputs.clone();
    if let Output::Applied { term, .. } = &mut other_term[applied] {
        *term = Term(7);
    }
    let mut untold = outputs.clone();
    untold.remove(applied);
    let stepped = |outputs: &[Output<LockTable>], cluster: &mut Cluster| {
        let node = cluster.nodes[&FOLLOWER].clone();
        cluster.checker.stepped(slot(FOLLOWER), &node, &heartbeat, outputs)
    };
    violates(stepped(&other_term, &mut cluster), Property::RepliesNameEntries);
    violates(stepped(&untold, &mut cluster), Property::RepliesNameEntries);
    violates(stepped(&other_outcome, &mut cluster), Property::ReplicaAgreement);
}

#[test]
fn memory_that_differs_from_the_disk_is_seen() {
    let mut cluster = Cluster::elected();
    let mut node = cluster.nodes[&FOLLOWER].clone();
    let Input::Receive(append) = cluster.append(Payload::Command(open(1))) else { unreachable!() };
    node.step(Input::Receive(append), &mut Vec::new());
    violates(cluster.compare(FOLLOWER, &node), Property::MemoryMatchesDisk);
}

#[test]
fn snapshots_of_other_or_uncommitted_states_are_seen() {
    let mut cluster = Cluster::elected();
    let right = super::disk::snapshot_at(cluster.checker.disk(slot(FOLLOWER)), Index(1));
    let mut wrong = right.clone();
    wrong.machine = LockTable::sweeping(3);
    violates(cluster.checker.snapshot_taken(slot(FOLLOWER), wrong), Property::ReplicaAgreement);
    let mut early = right.clone();
    early.last.index = Index(2);
    violates(cluster.checker.snapshot_taken(slot(FOLLOWER), early), Property::CommittedBeforeKept);
    let mut renamed = right.clone();
    renamed.stamp = Stamp(5);
    violates(cluster.checker.snapshot_taken(slot(FOLLOWER), renamed), Property::SnapshotsMatchLog);
    let mut members = right.clone();
    members.members = Arc::new(Members::of([OTHER]));
    violates(cluster.checker.snapshot_taken(slot(FOLLOWER), members), Property::MembersSurviveCompaction);
    cluster.checker.snapshot_taken(slot(FOLLOWER), right).unwrap();
    cluster.step(FOLLOWER, Input::Compact(Index(1))).unwrap();
}

#[test]
fn time_that_runs_ahead_is_seen() {
    let mut cluster = Cluster::new(feed());
    let set_time = |cluster: &mut Cluster, ms| cluster.checker.set_time(Some(Duration::from_millis(ms)));
    set_time(&mut cluster, 5);
    cluster.step(LEADER, Input::ElectionTimeout).unwrap();
    cluster.settle().unwrap();
    set_time(&mut cluster, 25);
    cluster.step(LEADER, Input::ClockAdvanced(20)).unwrap();
    // The next entry has this time in its stamp, and begins to age now.
    cluster.propose([open(1)]).unwrap();
    let last = cluster.nodes[&LEADER].log().last();
    assert_eq!(cluster.checker.born(last), Some(Duration::from_millis(25)));
    assert_eq!(cluster.nodes[&LEADER].log().last_stamp(), Stamp(20));
    set_time(&mut cluster, 35);
    cluster.step(LEADER, Input::ClockAdvanced(10)).unwrap();
    violates(cluster.step(LEADER, Input::ClockAdvanced(1)), Property::ClusterTimeNeverRunsAhead);
}

#[test]
fn server_that_was_not_observed_from_its_start_is_seen() {
    let cluster = Cluster::elected();
    let disk = cluster.checker.disk(slot(LEADER)).clone();
    let mut checker = ClusterChecker::new(feed());
    violates(checker.recovered(slot(LEADER), LEADER, &disk), Property::RecordedFromFirstStart);
    let mut voted = Durable::blank(LockTable::default(), Members::of([LEADER]));
    voted.hard.term = Term(1);
    violates(checker.recovered(slot(LEADER), LEADER, &voted), Property::RecordedFromFirstStart);
    checker.recovered(slot(LEADER), LEADER, &Durable::blank(LockTable::default(), Members::of([LEADER]))).unwrap();
    let others = Durable::blank(LockTable::default(), Members::of([OTHER]));
    violates(checker.recovered(slot(OTHER), OTHER, &others), Property::FoundersAgree);
    let node = &cluster.nodes[&FOLLOWER];
    violates(checker.stepped(slot(FOLLOWER), node, &Input::HeartbeatTimeout, &[]), Property::RecordedInOrder);
}
