//! Changes of more than the end of a log: members, snapshots, compactions, other leaders.

use super::*;
use crate::raft::Change;

impl Cluster {
    /// As [`Cluster::elected`], but a second leader has committed the first entry: that of the first leader was lost.
    pub(super) fn elected_again() -> Cluster {
        let mut cluster = Cluster::new(feed());
        cluster.step(LEADER, Input::ElectionTimeout).unwrap();
        while !cluster.nodes[&LEADER].is_leader() {
            let message = cluster.flight.pop_front().unwrap();
            cluster.step(message.to, Input::Receive(message)).unwrap();
        }
        cluster.flight.clear();
        cluster.step(FOLLOWER, Input::ElectionTimeout).unwrap();
        cluster.settle().unwrap();
        cluster.step(FOLLOWER, Input::HeartbeatTimeout).unwrap();
        cluster.settle().unwrap();
        assert!(cluster.nodes.values().all(|node| node.commit() == Index(1) && node.log().last().term == Term(2)));
        cluster
    }

    /// The node's driver takes a snapshot of all that is committed, and compacts the log.
    fn compact(&mut self, id: NodeId) -> Check {
        let through = self.nodes[&id].commit();
        let snapshot = crate::checker::disk::snapshot_at(self.checker.disk(slot(id)), through);
        self.checker.snapshot_taken(slot(id), snapshot)?;
        self.step(id, Input::Compact(through))
    }
}

#[test]
fn follower_far_behind_is_sent_a_snapshot() {
    let mut cluster = Cluster::elected();
    cluster.cut_off = Some(OTHER);
    cluster.propose([open(1), open(2)]).unwrap();
    cluster.compact(LEADER).unwrap();
    cluster.cut_off = None;
    for _ in 0..2 {
        cluster.step(LEADER, Input::HeartbeatTimeout).unwrap();
        cluster.settle().unwrap();
    }
    let counts = cluster.checker.counts();
    assert_eq!((counts.snapshots, counts.installed), (1, 1));
    assert_eq!(cluster.nodes[&OTHER].commit(), Index(3));
    cluster.compare(OTHER, &cluster.nodes[&OTHER].clone()).unwrap();
}

#[test]
fn snapshot_that_is_offered_to_another_node_is_seen() {
    for (to, is_right) in [(OTHER, true), (FOLLOWER, false)] {
        let mut cluster = Cluster::elected();
        cluster.cut_off = Some(OTHER);
        cluster.propose([open(1)]).unwrap();
        cluster.compact(LEADER).unwrap();
        // Only the follower's rejection shows that it lacks what was compacted.
        cluster.step(LEADER, Input::HeartbeatTimeout).unwrap();
        let heartbeat = cluster.flight.iter().find(|message| message.to == OTHER).unwrap().clone();
        cluster.flight.clear();
        cluster.step(OTHER, Input::Receive(heartbeat)).unwrap();
        let rejection = cluster.flight.pop_front().unwrap();
        let (judged, outputs) = cluster.take(LEADER, Input::Receive(rejection));
        judged.unwrap();
        let mut offered = None;
        for output in outputs {
            match output {
                Output::Send(message) => cluster.checker.sent(slot(LEADER), &message).unwrap(),
                Output::SendSnapshot { term, .. } => offered = Some(cluster.checker.offered(slot(LEADER), to, term)),
                _ => {}
            }
        }
        match is_right {
            true => offered.unwrap().unwrap(),
            false => violates(offered.unwrap(), Property::SendsMatchOutputs),
        }
    }
}

#[test]
fn two_changes_at_a_time_are_seen() {
    let mut cluster = Cluster::elected();
    let one = cluster.nodes[&FOLLOWER].log().members().with(&Change::Remove(OTHER)).unwrap();
    let two = one.with(&Change::Remove(LEADER)).unwrap();
    cluster.checker.messages_are_made_up();
    cluster.step(FOLLOWER, cluster.append(Payload::Members(Arc::new(one)))).unwrap();
    assert_eq!(cluster.checker.counts().changes, 1);
    let judged = cluster.step(FOLLOWER, cluster.append(Payload::Members(Arc::new(two))));
    violates(judged, Property::OneChangeAtATime);
}

