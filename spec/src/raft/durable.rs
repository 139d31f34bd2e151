//! The state that a node must retain across a crash, and the writes that change it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Entry, Index, Log, MAX_NUMBER, Members, NodeId, Position, Stamp, StateMachine, Term, in_range};

/// The node's election state (figure 3.1's `currentTerm` and `votedFor`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HardState {
    /// The latest term the node has seen.
    pub term: Term,
    /// The candidate that the node voted for in that term, if any.
    pub vote: Option<NodeId>,
}

/// The state machine as it was after the entry at `last`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Snapshot<S> {
    /// The last entry that the state includes; [`Position::default`] for the state before the first
    /// entry.
    pub last: Position,
    /// That entry's stamp.
    pub stamp: Stamp,
    /// The cluster's members as of that entry.
    pub members: Arc<Members>,
    /// The state.
    pub machine: S,
}

/// A node's disk, as the protocol sees it. The model's disk *is* this type; the server's
/// write-ahead log recovers exactly to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub struct Durable<S: StateMachine> {
    /// Term and vote.
    pub hard: HardState,
    /// The state that the log builds on.
    pub snapshot: Snapshot<S>,
    /// The entries after the snapshot, and perhaps some that it includes.
    pub log: Log<S::Command>,
}

/// One write to the disk. Writes depend on earlier writes, so the disk must keep their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub enum Persist<S: StateMachine> {
    /// Replaces term and vote.
    HardState(HardState),
    /// Removes the log's entries from the index of the first of these entries on, then appends all
    /// of these. Never empty.
    ///
    /// A crash may leave any prefix of the entries, truncation included: the removed entries
    /// conflict with the leader's log and so were never committed, and no new entry has been
    /// acknowledged yet.
    Entries(Vec<Entry<S::Command>>),
    /// Replaces the snapshot by one that a leader sent (§5.1). The log keeps the entries after the
    /// snapshot if it has the snapshot's last entry; otherwise it is emptied.
    ///
    /// A crash during the write may leave the new snapshot with the old log: [`Durable::settle`]
    /// completes the write.
    Snapshot(Arc<Snapshot<S>>),
    /// Removes the log's entries up to this index, all of which the snapshot includes.
    Compact(Index),
}

impl<S: StateMachine> Snapshot<S> {
    /// Whether no number in it is greater than [`MAX_NUMBER`].
    pub fn in_range(&self) -> bool {
        self.last.in_range() && in_range([self.stamp.0]) && self.machine.in_range()
    }
}

impl<S: StateMachine> Durable<S> {
    /// Whether no number in it is far beyond [`MAX_NUMBER`], where no node can have arrived; the
    /// log's last entry has the log's greatest numbers. A driver does not start from a disk with
    /// such a number (R37).
    pub fn in_range(&self) -> bool {
        let Position { term, index } = self.log.last();
        let numbers = [self.hard.term.0, term.0, index.0, self.log.last_stamp().0];
        numbers.into_iter().all(|number| number < 2 * MAX_NUMBER) && self.snapshot.in_range()
    }

    /// A blank disk with the state machine's initial state: of a founding member or, if `members`
    /// is empty, of a server that has not heard from its cluster yet.
    pub fn blank(machine: S, members: Members) -> Durable<S> {
        let (last, stamp, members) = (Position::default(), Stamp::default(), Arc::new(members));
        let log = Log::starting_at(last, stamp, Arc::clone(&members));
        Durable { hard: HardState::default(), snapshot: Snapshot { last, stamp, members, machine }, log }
    }

    /// The state after the entry at `through`: the snapshot with the entries after it applied. A
    /// driver uses it as its next snapshot, after it has executed the
    /// [`Output::Applied`](super::Output::Applied) of `through`.
    ///
    /// # Panics
    /// If the snapshot is later than `through`, or the log ends before it.
    pub fn snapshot_at(&self, through: Index) -> Snapshot<S> {
        let Snapshot { mut last, mut stamp, ref machine, .. } = self.snapshot;
        assert!(last.index <= through, "a snapshot never goes back");
        let mut machine = machine.clone();
        while last.index < through {
            let entry = self.log.get(last.index.next()).expect("the log reaches as far as the new snapshot");
            machine.apply_payload(entry.stamp, &entry.payload);
            (last, stamp) = (entry.position(), entry.stamp);
        }
        let members = Arc::clone(self.log.members_at(last.index));
        Snapshot { last, stamp, members, machine }
    }

    /// Makes the log consistent with the snapshot, as every start does. A log without the
    /// snapshot's last entry restarts after that entry. So does a log in which the members changed
    /// before that entry: the disk may not hold the members before the change, and nothing asks for
    /// them.
    pub fn settle(&mut self) {
        let Snapshot { last, stamp, ref members, .. } = self.snapshot;
        if self.log.base().index > last.index {
            return;
        }
        if self.log.term_at(last.index) != Some(last.term) {
            self.log = Log::starting_at(last, stamp, Arc::clone(members));
        } else {
            self.log.set_members_at(last.index, members);
        }
    }

