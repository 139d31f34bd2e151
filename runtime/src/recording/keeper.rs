//! The keeper: the process that reads a recording from the node's pipe and writes it to the file.
//! It outlives the node until all records in the pipe and in its memory are written.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use rustix::pipe::fcntl_setpipe_size;

use super::format::{EXTENSION, Header, cut_mark};

/// Maximum number of bytes in the keeper's memory that wait for its disk.
pub const QUEUE: usize = 256 * 1024 * 1024;
/// Default maximum length of a recording, in bytes: a forgotten recording must not fill the disk.
pub const LENGTH: u64 = 4 * 1024 * 1024 * 1024;
/// Requested capacity of the pipe, in bytes, so that the core need not wait for the keeper to be
/// scheduled.
const PIPE: usize = 1024 * 1024;
/// Number of bytes to read at once.
const PIECE: usize = 256 * 1024;

/// The core's end of the pipe. If the keeper has ended, this marks the recording as cut.
#[derive(Debug)]
pub(super) struct Pipe {
    keeper: ChildStdin,
    cut: PathBuf,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.keeper.write(bytes).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                let _ = mark_as_cut(&self.cut);
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens files for writing that only their owner may read: a recording has keys, owners and
/// sessions.
fn private() -> OpenOptions {
    let mut options = File::options();
    options.write(true).mode(0o600);
    options
}

/// Creates the file that marks a recording as cut.
///
/// # Errors
/// The operating system's error.
pub fn mark_as_cut(mark: &Path) -> io::Result<()> {
    private().create(true).truncate(true).open(mark).map(drop)
}

/// Creates the file of a recording and starts its keeper: this program again, with a hidden
/// command.
///
/// The file is locked while the recording is being written. The lock belongs to the opened file,
/// which the keeper inherits; so an unfinished recording never looks finished.
///
/// After `length` bytes the recording is cut.
pub(super) fn start(directory: &Path, header: &Header, length: u64) -> io::Result<Pipe> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let name = format!("node-{}-{:020}.{EXTENSION}", header.config.id.0, header.began);
    let path = std::path::absolute(directory.join(name))?;
    let file = private().create_new(true).open(&path)?;
    file.lock()?;
    let cut = cut_mark(&path);
    let mut keeper = Command::new(std::env::current_exe()?)
        .arg("keep-recording")
        .arg(&cut)
        .arg(length.to_string())
        .stdin(Stdio::piped())
        .stdout(file)
        .stderr(Stdio::null())
        // Keep the terminal's Ctrl-C away from the keeper, which ends after the node.
        .process_group(0)
        .spawn()?;
    let keeper = keeper.stdin.take().expect("its standard input is a pipe");
    // The call may fail for lack of permission. The pipe then stays smaller, and the core may wait
    // for the keeper more often.
    let _ = fcntl_setpipe_size(&keeper, PIPE);
    Ok(Pipe { keeper, cut })
}

/// Copies up to `length` bytes of `input` to `output`. The writer of `input` never waits for
/// `output`: up to `queue` bytes wait in memory. Beyond either limit, or if a write fails, all
/// later bytes are dropped. Returns whether none was dropped.
///
/// # Errors
/// If `input` cannot be read.
pub fn keep(mut input: impl Read, mut output: impl Write + Send, queue: usize, length: u64) -> io::Result<bool> {
    let (waiting, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (pieces, taken) = mpsc::channel::<Vec<u8>>();
    std::thread::scope(|scope| {
        let (waits, fails) = (&waiting, &failed);
        let writer = scope.spawn(move || {
            for piece in taken {
                if output.write_all(&piece).is_err() {
                    fails.store(true, Ordering::Relaxed);
                    break;
                }
                waits.fetch_sub(piece.len(), Ordering::Relaxed);
            }
        });
        let (mut piece, mut whole, mut room) = (vec![0; PIECE], true, length);
        loop {
            let read = match input.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            whole &= waiting.load(Ordering::Relaxed) + read <= queue && !failed.load(Ordering::Relaxed);
            whole &= room >= read as u64;
            if whole {
                room -= read as u64;
                waiting.fetch_add(read, Ordering::Relaxed);
                whole = pieces.send(piece[..read].to_vec()).is_ok();
            }
        }
        drop(pieces);
        writer.join().expect("the writer does not panic");
        Ok(whole && !failed.load(Ordering::Relaxed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that accepts nothing until the sender of `Talker` is dropped.
    struct Stuck(mpsc::Receiver<()>, Vec<u8>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Yields this many pieces of 100 bytes, and then unblocks the disk.
    struct Talker(usize, Option<mpsc::Sender<()>>);

    impl Read for Talker {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                self.1 = None;
                return Ok(0);
            }
            self.0 -= 1;
            bytes[..100].fill(7);
            Ok(100)
        }
    }

    fn kept(pieces: usize, queue: usize) -> (bool, usize) {
        let (go, wait) = mpsc::channel();
        let mut disk = Stuck(wait, Vec::new());
        let whole = keep(Talker(pieces, Some(go)), &mut disk, queue, LENGTH).unwrap();
        (whole, disk.1.len())
    }

    #[test]
    fn bytes_for_a_slow_disk_wait_in_memory() {
        assert_eq!(kept(10, 1000), (true, 1000));
    }

    /// The bytes that are kept are a prefix: none is missing in the middle.
    #[test]
    fn bytes_beyond_the_queue_are_dropped_and_reported() {
        assert_eq!(kept(11, 1000), (false, 1000));
        assert_eq!(kept(500, 1000), (false, 1000));
    }

    #[test]
    fn a_failed_write_is_reported() {
        assert!(!keep(&[1_u8; 4096][..], FullDisk, QUEUE, LENGTH).unwrap());
    }

    /// A recording of exactly the maximum length is complete; a longer one is cut there, and the
    /// cut is reported.
    #[test]
    fn recording_is_cut_at_its_maximum_length() {
        for (pieces, whole) in [(10, true), (11, false), (500, false)] {
            let mut disk = Vec::new();
            let kept = keep(Talker(pieces, None), &mut disk, QUEUE, 1000).unwrap();
            assert_eq!((kept, disk.len()), (whole, 1000), "{pieces} pieces");
        }
    }

    struct FullDisk;

    impl Write for FullDisk {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
