//! The log: the sequence of entries that Raft agrees on (§3.5).

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Index, Members, Stamp, Term, in_range};

/// The position of an entry: its index and the term in which a leader created it. By the Log
/// Matching property this identifies the entry, and everything before it, across the whole cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The term of the leader that created the entry.
    pub term: Term,
    /// The entry's index.
    pub index: Index,
}

impl Position {
    /// Whether a log that ends here is at least as up-to-date as one that ends at `other` (§3.6.1):
    /// the later term wins, and within one term the longer log.
    pub fn is_up_to_date_with(self, other: Position) -> bool {
        (self.term, self.index) >= (other.term, other.index)
    }

    pub(crate) fn in_range(self) -> bool {
        in_range([self.term.0, self.index.0])
    }
}

/// What an entry does to the state machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Payload<C> {
    /// Only advances time: a new leader's first entry, or an expiry.
    Noop,
    /// A client's command.
    Command(C),
    /// Changes the cluster's members from this entry on (§4.1). A no-op to the state machine.
    Members(Arc<Members>),
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry<C> {
    /// The term of the leader that created it.
    pub term: Term,
    /// Its index in the log.
    pub index: Index,
    /// The cluster time at which it happens. Never less than the stamp of the entry before it.
    pub stamp: Stamp,
    /// The content.
    pub payload: Payload<C>,
}

impl<C> Entry<C> {
    /// The entry's position.
    pub fn position(&self) -> Position {
        Position { term: self.term, index: self.index }
    }
}

/// The entries after a base. The base is the last entry that a snapshot replaced, or
/// [`Position::default`] without a snapshot: everything up to it is committed and applied, and its
/// entries are removed.
///
/// Invariants, asserted when entries are added: indexes are contiguous from `base.index + 1`; terms
/// and stamps never decrease. The log tracks which of its entries changed the members, because a
/// change is in force at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Log<C> {
    base: Position,
    base_stamp: Stamp,
    /// The members as of the base, then as of each entry that changed them.
    members: Vec<(Index, Arc<Members>)>,
    entries: Vec<Entry<C>>,
}

impl<C> Default for Log<C> {
    fn default() -> Self {
        Log::starting_at(Position::default(), Stamp::default(), Arc::default())
    }
}

impl<C> Log<C> {
    /// An empty log whose first entry will follow `base`, stamped `base_stamp` or later, in a
    /// cluster of `members`.
    pub fn starting_at(base: Position, base_stamp: Stamp, members: Arc<Members>) -> Log<C> {
        Log { base, base_stamp, members: vec![(base.index, members)], entries: Vec::new() }
    }

    /// The position before the first entry.
    pub fn base(&self) -> Position {
        self.base
    }

    /// The stamp of the entry at the base.
    pub fn base_stamp(&self) -> Stamp {
        self.base_stamp
    }

    /// The position of the last entry, or the base of an empty log.
    pub fn last(&self) -> Position {
        self.entries.last().map_or(self.base, Entry::position)
    }

    /// The stamp of the last entry, or that of the base.
    pub fn last_stamp(&self) -> Stamp {
        self.entries.last().map_or(self.base_stamp, |entry| entry.stamp)
    }

    /// The members as of the log's end. They are in force, committed or not (§4.1).
    pub fn members(&self) -> &Arc<Members> {
        &self.latest_members().1
    }

    /// The index of the entry that set the current members, or of the base.
    pub fn members_since(&self) -> Index {
        self.latest_members().0
    }

    /// The members as of the entry at `index`, which is not before the base.
    pub fn members_at(&self, index: Index) -> &Arc<Members> {
        let earlier = self.members.iter().rev().find(|(since, _)| *since <= index);
        &earlier.expect("the log begins before the index").1
    }

    /// Sets the members as of the entry at `index`, for a log that was read back without them. If a
    /// change precedes that entry, the members before the change are unknown, and the log restarts
    /// at the entry.
    ///
    /// # Panics
    /// If the log does not reach to the index.
    pub(super) fn set_members_at(&mut self, index: Index, members: &Arc<Members>) {
        assert!(self.term_at(index).is_some(), "the log reaches the index");
        if self.members.iter().skip(1).any(|(since, _)| *since <= index) {
            self.compact(index);
        }
        self.members[0].1 = Arc::clone(members);
    }

