//! Assigns operations to processes: checkers require processes that do one thing at a time.
//!
//! Clients do several things at once: they keep a session alive while it waits, and pipeline
//! operations. So each operation gets the lowest-numbered process in which no other operation is
//! under way. An operation with an unknown outcome never ends and keeps its process for ever, as
//! Jepsen requires of a crashed process.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::Time;

/// A process for each interval, in the order of their beginnings. Two intervals share a process
/// only if one ended *before* the other began; intervals that touch may have overlapped.
pub fn processes(intervals: impl IntoIterator<Item = (Time, Time)>) -> Vec<usize> {
    let mut busy: BinaryHeap<Reverse<(Time, usize)>> = BinaryHeap::new();
    let mut free = BTreeSet::new();
    let mut count = 0;
    let mut processes = Vec::new();
    for (begins, ends) in intervals {
        while let Some(&Reverse((ended, process))) = busy.peek()
            && ended < begins
        {
            busy.pop();
            free.insert(process);
        }
        let process = free.pop_first().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        busy.push(Reverse((ends, process)));
        processes.push(process);
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_runs_one_operation_and_unknown_outcome_keeps_it_busy() {
        let never = u64::MAX;
        let intervals = [(0, 10), (5, never), (10, 12), (13, 14), (15, 20)].map(|(a, b)| (Time(a), Time(b)));
        assert_eq!(processes(intervals), [0, 1, 2, 0, 0]);
    }
}
