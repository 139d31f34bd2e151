//! Finds operations by their times: which of them were under way at some moment?

use crate::operation::OperationIndex;
use crate::{Operation, Time};

/// Operations by their completions, so that those still open at some moment are a suffix;
/// operations with an unknown end are separate.
#[derive(Debug, Default)]
pub(super) struct Intervals {
    /// Completion, invocation, operation.
    ended: Vec<(Time, Time, OperationIndex)>,
    /// The earliest invocation from this index on.
    earliest: Vec<Time>,
    /// Invocation, operation.
    endless: Vec<(Time, OperationIndex)>,
}

impl Intervals {
    /// An operation whose connection broke was sent again, and a sending may arrive after the
    /// answer. Only a number makes that harmless, and not every client uses numbers.
    pub(super) fn add(&mut self, operation: &Operation, index: OperationIndex) {
        match operation.completed() {
            completed if completed < Time::NEVER && !operation.was_disconnected() => {
                self.ended.push((completed, operation.invoked, index));
            }
            _ => self.endless.push((operation.invoked, index)),
        }
    }

    pub(super) fn sort(&mut self) {
        self.ended.sort_unstable();
        self.endless.sort_unstable();
        let mut earliest = Time::NEVER;
        let suffixes = self.ended.iter().rev().map(|(_, invoked, _)| {
            earliest = earliest.min(*invoked);
            earliest
        });
        self.earliest = suffixes.collect();
        self.earliest.reverse();
    }

    fn open_at(&self, moment: Time) -> usize {
        self.ended.partition_point(|(completed, _, _)| *completed < moment)
    }

    /// The earliest invocation of the operations not completed before `moment`.
    pub(super) fn earliest_open_at(&self, moment: Time) -> Time {
        let ended = self.earliest.get(self.open_at(moment)).copied();
        let endless = self.endless.first().map(|(invoked, _)| *invoked);
        ended.into_iter().chain(endless).min().unwrap_or(Time::NEVER)
    }

    /// The operations that overlap `from..=to`. The search stops where all remaining operations
    /// began later, so a session's thousandth acquire costs no more than its first.
    pub(super) fn overlapping(&self, from: Time, to: Time) -> impl Iterator<Item = OperationIndex> {
        let open = self.open_at(from);
        let near =
            self.ended[open..].iter().zip(&self.earliest[open..]).take_while(move |(_, earliest)| **earliest <= to);
        let ended = near.filter(move |((_, invoked, _), _)| *invoked <= to).map(|((_, _, index), _)| *index);
        let endless = self.endless.iter().take_while(move |(invoked, _)| *invoked <= to).map(|(_, index)| *index);
        ended.chain(endless)
    }

    /// Whether exactly one operation overlaps.
    pub(super) fn one_overlaps(&self, from: Time, to: Time) -> bool {
        self.overlapping(from, to).take(2).count() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Call, End, OpId};

    fn operation(invoked: u64, answered: Option<u64>) -> Operation {
        let call = Call::KeepAlive { session: "s".into() };
        let end = answered.map(|time| (Time(time), End::Ok(Answer::KeptAlive)));
        Operation { id: OpId(0), client: "a".into(), invoked: Time(invoked), call, notes: Vec::new(), end }
    }

    #[test]
    fn overlapping_operations_are_found() {
        let mut intervals = Intervals::default();
        let operations = [(0, Some(4)), (2, Some(3)), (5, None), (6, Some(9)), (10, Some(11))];
        for (index, (invoked, answered)) in operations.into_iter().enumerate() {
            intervals.add(&operation(invoked, answered), index);
        }
        intervals.sort();
        let overlapping = |from, to| {
            let mut indices: Vec<OperationIndex> = intervals.overlapping(Time(from), Time(to)).collect();
            indices.sort_unstable();
            indices
        };
        assert_eq!(overlapping(3, 4), [0, 1]);
        assert_eq!(overlapping(4, 6), [0, 2, 3]);
        assert_eq!(overlapping(12, 20), [2]);
        assert!(intervals.one_overlaps(Time(12), Time(20)) && !intervals.one_overlaps(Time(3), Time(3)));
        assert_eq!(intervals.earliest_open_at(Time(4)), Time(0));
        assert_eq!(intervals.earliest_open_at(Time(5)), Time(5));
    }
}