    /// The indexes at which the members change, the base first.
    pub(crate) fn changes_listed(&self) -> impl Iterator<Item = Index> + Clone {
        self.members.iter().map(|(since, _)| *since)
    }

    fn latest_members(&self) -> &(Index, Arc<Members>) {
        self.members.last().expect("there are those of the base")
    }

    /// All entries after the base.
    pub fn entries(&self) -> &[Entry<C>] {
        &self.entries
    }

    /// The entry at `index`; `None` at or before the base and past the end.
    pub fn get(&self, index: Index) -> Option<&Entry<C>> {
        let offset = index.0.checked_sub(self.base.index.0 + 1)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    /// The term of the entry at `index`, the base included; `None` where the log does not reach.
    pub fn term_at(&self, index: Index) -> Option<Term> {
        if index == self.base.index { Some(self.base.term) } else { self.get(index).map(|entry| entry.term) }
    }

    /// The stamp of the entry at `index`, the base included; `None` where the log does not reach.
    pub fn stamp_at(&self, index: Index) -> Option<Stamp> {
        if index == self.base.index { Some(self.base_stamp) } else { self.get(index).map(|entry| entry.stamp) }
    }

    /// At most `limit` entries from `from` on. Empty if `from` is at or before the base, or past
    /// the end.
    pub fn slice(&self, from: Index, limit: usize) -> &[Entry<C>] {
        let Some(offset) = from.0.checked_sub(self.base.index.0 + 1) else { return &[] };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.entries.len());
        let end = start.saturating_add(limit).min(self.entries.len());
        &self.entries[start..end]
    }

    /// The first index of the run of entries that share the term of the entry at `index`, as far
    /// back as the log reaches.
    pub fn first_index_of_term_at(&self, index: Index) -> Index {
        let term = self.term_at(index).expect("the log reaches the index");
        let end = self.offset(index.next());
        let start = self.entries[..end].iter().rposition(|entry| entry.term != term).map_or(0, |before| before + 1);
        Index(self.base.index.0 + 1 + start as u64).min(index)
    }

    /// The last index with `term`, the base included; `None` if there is no such entry.
    pub fn last_index_of_term(&self, term: Term) -> Option<Index> {
        let found = self.entries.iter().rev().take_while(|entry| entry.term >= term).find(|entry| entry.term == term);
        found.map(|entry| entry.index).or((self.base.term == term).then_some(self.base.index))
    }

    /// Appends one entry.
    ///
    /// # Panics
    /// If the entry does not follow the last one.
    pub fn push(&mut self, entry: Entry<C>) {
        assert!(follows(self.last(), self.last_stamp(), &entry), "an entry must follow the one before it");
        if let Payload::Members(members) = &entry.payload {
            self.members.push((entry.index, Arc::clone(members)));
        }
        self.entries.push(entry);
    }

    /// Removes the entry at `from` and all after it (§3.5: a follower removes conflicting entries).
    ///
    /// # Panics
    /// If the truncation would reach into the base, which is committed.
    pub fn truncate(&mut self, from: Index) {
        assert!(from > self.base.index, "what a snapshot covers is committed and never truncated");
        let keep = self.offset(from);
        self.entries.truncate(keep);
        self.members.retain(|(since, _)| *since < from);
    }

    /// Removes the entries up to `through`, which becomes the base, because a snapshot includes
    /// them.
    ///
    /// # Panics
    /// If the log ends before `through`. Entries that are already removed may be named again.
    pub fn compact(&mut self, through: Index) {
        if through <= self.base.index {
            return;
        }
        let entry = self.get(through).expect("what is removed is in the log");
        (self.base, self.base_stamp) = (entry.position(), entry.stamp);
        let members = Arc::clone(self.members_at(through));
        self.members.retain(|(since, _)| *since > through);
        self.members.insert(0, (through, members));
        let gone = self.entries.partition_point(|entry| entry.index <= through);
        self.entries.drain(..gone);
    }

    /// Mutable entries, for tests of logs in an invalid order.
    #[cfg(test)]
    pub(super) fn entries_mut(&mut self) -> &mut Vec<Entry<C>> {
        &mut self.entries
    }

