//! Checks of a single server, over any step.

use palisade_spec::invariants::{
    Check, Committed, Property, Violation, clock_monotonicity, leader_append_only, node_is_sound,
};
use palisade_spec::raft::{Body, Durable, Message, Node, Output, Position, Stamp, StateMachine};
use palisade_spec::require;

use super::replica::Replica;

/// Checks a step that a server completed.
pub(super) fn judge<S: StateMachine>(before: &Replica<S>, after: &Replica<S>) -> Option<Violation> {
    let (old, new) = (&before.node, &after.node);
    let id = new.id();
    let sound = || {
        node_is_sound(new)?;
        leader_append_only(old, new)?;
        let written = new.hard_state() == after.disk.hard && new.log() == &after.disk.log;
        require!(Property::MemoryMatchesDisk, written, "the memory of server {id} differs from its disk")?;
        let known = new.commit() >= old.commit();
        require!(
            Property::CommitOnlyGrows,
            known,
            "the commit index of server {id} went from {} to {}",
            old.commit(),
            new.commit()
        )?;
        clock_monotonicity((old.clock(), old.log().last()), new)
    };
    sound().err()
}

/// Checks a server's answers: `Accepted` names the right index and term, and comes before anything
/// is applied from that index on; `Applied` names the entries one after the other, each with its
/// own index, term and stamp.
pub(super) fn answers_name_entries<S: StateMachine>(before: &Node<S>, outputs: &[Output<S>], after: &Node<S>) -> Check {
    let name = Property::RepliesNameEntries;
    let (id, last) = (after.id(), before.log().last().index);
    let mut applied = before.commit();
    for output in outputs {
        match output {
            Output::Accepted { first, term, .. } => {
                let is_next = (*first, *term) == (last.next(), after.term()) && applied <= last;
                require!(name, is_next, "server {id} accepted entries from {first} on, after {last}")?;
            }
            Output::Applied { index, term, stamp, .. } => {
                let is_named = *index == applied.next()
                    && after.log().get(*index).is_some_and(|entry| (entry.term, entry.stamp) == (*term, *stamp));
                require!(name, is_named, "server {id} applied {index} of term {term} at {stamp}")?;
                applied = *index;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks that a candidate has written its term and its own vote before it sends a RequestVote: a
/// crash must not make it forget them. Other properties find other messages that leave before the
/// write that they depend on.
pub(super) fn vote_is_written<S: StateMachine>(message: &Message<S>, after: &Node<S>, disk: &Durable<S>) -> Check {
    let is_written = !matches!(message.body, Body::RequestVote { .. }) || disk.hard == after.hard_state();
    require!(
        Property::MemoryMatchesDisk,
        is_written,
        "server {} sends a RequestVote before its own vote is on disk",
        after.id()
    )
}

/// Checks that the base of the log and the snapshot name the last entry that they replace, and its
/// stamp.
pub(super) fn snapshots_match_log<S: StateMachine>(replica: &Replica<S>, committed: &Committed<S::Command>) -> Check {
    let (log, snapshot) = (replica.node.log(), &replica.disk.snapshot);
    let is_true = |(last, stamp): (Position, Stamp)| {
        let entry = committed.get(&last.index);
        last == Position::default() || entry.is_some_and(|entry| (entry.position(), entry.stamp) == (last, stamp))
    };
    let ends = [(log.base(), log.base_stamp()), (snapshot.last, snapshot.stamp)];
    require!(
        Property::SnapshotsMatchLog,
        ends.into_iter().all(is_true),
        "the log and the snapshot of server {} begin after {ends:?}, but other entries were committed there",
        replica.node.id()
    )
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
    let (own, leaders) = (from.log().term_at(matched), to.log().term_at(matched));
    require!(
        Property::AcknowledgementsMatchLog,
        own == leaders,
        "server {} acknowledges entry {matched} of term {own:?}, which is of term {leaders:?}",
        from.id()
    )
}

/// Checks what must hold over any step, even one in which the server crashes.
pub(super) fn terms_and_votes_are_kept<S: StateMachine>(old: &Node<S>, new: &Node<S>) -> Check {
    let (id, was, is) = (new.id(), old.hard_state(), new.hard_state());
    require!(
        Property::TermsOnlyGrow,
        is.term >= was.term,
        "server {id} went from term {} back to term {}",
        was.term,
        is.term
    )?;
    let stands = is.term > was.term || was.vote.is_none() || is.vote == was.vote;
    require!(Property::OneVotePerTerm, stands, "server {id} changed its vote in term {}", is.term)
}
