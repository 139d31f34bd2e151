//! Replay of the log, record by record: yields the durable state, or the reason why no correct node
//! can have written these records.
//!
//! Replay begins with the first segment that was not removed, so the entries of the segments before
//! it are unknown. The known facts suffice: the [`Start`] of that segment says where those entries
//! ended, and the newest snapshot includes all of them. (A segment is removed only once a durable
//! snapshot includes every entry that the log had when the *next* one began.) So replay lets the
//! log begin at that position. Only a snapshot can tell the members as of that position; if none
//! does, the log begins with the snapshot ([`Durable::settle`]). If a later record replaces entries
//! from before that position (which were uncommitted then), the log begins with the replacement
//! instead, which a snapshot includes as well.
//!
//! This program wrote every frame with valid checksums; but a program has bugs, and a directory can
//! be assembled by hand. [`Log`] panics at an impossible write, which is right for a running node
//! and wrong for a node that reads its disk. So replay checks each record first, and returns a
//! message for an impossible one.

use std::sync::Arc;

use palisade_spec::raft::{Durable, Entry, HardState, Index, Log, Position, Snapshot, Stamp, StateMachine};

use super::log_summary::LogSummary;
use super::record::Record;
use super::segment::Start;

/// The state after the records so far, on top of the newest snapshot.
#[derive(Debug)]
pub(super) struct Replay<S: StateMachine> {
    durable: Durable<S>,
    /// Snapshots include the entries up to here, according to the log's records: no record may
    /// replace them.
    floor: Index,
}

impl<S: StateMachine> Replay<S> {
    /// Begins before the first record of a segment with this `start`.
    ///
    /// # Errors
    /// If the snapshot does not include the entries of the segments before that one.
    pub(super) fn begin(snapshot: Snapshot<S>, start: Start) -> Result<Replay<S>, String> {
        let (begins, included) = (start.last.index, snapshot.last.index);
        if begins > included {
            return Err(format!("the log begins behind entry {begins}, but {}", ends_at(included)));
        }
        let log = Log::starting_at(start.last, start.stamp, Arc::default());
        Ok(Replay { durable: Durable { hard: start.hard, snapshot, log }, floor: Index(0) })
    }

    /// The state of the log that the next segment must begin with.
    pub(super) fn start(&self) -> Start {
        let Durable { hard, log, .. } = &self.durable;
        Start { hard: *hard, last: log.last(), stamp: log.last_stamp() }
    }

    /// Summary of the log according to its records alone, regardless of the newest snapshot.
    pub(super) fn summary(&self) -> LogSummary {
        LogSummary::of(self.start(), &self.durable.log)
    }

    /// Whether the log has entries behind the snapshot's last one.
    pub(super) fn is_past_the_snapshot(&self) -> bool {
        self.durable.log.last().index > self.durable.snapshot.last.index
    }

    /// Applies one record.
    ///
    /// # Errors
    /// Why the record is impossible.
    pub(super) fn apply(&mut self, record: Record<'_, S::Command>) -> Result<(), String> {
        match record {
            Record::HardState(hard) => self.hard_state(hard),
            Record::Entries(entries) => self.entries(entries.into_owned()),
            Record::Compacted(through) => self.compacted(through),
            Record::Installed { last, stamp, keeps } => self.installed(last, stamp, keeps),
        }
    }

    /// The durable state, and whether its log had to be [settled](Durable::settle) with the
    /// snapshot: a crash interrupted the installation of a leader's snapshot between the snapshot
    /// and its record.
    ///
    /// # Errors
    /// If the log does not reach back to the snapshot, or the snapshot is later than the node's
    /// term.
    pub(super) fn finish(mut self) -> Result<(Durable<S>, bool), String> {
        let Durable { hard, snapshot, log } = &self.durable;
        let (begins, last) = (log.base().index, snapshot.last);
        if begins > last.index {
            return Err(format!("the log begins behind entry {begins}, but {}", ends_at(last.index)));
        }
        if last.term > hard.term {
            return Err(format!("the snapshot is of term {}, after the node's own, {}", last.term, hard.term));
        }
        let before = log.last();
        self.durable.settle();
        let settled = self.durable.log.last() != before;
        Ok((self.durable, settled))
    }

    /// Terms never decrease, and a vote does not change within its term (figure 3.1).
    fn hard_state(&mut self, new: HardState) -> Result<(), String> {
        let old = self.durable.hard;
        if new.term < old.term {
            return Err(format!("it goes back from term {} to term {}", old.term, new.term));
        }
        if new.term == old.term && old.vote.is_some() && new.vote != old.vote {
            return Err(format!("it changes the vote given in term {}", old.term));
        }
        self.durable.hard = new;
        Ok(())
    }

