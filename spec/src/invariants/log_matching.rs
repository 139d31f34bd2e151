//! Log Matching (figure 3.2): if two logs contain an entry with the same index and term, then the logs are identical
//! in all entries up through the given index.

use core::fmt::Debug;

use super::{Check, require};
use crate::raft::Log;

/// Compares two logs where both reach.
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
                "log matching",
                x == y,
                "the logs agree on the term at {index} but not on the entry at {}",
                x.index
            );
        }
    }
    Ok(())
}
