//! The audit log of a node: who did what, in files that show whether they were changed.
//!
//! The core and the HTTP handlers hand records to a thread, and never wait for it: what cannot be
//! written is counted (`palisade_audit_dropped_total`), and a record says how much. Administrative
//! requests are the exception. Their intent must be durable before they reach the core, and they are
//! refused while it cannot be. docs/access.md explains what the log proves, docs/decisions/0027 why
//! it is so.
//!
//! The writer's disk is a [`Disk`]: its tests fail it. [`verify`](mod@verify) reads any file, also on another machine.

mod chain;
mod clock;
mod files;
mod record;
mod trail;
pub mod verify;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TrySendError};
use tokio::sync::oneshot;
use tokio::time::timeout;

pub use self::record::{Act, Client};
pub use self::trail::{Clients, Trail};

use self::clock::Moment;
use self::files::Files;
use self::record::{Cluster, Record};
use self::writer::{Message, Writer};
use crate::log_pause::LogPause;
use crate::metrics::Metrics;
use crate::storage::{Disk, Identity};
use crate::sync::Mutex;

/// Maximum number of records that wait for the disk.
const WAITING: usize = 1 << 16;
/// Maximum number of messages to the writer: an iteration of the core sends one.
const MESSAGES: usize = 1 << 12;
/// How long an intent may take to become durable.
const INTENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum time between two records of the same refusal.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);

/// Why the audit log of a node cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The disk failed.
    #[error("cannot open the audit log {}: {source}. Give --audit a directory that the node may write", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory has files of other programs.
    #[error(
        "{} is no directory of an audit log: it has files of other programs, such as {foreign}. Nothing in it was \
         changed. Give --audit a new or an empty directory, or move the other files away",
        .path.display()
    )]
    ForeignFiles {
        /// The directory.
        path: PathBuf,
        /// The name of one of the files.
        foreign: String,
    },
    /// Another process has locked the directory.
    #[error(
        "the audit log {} is in use by another process{}: give each node a directory of its own",
        .path.display(),
        .process.map_or_else(String::new, |process| format!(" ({process})"))
    )]
    Taken {
        /// The directory.
        path: PathBuf,
        /// The process.
        process: Option<u32>,
    },
    /// A line of the last file is damaged.
    #[error(
        "the audit log is damaged: {}, line {line}: {why}. Keep the directory as evidence, and give the node a new one \
         with --audit",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// The writer's thread cannot be started.
    #[error("cannot start the thread of the audit log: {0}")]
    Thread(#[source] io::Error),
}

/// Hands records to the writer.
#[derive(Clone, Debug)]
pub struct Audit {
    messages: Sender<Message>,
    /// Ends the writer's pause: for what no log of the cluster can tell again, at the end, and before the channel is
    /// full.
    urgent: Sender<()>,
    shared: Arc<Shared>,
}

/// What both sides of the channel know.
#[derive(Debug)]
struct Shared {
    metrics: Arc<Metrics>,
    /// Number of records in the channel.
    waiting: AtomicUsize,
    /// Records that did not fit into the channel, and that no record has told yet.
    lost: AtomicU64,
    failure: Mutex<Option<String>>,
    /// Keeps a client that repeats what it may not do from filling the disk: while the audit log cannot be written,
    /// operators can do nothing administrative.
    refusals: LogPause,
}

impl Shared {
    fn new(metrics: Arc<Metrics>) -> Arc<Shared> {
        let (waiting, lost) = (AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(Shared { metrics, waiting, lost, failure: Mutex::default(), refusals: LogPause::of_clients() })
    }

    fn taken(&self, records: usize) {
        self.waiting.fetch_sub(records, Ordering::Relaxed);
    }

    fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }

    fn lose(&self, records: u64) {
        self.lost.fetch_add(records, Ordering::Relaxed);
        self.metrics.audit_dropped.inc_by(records);
    }

    /// Keeps why records are dropped, for the record that says so.
    fn failed(&self, why: &str) {
        *self.failure.lock() = Some(why.to_owned());
    }

    fn take_failure(&self) -> Option<String> {
        self.failure.lock().take()
    }
}

