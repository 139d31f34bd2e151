//! Checks of a single server, over any step.

use palisade_spec::checker::transfer_clock;
use palisade_spec::invariants::{
    self, Check, Committed, Property, Violation, clock_monotonicity, commit_only_grows, leader_append_only,
    memory_matches_disk, node_is_sound, snapshot_matches_log,
};
use palisade_spec::raft::{Body, Message, Node, Output, Position, StateMachine};
use palisade_spec::require;

use super::replica::Replica;

/// Checks a step that a server completed.
pub(super) fn judge<S: StateMachine>(before: &Replica<S>, after: &Replica<S>) -> Option<Violation> {
    let (old, new) = (&before.node, &after.node);
    let sound = || {
        node_is_sound(new)?;
        leader_append_only(old, new)?;
        memory_matches_disk(new, &after.disk)?;
        commit_only_grows(old.commit(), new)?;
        clock_monotonicity((old.clock(), old.log().last()), new)
    };
    sound().err()
}

/// Checks that a leader does not arm its election timer during a transfer: when the timer runs out, the
/// transfer ends, and a leader without a quorum steps down.
pub(super) fn transfers_end_in_time<S: StateMachine>(
    before: &Node<S>,
    outputs: &[Output<S>],
    after: &Node<S>,
) -> Check {
    let transfers_in = |node: &Node<S>| transfer_clock(node).map(|(term, _)| term);
    let goes_on = transfers_in(before).is_some() && transfers_in(before) == transfers_in(after);
    let arms = outputs.iter().any(|output| matches!(output, Output::ArmElectionTimer));
    require!(
        Property::UnheardLeaderStepsDown,
        !(goes_on && arms),
        "server {} arms its election timer during a transfer",
        after.id()
    )
}

/// Checks that the base of the log and the snapshot name the last entry that they replace.
pub(super) fn snapshots_match_log<S: StateMachine>(replica: &Replica<S>, committed: &Committed<S::Command>) -> Check {
    let (log, snapshot) = (replica.node.log(), &replica.disk.snapshot);
    let ends = [(log.base(), log.base_stamp()), (snapshot.last, snapshot.stamp)];
    let mut later = ends.into_iter().filter(|(last, _)| *last != Position::default());
    later.try_for_each(|(last, stamp)| snapshot_matches_log(last, stamp, committed.get(&last.index)))
}

/// Checks that a follower which acknowledges an entry to the leader of its term has the same entry.
pub(super) fn acknowledgement_matches_log<S: StateMachine>(
    message: &Message<S>,
    from: &Node<S>,
    to: &Node<S>,
) -> Check {
    let Body::AppendAccepted { matched, .. } = message.body else { return Ok(()) };
    if !to.is_leader() || to.term() != message.term || matched < to.log().base().index {
        return Ok(());
    }
    invariants::acknowledgement_matches_log(matched, from, to.log().term_at(matched))
}
