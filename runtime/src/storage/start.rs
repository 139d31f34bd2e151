//! The starts of a node: a counter in its data directory, raised durably at each start.
//!
//! Two processes that run on copies of one directory are two members with one identity: each may
//! vote, and together they may elect two leaders. The directory's incarnation does not distinguish
//! them, because the copy has it, too. So each start draws a random number and records it, and a
//! node tells its peers the numbers of its latest starts. A peer keeps the number of the newest
//! start that it has seen, and accepts a later start only if that number is in its past: a start
//! from a copy, or from an older state of the directory, has another past.
//!
//! A start that no peer has seen (a crash right after it was recorded) is a part of the past like
//! any other. `peers::pinned_peers` compares; docs/trust-boundaries.md says what this does not detect.

use serde::{Deserialize, Serialize};

use super::directory::DataDir;
use super::{StorageError, files};

/// The file's name.
const FILE_NAME: &str = "start.json";
/// The only format that this program writes and reads.
const FORMAT: u32 = 1;
/// Number of latest starts that a directory keeps: a peer that was away for more of them cannot
/// tell a later start from a copy's.
const KEPT: usize = 64;
/// Number of starts by which a node may be ahead of the newest one that a peer has seen: so many that
/// no node reaches it. A forged start far ahead would make all later ones of the node look old.
const AHEAD: u64 = 1_000_000;

/// A start of a node, and those before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// How often the node was started on its directory; 0 if its starts are not counted.
    pub count: u64,
    /// The random numbers of its latest starts, this one first.
    pub recent: Vec<u64>,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    start: Start,
}

impl Start {
    /// This start without those before it.
    pub fn alone(&self) -> Start {
        Start { count: self.count, recent: self.recent.first().copied().into_iter().collect() }
    }

    /// Whether this is the start that was `seen`, or a later one of the same directory.
    pub fn is_or_follows(&self, seen: &Start) -> bool {
        let Some(later) = self.count.checked_sub(seen.count).filter(|&later| later <= AHEAD) else { return false };
        if self.recent.len() as u64 != self.count.min(KEPT as u64) {
            return false;
        }
        let Some(seen) = seen.recent.first() else { return true };
        let later = usize::try_from(later).unwrap_or(usize::MAX);
        self.recent.get(later).map_or(later >= KEPT, |start| start == seen)
    }

    /// The next start, with this random number.
    fn next(mut self, drawn: u64) -> Start {
        self.recent.insert(0, drawn);
        self.recent.truncate(KEPT);
        Start { count: self.count.saturating_add(1), recent: self.recent }
    }
}

impl DataDir {
    /// Records a start of the directory's node, with a random number. It is durable when this
    /// returns.
    ///
    /// # Errors
    /// If the record of the earlier starts cannot be read, or the new one may not be durable.
    pub fn record_start(&self, drawn: u64) -> Result<Start, StorageError> {
        let (disk, path) = (&**self.disk(), self.path().join(FILE_NAME));
        let earlier =
            files::read_record(disk, &path, FORMAT)?.map_or_else(Start::default, |Record { start, .. }| start);
        let start = earlier.next(drawn);
        let record = Record { format: FORMAT, start };
        let content = serde_json::to_vec(&record).expect("numbers can be written");
        files::replace(disk, &path, self.path(), &content)?;
        // For the next start, in case the disk is full by then. This start does not need it.
        let _ = files::preallocate(disk, &path, files::RESERVE);
        Ok(record.start)
    }
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::NodeId;

    use super::*;
    use crate::storage::Identity;

    #[test]
    fn every_start_is_recorded_before_it_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let open = || DataDir::open(directory.path(), &Identity::of(7, NodeId(1))).unwrap();
        for drawn in 1..=70 {
            let start = open().record_start(drawn).unwrap();
            let earlier = (1..=drawn).rev().take(KEPT).collect();
            assert_eq!(start, Start { count: drawn, recent: earlier });
        }
    }

    #[test]
    fn only_the_same_start_and_its_successors_are_accepted() {
        let start = |numbers: &[u64]| numbers.iter().fold(Start::default(), |start, &drawn| start.next(drawn));
        let seen = start(&[1, 2, 3]).alone();
        for good in [&[1, 2, 3][..], &[1, 2, 3, 4], &[1, 2, 3, 4, 5, 6]] {
            assert!(start(good).is_or_follows(&seen), "{good:?}");
        }
        // An older state; a copy's start beside the original's; a copy that was started more often.
        for bad in [&[][..], &[1, 2], &[1, 2, 4], &[1, 2, 4, 5], &[1, 2, 4, 5, 6, 7]] {
            assert!(!start(bad).is_or_follows(&seen), "{bad:?}");
        }
        let many: Vec<u64> = (1..=200).collect();
        for later in 4..200 {
            assert!(start(&many[..later]).is_or_follows(&seen), "{later}: a peer that was away for long");
        }
        let forged = Start { count: 9, recent: vec![9] };
        assert!(!forged.is_or_follows(&seen), "a past with a gap");
        let recent: Vec<u64> = (0..KEPT as u64).collect();
        for (count, recent) in [(u64::MAX, recent.clone()), (AHEAD + 4, recent.clone()), (1_000, vec![9])] {
            assert!(!Start { count, recent }.is_or_follows(&seen), "a start that no node has: {count}");
        }
        assert!(Start { count: AHEAD + 3, recent }.is_or_follows(&seen));
        assert!(start(&[1]).is_or_follows(&Start::default()) && Start::default().is_or_follows(&Start::default()));
    }
}
