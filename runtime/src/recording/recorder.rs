//! The recorder: an [`Observer`] that writes each step of the driver to a recording.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use palisade_client::codec;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Config, Durable, Input, Node, Output, Persist};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tracing::error;

use super::format::{Digest, FRAME_HEADER, Header, MAGIC, Record, seal};
use super::keeper;
use crate::core::Observer;
use crate::storage::Identity;

/// Minimum number of inputs between two digests of the state. There are also at least as many
/// inputs as the state has parts, so that digests take a constant time per input.
const STATE_PACE: usize = 256;

/// Writes a recording.
pub struct Recorder {
    /// The pipe to the keeper; `None` after a failed write.
    out: Option<Box<dyn Write + Send>>,
    clock: Box<dyn FnMut() -> u64 + Send>,
    verbose: bool,
    /// The frame under construction; its allocation is reused.
    frame: Vec<u8>,
    /// The time of the last record, in nanoseconds.
    last: u64,
    /// Number of inputs since the last digest of the state.
    inputs: usize,
}

/// Starts the recording of a node's run: a new file in `directory`, of at most `length` bytes.
///
/// # Errors
/// If the file cannot be created, or the keeper cannot be started.
pub fn start(directory: &Path, identity: &Identity, verbose: bool, length: u64) -> io::Result<Recorder> {
    let header = Header {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cluster: identity.cluster,
        incarnation: identity.incarnation.0,
        config: Config::new(identity.node),
        began: monotonic(),
    };
    let pipe = keeper::start(directory, &header, length)?;
    Ok(Recorder::new(&header, pipe, monotonic, verbose))
}

/// The machine's monotonic clock in nanoseconds. Read from the kernel, not through the standard
/// library, so that all processes agree even where a test gives one of them a faster clock.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let [seconds, nanoseconds] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + nanoseconds
}

impl Recorder {
    /// Records to `out`, with a clock in nanoseconds that starts at `header.began`.
    pub fn new(
        header: &Header,
        out: impl Write + Send + 'static,
        clock: impl FnMut() -> u64 + Send + 'static,
        verbose: bool,
    ) -> Recorder {
        let (out, clock): (Box<dyn Write + Send>, Box<dyn FnMut() -> u64 + Send>) = (Box::new(out), Box::new(clock));
        let frame = vec![0; FRAME_HEADER];
        let mut recorder = Recorder { out: Some(out), clock, verbose, frame, last: header.began, inputs: 0 };
        recorder.write_out(&MAGIC);
        recorder.note(&Record::<(), ()>::Began(header.clone()));
        recorder.hand_over();
        recorder
    }

    fn note<D: Serialize, I: Serialize>(&mut self, record: &Record<D, I>) {
        codec::encode_into(record, &mut self.frame);
    }

    /// Nanoseconds since the last record.
    fn elapsed(&mut self) -> u64 {
        let now = (self.clock)().max(self.last);
        now - std::mem::replace(&mut self.last, now)
    }

    /// Writes the noted records as one frame to the pipe: they have left this process when this
    /// returns.
    fn hand_over(&mut self) {
        if self.frame.len() == FRAME_HEADER {
            return;
        }
        let mut frame = std::mem::take(&mut self.frame);
        seal(&mut frame);
        self.write_out(&frame);
        frame.truncate(FRAME_HEADER);
        self.frame = frame;
    }

    fn write_out(&mut self, bytes: &[u8]) {
        let Some(out) = &mut self.out else { return };
        if let Err(error) = out.write_all(bytes) {
            error!(%error, "cannot write to the recording, which ends here; the node goes on without it");
            self.out = None;
        }
    }

    /// The state's digest, if enough inputs have passed since the last one.
    fn state(&mut self, node: &Node<LockTable>) -> Option<Digest> {
        self.inputs += 1;
        let (table, log) = (node.machine(), node.log().entries());
        let parts = table.sessions().len() + table.locks().len() + log.len();
        (self.inputs >= STATE_PACE.max(parts)).then(|| {
            self.inputs = 0;
            Digest::of(node)
        })
    }
}

impl Observer for Recorder {
    fn recovered(&mut self, durable: &Durable<LockTable>) {
        let after = self.elapsed();
        self.note(&Record::<_, ()>::Recovered { after, durable });
        self.hand_over();
    }

    fn stepped(&mut self, node: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]) {
        if self.out.is_none() {
            return;
        }
        let (after, state) = (self.elapsed(), self.state(node));
        let words = self.verbose.then(|| format!("{outputs:?}"));
        self.note(&Record::<(), _>::Stepped { after, input, outputs: Digest::of(outputs), state, words });
    }

    fn executing(&mut self) {
        self.hand_over();
    }

    fn written(&mut self, writes: &[Persist<LockTable>]) {
        let (after, digest) = (self.elapsed(), Digest::of(writes));
        self.note(&Record::<(), ()>::Written { after, writes: writes.len() as u64, digest });
        self.hand_over();
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("last", &self.last).finish_non_exhaustive()
    }
}
