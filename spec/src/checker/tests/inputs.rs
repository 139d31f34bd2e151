//! What a node does at a single input.

use super::*;

impl Cluster {
    /// The checker is told that the node with this ID has become `node` by an input.
    fn claim(&mut self, node: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]) -> Check {
        self.checker.stepped(slot(node.id()), node, input, outputs)
    }
}

#[test]
fn message_of_a_later_term_that_is_ignored_is_seen() {
    let mut cluster = Cluster::elected();
    let node = cluster.nodes[&FOLLOWER].clone();
    let message = |body| Input::Receive(Message { from: OTHER, to: FOLLOWER, term: Term(9), body });
    cluster.claim(&node, &message(Body::PreVote { last: node.log().last() }), &[]).unwrap();
    let accepted = message(Body::AppendAccepted { matched: Index(1), round: ReadRound(0) });
    violates(cluster.claim(&node, &accepted, &[]), Property::LaterTermsAreAdopted);
}

#[test]
fn leader_that_goes_on_without_answers_is_seen() {
    let mut cluster = Cluster::elected();
    // The followers have just answered, and the leader forgets nothing at its timeout.
    let node = cluster.nodes[&LEADER].clone();
    violates(cluster.claim(&node, &Input::ElectionTimeout, &[]), Property::UnheardLeaderStepsDown);
    cluster.step(LEADER, Input::ElectionTimeout).unwrap();
    cluster.step(LEADER, Input::ElectionTimeout).unwrap();
    assert!(!cluster.nodes[&LEADER].is_leader());
}

#[test]
fn time_that_passes_during_a_transfer_is_seen() {
    let mut cluster = Cluster::elected();
    cluster.step(LEADER, Input::Transfer { id: RequestId(3), to: Some(FOLLOWER) }).unwrap();
    cluster.step(LEADER, Input::ClockAdvanced(5)).unwrap();
    let mut node = cluster.nodes[&LEADER].clone();
    *node.parts().clock = Stamp(5);
    violates(cluster.claim(&node, &Input::ClockAdvanced(5), &[]), Property::TimeStopsDuringTransfer);
}

#[test]
fn deadline_that_passes_without_an_entry_is_seen() {
    let mut cluster = Cluster::elected();
    cluster.propose([open(1)]).unwrap();
    let mut node = cluster.nodes[&LEADER].clone();
    *node.parts().clock = Stamp(101);
    violates(cluster.claim(&node, &Input::ClockAdvanced(101), &[]), Property::ExpiryIsOnItsWay);
    cluster.step(LEADER, Input::ClockAdvanced(101)).unwrap();
    assert_eq!(cluster.nodes[&LEADER].log().last_stamp(), Stamp(101));
}

#[test]
fn message_with_too_many_entries_is_seen() {
    let mut cluster = Cluster::elected();
    let node = cluster.nodes[&LEADER].clone();
    let Input::Receive(mut message) = cluster.append(Payload::Noop) else { unreachable!() };
    let most = node.config().max_batch;
    for (count, is_right) in [(most, true), (most + 1, false)] {
        if let Body::AppendEntries { entries, .. } = &mut message.body {
            *entries = core::iter::repeat_n(entries[0].clone(), count).collect();
        }
        let claimed = cluster.claim(&node, &Input::HeartbeatTimeout, &[Output::Send(message.clone())]);
        if is_right { claimed.unwrap() } else { violates(claimed, Property::LimitsHold) }
    }
}

#[test]
fn acknowledgement_of_an_entry_that_the_leader_lacks_is_seen() {
    let mut cluster = Cluster::elected();
    let acknowledges = |cluster: &Cluster, matched| {
        Output::Send(cluster.message(FOLLOWER, LEADER, Body::AppendAccepted { matched, round: ReadRound(0) }))
    };
    let mut node = cluster.nodes[&FOLLOWER].clone();
    let right = acknowledges(&cluster, Index(1));
    cluster.claim(&node, &Input::HeartbeatTimeout, &[right]).unwrap();
    let term = node.term();
    node.push(noop(2, term.0));
    let wrong = acknowledges(&cluster, Index(2));
    violates(cluster.claim(&node, &Input::HeartbeatTimeout, &[wrong]), Property::AcknowledgementsMatchLog);
}

/// The leader's entry counts from when it asks for the write: the follower may be faster than the
/// leader's disk.
#[test]
fn acknowledgement_may_overtake_the_leaders_own_write() {
    let mut cluster = Cluster::elected();
    let propose = Input::Propose { id: RequestId(1), payloads: Vec::from([Payload::Command(open(1))]) };
    let (judged, outputs) = cluster.take(LEADER, propose);
    judged.unwrap();
    let append = outputs.into_iter().find_map(|output| match output {
        Output::Send(message) if message.to == FOLLOWER => Some(message),
        _ => None,
    });
    cluster.step(FOLLOWER, Input::Receive(append.unwrap())).unwrap();
    assert_eq!(cluster.checker.disk(slot(LEADER)).log.last().index, Index(1));
    assert_eq!(cluster.nodes[&FOLLOWER].log().last().index, Index(2));
}
