//! A feeder's events and its budget decide what the checker judges, and how often.

use super::*;
use crate::checker::Agreed;

#[test]
fn entries_and_states_are_kept_as_long_as_the_feed_says() {
    let mut cluster = Cluster::elected_with(Feed { states_kept: 1, ..feed() });
    cluster.propose([open(1), open(2)]).unwrap();
    let agreed = cluster.checker.reference().unwrap();
    let has_state: Vec<_> = agreed.entries().map(|entry| entry.machine().is_some()).collect();
    assert_eq!(has_state, [false, false, true]);
    assert_eq!(agreed.entries().last().and_then(Agreed::machine), Some(agreed.machine()));
    assert_eq!(agreed.executed(), (3, 3));

    let mut cluster = Cluster::elected_with(Feed { entries_kept: 2, ..feed() });
    cluster.propose([open(1), open(2)]).unwrap();
    let agreed = cluster.checker.reference().unwrap();
    let kept: Vec<_> = agreed.entries().map(|entry| entry.entry.index).collect();
    assert_eq!((kept.as_slice(), agreed.last()), ([Index(2), Index(3)].as_slice(), Index(3)));
    assert!(agreed.get(Index(1)).is_none() && agreed.get(Index(2)).is_some());
}

/// Tables of up to four sessions are checked after each entry, larger ones when their turn has come.
#[test]
fn whole_states_are_checked_as_often_as_the_feed_can_afford() {
    let mut cluster = Cluster::elected_with(Feed { checked_whole_up_to: 4, ..feed() });
    let mut whole = Vec::new();
    for proof in 1..=8 {
        let (_, before) = cluster.checker.reference().unwrap().executed();
        cluster.propose([open(proof)]).unwrap();
        whole.push(cluster.checker.reference().unwrap().executed().1 - before);
    }
    assert_eq!(whole, [1, 1, 1, 1, 0, 0, 1, 0]);
}

#[test]
fn majority_with_an_unknown_server_is_judged_only_if_all_servers_are_seen() {
    for (sees_all_servers, knows_all, is_judged) in
        [(true, true, true), (true, false, true), (false, true, true), (false, false, false)]
    {
        let mut cluster = Cluster::new(Feed { sees_all_servers, ..feed() });
        if !knows_all {
            cluster.checker.servers.remove(&slot(FOLLOWER));
        }
        let judged = cluster.elect_by_lies(LEADER);
        assert!(cluster.nodes[&LEADER].is_leader());
        assert_eq!(cluster.checker.counts().uncounted, u64::from(!is_judged));
        match is_judged {
            true => violates(judged, Property::ElectedByMajority),
            false => judged.unwrap(),
        }
    }
}

#[test]
fn made_up_messages_end_what_is_known_only_without_them() {
    let mut cluster = Cluster::new(feed());
    cluster.checker.messages_are_made_up();
    cluster.elect_by_lies(LEADER).unwrap();
    assert!(cluster.nodes[&LEADER].is_leader());
    assert_eq!(cluster.checker.counts().uncounted, 1);

    let mut cluster = Cluster::elected();
    let right = crate::checker::disk::snapshot_at(cluster.checker.disk(slot(FOLLOWER)), Index(1));
    let mut unknown = right.clone();
    unknown.last.index = Index(2);
    let mut wrong = right.clone();
    wrong.machine = LockTable::sweeping(3);
    violates(cluster.checker.compare_snapshot(&unknown), Property::CommittedBeforeKept);
    cluster.checker.messages_are_made_up();
    cluster.checker.compare_snapshot(&unknown).unwrap();
    cluster.checker.compare_snapshot(&right).unwrap();
    violates(cluster.checker.compare_snapshot(&wrong), Property::ReplicaAgreement);

    // A node whose commit is known is still compared, whatever messages led to it.
    let node = cluster.nodes[&FOLLOWER].clone();
    cluster.compare(FOLLOWER, &node).unwrap();
    let other = Cluster::elected_again();
    cluster.checker.disk_changed(slot(FOLLOWER), other.checker.disk(slot(FOLLOWER)).clone());
    let judged = cluster.checker.compare(slot(FOLLOWER), &other.nodes[&FOLLOWER], []);
    violates(judged, Property::StateMachineSafety);
}

#[test]
fn whole_states_are_compared_after_as_many_commits_as_the_feed_says() {
    let mut cluster = Cluster::elected_with(Feed { commits_between_comparisons: 2, ..feed() });
    for proof in 1..=3 {
        cluster.propose([open(proof)]).unwrap();
    }
    assert!(cluster.nodes.values().all(|node| node.commit() == Index(4)));
    assert_eq!(cluster.checker.counts().states, 6, "twice on each of three nodes");
}

/// The only voter commits when it writes, before the write is durable: nothing is agreed yet, and
/// the vote that elected it is not on its disk either.
#[test]
fn commit_whose_writes_are_under_way_is_not_compared() {
    let mut cluster = Cluster::of(&[LEADER], feed());
    let (judged, outputs) = cluster.take(LEADER, Input::ElectionTimeout);
    judged.unwrap();
    assert!(cluster.nodes[&LEADER].is_leader() && cluster.nodes[&LEADER].commit() == Index(1));
    let counts = cluster.checker.counts();
    assert_eq!((counts.elections, counts.commits, counts.states), (1, 1, 0));
    assert_eq!(cluster.checker.reference().unwrap().last(), Index(0));
    let node = cluster.nodes[&LEADER].clone();
    cluster.compare(LEADER, &node).unwrap();
    for output in outputs {
        if let Output::Persist(write) = output {
            cluster.checker.written(slot(LEADER), &[write]).unwrap();
        }
    }
    assert_eq!(cluster.checker.reference().unwrap().last(), Index(1));
}

/// A driver that does not report its snapshots shows them by what it compacts.
#[test]
fn compaction_shows_a_snapshot_if_none_is_reported() {
    for reports_snapshots in [false, true] {
        let mut cluster = Cluster::elected_with(Feed { reports_snapshots, ..feed() });
        let judged = cluster.step(FOLLOWER, Input::Compact(Index(1)));
        match reports_snapshots {
            true => violates(judged, Property::CompactedAfterRelease),
            false => judged.unwrap(),
        }
        let snapshot = &cluster.checker.disk(slot(FOLLOWER)).snapshot;
        assert_eq!(snapshot.last.index, Index(u64::from(!reports_snapshots)));
    }
}
