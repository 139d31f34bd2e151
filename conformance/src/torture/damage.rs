//! Damage to the log of a node that does not run.
//!
//! A node whose acknowledged entries are gone must notice it at its next start, and return as a new
//! member of its cluster. If the damage hits only what the node had not acknowledged when it was
//! killed, it may also come back as it was: for that part the damage is a torn write.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rand::Rng;
use rand::rngs::SmallRng;

/// Bytes that a disk loses at once.
const SECTOR: usize = 512;

/// Damage, and where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Damage {
    kind: Kind,
    /// Which of the log's segments, and where in its content; both from 0 to 1.
    segment: f64,
    position: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One bit flips.
    Bit,
    /// A sector reads as zeros.
    Sector,
    /// Everything from the position on reads as zeros.
    Suffix,
    /// The file ends at the position.
    Truncation,
}

impl Damage {
    /// Draws the kind and the position.
    pub(super) fn draw(random: &mut SmallRng) -> Damage {
        let kind = [Kind::Bit, Kind::Sector, Kind::Suffix, Kind::Truncation][random.random_range(0..4)];
        Damage { kind, segment: random.random_range(0.0..1.0), position: random.random_range(0.0..1.0) }
    }

    /// The name under which the fault is counted.
    pub(super) fn name(self) -> &'static str {
        match self.kind {
            Kind::Bit => "bit of a log flipped",
            Kind::Sector => "sector of a log lost",
            Kind::Suffix => "end of a log zeroed",
            Kind::Truncation => "log truncated",
        }
    }

    /// Damages the log in a node's data directory.
    pub(super) fn inflict(self, data: &Path) -> io::Result<()> {
        let segments = segments(data)?;
        let Some(path) = segments.get(scaled(self.segment, segments.len())) else { return Ok(()) };
        let bytes = fs::read(path)?;
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let at = scaled(self.position, end);
        let overwrite = |from: usize, content: &[u8]| {
            let mut file = File::options().write(true).open(path)?;
            file.seek(SeekFrom::Start(from as u64))?;
            file.write_all(content)
        };
        match self.kind {
            Kind::Bit => overwrite(at, &bytes.get(at).map_or([0], |byte| [byte ^ 1])),
            Kind::Sector => overwrite(at - at % SECTOR, &[0; SECTOR]),
            Kind::Suffix => overwrite(at, &vec![0; bytes.len() - at]),
            Kind::Truncation => File::options().write(true).open(path)?.set_len(at as u64),
        }
    }
}

/// A position in a list of this length.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "0 <= part < 1"
)]
fn scaled(part: f64, length: usize) -> usize {
    (part * length as f64) as usize
}

/// The segments of a log, the oldest first.
fn segments(data: &Path) -> io::Result<Vec<PathBuf>> {
    files(data, |name| name.starts_with("wal-") && name.ends_with(".log"))
}

/// Removes what a node keeps of its damaged log: on the small disks of a torture there is no room
/// for many.
pub(super) fn remove_kept(data: &Path) -> io::Result<()> {
    files(data, |name| name.starts_with("damaged-"))?.iter().try_for_each(fs::remove_file)
}

fn files(data: &Path, is_meant: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(data)? {
        let path = entry?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(&is_meant) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_changes_the_content_of_a_segment() {
        let directory = tempfile::tempdir().unwrap();
        let segment = directory.path().join("wal-0000000000000001.log");
        let content = [[7; 3000].as_slice(), &[0; 5000]].concat();
        for kind in [Kind::Bit, Kind::Sector, Kind::Suffix, Kind::Truncation] {
            for position in [0.0, 0.5, 0.999_999] {
                fs::write(&segment, &content).unwrap();
                Damage { kind, segment: 0.3, position }.inflict(directory.path()).unwrap();
                let damaged = fs::read(&segment).unwrap();
                assert_ne!(damaged, content, "{kind:?} at {position}");
                assert_eq!(damaged.len() == content.len(), kind != Kind::Truncation);
            }
        }
        fs::write(directory.path().join("damaged-0-wal-0000000000000001.log"), "kept").unwrap();
        remove_kept(directory.path()).unwrap();
        assert_eq!(files(directory.path(), |_| true).unwrap(), [segment]);
    }
}
