//! Threads for intervals: checkers want processes that do one thing at a time.
//!
//! Our clients do not: a session is kept alive while it waits, operations are pipelined. So each operation is given a
//! lane in which nothing else is under way, the lowest that is free. An operation whose outcome is unknown never ends,
//! and keeps its lane for ever, which is what Jepsen asks of a process that crashed.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::Time;

/// A lane for each interval. They are given in the order of their beginnings. Two intervals share a lane only if one
/// has ended *before* the other began; those that touch may have overlapped.
pub fn lanes(intervals: impl IntoIterator<Item = (Time, Time)>) -> Vec<usize> {
    let mut busy: BinaryHeap<Reverse<(Time, usize)>> = BinaryHeap::new();
    let mut free = BTreeSet::new();
    let mut count = 0;
    let mut lanes = Vec::new();
    for (begins, ends) in intervals {
        while let Some(&Reverse((ended, lane))) = busy.peek()
            && ended < begins
        {
            busy.pop();
            free.insert(lane);
        }
        let lane = free.pop_first().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        busy.push(Reverse((ends, lane)));
        lanes.push(lane);
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_has_one_thing_at_a_time_and_an_unknown_end_keeps_it() {
        let never = u64::MAX;
        let intervals = [(0, 10), (5, never), (10, 12), (13, 14), (15, 20)].map(|(a, b)| (Time(a), Time(b)));
        assert_eq!(lanes(intervals), [0, 1, 2, 0, 0]);
    }
}
