//! A node's behaviour at a single input.

use super::*;
use crate::checker::inputs::limits_are_kept;
use crate::lock::Outcome;
use crate::raft::{MAX_TERM_ADVANCE, Role};

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
    let last = node.log().last();
    let accepted = || Body::AppendAccepted { matched: Index(1), round: ReadRound(0) };
    // The node knows a leader: it ignores other candidates, but for one that the leader has chosen.
    cluster.claim(&node, &message(Body::PreVote { last }), &[]).unwrap();
    cluster.claim(&node, &message(Body::RequestVote { last, transfer: false }), &[]).unwrap();
    violates(
        cluster.claim(&node, &message(Body::RequestVote { last, transfer: true }), &[]),
        Property::LaterTermsAreAdopted,
    );
    violates(cluster.claim(&node, &message(accepted()), &[]), Property::LaterTermsAreAdopted);
    for (from, to) in [(OTHER, LEADER), (FOLLOWER, FOLLOWER)] {
        let astray = Message { from, to, term: Term(9), body: accepted() };
        cluster.claim(&node, &Input::Receive(astray), &[]).unwrap();
    }
    let from_term = |term| Input::Receive(Message { from: OTHER, to: FOLLOWER, term: Term(term), body: accepted() });
    let greatest = node.term().0 + MAX_TERM_ADVANCE;
    violates(cluster.claim(&node, &from_term(greatest), &[]), Property::LaterTermsAreAdopted);
    cluster.claim(&node, &from_term(greatest + 1), &[]).unwrap();
    // A server without a leader helps every candidate, and one without a history believes every term.
    cluster.step(FOLLOWER, Input::ElectionTimeout).unwrap();
    let node = cluster.nodes[&FOLLOWER].clone();
    let asks = message(Body::PreVote { last });
    violates(cluster.claim(&node, &asks, &[]), Property::LaterTermsAreAdopted);
    let mut new = Cluster::new(feed());
    let node = new.nodes[&FOLLOWER].clone();
    violates(new.claim(&node, &from_term(2 * MAX_TERM_ADVANCE), &[]), Property::LaterTermsAreAdopted);
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

/// The only voter commits its no-op at once, and the sweep may leave sessions for the next one.
#[test]
fn only_voter_may_have_swept_already() {
    let mut cluster = Cluster::of(&[LEADER], feed());
    cluster.step(LEADER, Input::ElectionTimeout).unwrap();
    // A sweep of this table ends 250 sessions.
    cluster.propose((0..300).map(open)).unwrap();
    cluster.step(LEADER, Input::ClockAdvanced(101)).unwrap();
    let node = cluster.nodes[&LEADER].clone();
    assert!(node.machine().next_deadline().is_some_and(|deadline| deadline < node.clock()));
    assert_eq!(node.commit(), node.log().last().index);
    // The next advance appends the next no-op; a node that does not is seen.
    violates(cluster.claim(&node, &Input::ClockAdvanced(1), &[]), Property::ExpiryIsOnItsWay);
    cluster.step(LEADER, Input::ClockAdvanced(1)).unwrap();
    assert_eq!(cluster.nodes[&LEADER].machine().next_deadline(), None);
}

#[test]
fn too_many_entries_in_one_step_or_in_flight_are_seen() {
    let mut node = Cluster::elected().nodes[&LEADER].clone();
    let (term, stamp) = (node.term(), node.clock());
    let most = node.config().max_commits;
    let applied = |index| Output::Applied {
        index: Index(index),
        term,
        stamp,
        outcome: Outcome { reply: None, events: Vec::new() },
    };
    let outputs: Vec<_> = (1..=most + 1).map(applied).collect();
    assert_eq!(limits_are_kept(&outputs[1..], &node), Ok(()));
    violates(limits_are_kept(&outputs, &node), Property::LimitsHold);
    let most = node.config().max_inflight;
    for (count, is_right) in [(most, true), (most + 1, false)] {
        let Role::Leader(leads) = node.parts().role else { unreachable!() };
        let progress = leads.progress.get_mut(&FOLLOWER).unwrap();
        progress.next = Index(progress.matched.0 + 1 + count);
        let claimed = limits_are_kept::<LockTable>(&[], &node);
        if is_right { claimed.unwrap() } else { violates(claimed, Property::LimitsHold) }
    }
}

#[test]
fn acknowledgement_of_less_than_the_snapshot_is_seen() {
    let mut cluster = Cluster::elected();
    let mut node = cluster.nodes[&FOLLOWER].clone();
    node.step(Input::Compact(Index(1)), &mut Vec::new());
    assert_eq!(node.log().base().index, Index(1));
    let acknowledges = |matched| {
        let body = Body::AppendAccepted { matched: Index(matched), round: ReadRound(0) };
        // To a server that does not lead any more: nobody compares it with that server's log.
        [Output::Send(cluster.message(FOLLOWER, OTHER, body))]
    };
    let (right, wrong) = (acknowledges(1), acknowledges(0));
    cluster.claim(&node, &Input::HeartbeatTimeout, &right).unwrap();
    violates(cluster.claim(&node, &Input::HeartbeatTimeout, &wrong), Property::AcknowledgementsMatchLog);
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
