//! What the files of snapshots are called, and which there are.

use std::path::{Path, PathBuf};

use palisade_spec::raft::{Index, Position, Term};

use super::disk::Disk;
use super::{StorageError, files};

/// How many snapshots are kept.
const KEPT: usize = 2;

/// How the names begin: of this node's own snapshots, and of one that a leader sends. The second ends like what means
/// nothing after a crash.
const OWN: &str = "snapshot-";
const INCOMING: &str = "incoming-";
const SUFFIX: &str = ".snap";

/// This node's own snapshot that ends at `last`.
pub(super) fn own(directory: &Path, last: Position) -> PathBuf {
    path(directory, OWN, last)
}

/// What a leader sends of such a one.
pub(super) fn incoming(directory: &Path, last: Position) -> PathBuf {
    files::aside(&path(directory, INCOMING, last))
}

fn path(directory: &Path, prefix: &str, last: Position) -> PathBuf {
    directory.join(format!("{prefix}{:020}-{}{SUFFIX}", last.index.0, last.term.0))
}

/// The position in `snapshot-00000000000000000700-3.snap`.
fn parse(name: &str, prefix: &str) -> Option<Position> {
    let (index, term) = name.strip_prefix(prefix)?.strip_suffix(SUFFIX)?.split_once('-')?;
    let index = Some(index).filter(|digits| digits.len() == 20)?.parse().ok()?;
    Some(Position { term: Term(term.parse().ok()?), index: Index(index) })
}

/// The files of snapshots in a directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// This node's own, the oldest first.
    own: Vec<Position>,
    /// Those that are being written.
    aside: Vec<Position>,
    /// Those that a leader sends or has sent.
    incoming: Vec<Position>,
}

impl Listing {
    pub(super) fn of(disk: &dyn Disk, directory: &Path) -> Result<Listing, StorageError> {
        let mut listing = Listing::default();
        for name in disk.list(directory).map_err(StorageError::io("list", directory))? {
            let Some(name) = name.to_str() else { continue };
            let (name, is_aside) = name.strip_suffix(".tmp").map_or((name, false), |name| (name, true));
            match (is_aside, parse(name, OWN), parse(name, INCOMING)) {
                (false, Some(last), _) => listing.own.push(last),
                (true, Some(last), _) => listing.aside.push(last),
                (true, None, Some(last)) => listing.incoming.push(last),
                _ => {}
            }
        }
        listing.own.sort_unstable_by_key(|last| (last.index, last.term));
        Ok(listing)
    }

    /// Where the newest of this node's own ends.
    pub(super) fn newest(&self) -> Option<Position> {
        self.own.last().copied()
    }

    /// Snapshots that are not kept any longer.
    pub(super) fn surplus(&self, directory: &Path) -> Vec<PathBuf> {
        let count = self.own.len().saturating_sub(KEPT);
        self.own[..count].iter().map(|&last| own(directory, last)).collect()
    }

    /// What a leader sends or has sent, of the snapshots that are meant.
    pub(super) fn incoming(&self, directory: &Path, is_meant: impl Fn(Position) -> bool) -> Vec<PathBuf> {
        let meant = self.incoming.iter().filter(|&&last| is_meant(last));
        meant.map(|&last| incoming(directory, last)).collect()
    }

    /// What is of no use when nobody is at work.
    pub(super) fn of_no_use(&self, directory: &Path) -> Vec<PathBuf> {
        let aside = self.aside.iter().map(|&last| files::aside(&own(directory, last)));
        self.surplus(directory).into_iter().chain(aside).chain(self.incoming(directory, |_| true)).collect()
    }
}
