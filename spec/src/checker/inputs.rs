//! Checks of a single input of a node: the input, the outputs, and the node's state before and
//! after.
//!
//! No safety property depends on most of these rules: a cluster that breaks them loses time or
//! sessions. A single input shows such an error, so no model has to reach its consequences.

use alloc::vec::Vec;

use crate::invariants::{Check, Property};
use crate::raft::{
    Body, Index, Input, MAX_TERM_ADVANCE, Message, Node, Output, Payload, ProgressState, Role, Stamp, StateMachine,
    Term,
};
use crate::require;

/// The term and the clock of a leader that transfers its leadership.
pub fn transfer_clock<S: StateMachine>(node: &Node<S>) -> Option<(Term, Stamp)> {
    let transfers = matches!(node.role(), Role::Leader(leads) if leads.successor.is_some());
    transfers.then(|| (node.term(), node.clock()))
}

/// Checks a node's reaction to an input; `before` is its [`transfer_clock`] before the input.
///
/// # Errors
/// The first violation.
pub fn check_input<S: StateMachine>(
    before: Option<(Term, Stamp)>,
    input: &Input<S>,
    outputs: &[Output<S>],
    after: &Node<S>,
) -> Check {
    later_terms_are_adopted(input, after)?;
    unheard_leader_steps_down(input, after)?;
    time_stops_during_transfer(before, after)?;
    expiry_is_on_its_way(input, outputs, after)?;
    limits_are_kept(outputs, after)?;
    outputs.iter().try_for_each(|output| match output {
        Output::Send(Message { body: Body::AppendAccepted { matched, .. }, .. }) => {
            covers_the_snapshot(*matched, after)
        }
        _ => Ok(()),
    })
}

/// A message of a later term ends its receiver's term (figure 3.1, "All Servers"), except for the
/// vote requests that a server with a live leader ignores (§4.2.3), messages that are not for this
/// server, and those with numbers that no correct server of this cluster has reached: that the
/// receiver drops those is not checked here.
fn later_terms_are_adopted<S: StateMachine>(input: &Input<S>, after: &Node<S>) -> Check {
    let Input::Receive(message) = input else { return Ok(()) };
    let asks_for_vote = matches!(message.body, Body::PreVote { .. } | Body::RequestVote { transfer: false, .. });
    let advance = message.term.0.saturating_sub(after.term().0);
    let may_be_ignored = asks_for_vote && after.leader().is_some()
        || message.to != after.id()
        || message.from == after.id()
        || !message.in_range()
        || after.term() != Term(0) && advance > MAX_TERM_ADVANCE;
    require!(
        Property::LaterTermsAreAdopted,
        may_be_ignored || after.term() >= message.term,
        "server {} received a message of term {} and stays in term {}",
        after.id(),
        message.term,
        after.term()
    )
}

/// A leader that receives no answers between two election timeouts steps down (CheckQuorum, §6.2).
fn unheard_leader_steps_down<S: StateMachine>(input: &Input<S>, after: &Node<S>) -> Check {
    let alone = after.members().is_majority(|voter| voter == after.id());
    if !matches!(input, Input::ElectionTimeout) || !after.is_leader() || alone {
        return Ok(());
    }
    let mut later = after.clone();
    later.step(Input::ElectionTimeout, &mut Vec::new());
    require!(
        Property::UnheardLeaderStepsDown,
        !later.is_leader(),
        "server {} still leads after two election timeouts without answers",
        after.id()
    )
}

/// A leader's clock stops during a leadership transfer: the leader rejects keepalives, so sessions
/// would lose that time.
fn time_stops_during_transfer<S: StateMachine>(before: Option<(Term, Stamp)>, after: &Node<S>) -> Check {
    let Some(((began, was), (term, is))) = before.zip(transfer_clock(after)) else { return Ok(()) };
    require!(
        Property::TimeStopsDuringTransfer,
        began != term || was == is,
        "the clock of server {} went from {was} to {is}",
        after.id()
    )
}

/// A leader whose clock has passed a deadline has a no-op whose stamp is late enough to end the
/// session, and which was not committed before this input. A leader that is the only voter commits it
/// at once, and its sweep may leave sessions for the next one.
fn expiry_is_on_its_way<S: StateMachine>(input: &Input<S>, outputs: &[Output<S>], after: &Node<S>) -> Check {
    let Role::Leader(leads) = after.role() else { return Ok(()) };
    let Some(deadline) = after.machine().next_deadline().filter(|deadline| *deadline < after.clock()) else {
        return Ok(());
    };
    if !matches!(input, Input::ClockAdvanced(_)) || leads.successor.is_some() {
        return Ok(());
    }
    let commit_before = after.commit().0.saturating_sub(applied(outputs));
    let mut open = after.log().entries().iter().rev().take_while(|entry| entry.index.0 > commit_before);
    require!(
        Property::ExpiryIsOnItsWay,
        open.any(|entry| matches!(entry.payload, Payload::Noop) && entry.stamp > deadline),
        "the clock of server {} is at {}, and its log has no uncommitted no-op after {deadline}",
        after.id(),
        after.clock()
    )
}

/// The entries in flight to a follower, sent in one message, or committed in one step stay within
/// the configured limits.
pub(super) fn limits_are_kept<S: StateMachine>(outputs: &[Output<S>], after: &Node<S>) -> Check {
    let (name, config) = (Property::LimitsHold, after.config());
    for output in outputs {
        if let Output::Send(Message { body: Body::AppendEntries { entries, .. }, .. }) = output {
            require!(name, entries.len() <= config.max_batch, "{} entries are sent in one message", entries.len())?;
        }
    }
    let applied = applied(outputs);
    require!(name, applied <= config.max_commits, "{applied} entries are committed in one step")?;
    let Role::Leader(leads) = after.role() else { return Ok(()) };
    let followers = leads.progress.values().filter(|progress| progress.state == ProgressState::Replicate);
    let most = followers.map(|progress| progress.next.0 - progress.matched.0 - 1).max().unwrap_or(0);
    require!(name, most <= config.max_inflight, "{most} entries are in flight to one follower")
}

/// The number of entries that a step commits.
fn applied<S: StateMachine>(outputs: &[Output<S>]) -> u64 {
    outputs.iter().filter(|output| matches!(output, Output::Applied { .. })).count() as u64
}

/// A follower acknowledges at least the last entry of its snapshot: a snapshot includes only
/// committed entries.
fn covers_the_snapshot<S: StateMachine>(matched: Index, after: &Node<S>) -> Check {
    let base = after.log().base().index;
    require!(
        Property::AcknowledgementsMatchLog,
        matched >= base,
        "server {} has a snapshot up to {base}, and acknowledges only up to {matched}",
        after.id()
    )
}
