//! What a node must remember across a crash, and the writes that change it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Entry, Index, Log, MAX_NUMBER, Members, NodeId, Position, Stamp, StateMachine, Term, in_range};

/// The node's place in the elections (figure 3.1's `currentTerm` and `votedFor`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HardState {
    /// The latest term the node has seen.
    pub term: Term,
    /// Whom it voted for in that term, if anyone.
    pub vote: Option<NodeId>,
}

/// The state machine as it was after the entry at `last`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Snapshot<S> {
    /// The last entry that the state includes; [`Position::default`] for the state before the first entry.
    pub last: Position,
    /// That entry's stamp.
    pub stamp: Stamp,
    /// The cluster's members as of that entry.
    pub members: Arc<Members>,
    /// The state.
    pub machine: S,
}

/// A node's disk, as the protocol sees it. The model's disk *is* this type; the server's write-ahead log recovers
/// exactly to it.
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

/// One write to the disk. A later write stands on the earlier ones, so the disk keeps their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize, S::Command: Serialize",
    deserialize = "S: Deserialize<'de>, S::Command: Deserialize<'de>"
))]
pub enum Persist<S: StateMachine> {
    /// Replaces term and vote.
    HardState(HardState),
    /// Removes whatever the log holds from the first of these entries on, then appends them all. Never empty.
    ///
    /// A crash may leave any prefix of the entries behind, truncation included: what was removed conflicts with the
    /// leader's log and so was never committed, and none of the new entries has been acknowledged yet.
    Entries(Vec<Entry<S::Command>>),
    /// Replaces the snapshot by one that a leader sent (§5.1). Of the log, what follows the snapshot stays if the log has the
    /// snapshot's last entry; else nothing stays.
    ///
    /// A crash in the middle may leave the new snapshot beside the old log: [`Durable::settle`] ends what was begun.
    Snapshot(Arc<Snapshot<S>>),
    /// Removes the log's entries up to this index, all of which the snapshot includes.
    Compact(Index),
}

impl<S: StateMachine> Snapshot<S> {
    /// Whether it has no number beyond [`MAX_NUMBER`].
    pub fn in_range(&self) -> bool {
        self.last.in_range() && in_range([self.stamp.0]) && self.machine.in_range()
    }
}

impl<S: StateMachine> Durable<S> {
    /// Whether it has no number that a node cannot have come to, far beyond [`MAX_NUMBER`]; the log's end has the log's greatest. A
    /// driver does not start from a disk that has (R37).
    pub fn in_range(&self) -> bool {
        let Position { term, index } = self.log.last();
        let numbers = [self.hard.term.0, term.0, index.0, self.log.last_stamp().0];
        numbers.into_iter().all(|number| number < 2 * MAX_NUMBER) && self.snapshot.in_range()
    }

    /// A blank disk under a state machine's first state: of a founding member, or, if `members` is empty, of a server that is
    /// yet to hear of its cluster.
    pub fn blank(machine: S, members: Members) -> Durable<S> {
        let (last, stamp, members) = (Position::default(), Stamp::default(), Arc::new(members));
        let log = Log::starting_at(last, stamp, Arc::clone(&members));
        Durable { hard: HardState::default(), snapshot: Snapshot { last, stamp, members, machine }, log }
    }

    /// The state after the entry at `through`: the snapshot with the entries after it applied. A driver takes it as its
    /// next snapshot, if it has carried out the [`Output::Applied`](super::Output::Applied) of `through`.
    ///
    /// # Panics
    /// If the snapshot is later, or the log ends before.
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

    /// Brings the log into line with the snapshot, as every start does: one that does not have the snapshot's last entry
    /// begins after it. So does one in which the members changed on the way to that entry: a disk need not have kept who they
    /// were before, for nobody will ask.
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
    /// If the entries leave a gap after the log, or reach into its base, or the log were to lose what the snapshot does not
    /// include: such a write was never asked for.
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
    use crate::raft::{Entry, Index, Log, Members, NodeId, Payload, Position, Stamp, StateMachine, Term};

    /// Remembers when what was applied.
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
    fn no_snapshot_is_taken_of_the_past() {
        let mut disk = disk();
        disk.snapshot = disk.snapshot_at(Index(3));
        disk.snapshot_at(Index(2));
    }

    #[test]
    #[should_panic = "the log reaches as far as the new snapshot"]
    fn no_snapshot_is_taken_of_the_future() {
        disk().snapshot_at(Index(5));
    }

    #[test]
    #[should_panic = "what no snapshot includes is never removed"]
    fn the_log_does_not_give_way_to_nothing() {
        disk().apply(&Persist::Compact(Index(1)));
    }

    /// A write of a snapshot, whole, and in two halves with a crash in between.
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
    fn no_snapshot_takes_a_later_ones_place() {
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

    /// The one of a snapshot that is not there is left as it is, for whoever reads the disk to see.
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

    /// Who the members were before the change is nowhere but in the log's beginning, and that need not be on the disk.
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
