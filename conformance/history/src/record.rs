//! The recorder into which many tasks write one history.
//!
//! A [`Recorder`] is cheap to clone. It records an invocation before it returns the [`Pending`], so
//! the invocation is on record before the request can be sent. A `Pending` that is dropped without
//! an outcome is recorded as unknown, so that a task that panics or is cancelled does not hide a
//! request that may still be executed.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::event::VERSION;
use super::{Answer, BadHistory, Call, Client, Event, History, Note, OpId, Refusal, Time};

/// Records operations of any number of tasks.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    /// Times count from here.
    begun: Instant,
    next: AtomicU64,
    log: Mutex<Log>,
}

struct Log {
    events: Vec<Event>,
    into: Option<Box<dyn Write + Send>>,
    failed: Option<std::io::Error>,
}

/// An operation that is under way.
#[must_use = "an operation that is dropped is recorded as unknown"]
pub struct Pending {
    recorder: Recorder,
    op: OpId,
    open: bool,
}

impl Recorder {
    /// A recorder in memory.
    #[must_use]
    pub fn in_memory() -> Recorder {
        Recorder::new(None)
    }

    /// A recorder that writes each event as a line to a file or stream when it happens. Lines that
    /// `into` buffers are lost if the process is killed.
    #[must_use]
    pub fn into_writer(into: Box<dyn Write + Send>) -> Recorder {
        Recorder::new(Some(into))
    }

    fn new(into: Option<Box<dyn Write + Send>>) -> Recorder {
        let log = Log { events: Vec::new(), into, failed: None };
        let recorder = Recorder {
            shared: Arc::new(Shared { begun: Instant::now(), next: AtomicU64::new(1), log: Mutex::new(log) }),
        };
        recorder.put(Event::History { version: VERSION, drift_ppm: 0 });
        recorder
    }

    /// Records that the service's clocks may run faster than this recorder's, by `drift_ppm`
    /// millionths.
    pub fn drift(&self, drift_ppm: u32) {
        self.put(Event::History { version: VERSION, drift_ppm });
    }

    /// Records that a client is about to send a request. Call it before the request can be sent.
    pub fn invoke(&self, client: &Client, call: Call) -> Pending {
        let op = OpId(self.shared.next.fetch_add(1, Ordering::Relaxed));
        let time = self.now();
        self.put(Event::Invoke { op, client: client.clone(), time, call });
        Pending { recorder: self.clone(), op, open: true }
    }

    /// Everything recorded so far, if the recorder is in memory.
    ///
    /// # Errors
    /// [`BadHistory`], if an answer does not fit its call.
    pub fn history(&self) -> Result<History, BadHistory> {
        History::from_events(self.shared.log.lock().events.clone())
    }

    /// Flushes the file or stream.
    ///
    /// # Errors
    /// The first write that failed: a record with a gap is useless.
    pub fn finish(&self) -> std::io::Result<()> {
        let mut log = self.shared.log.lock();
        if let Some(error) = log.failed.take() {
            return Err(error);
        }
        log.into.as_mut().map_or(Ok(()), Write::flush)
    }

    fn put(&self, event: Event) {
        let mut log = self.shared.log.lock();
        let Some(into) = &mut log.into else {
            log.events.push(event);
            return;
        };
        let mut line = serde_json::to_vec(&event).expect("events have names and numbers only");
        line.push(b'\n');
        if let Err(error) = into.write_all(&line) {
            log.failed.get_or_insert(error);
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.shared.begun.elapsed().as_nanos()).expect("584 years have not passed"))
    }
}

impl Pending {
    /// Records something that the client learned before the operation ended.
    pub fn note(&self, note: Note) {
        self.recorder.put(Event::Note { op: self.op, time: self.recorder.now(), note });
    }

    /// Records that the operation was done. Call it after the answer has arrived.
    pub fn ok(mut self, value: Answer) {
        self.open = false;
        self.recorder.put(Event::Ok { op: self.op, time: self.recorder.now(), value });
    }

    /// Records that the operation was certainly not done.
    pub fn fail(mut self, error: Refusal) {
        self.open = false;
        self.recorder.put(Event::Fail { op: self.op, time: self.recorder.now(), error });
    }

    /// Records that the outcome is unknown.
    pub fn info(mut self, why: impl Into<String>) {
        self.open = false;
        self.recorder.put(Event::Info { op: self.op, time: self.recorder.now(), why: why.into() });
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.open {
            let why = "the client gave it up".to_string();
            self.recorder.put(Event::Info { op: self.op, time: self.recorder.now(), why });
        }
    }
}
