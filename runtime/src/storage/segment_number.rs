//! The numbers of segments, by which their files are named and `identity.json` says which of them the log needs.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A segment's number; the first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct SegmentNumber(pub(super) u64);

impl SegmentNumber {
    /// The first segment of a log.
    pub(super) const FIRST: SegmentNumber = SegmentNumber(1);
    /// The number before the first: no segment.
    pub(super) const NONE: SegmentNumber = SegmentNumber(0);

    /// The next segment's number.
    pub(super) fn next(self) -> SegmentNumber {
        SegmentNumber(self.0 + 1)
    }

    /// The path of the segment's file.
    pub(super) fn path(self, directory: &Path) -> PathBuf {
        directory.join(format!("wal-{:020}.log", self.0))
    }

    /// The number in `wal-00000000000000000001`, the stem of such a name.
    pub(super) fn parse(stem: &str) -> Option<SegmentNumber> {
        let digits = stem.strip_prefix("wal-").filter(|digits| digits.len() == 20)?;
        digits.parse().ok().map(SegmentNumber)
    }
}

impl fmt::Display for SegmentNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The segments that the log needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Segments {
    /// First segment that the log needs. A snapshot includes the entries of the segments before it,
    /// which are removed or about to be.
    pub(super) first: SegmentNumber,
    /// Last segment created; 0 if there is none yet.
    pub(super) last: SegmentNumber,
}

impl Segments {
    /// The segments of a log that was never opened.
    pub(super) const NONE: Segments = Segments { first: SegmentNumber::FIRST, last: SegmentNumber::NONE };
}