    /// Entries continue the log, or replace its end. Their indexes have no gap; their terms and
    /// stamps never decrease.
    fn entries(&mut self, entries: Vec<Entry<S::Command>>) -> Result<(), String> {
        let log = &mut self.durable.log;
        let first = entries.first().ok_or("it writes no entries")?.index;
        if first <= self.floor {
            return Err(format!("it replaces entry {first}, which a snapshot includes"));
        }
        if first > log.last().index.next() {
            return Err(format!("it writes entry {first} after entry {}", log.last().index));
        }
        let mut entries = entries.into_iter();
        if first > log.base().index {
            log.truncate(first);
        } else if let Some(entry) = entries.next() {
            *log = Log::starting_at(entry.position(), entry.stamp, Arc::default());
        }
        for entry in entries {
            let (Position { index, term }, stamp) = (log.last(), log.last_stamp());
            if entry.index != index.next() || entry.term < term || entry.stamp < stamp {
                return Err(format!(
                    "entry {} of term {} at {} cannot follow entry {index} of term {term} at {stamp}",
                    entry.index, entry.term, entry.stamp
                ));
            }
            log.push(entry);
        }
        Ok(())
    }

    /// The log loses only what a snapshot includes.
    fn compacted(&mut self, through: Index) -> Result<(), String> {
        let (included, last) = (self.durable.snapshot.last.index, self.durable.log.last().index);
        if through > included {
            return Err(format!("it removes entries up to {through}, but {}", ends_at(included)));
        }
        if through > last {
            return Err(format!("it removes entries up to {through}, but the log ends with {last}"));
        }
        self.durable.log.compact(through);
        self.floor = self.floor.max(through);
        Ok(())
    }

    /// A leader's snapshot replaces the log up to the snapshot's last entry, and all of the log if
    /// it had another entry there.
    fn installed(&mut self, last: Position, stamp: Stamp, keeps: bool) -> Result<(), String> {
        let included = self.durable.snapshot.last.index;
        if last.index > included {
            return Err(format!("it installs a snapshot up to entry {}, but {}", last.index, ends_at(included)));
        }
        if last.index <= self.floor {
            return Err(format!(
                "it installs a snapshot up to entry {}, which a snapshot that the log already has includes",
                last.index
            ));
        }
        let log = &mut self.durable.log;
        if !keeps {
            *log = Log::starting_at(last, stamp, Arc::default());
        } else if log.base().index <= last.index && log.term_at(last.index) != Some(last.term) {
            return Err(format!(
                "it keeps the entries behind entry {} of term {}, which is not in the log",
                last.index, last.term
            ));
        }
        log.compact(last.index);
        self.floor = last.index;
        Ok(())
    }
}