    /// The number of entries before `index`, if the log reaches that far; not checked against its
    /// end.
    fn offset(&self, index: Index) -> usize {
        let count = index.0.saturating_sub(self.base.index.0 + 1);
        usize::try_from(count).unwrap_or(usize::MAX)
    }
}

/// Whether `entry` may directly follow an entry at `last` with the stamp `stamp`.
pub(crate) fn follows<C>(last: Position, stamp: Stamp, entry: &Entry<C>) -> bool {
    entry.index == last.index.next() && entry.term >= last.term && entry.stamp >= stamp
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec::Vec;

    use super::{Entry, Log, Payload, Position, follows};
    use crate::raft::{Index, Members, NodeId, Stamp, Term};

    fn entry(index: u64, term: u64, stamp: u64) -> Entry<()> {
        Entry { term: Term(term), index: Index(index), stamp: Stamp(stamp), payload: Payload::Noop }
    }

    fn base() -> Position {
        Position { term: Term(2), index: Index(10) }
    }

    /// After a base at 10@2: 11@2, 12@4, 13@4, 14@6, each stamped ten times its index.
    fn log() -> Log<()> {
        let mut log = Log::starting_at(base(), Stamp(100), Arc::default());
        for (index, term) in [(11, 2), (12, 4), (13, 4), (14, 6)] {
            log.push(entry(index, term, index * 10));
        }
        log
    }

    #[test]
    fn empty_log_ends_at_its_base() {
        let log = Log::<()>::starting_at(base(), Stamp(100), Arc::default());
        assert_eq!((log.base(), log.last(), log.last_stamp()), (base(), base(), Stamp(100)));
        assert_eq!(Log::<()>::default().last(), Position::default());
    }

    #[test]
    fn entries_are_counted_from_the_base() {
        let log = log();
        assert_eq!((log.base(), log.last(), log.last_stamp()), (base(), entry(14, 6, 140).position(), Stamp(140)));
        for nowhere in [0, 1, 9, 10, 15] {
            assert_eq!(log.get(Index(nowhere)), None);
        }
        for (offset, index) in (11..15).enumerate() {
            assert_eq!(log.get(Index(index)), Some(&log.entries()[offset]));
        }
    }

    #[test]
    fn terms_are_known_from_the_base_on() {
        let log = log();
        let terms = [9, 10, 11, 12, 14, 15].map(|index| log.term_at(Index(index)).map(|term| term.0));
        assert_eq!(terms, [None, Some(2), Some(2), Some(4), Some(6), None]);
    }

    #[test]
    fn slice_stays_within_the_log() {
        let log = log();
        let slice = |from, limit| log.slice(Index(from), limit).iter().map(|entry| entry.index.0).collect::<Vec<_>>();
        assert_eq!(slice(11, 2), [11, 12]);
        assert_eq!(slice(13, 9), [13, 14]);
        assert_eq!(slice(12, usize::MAX), [12, 13, 14]);
        for (from, limit) in [(0, 9), (10, 9), (11, 0), (15, 9), (99, 9)] {
            assert!(slice(from, limit).is_empty());
        }
    }

    /// The base may be of the same term, but it is not an entry of the log.
    #[test]
    fn run_of_a_term_is_found_from_both_ends() {
        let log = log();
        let firsts = [10, 11, 12, 13, 14].map(|index| log.first_index_of_term_at(Index(index)).0);
        assert_eq!(firsts, [10, 11, 12, 12, 14]);
        let lasts = [1, 2, 3, 4, 5, 6, 7].map(|term| log.last_index_of_term(Term(term)).map(|index| index.0));
        assert_eq!(lasts, [None, Some(11), None, Some(13), None, Some(14), None]);
        let blank = Log::<()>::starting_at(base(), Stamp(100), Arc::default());
        assert_eq!(blank.last_index_of_term(Term(2)), Some(Index(10)));
        assert_eq!(blank.last_index_of_term(Term(1)), None);
    }

    #[test]
    fn truncation_keeps_what_is_before() {
        for (from, kept) in [(11, 0), (12, 1), (14, 3), (15, 4), (99, 4)] {
            let mut log = log();
            log.truncate(Index(from));
            assert_eq!(log.entries(), &self::log().entries()[..kept]);
        }
    }

    #[test]
    fn compaction_keeps_what_is_after() {
        for (through, kept) in [(0, 4), (10, 4), (11, 3), (13, 1), (14, 0)] {
            let mut log = log();
            let last = (log.last(), log.last_stamp());
            log.compact(Index(through));
            assert_eq!(log.entries(), &self::log().entries()[4 - kept..]);
            assert_eq!((log.last(), log.last_stamp()), last, "a log that is compacted ends where it did");
        }
        let mut log = log();
        log.compact(Index(12));
        log.compact(Index(11));
        assert_eq!(log.base(), entry(12, 4, 120).position(), "what is gone stays gone");
    }

    #[test]
    #[should_panic = "what is removed is in the log"]
    fn compaction_stops_at_the_end() {
        log().compact(Index(15));
    }

    #[test]
    #[should_panic = "what a snapshot covers is committed"]
    fn truncation_stops_at_the_base() {
        log().truncate(Index(10));
    }

    /// Members of so many voters.
    fn members(count: u32) -> Arc<Members> {
        Arc::new(Members::of((1..=count).map(NodeId)))
    }

    /// Like [`log`], but members change: to three at 12, to four at 14.
    fn log_with_changes() -> Log<()> {
        let mut log = Log::starting_at(base(), Stamp(100), members(2));
        for (index, count) in [(11, 0), (12, 3), (13, 0), (14, 4)] {
            let payload = if count > 0 { Payload::Members(members(count)) } else { Payload::Noop };
            log.push(Entry { payload, ..entry(index, 4, 100) });
        }
        log
    }

    #[test]
    fn members_are_those_of_the_latest_change_in_the_log() {
        let log = log_with_changes();
        assert_eq!((log.members_since(), log.members()), (Index(14), &members(4)));
        let known = [10, 11, 12, 13, 14, 99].map(|index| log.members_at(Index(index)).voters().count());
        assert_eq!(known, [2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn truncation_takes_changes_of_the_members_back() {
        for (from, since, count) in [(15, 14, 4), (14, 12, 3), (13, 12, 3), (12, 10, 2), (11, 10, 2)] {
            let mut log = log_with_changes();
            log.truncate(Index(from));
            assert_eq!((log.members_since(), log.members()), (Index(since), &members(count)));
        }
    }

    #[test]
    fn members_that_are_known_later_are_known_as_far_back_as_they_did_not_change() {
        for (index, base, counts) in
            [(10, 10, [5, 3, 4]), (11, 10, [5, 3, 4]), (12, 12, [5, 5, 4]), (14, 14, [5, 5, 5])]
        {
            let mut log = log_with_changes();
            log.set_members_at(Index(index), &members(5));
            assert_eq!(log.base().index, Index(base));
            let known = [base.max(10), base.max(12), 14].map(|index| log.members_at(Index(index)).voters().count());
            assert_eq!(known, counts);
        }
    }

    #[test]
    fn compaction_keeps_the_members() {
        for (through, since, counts) in [(11, 14, [2, 4]), (12, 14, [3, 4]), (13, 14, [3, 4]), (14, 14, [4, 4])] {
            let mut log = log_with_changes();
            log.compact(Index(through));
            assert_eq!((log.members_since(), log.members()), (Index(since), &members(4)));
            assert_eq!([through, 14].map(|index| log.members_at(Index(index)).voters().count()), counts);
        }
    }

    #[test]
    fn entry_follows_with_the_next_index_and_no_earlier_term_or_stamp() {
        let follows = |next: &Entry<()>| follows(log().last(), log().last_stamp(), next);
        assert!(follows(&entry(15, 6, 140)));
        assert!(follows(&entry(15, 9, 999)));
        for next in [entry(14, 6, 140), entry(16, 6, 140), entry(15, 5, 140), entry(15, 6, 139)] {
            assert!(!follows(&next));
        }
    }

    #[test]
    #[should_panic = "an entry must follow the one before it"]
    fn only_what_follows_is_pushed() {
        log().push(entry(16, 6, 140));
    }
}
