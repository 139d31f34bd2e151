//! The resource's values, owned by one thread.
//!
//! The thread takes the requests that wait, decides about them in the order of their arrival, syncs
//! the accepted writes as one frame of the log, and answers. So an answer, also of a read or a
//! refusal, never shows what a crash could take back. If the log fails, the thread ends without an
//! answer, because it does not know what the disk holds.
//! Between two batches it compacts the log, if that is long; the next requests wait meanwhile.

use std::collections::HashMap;
use std::sync::Arc;

use palisade_history::{Answer, Call, Client, Key, Pending, Recorder, Refusal};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, oneshot};

use super::log::{Entry, Log, Op};
use super::rule::{Decision, Rule};
use crate::metrics::Metrics;

/// Largest value that appends may build, in bytes.
pub const MAX_VALUE: usize = 16 << 20;
/// Most requests that wait for the thread; further requests wait in their connections.
const QUEUE: usize = 1024;
/// Most requests, and bytes of bodies, that are synced together.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 4 << 20;

/// A key's value and the highest token that was accepted for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    /// The value.
    pub value: String,
    /// The highest fencing token that was accepted.
    pub max_fence: u64,
}

impl Cell {
    /// The write that makes a new cell this one.
    fn entry(&self, key: &str) -> Entry {
        Entry { key: key.to_owned(), token: self.max_fence, op: Op::Put, body: self.value.clone() }
    }
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was accepted.
    Accepted {
        /// The highest token now.
        max_fence: u64,
    },
    /// Its token is stale.
    Stale {
        /// The highest token seen.
        seen: u64,
    },
    /// The value would grow beyond [`MAX_VALUE`].
    TooLong,
}

/// A write, and who is named as its client in the history.
#[derive(Debug)]
pub struct Request {
    /// What to write.
    pub entry: Entry,
    /// The client's name in the history.
    pub client: Client,
}

enum Job {
    Write(Request, oneshot::Sender<Outcome>),
    Read(String, oneshot::Sender<Option<Cell>>),
}

/// The way to the thread.
#[derive(Clone)]
pub struct Store {
    jobs: mpsc::Sender<Job>,
}

/// The thread has ended because its log failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// What the thread counts and records.
pub struct Observers {
    /// The contract's counters.
    pub metrics: Arc<Metrics>,
    /// Stale writes that an unfenced resource accepted.
    pub stale_accepted: Counter,
    /// The history of accesses.
    pub recorder: Recorder,
}

struct Thread {
    cells: HashMap<String, Cell>,
    rule: Rule,
    log: Option<Log>,
    observers: Observers,
}

/// An answer that waits for the sync.
enum Answered {
    Write { to: oneshot::Sender<Outcome>, outcome: Outcome, access: Option<(Pending, bool)> },
    Read { to: oneshot::Sender<Option<Cell>>, cell: Option<Cell> },
}

impl Store {
    /// Starts the thread. The second value resolves when the thread ends: with an error if its log
    /// failed, without one when the last [`Store`] was dropped.
    #[must_use]
    pub fn start(
        entries: Vec<Entry>,
        log: Option<Log>,
        rule: Rule,
        observers: Observers,
    ) -> (Store, oneshot::Receiver<Result<(), String>>) {
        let mut thread = Thread { cells: HashMap::new(), rule, log, observers };
        for entry in entries {
            thread.apply(&entry);
        }
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (ended, end) = oneshot::channel();
        std::thread::spawn(move || ended.send(thread.run(queue)));
        (Store { jobs }, end)
    }

    /// Decides about a write, and carries it out durably if it is accepted.
    ///
    /// # Errors
    /// [`Stopped`]: whether the write was done is unknown.
    pub async fn write(&self, request: Request) -> Result<Outcome, Stopped> {
        let (to, answer) = oneshot::channel();
        self.jobs.send(Job::Write(request, to)).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }

    /// A key's value.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn read(&self, key: String) -> Result<Option<Cell>, Stopped> {
        let (to, answer) = oneshot::channel();
        self.jobs.send(Job::Read(key, to)).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }
}

impl Thread {
    fn run(mut self, mut queue: mpsc::Receiver<Job>) -> Result<(), String> {
        while let Some(first) = queue.blocking_recv() {
            let (mut accepted, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
            let mut next = Some(first);
            while let Some(job) = next {
                answers.push(self.handle(job, &mut accepted, &mut bytes));
                let full = answers.len() == BATCH || bytes >= BATCH_BYTES;
                next = if full { None } else { queue.try_recv().ok() };
            }
            if let Some(log) = self.log.as_mut().filter(|_| !accepted.is_empty()) {
                log.append(&accepted)?;
            }
            answers.into_iter().for_each(|answer| self.answer(answer));
            if let Some(log) = self.log.as_mut().filter(|log| log.is_long()) {
                log.compact(self.cells.iter().map(|(key, cell)| cell.entry(key)))?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, job: Job, accepted: &mut Vec<Entry>, bytes: &mut usize) -> Answered {
        let (request, to) = match job {
            Job::Read(key, to) => return Answered::Read { to, cell: self.cells.get(&key).cloned() },
            Job::Write(request, to) => (request, to),
        };
        let Request { entry, client } = request;
        let cell = self.cells.get(&entry.key);
        let length = cell.map_or(0, |cell| cell.value.len());
        let decision = self.rule.decide(cell.map(|cell| cell.max_fence), entry.token);
        let accepts = matches!(decision, Decision::Accept { .. });
        if accepts && entry.op == Op::Append && length + entry.body.len() > MAX_VALUE {
            return Answered::Write { to, outcome: Outcome::TooLong, access: None };
        }
        let call = Call::write(Key::from(entry.key.as_str()), entry.token);
        let pending = self.observers.recorder.invoke(&client, call);
        match decision {
            Decision::Refuse { seen } => {
                Answered::Write { to, outcome: Outcome::Stale { seen }, access: Some((pending, false)) }
            }
            Decision::Accept { stale } => {
                *bytes += entry.body.len();
                let max_fence = self.apply(&entry);
                accepted.push(entry);
                Answered::Write { to, outcome: Outcome::Accepted { max_fence }, access: Some((pending, stale)) }
            }
        }
    }

    /// Changes the value; returns the highest token.
    fn apply(&mut self, entry: &Entry) -> u64 {
        let cell = self.cells.entry(entry.key.clone()).or_default();
        match entry.op {
            Op::Put => cell.value.clone_from(&entry.body),
            Op::Append => cell.value.push_str(&entry.body),
        }
        cell.max_fence = cell.max_fence.max(entry.token);
        cell.max_fence
    }

    /// Counts, records and answers: all writes of the batch are durable. If the client has
    /// disconnected, the answer is dropped.
    fn answer(&self, answer: Answered) {
        let Observers { metrics, stale_accepted, .. } = &self.observers;
        match answer {
            Answered::Read { to, cell } => drop(to.send(cell)),
            Answered::Write { to, outcome, access } => {
                match (outcome, access) {
                    (Outcome::Accepted { .. }, Some((pending, stale))) => {
                        metrics.writes.inc();
                        stale_accepted.inc_by(u64::from(stale));
                        pending.ok(Answer::Accepted);
                    }
                    (Outcome::Stale { .. }, Some((pending, _))) => {
                        metrics.stale_tokens.inc();
                        pending.fail(Refusal::Refused);
                    }
                    (_, access) => drop(access),
                }
                let _ = to.send(outcome);
            }
        }
    }
}
