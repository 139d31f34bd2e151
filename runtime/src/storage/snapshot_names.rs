//! Names of snapshot files, and the listing of those in a directory.

use std::path::{Path, PathBuf};

use palisade_spec::raft::{Index, Position, Term};

use super::disk::Disk;
use super::{StorageError, files};

/// Number of snapshots that a node keeps.
const KEPT: usize = 2;

/// Prefixes of the names of this node's own snapshots, and of a snapshot that a leader sends. The
/// latter's name also ends in `.tmp`: a start does not read it, and removes it.
const OWN: &str = "snapshot-";
const INCOMING: &str = "incoming-";
const SUFFIX: &str = ".snap";

/// Path of this node's own snapshot that ends at `last`.
pub(super) fn own(directory: &Path, last: Position) -> PathBuf {
    path(directory, OWN, last)
}

/// Path of a leader's snapshot that ends at `last`, until it is installed.
pub(super) fn incoming(directory: &Path, last: Position) -> PathBuf {
    files::temporary_path(&path(directory, INCOMING, last))
}

fn path(directory: &Path, prefix: &str, last: Position) -> PathBuf {
    directory.join(format!("{prefix}{:020}-{}{SUFFIX}", last.index.0, last.term.0))
}

/// Parses the position in `snapshot-00000000000000000700-3.snap`.
fn parse(name: &str, prefix: &str) -> Option<Position> {
    let (index, term) = name.strip_prefix(prefix)?.strip_suffix(SUFFIX)?.split_once('-')?;
    let index = Some(index).filter(|digits| digits.len() == 20)?.parse().ok()?;
    Some(Position { term: Term(term.parse().ok()?), index: Index(index) })
}

/// The files of snapshots in a directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// This node's own snapshots, oldest first.
    own: Vec<Position>,
    /// Own snapshots that are being written.
    unfinished: Vec<Position>,
    /// Snapshots that a leader sends or has sent.
    incoming: Vec<Position>,
}

impl Listing {
    pub(super) fn of(disk: &dyn Disk, directory: &Path) -> Result<Listing, StorageError> {
        let mut listing = Listing::default();
        for name in disk.list(directory).map_err(StorageError::io("list", directory))? {
            let Some(name) = name.to_str() else { continue };
            let (name, is_temporary) = name.strip_suffix(".tmp").map_or((name, false), |name| (name, true));
            match (is_temporary, parse(name, OWN), parse(name, INCOMING)) {
                (false, Some(last), _) => listing.own.push(last),
                (true, Some(last), _) => listing.unfinished.push(last),
                (true, None, Some(last)) => listing.incoming.push(last),
                _ => {}
            }
        }
        listing.own.sort_unstable_by_key(|last| (last.index, last.term));
        Ok(listing)
    }

    /// Last entry of the newest of this node's own snapshots.
    pub(super) fn newest(&self) -> Option<Position> {
        self.own.last().copied()
    }

    /// Own snapshots older than the newest two.
    pub(super) fn surplus(&self, directory: &Path) -> Vec<PathBuf> {
        let count = self.own.len().saturating_sub(KEPT);
        self.own[..count].iter().map(|&last| own(directory, last)).collect()
    }

    /// Snapshots that a leader sends or has sent and whose position matches.
    pub(super) fn incoming(&self, directory: &Path, matches: impl Fn(Position) -> bool) -> Vec<PathBuf> {
        let matching = self.incoming.iter().filter(|&&last| matches(last));
        matching.map(|&last| incoming(directory, last)).collect()
    }

    /// All files that a start does not need: it has no writer or receiver of snapshots yet.
    pub(super) fn leftovers(&self, directory: &Path) -> Vec<PathBuf> {
        let unfinished = self.unfinished.iter().map(|&last| files::temporary_path(&own(directory, last)));
        self.surplus(directory).into_iter().chain(unfinished).chain(self.incoming(directory, |_| true)).collect()
    }
}