    /// Executes one write.
    ///
    /// # Panics
    /// If the entries leave a gap after the log or reach into its base, or if the log would lose
    /// entries that the snapshot does not include: no node outputs such a write.
    pub fn apply(&mut self, write: &Persist<S>) {
        match write {
            Persist::HardState(hard) => self.hard = *hard,
            Persist::Entries(entries) => {
                let first = entries.first().expect("a write of entries is never empty");
                self.log.truncate(first.index);
                for entry in entries {
                    self.log.push(entry.clone());
                }
            }
            Persist::Snapshot(snapshot) => {
                let last = snapshot.last;
                assert!(last.index > self.snapshot.last.index, "a snapshot never goes back");
                self.snapshot = Snapshot::clone(snapshot);
                self.settle();
                self.log.compact(last.index);
            }
            Persist::Compact(through) => {
                assert!(*through <= self.snapshot.last.index, "what no snapshot includes is never removed");
                self.log.compact(*through);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec;
    use alloc::vec::Vec;

    use super::{Durable, Persist, Snapshot};
    use crate::raft::{Entry, Index, Log, MAX_NUMBER, Members, NodeId, Payload, Position, Stamp, StateMachine, Term};

    /// A node's own numbers may pass the limit by the steps that it has taken since it accepted them.
    #[test]
    fn a_disk_may_have_numbers_below_twice_the_limit() {
        for (term, is_in_range) in [(MAX_NUMBER + 1, true), (2 * MAX_NUMBER - 1, true), (2 * MAX_NUMBER, false)] {
            let mut durable = Durable::blank(WriteHistory(Vec::new()), Members::default());
            durable.hard.term = Term(term);
            assert_eq!(durable.in_range(), is_in_range, "{term}");
        }
    }

    #[test]
    fn every_number_of_a_snapshot_is_limited() {
        let at = |term, index, stamp, history: &[u64]| {
            let last = Position { term: Term(term), index: Index(index) };
            let machine = WriteHistory(history.iter().map(|&stamp| (stamp, None)).collect());
            Snapshot { last, stamp: Stamp(stamp), members: Arc::default(), machine }
        };
        let greatest = at(MAX_NUMBER, MAX_NUMBER, MAX_NUMBER, &[MAX_NUMBER]);
        assert!(greatest.in_range());
        let beyond = MAX_NUMBER + 1;
        for snapshot in [at(beyond, 1, 1, &[]), at(1, beyond, 1, &[]), at(1, 1, beyond, &[]), at(1, 1, 1, &[beyond])] {
            assert!(!snapshot.in_range(), "{snapshot:?}");
            let mut disk = disk();
            assert!(disk.in_range());
            disk.snapshot = snapshot;
            assert!(!disk.in_range(), "a disk with {:?}", disk.snapshot);
        }
    }

    /// Records the stamp and payload of each entry applied.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct WriteHistory(Vec<(u64, Option<u8>)>);

    impl StateMachine for WriteHistory {
        type Command = u8;
        type Outcome = ();

        fn apply(&mut self, at: Stamp, command: &u8) {
            self.0.push((at.0, Some(*command)));
        }

        fn advance(&mut self, at: Stamp) {
            self.0.push((at.0, None));
        }

        fn next_deadline(&self) -> Option<Stamp> {
            None
        }

        fn in_range(&self) -> bool {
            self.0.iter().all(|&(stamp, _)| stamp <= MAX_NUMBER)
        }
    }

    fn entry(index: u64, term: u64, payload: Payload<u8>) -> Entry<u8> {
        Entry { term: Term(term), index: Index(index), stamp: Stamp(index * 10), payload }
    }

    /// Entries 1@1 to 4@2, and no snapshot.
    fn disk() -> Durable<WriteHistory> {
        let mut disk = Durable::blank(WriteHistory(Vec::new()), Members::default());
        let entries = [(1, 1, Payload::Noop), (2, 1, Payload::Command(7)), (3, 2, Payload::Noop)];
        let entries = entries.into_iter().chain([(4, 2, Payload::Command(9))]);
        disk.apply(&Persist::Entries(entries.map(|(index, term, payload)| entry(index, term, payload)).collect()));
        disk
    }

    fn snapshot(index: u64, term: u64) -> Snapshot<WriteHistory> {
        let last = Position { term: Term(term), index: Index(index) };
        Snapshot { last, stamp: Stamp(index * 10), members: Arc::default(), machine: WriteHistory(vec![(1, None)]) }
    }

    fn shape(disk: &Durable<WriteHistory>) -> (u64, u64, usize) {
        (disk.snapshot.last.index.0, disk.log.base().index.0, disk.log.entries().len())
    }

    #[test]
    fn a_snapshot_goes_on_from_the_last_one() {
        let mut disk = disk();
        assert_eq!(disk.snapshot_at(Index(0)), disk.snapshot);
        for through in [2, 3, 3, 4] {
            disk.snapshot = disk.snapshot_at(Index(through));
            disk.apply(&Persist::Compact(Index(through - 1)));
        }
        assert_eq!(disk.snapshot.machine, WriteHistory(vec![(10, None), (20, Some(7)), (30, None), (40, Some(9))]));
        assert_eq!((disk.snapshot.last, disk.snapshot.stamp), (disk.log.last(), Stamp(40)));
        assert_eq!(shape(&disk), (4, 3, 1));
    }

    #[test]
    #[should_panic = "a snapshot never goes back"]
    fn snapshot_before_the_last_one_panics() {
        let mut disk = disk();
        disk.snapshot = disk.snapshot_at(Index(3));
        disk.snapshot_at(Index(2));
    }

    #[test]
    #[should_panic = "the log reaches as far as the new snapshot"]
    fn snapshot_past_the_end_of_the_log_panics() {
        disk().snapshot_at(Index(5));
    }

    #[test]
    #[should_panic = "what no snapshot includes is never removed"]
    fn compaction_past_the_snapshot_panics() {
        disk().apply(&Persist::Compact(Index(1)));
    }

    /// Writes a snapshot: completely, and in two halves with a crash in between.
    #[test]
    fn a_log_that_has_the_snapshots_end_keeps_what_follows() {
        for (snapshot, kept) in [(snapshot(2, 1), 2), (snapshot(4, 2), 0), (snapshot(4, 3), 0), (snapshot(9, 3), 0)] {
            let (mut whole, mut torn) = (disk(), disk());
            whole.apply(&Persist::Snapshot(Arc::new(snapshot.clone())));
            let last = snapshot.last.index.0;
            assert_eq!(shape(&whole), (last, last, kept));
            let settled = whole.clone();
            whole.settle();
            assert_eq!(whole, settled, "there is nothing left to settle");

            torn.snapshot = snapshot;
            torn.settle();
            torn.apply(&Persist::Compact(Index(last)));
            assert_eq!(torn, whole);
        }
    }

    #[test]
    #[should_panic = "a snapshot never goes back"]
    fn older_snapshot_never_replaces_a_later_one() {
        let mut disk = disk();
        disk.snapshot = disk.snapshot_at(Index(4));
        disk.apply(&Persist::Snapshot(Arc::new(snapshot(4, 2))));
    }

    #[test]
    fn a_log_that_begins_before_the_snapshot_is_settled() {
        let mut disk = disk();
        disk.snapshot = disk.snapshot_at(Index(3));
        let before = disk.clone();
        disk.settle();
        assert_eq!(disk, before);
        disk.log = Log::starting_at(Position { term: Term(2), index: Index(3) }, Stamp(30), Arc::default());
        disk.settle();
        assert_eq!(shape(&disk), (3, 3, 0));
    }

    /// A log whose base lies after the snapshot is left as it is, so that an inspection of the disk
    /// shows it.
    #[test]
    fn a_log_that_begins_with_the_snapshot_has_its_members_and_one_that_begins_later_is_left_alone() {
        let mut disk = disk();
        disk.snapshot = Snapshot { members: Arc::new(Members::of([NodeId(1), NodeId(2)])), ..snapshot(3, 2) };
        for (begins, members) in [(3, disk.snapshot.members.clone()), (4, Arc::default())] {
            disk.log = Log::starting_at(Position { term: Term(2), index: Index(begins) }, Stamp(40), Arc::default());
            disk.settle();
            assert_eq!((shape(&disk), disk.log.members()), ((3, begins, 0), &members));
        }
    }

    /// Only the start of the log holds the members before the change, and the disk may lack it.
    #[test]
    fn a_log_in_which_the_members_changed_before_the_snapshot_begins_with_it() {
        let members = |count| Arc::new(Members::of((1..=count).map(NodeId)));
        for (through, base) in [(1, 0), (2, 2), (3, 3), (4, 4)] {
            let mut disk = Durable::blank(WriteHistory(Vec::new()), Members::of([NodeId(1)]));
            let changes = [Payload::Noop, Payload::Members(members(2)), Payload::Noop, Payload::Members(members(3))];
            let entries = (1..).zip(changes).map(|(index, payload)| entry(index, 1, payload));
            disk.apply(&Persist::Entries(entries.collect()));
            disk.snapshot = disk.snapshot_at(Index(through));
            let (last, known) = (disk.log.last(), disk.snapshot.members.clone());
            disk.settle();
            assert_eq!((disk.log.base().index, disk.log.last()), (Index(base), last));
            assert_eq!(disk.log.members_at(Index(through)), &known);
            assert_eq!(disk.log.members(), &members(3));
        }
    }
}
