//! What must hold of a server by itself, over any step.

use palisade_spec::invariants::{Check, Violation, clock_monotonicity, leader_append_only, node_is_sound};
use palisade_spec::raft::{Node, Output, StateMachine};

use super::seat::Seat;

/// What must hold over a step that a server has taken to its end.
pub(super) fn judge<S: StateMachine>(before: &Seat<S>, after: &Seat<S>) -> Option<Violation> {
    let (old, new) = (&before.node, &after.node);
    let id = new.id();
    let sound = || {
        node_is_sound(new)?;
        leader_append_only(old, new)?;
        let written = new.hard_state() == after.disk.hard && new.log() == &after.disk.log;
        require(written, "all is written", || format!("server {id} remembers what its disk does not have"))?;
        let known = new.commit() >= old.commit();
        require(known, "commit only grows", || format!("server {id} forgot that {} is committed", old.commit()))?;
        clock_monotonicity((old.clock(), old.log().last()), new)
    };
    sound().err()
}

/// What a server tells whoever waits for an entry: where a proposal stands, before anything is applied from there on; and
/// what was applied, one entry after the other, each by its own name.
pub(super) fn answers_name_entries<S: StateMachine>(before: &Node<S>, outputs: &[Output<S>], after: &Node<S>) -> Check {
    let name = "answers name their entries";
    let (id, last) = (after.id(), before.log().last().index);
    let mut applied = before.commit();
    for output in outputs {
        match output {
            Output::Accepted { first, term } => {
                let is_next = (*first, *term) == (last.next(), after.term()) && applied <= last;
                require(is_next, name, || format!("server {id} accepted entries from {first} on, after {last}"))?;
            }
            Output::Applied { index, term, stamp, .. } => {
                let is_named = *index == applied.next()
                    && after.log().get(*index).is_some_and(|entry| (entry.term, entry.stamp) == (*term, *stamp));
                require(is_named, name, || format!("server {id} applied {index} of term {term} at {stamp}"))?;
                applied = *index;
            }
            _ => {}
        }
    }
    Ok(())
}

/// What must hold over any step, whether or not the server crashes in it.
pub(super) fn keeps_its_word<S: StateMachine>(old: &Node<S>, new: &Node<S>) -> Check {
    let (id, was, is) = (new.id(), old.hard_state(), new.hard_state());
    require(is.term >= was.term, "terms only grow", || {
        format!("server {id} went from term {} to {}", was.term, is.term)
    })?;
    let stands = is.term > was.term || was.vote.is_none() || is.vote == was.vote;
    require(stands, "one vote a term", || format!("server {id} changed its vote in term {}", is.term))
}

fn require(holds: bool, property: &'static str, detail: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(Violation { property, detail: detail() }) }
}