/// Opens the audit log in a directory, and starts its writer. The thread ends after
/// [`Trail::stop`], or when the last [`Audit`] is dropped.
///
/// # Errors
/// If the directory is in use, damaged, has files of other programs, or cannot be read and written.
pub fn start(
    disk: Arc<dyn Disk>,
    directory: &Path,
    identity: &Identity,
    metrics: Arc<Metrics>,
) -> Result<(Audit, Trail, JoinHandle<()>), AuditError> {
    let shared = Shared::new(metrics);
    let cluster = Cluster { name: identity.cluster_name.clone(), id: format!("{:016x}", identity.cluster) };
    let writer = Writer::open(Files::lock(disk, directory)?, identity.node, cluster, Arc::clone(&shared))?;
    let recorded = writer.position();
    let (messages, receiver) = crossbeam_channel::bounded(MESSAGES);
    let (urgent, hurried) = crossbeam_channel::bounded(1);
    let run = move || writer.run(&receiver, &hurried);
    let thread = std::thread::Builder::new().name("audit".into()).spawn(run).map_err(AuditError::Thread)?;
    let audit = Audit { messages, urgent, shared };
    let trail = Trail::new(audit.clone(), recorded);
    Ok((audit, trail, thread))
}

impl Audit {
    /// Hands over records, or counts them as dropped.
    fn send(&self, records: Vec<Record>) {
        let count = records.len();
        let waiting = self.shared.waiting.fetch_add(count, Ordering::Relaxed);
        if waiting + count > WAITING || self.messages.try_send(Message::Records(records, Moment::now())).is_err() {
            self.shared.taken(count);
            self.shared.lose(count as u64);
        }
        if waiting + count > WAITING / 8 || self.messages.len() > MESSAGES / 2 {
            self.hurry();
        }
    }

    /// Ends the writer's pause.
    fn hurry(&self) {
        // If one waits in the channel, the pause ends anyway.
        let _ = self.urgent.try_send(());
    }

    /// Records that this node refused a client's request. While `what` names the client and what was refused to it as
    /// a recent record does, the refusal is only counted, for the next record.
    pub fn refused(&self, client: Client, what: &str, why: &str) {
        if let Some(repeats) = self.shared.refusals.due(what, REFUSAL_PAUSE, Instant::now()) {
            self.send(vec![Record::Refused { why: why.to_owned(), repeats, client }]);
        }
    }

    /// Makes an intent durable, and returns its number.
    ///
    /// # Errors
    /// Why it is not durable.
    pub async fn intend(&self, act: Act, client: Client) -> Result<u64, String> {
        let (reply, replied) = oneshot::channel();
        let message = Message::Intent(Record::Intent { act, client }, reply);
        self.messages.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => "too many records are waiting for the disk".to_owned(),
            TrySendError::Disconnected(_) => "its writer has ended".to_owned(),
        })?;
        self.hurry();
        match timeout(INTENT_TIMEOUT, replied).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("its writer has ended".into()),
            Err(_) => Err(format!("the disk did not answer within {INTENT_TIMEOUT:?}")),
        }
    }

    /// Records the result of an intent.
    pub fn answered(&self, intent: u64, result: &str) {
        self.send(vec![Record::Answered { intent, result: result.to_owned() }]);
        self.hurry();
    }

    /// Ends the writer, after all that was handed over.
    fn stop(&self, through: u64) {
        // The channel may be full; then the last record is missing, and the next start says what it does not know.
        let _ = self.messages.send_timeout(Message::Stop(through), Duration::from_secs(1));
        self.hurry();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the writer's pause loses no record of a sudden mass, such as the expiry of many sessions: the writer is woken
    /// long before there is no more room.
    #[test]
    fn writer_is_woken_before_the_channel_is_full() {
        let (messages, _sent) = crossbeam_channel::bounded(MESSAGES);
        let (urgent, woken) = crossbeam_channel::bounded(1);
        let audit = Audit { messages, urgent, shared: Shared::new(Metrics::new()) };
        audit.send(vec![Record::Started; WAITING / 8]);
        assert!(woken.try_recv().is_err(), "it may go on with its pause");
        audit.send(vec![Record::Started]);
        assert!(woken.try_recv().is_ok(), "many records wait");
        audit.shared.taken(WAITING / 8 + 1);
        for _ in 0..MESSAGES / 2 - 2 {
            audit.send(vec![Record::Started]);
            audit.shared.taken(1);
        }
        assert!(woken.try_recv().is_err(), "it may go on with its pause");
        audit.send(vec![Record::Started]);
        assert!(woken.try_recv().is_ok(), "many messages wait");
        assert_eq!(audit.shared.take_lost(), 0);
    }
}
