//! Every entry that was ever in a log: log matching, where an entry is new.

use alloc::collections::BTreeMap;
use core::fmt::Debug;
use core::time::Duration;

use crate::invariants::{Check, Property};
use crate::raft::{Entry, Index, Log, Position, Term};
use crate::require;

/// The entries that were written.
#[derive(Debug)]
pub(super) struct WrittenEntries<C> {
    entries: BTreeMap<(Index, Term), Written<C>>,
    kept: usize,
}

/// An entry, the term of its predecessor, and the time of its first write, if they are known.
#[derive(Debug)]
struct Written<C> {
    entry: Entry<C>,
    before: Option<Term>,
    born: Option<Duration>,
}

impl<C: Clone + Eq + Debug> WrittenEntries<C> {
    pub(super) fn new(kept: usize) -> WrittenEntries<C> {
        WrittenEntries { entries: BTreeMap::new(), kept }
    }

    /// A node whose log is now `log` writes these entries. Equal position means equal entry and
    /// equal predecessor term.
    pub(super) fn write(&mut self, log: &Log<C>, entries: &[Entry<C>], now: Option<Duration>) -> Check {
        let mut before = entries[0].index.0.checked_sub(1).and_then(|index| log.term_at(Index(index)));
        for entry in entries {
            let new = || Written { entry: entry.clone(), before, born: now };
            let known = self.entries.entry((entry.index, entry.term)).or_insert_with(new);
            let differs = known.before.is_some() && before.is_some() && known.before != before;
            require!(
                Property::LogMatching,
                known.entry == *entry && !differs,
                "{entry:?} is written after term {before:?}, where {known:?} was written before"
            )?;
            known.before = known.before.or(before);
            before = Some(entry.term);
        }
        while self.entries.len() > self.kept {
            self.entries.pop_first();
        }
        Ok(())
    }

    /// When the entry at this position was first written.
    pub(super) fn born(&self, position: Position) -> Option<Duration> {
        self.entries.get(&(position.index, position.term)).and_then(|written| written.born)
    }
}
