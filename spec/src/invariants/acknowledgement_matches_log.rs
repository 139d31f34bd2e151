//! A follower acknowledges to the leader of its term only entries that the leader has.

use super::{Check, Property};
use crate::raft::{Index, Node, StateMachine, Term};
use crate::require;

/// Compares the entry that a follower acknowledges with the leader's entry at that index, which is
/// of term `leaders`.
pub fn acknowledgement_matches_log<S: StateMachine>(
    matched: Index,
    follower: &Node<S>,
    leaders: Option<Term>,
) -> Check {
    let own = follower.log().term_at(matched);
    require!(
        Property::AcknowledgementsMatchLog,
        own == leaders,
        "server {} acknowledges entry {matched} of term {own:?}, which is of term {leaders:?}",
        follower.id()
    )
}
