//! Whether a write can be what a sound node wrote next.
//!
//! A frame that checks out was written by this program; but a program has bugs, and a directory can be put together
//! by hand. [`Durable::apply`] answers an impossible write with a panic, which is right for a running node and wrong
//! for one that is only reading its disk: so what is impossible is found here first, and becomes a sentence.

use palisade_spec::raft::{Durable, Entry, HardState, Index, Persist, Position, Snapshot, StateMachine};

/// Checks a write against the disk it is to be applied to.
///
/// # Errors
/// Says what is impossible about it.
pub(super) fn check<S: StateMachine>(durable: &Durable<S>, write: &Persist<S>) -> Result<(), String> {
    match write {
        Persist::HardState(hard) => check_hard_state(durable.hard, *hard),
        Persist::Entries(entries) => check_entries(durable, entries),
        Persist::Snapshot(snapshot) => check_snapshot(durable, snapshot),
        Persist::Compact(through) => check_compaction(durable, *through),
    }
}

/// A snapshot is later than the one before, and of no later term than the node has seen.
fn check_snapshot<S: StateMachine>(durable: &Durable<S>, snapshot: &Snapshot<S>) -> Result<(), String> {
    let (old, new) = (durable.snapshot.last, snapshot.last);
    if new.index <= old.index || new.term < old.term {
        let (Position { index, term }, Position { index: before, term: earlier }) = (new, old);
        return Err(format!(
            "its snapshot ends at {index} of term {term}, the one before at {before} of term {earlier}"
        ));
    }
    if new.term > durable.hard.term {
        return Err(format!("its snapshot is of term {}, after the node's own, {}", new.term, durable.hard.term));
    }
    Ok(())
}

/// The log loses only what a snapshot includes.
fn check_compaction<S: StateMachine>(durable: &Durable<S>, through: Index) -> Result<(), String> {
    let last = durable.snapshot.last.index;
    if through > last {
        return Err(format!("it removes entries up to {through}, but the snapshot ends at {last}"));
    }
    Ok(())
}

/// Terms never decrease, and a vote given stands for its term (figure 3.1).
fn check_hard_state(old: HardState, new: HardState) -> Result<(), String> {
    if new.term < old.term {
        return Err(format!("it goes back from term {} to term {}", old.term, new.term));
    }
    if new.term == old.term && old.vote.is_some() && new.vote != old.vote {
        return Err(format!("it changes the vote given in term {}", old.term));
    }
    Ok(())
}

/// Entries continue the log, or replace its end; among themselves indexes have no gap, terms and stamps never
/// decrease.
fn check_entries<S: StateMachine>(durable: &Durable<S>, entries: &[Entry<S::Command>]) -> Result<(), String> {
    let log = &durable.log;
    let first = entries.first().ok_or("it writes no entries")?;
    if first.index <= log.base().index {
        return Err(format!("it replaces entry {}, which a snapshot covers", first.index));
    }
    if first.index > log.last().index.next() {
        return Err(format!("it writes entry {} after entry {}", first.index, log.last().index));
    }
    let before = log.get(first.index.previous());
    let mut last = before.map_or(log.base(), Entry::position);
    let mut stamp = before.map_or(durable.snapshot.stamp, |entry| entry.stamp);
    for entry in entries {
        if entry.index != last.index.next() || entry.term < last.term || entry.stamp < stamp {
            return Err(format!(
                "entry {} of term {} at {} cannot follow entry {} of term {} at {stamp}",
                entry.index, entry.term, entry.stamp, last.index, last.term
            ));
        }
        last = entry.position();
        stamp = entry.stamp;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::{Index, NodeId, Payload, Stamp, Term};

    use super::super::testing::Tape;
    use super::*;

    fn entry(term: u64, index: u64, stamp: u64) -> Entry<Vec<u8>> {
        Entry { term: Term(term), index: Index(index), stamp: Stamp(stamp), payload: Payload::Noop }
    }

    fn hard(term: u64, vote: Option<u16>) -> Persist<Tape> {
        Persist::HardState(HardState { term: Term(term), vote: vote.map(NodeId) })
    }

    #[test]
    fn impossible_writes_are_named_and_possible_ones_are_not() {
        let mut durable = Durable::blank(Tape);
        durable.apply(&hard(4, Some(1)));
        durable.apply(&Persist::Entries(vec![entry(1, 1, 10), entry(3, 2, 20)]));

        for good in [
            hard(4, Some(1)),
            hard(5, None),
            Persist::Entries(vec![entry(3, 3, 20)]),
            Persist::Entries(vec![entry(1, 2, 10), entry(4, 3, 10)]),
            Persist::Entries(vec![entry(1, 1, 0)]),
        ] {
            assert_eq!(check(&durable, &good), Ok(()));
            durable.clone().apply(&good);
        }
        for bad in [
            hard(3, None),
            hard(4, None),
            hard(4, Some(2)),
            Persist::Entries(vec![]),
            Persist::Entries(vec![entry(3, 0, 20)]),
            Persist::Entries(vec![entry(3, 4, 20)]),
            Persist::Entries(vec![entry(2, 3, 20)]),
            Persist::Entries(vec![entry(3, 3, 19)]),
            Persist::Entries(vec![entry(3, 3, 20), entry(3, 5, 20)]),
        ] {
            assert!(check(&durable, &bad).is_err(), "{bad:?}");
        }
    }
}
