//! What many tasks write their histories into.
//!
//! A [`Recorder`] is cheap to clone. An invocation is taken down before it is handed back as a [`Pending`], so it is on
//! record before the request can be sent; a `Pending` that is dropped without a word is recorded as unknown, so that a
//! task that panics or is cancelled does not turn a request that may still be carried out into one that never was.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::event::VERSION;
use super::{Answer, BadHistory, Call, Client, Event, History, Note, OpId, Refusal, Time};

/// Takes operations down, for any number of tasks.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    next: AtomicU64,
    tape: Mutex<Tape>,
}

/// Where times come from: the simulation has a clock of its own.
type Clock = Box<dyn Fn() -> Time + Send + Sync>;

struct Tape {
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
    /// In memory, on this process's monotonic clock.
    #[must_use]
    pub fn in_memory() -> Recorder {
        let begun = Instant::now();
        Recorder::with_clock(Box::new(move || since(begun)))
    }

    /// In memory, on another clock, which must never go back.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Recorder {
        Recorder::new(clock, None)
    }

    /// Into a file or a stream, a line for each event as it happens. What `into` holds back is lost when the process is killed.
    #[must_use]
    pub fn into_writer(into: Box<dyn Write + Send>) -> Recorder {
        let begun = Instant::now();
        Recorder::new(Box::new(move || since(begun)), Some(into))
    }

    fn new(clock: Clock, into: Option<Box<dyn Write + Send>>) -> Recorder {
        let tape = Tape { events: Vec::new(), into, failed: None };
        let recorder = Recorder { shared: Arc::new(Shared { clock, next: AtomicU64::new(1), tape: Mutex::new(tape) }) };
        recorder.put(Event::History { version: VERSION, drift_ppm: 0 });
        recorder
    }

    /// The service's clocks may run faster than this recorder's, by so many millionths.
    pub fn drift(&self, drift_ppm: u32) {
        self.put(Event::History { version: VERSION, drift_ppm });
    }

    /// A client is about to ask. Call it before the request can leave.
    pub fn invoke(&self, client: &Client, call: Call) -> Pending {
        let op = OpId(self.shared.next.fetch_add(1, Ordering::Relaxed));
        let time = (self.shared.clock)();
        self.put(Event::Invoke { op, client: client.clone(), time, call });
        Pending { recorder: self.clone(), op, open: true }
    }

    /// Everything that was recorded, if it was kept in memory.
    ///
    /// # Errors
    /// [`BadHistory`], if an answer does not belong to its call.
    pub fn history(&self) -> Result<History, BadHistory> {
        History::from_events(self.shared.tape.lock().events.clone())
    }

    /// Hands everything that was recorded to the file or stream.
    ///
    /// # Errors
    /// The first line that could not be written. A record with a gap is no record.
    pub fn finish(&self) -> std::io::Result<()> {
        let mut tape = self.shared.tape.lock();
        if let Some(error) = tape.failed.take() {
            return Err(error);
        }
        tape.into.as_mut().map_or(Ok(()), Write::flush)
    }

    fn put(&self, event: Event) {
        let mut tape = self.shared.tape.lock();
        let Some(into) = &mut tape.into else {
            tape.events.push(event);
            return;
        };
        let mut line = serde_json::to_vec(&event).expect("events have names and numbers only");
        line.push(b'\n');
        if let Err(error) = into.write_all(&line) {
            tape.failed.get_or_insert(error);
        }
    }

    fn now(&self) -> Time {
        (self.shared.clock)()
    }
}

fn since(begun: Instant) -> Time {
    Time(u64::try_from(begun.elapsed().as_nanos()).expect("584 years have not passed"))
}

impl Pending {
    /// The operation's number in the record.
    pub fn id(&self) -> OpId {
        self.op
    }

    /// Something was learned on the way.
    pub fn note(&self, note: Note) {
        self.recorder.put(Event::Note { op: self.op, time: self.recorder.now(), note });
    }

    /// It was done. Call it after the answer has come.
    pub fn ok(mut self, value: Answer) {
        self.open = false;
        self.recorder.put(Event::Ok { op: self.op, time: self.recorder.now(), value });
    }

    /// It was certainly not done.
    pub fn fail(mut self, error: Refusal) {
        self.open = false;
        self.recorder.put(Event::Fail { op: self.op, time: self.recorder.now(), error });
    }

    /// Nobody knows.
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