/// Describes the end of the newest snapshot.
fn ends_at(included: Index) -> String {
    match included {
        Index(0) => "there is no snapshot".into(),
        index => format!("the newest snapshot ends with entry {index}"),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use palisade_spec::lock::Bytes;
    use palisade_spec::raft::{NodeId, Payload, Term};

    use super::super::testing::Tape;
    use super::*;

    fn entry(term: u64, index: u64, stamp: u64) -> Entry<Bytes> {
        Entry { term: Term(term), index: Index(index), stamp: Stamp(stamp), payload: Payload::Noop }
    }

    fn entries(entries: &[(u64, u64, u64)]) -> Record<'static, Bytes> {
        Record::Entries(Cow::Owned(entries.iter().map(|&(term, index, stamp)| entry(term, index, stamp)).collect()))
    }

    fn hard(term: u64, vote: Option<u32>) -> Record<'static, Bytes> {
        Record::HardState(HardState { term: Term(term), vote: vote.map(NodeId) })
    }

    fn compacted(through: u64) -> Record<'static, Bytes> {
        Record::Compacted(Index(through))
    }

    fn installed(term: u64, index: u64, keeps: bool) -> Record<'static, Bytes> {
        let last = Position { term: Term(term), index: Index(index) };
        Record::Installed { last, stamp: Stamp(index * 10), keeps }
    }

    fn start(term: u64, last: (u64, u64)) -> Start {
        let last = Position { term: Term(last.0), index: Index(last.1) };
        Start { hard: HardState { term: Term(term), vote: None }, last, stamp: Stamp(last.index.0 * 10) }
    }

    fn snapshot(term: u64, index: u64) -> Snapshot<Tape> {
        let last = Position { term: Term(term), index: Index(index) };
        Snapshot { last, stamp: Stamp(index * 10), members: Arc::default(), machine: Tape }
    }

    /// Applies records that are all possible.
    fn replay(snapshot: Snapshot<Tape>, start: Start, records: &[Record<'static, Bytes>]) -> Replay<Tape> {
        let mut replay = Replay::begin(snapshot, start).unwrap();
        records.iter().for_each(|record| replay.apply(record.clone()).unwrap());
        replay
    }

    /// Term and index of the base and of every entry of the log.
    fn log(durable: &Durable<Tape>) -> Vec<(u64, u64)> {
        let entries = durable.log.entries().iter().map(Entry::position);
        std::iter::once(durable.log.base()).chain(entries).map(|at| (at.term.0, at.index.0)).collect()
    }

    #[test]
    fn only_impossible_records_are_rejected() {
        // Entries 1@1 to 4@3, of which a snapshot includes three, and the log has lost one.
        let before = [hard(4, Some(1)), entries(&[(1, 1, 10), (3, 2, 20), (3, 3, 30), (3, 4, 40)]), compacted(1)];
        let check = |record| replay(snapshot(3, 3), Start::default(), &before).apply(record);
        for good in [
            hard(4, Some(1)),
            hard(5, None),
            entries(&[(3, 5, 40)]),
            entries(&[(1, 2, 10), (4, 3, 10)]),
            compacted(0),
            compacted(3),
            installed(3, 2, true),
            installed(2, 3, false),
        ] {
            assert_eq!(check(good), Ok(()));
        }
        for bad in [
            hard(3, None),
            hard(4, None),
            hard(4, Some(2)),
            entries(&[]),
            entries(&[(3, 1, 20)]),
            entries(&[(3, 6, 40)]),
            entries(&[(2, 5, 40)]),
            entries(&[(3, 5, 39)]),
            entries(&[(3, 5, 40), (3, 7, 40)]),
            compacted(4),
            installed(3, 4, true),
            installed(3, 4, false),
            installed(1, 1, true),
            installed(2, 3, true),
        ] {
            assert!(check(bad.clone()).is_err(), "{bad:?}");
        }
        let mut short = replay(snapshot(3, 3), Start::default(), &[entries(&[(1, 1, 10)])]);
        assert!(short.apply(compacted(2)).is_err(), "the log does not have the compacted entries");
    }

    /// A later segment may replace uncommitted entries of removed segments.
    #[test]
    fn log_without_its_first_segments_begins_with_the_replacing_entries() {
        let replaced = [entries(&[(5, 8, 80), (5, 9, 90), (5, 10, 100)]), entries(&[(5, 11, 110)]), compacted(9)];
        let (durable, settled) = replay(snapshot(5, 10), start(5, (4, 10)), &replaced).finish().unwrap();
        assert_eq!((log(&durable), settled), (vec![(5, 9), (5, 10), (5, 11)], false));
        let again = [&replaced[..1], &[entries(&[(6, 7, 70), (6, 8, 80), (6, 9, 90)])], &[hard(6, None)]].concat();
        let (durable, _) = replay(snapshot(6, 8), start(5, (4, 8)), &again).finish().unwrap();
        assert_eq!(log(&durable), [(6, 7), (6, 8), (6, 9)]);
    }

    #[test]
    fn installed_snapshot_keeps_later_entries_only_if_the_log_had_its_last_entry() {
        let before = entries(&[(1, 1, 10), (1, 2, 20), (1, 3, 30)]);
        for (record, expected) in [
            (installed(1, 2, true), vec![(1, 2), (1, 3)]),
            (installed(2, 2, false), vec![(2, 2)]),
            (installed(2, 5, false), vec![(2, 5)]),
        ] {
            let replay = replay(snapshot(2, 5), Start::default(), &[hard(2, None), before.clone(), record]);
            assert_eq!(log(&replay.durable), expected);
        }
        // The segment with the entry is removed: only the record says whether the log had the
        // entry.
        let mut replay = replay(snapshot(2, 5), start(2, (1, 3)), &[installed(1, 2, true), entries(&[(2, 4, 40)])]);
        assert_eq!(log(&replay.durable), [(1, 3), (2, 4)]);
        assert!(replay.apply(entries(&[(2, 2, 40)])).is_err());
    }

    #[test]
    fn log_beside_a_newer_conflicting_snapshot_is_settled() {
        let before = [hard(3, None), entries(&[(1, 1, 10), (1, 2, 20), (2, 3, 30)])];
        for (snapshot, expected, is_settled) in [
            (snapshot(0, 0), vec![(0, 0), (1, 1), (1, 2), (2, 3)], false),
            (snapshot(1, 2), vec![(0, 0), (1, 1), (1, 2), (2, 3)], false),
            (snapshot(2, 2), vec![(2, 2)], true),
            (snapshot(3, 3), vec![(3, 3)], true),
            (snapshot(3, 9), vec![(3, 9)], true),
        ] {
            let (durable, settled) = replay(snapshot, Start::default(), &before).finish().unwrap();
            assert_eq!((log(&durable), settled), (expected, is_settled));
        }
        let later = replay(snapshot(4, 9), Start::default(), &before).finish().unwrap_err();
        assert!(later.contains("the snapshot is of term 4"), "{later}");
    }

    #[test]
    fn log_without_the_snapshot_it_builds_on_is_refused() {
        let refusal = Replay::begin(snapshot(1, 4), start(1, (1, 5))).unwrap_err();
        assert_eq!(refusal, "the log begins behind entry 5, but the newest snapshot ends with entry 4");
        let refusal = Replay::begin(snapshot(0, 0), start(1, (1, 5))).unwrap_err();
        assert_eq!(refusal, "the log begins behind entry 5, but there is no snapshot");
        Replay::begin(snapshot(1, 5), start(1, (1, 5))).unwrap();
    }
}
