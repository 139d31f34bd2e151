//! Log Matching (figure 3.2): if two logs contain an entry with the same index and term, then the
//! logs are identical in all entries up through the given index.

use core::fmt::Debug;

use super::{Check, Property};
use crate::raft::Log;
use crate::require;

/// Compares two logs at the indexes that both have.
pub fn log_matching<C: Clone + Eq + Debug>(a: &Log<C>, b: &Log<C>) -> Check {
    let first = a.base().index.max(b.base().index).next();
    let last = a.last().index.min(b.last().index);
    let common = usize::try_from((last.0 + 1).saturating_sub(first.0)).unwrap_or(usize::MAX);
    let mut match_at = None;
    for (x, y) in a.slice(first, common).iter().zip(b.slice(first, common)).rev() {
        if x.term == y.term {
            match_at.get_or_insert(x.index);
        }
        if let Some(index) = match_at {
            require!(
                Property::LogMatching,
                x == y,
                "the logs agree on the term at {index} but not on the entry at {}",
                x.index
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::log_matching;
    use crate::invariants::states::{complaint, noop};
    use crate::lock::Command;
    use crate::raft::{Index, Log, Position, Stamp, Term};

    /// A log after `base`, with entries of these terms and stamps.
    fn log(base: u64, entries: &[(u64, u64)]) -> Log<Command> {
        let mut log = Log::starting_at(Position { term: Term(base), index: Index(base) }, Stamp(0), Arc::default());
        for (index, &(term, stamp)) in (base + 1..).zip(entries) {
            let mut entry = noop(index, term);
            entry.stamp = Stamp(stamp);
            log.push(entry);
        }
        log
    }

    /// The detail of the violation, which must not depend on the order of the two.
    fn compare(a: &Log<Command>, b: &Log<Command>) -> alloc::string::String {
        let complaints = [complaint(log_matching(a, b)), complaint(log_matching(b, a))];
        assert_eq!(complaints[0], complaints[1]);
        complaints[0].clone()
    }

    #[test]
    fn logs_that_agree_on_a_term_and_differ_there_or_before_are_seen() {
        let whole = log(0, &[(1, 0), (1, 5), (2, 5)]);
        assert_eq!(
            compare(&whole, &log(0, &[(1, 0), (1, 5), (2, 6)])),
            "the logs agree on the term at 3 but not on the entry at 3"
        );
        assert_eq!(
            compare(&whole, &log(0, &[(1, 0), (1, 4), (2, 5), (3, 5)])),
            "the logs agree on the term at 3 but not on the entry at 2"
        );
        assert_eq!(
            compare(&log(0, &[(1, 0), (2, 5), (3, 5)]), &log(0, &[(1, 1), (2, 5), (4, 5)])),
            "the logs agree on the term at 2 but not on the entry at 1"
        );
        assert_eq!(
            compare(&log(0, &[(1, 0)]), &log(0, &[(1, 1)])),
            "the logs agree on the term at 1 but not on the entry at 1"
        );
    }

    #[test]
    fn logs_may_part() {
        let whole = log(0, &[(1, 0), (1, 5), (2, 5)]);
        for other in [log(0, &[]), log(0, &[(1, 0)]), log(0, &[(1, 0), (2, 0), (3, 7)])] {
            assert_eq!(compare(&whole, &other), "");
        }
    }

    /// Entries that a snapshot replaced cannot be compared.
    #[test]
    fn logs_are_compared_where_both_reach() {
        let whole = log(0, &[(1, 0), (1, 5), (2, 5)]);
        assert_eq!(compare(&whole, &log(1, &[(1, 5), (2, 5), (2, 6)])), "");
        assert_eq!(compare(&whole, &log(3, &[(3, 6)])), "");
        assert_eq!(
            compare(&whole, &log(1, &[(1, 4), (2, 5)])),
            "the logs agree on the term at 3 but not on the entry at 2"
        );
    }
}