/// The leader commits its own removal, and leads no longer at the end of that step: its commit is
/// counted all the same. Its successor commits the second.
#[test]
fn commit_of_the_leader_s_own_removal_is_counted() {
    let mut cluster = Cluster::elected();
    assert_eq!(cluster.checker.counts().commits, 1);
    cluster.step(LEADER, Input::Change { id: RequestId(1), change: Change::Remove(LEADER) }).unwrap();
    cluster.settle().unwrap();
    assert!(!cluster.nodes[&LEADER].is_leader() && cluster.nodes[&LEADER].commit() == Index(2));
    let counts = cluster.checker.counts();
    assert_eq!((counts.elections, counts.commits), (2, 3));
}

/// A log that begins after another entry than the one that was agreed.
#[test]
fn compaction_after_another_entry_is_seen() {
    let mut cluster = Cluster::elected();
    let mut other = Cluster::elected_again();
    let snapshot = crate::checker::disk::snapshot_at(cluster.checker.disk(slot(FOLLOWER)), Index(1));
    cluster.checker.snapshot_taken(slot(FOLLOWER), snapshot).unwrap();
    let node = other.nodes.get_mut(&FOLLOWER).unwrap();
    let (compact, mut outputs) = (Input::Compact(Index(1)), Vec::new());
    node.step(compact.clone(), &mut outputs);
    violates(cluster.checker.stepped(slot(FOLLOWER), node, &compact, &outputs), Property::SnapshotsMatchLog);
}

#[test]
fn leader_that_writes_an_entry_again_is_seen() {
    let mut cluster = Cluster::elected();
    cluster.propose([open(1)]).unwrap();
    let propose = Input::Propose { id: RequestId(2), payloads: Vec::from([Payload::Command(open(2))]) };
    let (node, mut outputs) = (cluster.nodes.get_mut(&LEADER).unwrap(), Vec::new());
    node.step(propose.clone(), &mut outputs);
    let again = node.log().entries().to_vec();
    for output in &mut outputs {
        if let Output::Persist(Persist::Entries(entries)) = output {
            *entries = again.clone();
        }
    }
    let judged = cluster.checker.stepped(slot(LEADER), &cluster.nodes[&LEADER], &propose, &outputs);
    violates(judged, Property::LeaderAppendOnly);
}

/// The votes are there, and the log is not: the voter's disk forgot what it had.
#[test]
fn leader_that_lacks_a_committed_entry_is_seen() {
    let mut cluster = Cluster::elected();
    cluster.cut_off = Some(OTHER);
    cluster.propose([open(1)]).unwrap();
    let mut voter = cluster.checker.disk(slot(FOLLOWER)).clone();
    voter.hard.term = cluster.nodes[&FOLLOWER].term().next();
    voter.hard.vote = Some(OTHER);
    cluster.checker.disk_changed(slot(FOLLOWER), voter);
    violates(cluster.elect_by_lies(OTHER), Property::LeaderCompleteness);
    assert!(cluster.nodes[&OTHER].is_leader());
}

/// A heartbeat that no leader sent names an entry that only two logs have.
#[test]
fn commit_that_no_node_has_applied_is_seen() {
    let mut cluster = Cluster::elected();
    let payloads = Vec::from([Payload::Command(open(1))]);
    cluster.step(LEADER, Input::Propose { id: RequestId(1), payloads }).unwrap();
    let append = cluster.flight.iter().find(|message| message.to == FOLLOWER).unwrap().clone();
    cluster.step(FOLLOWER, Input::Receive(append)).unwrap();
    let mut node = cluster.nodes[&FOLLOWER].clone();
    let (prev, stamp) = (node.log().last(), node.clock());
    let body = Body::AppendEntries { prev, entries: Vec::new(), commit: Index(2), stamp, round: ReadRound(0) };
    node.step(Input::Receive(cluster.message(LEADER, FOLLOWER, body)), &mut Vec::new());
    assert_eq!(node.commit(), Index(2));
    violates(cluster.compare(FOLLOWER, &node), Property::CommitsFollowOneAnother);
}
