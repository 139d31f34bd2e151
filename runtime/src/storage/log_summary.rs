//! Summary of the log's contents: positions and terms, without the entries.

use palisade_spec::raft::{Index, Log, Position, Term};

use super::record::Record;
use super::segment::Start;

/// What the log's writer must know of the log. Terms change rarely, so the list of their first
/// indexes is short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogSummary {
    start: Start,
    base: Position,
    /// The first index of each term after the base, with the term; in order.
    terms: Vec<(Index, Term)>,
}

impl LogSummary {
    /// Summarizes a log that was read back.
    pub(super) fn of<C>(start: Start, log: &Log<C>) -> LogSummary {
        let mut summary = LogSummary { start, base: log.base(), terms: Vec::new() };
        log.entries().iter().for_each(|entry| summary.push(entry.position()));
        summary
    }

    /// The state of the log that the next segment must begin with.
    pub(super) fn start(&self) -> Start {
        self.start
    }

    /// The log no longer has the entries up to this one: a snapshot includes them.
    pub(super) fn base(&self) -> Index {
        self.base.index
    }

    /// Whether the log has this entry, or begins right after it.
    pub(super) fn has(&self, position: Position) -> bool {
        self.term_at(position.index) == Some(position.term)
    }

    fn term_at(&self, index: Index) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        let in_log = index > self.base.index && index <= self.start.last.index;
        let at = self.terms.partition_point(|&(first, _)| first <= index);
        if in_log { self.terms.get(at.checked_sub(1)?).map(|&(_, term)| term) } else { None }
    }

    /// Applies one write.
    pub(super) fn apply<C: Clone>(&mut self, record: &Record<'_, C>) {
        match record {
            Record::HardState(hard) => self.start.hard = *hard,
            Record::Entries(entries) => {
                let first = entries.first().map_or(self.start.last.index.next(), |entry| entry.index);
                self.terms.retain(|&(begins, _)| begins < first);
                entries.iter().for_each(|entry| self.push(entry.position()));
                if let Some(last) = entries.last() {
                    (self.start.last, self.start.stamp) = (last.position(), last.stamp);
                }
            }
            Record::Compacted(through) => self.compact(*through),
            Record::Installed { last, stamp, keeps } => {
                if !keeps {
                    (self.start.last, self.start.stamp) = (*last, *stamp);
                    self.base = *last;
                    self.terms.clear();
                }
                self.compact(last.index);
            }
        }
    }

    fn push(&mut self, entry: Position) {
        if self.terms.last().is_none_or(|&(_, term)| term != entry.term) {
            self.terms.push((entry.index, entry.term));
        }
    }

    fn compact(&mut self, through: Index) {
        if through <= self.base.index {
            return;
        }
        let term = self.term_at(through).expect("the compacted entries are in the log");
        self.base = Position { term, index: through };
        // The term of the first entry behind the new base now begins at that entry.
        let keep = self.terms.partition_point(|&(first, _)| first <= through.next()).saturating_sub(1);
        self.terms.drain(..keep);
        if let Some((first, _)) = self.terms.first_mut() {
            *first = (*first).max(through.next());
        }
        if through == self.start.last.index {
            self.terms.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use palisade_spec::raft::{Durable, Entry, HardState, Members, NodeId, Payload, Persist, Snapshot, Stamp};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::super::testing::Tape;
    use super::*;

    /// A possible next write of a node whose disk is `durable`.
    fn write(rng: &mut SmallRng, durable: &Durable<Tape>) -> Persist<Tape> {
        let (base, last) = (durable.log.base().index.0, durable.log.last());
        match rng.random_range(0..10) {
            0 => {
                let vote = rng.random::<bool>().then_some(NodeId(1));
                Persist::HardState(HardState { term: durable.hard.term.next(), vote })
            }
            1 => Persist::Compact(Index(rng.random_range(0..=durable.snapshot.last.index.0))),
            2 => {
                let index = Index(durable.snapshot.last.index.0 + rng.random_range(1..8));
                let term = durable.log.term_at(index).filter(|_| rng.random_bool(0.7)).unwrap_or(durable.hard.term);
                let position = Position { term: term.max(durable.snapshot.last.term), index };
                Persist::Snapshot(Arc::new(Snapshot {
                    last: position,
                    stamp: Stamp(index.0),
                    members: Arc::default(),
                    machine: Tape,
                }))
            }
            _ => {
                let committed = base.max(durable.snapshot.last.index.0);
                let first = rng.random_range(last.index.0.saturating_sub(3).max(committed)..=last.index.0) + 1;
                let before = durable.log.term_at(Index(first - 1)).unwrap();
                let term = if rng.random_bool(0.7) { before } else { durable.hard.term.max(before) };
                let entry = |index| Entry { term, index, stamp: Stamp(index.0), payload: Payload::Noop };
                Persist::Entries((first..first + rng.random_range(1..4)).map(|index| entry(Index(index))).collect())
            }
        }
    }

    /// After any sequence of writes the summary agrees with the log itself.
    #[test]
    fn summary_agrees_with_the_log() {
        let (mut kept, mut replaced) = (0, 0);
        for seed in 0..300 {
            let rng = &mut SmallRng::seed_from_u64(seed);
            let mut durable = Durable::blank(Tape, Members::default());
            let mut summary = LogSummary::of(Start::default(), &durable.log);
            for step in 0..60 {
                if rng.random_bool(0.1) {
                    let through = rng.random_range(durable.snapshot.last.index.0..=durable.log.last().index.0);
                    durable.snapshot = durable.snapshot_at(Index(through));
                }
                let write = write(rng, &durable);
                let record = Record::of(&write, |position| summary.has(position));
                if let Record::Installed { last, keeps, .. } = &record {
                    assert_eq!(*keeps, durable.log.term_at(last.index) == Some(last.term), "seed {seed}, step {step}");
                    kept += u32::from(*keeps);
                    replaced += u32::from(!*keeps);
                }
                summary.apply(&record);
                durable.apply(&write);
                let start = Start { hard: durable.hard, last: durable.log.last(), stamp: durable.log.last_stamp() };
                assert_eq!(summary, LogSummary::of(start, &durable.log), "seed {seed}, step {step}: {write:?}");
                for index in 0..durable.log.last().index.0 + 3 {
                    let index = Index(index);
                    assert_eq!(summary.term_at(index), durable.log.term_at(index), "seed {seed}, step {step}");
                }
            }
        }
        assert!(kept > 300 && replaced > 300, "{kept} kept, {replaced} replaced");
    }
}
