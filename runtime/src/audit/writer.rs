//! Writes the records. What cannot be written is counted and said as soon as there is room again.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use palisade_spec::raft::NodeId;
use tokio::sync::oneshot;
use tracing::{error, info};

use super::chain::Chain;
use super::clock::Moment;
use super::files::{Files, Open};
use super::record::{Cluster, Position, Record};
use super::{AuditError, MESSAGES, Shared};
use crate::storage::DiskFile;

/// A file is followed by the next one when it has this many bytes.
const FILE_BYTES: u64 = 64 * 1024 * 1024;
/// How long a written record may stay unsynced, and how often a failed write is tried again. A crash of
/// the machine can lose what is not synced; the node then records it again from the cluster's log.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Bytes that are synced at once: so many are kept in memory, to be written again if the sync fails.
const UNSYNCED_BYTES: usize = 8 * 1024 * 1024;

/// The result of an intent: its number, or why it was not written.
pub(super) type IntentReply = oneshot::Sender<Result<u64, String>>;

/// Pause between two writes, unless an act of an administrator or a snapshot is recorded, or the node stops: one write
/// and one wake-up, which takes a processor from the core's thread, for many iterations of it. A killed process can lose
/// what it has not written. The node then records the entries again, without the addresses of their clients, and never
/// what it had refused.
const PAUSE: Duration = Duration::from_millis(100);

/// What the writer's thread is sent.
#[derive(Debug)]
pub(super) enum Message {
    /// To be written soon.
    Records(Vec<Record>, Moment),
    /// To be durable before the answer.
    Intent(Record, IntentReply),
    /// The node stops, with everything up to this index recorded.
    Stop(u64),
}

/// The end of the log's files.
#[derive(Debug)]
pub(super) struct Writer {
    files: Files,
    node: String,
    cluster: Cluster,
    shared: Arc<Shared>,
    number: u32,
    file: Box<dyn DiskFile>,
    /// Number of bytes of the file that are durable.
    synced: u64,
    /// The lines after them.
    unsynced: Vec<u8>,
    /// Number of bytes of `unsynced` that are written.
    written: usize,
    /// The file may be longer than the lines in it: a write has failed.
    is_dirty: bool,
    chain: Chain,
    position: Position,
    /// Why the last write failed, if it did.
    failure: Option<String>,
    /// Records dropped since the last that said so.
    dropped: u64,
    last_sync: Instant,
    /// Number of bytes at which the next file is begun.
    rotate_at: u64,
    file_bytes: u64,
}

impl Writer {
    /// Continues the files, or begins the first one, and says that the process has started.
    pub(super) fn open(
        files: Files,
        node: NodeId,
        cluster: Cluster,
        shared: Arc<Shared>,
    ) -> Result<Writer, AuditError> {
        let last = files.open_last()?;
        let failed = |path, source| AuditError::Io { path, source };
        // The indexes of another cluster's log say nothing about this one's.
        let is_new = last.as_ref().is_none_or(|last| last.cluster_id != cluster.id);
        let open = match last {
            Some(open) if !is_new => open,
            last => {
                let (number, chain, cut) =
                    last.map_or((1, Chain::EMPTY, 0), |last| (last.number + 1, last.chain, last.cut));
                let file = files.create(number).map_err(|source| failed(files.path(number), source))?;
                let (position, cluster_id) = (Position::default(), cluster.id.clone());
                Open { number, file, length: 0, chain, position, cluster_id, cut }
            }
        };
        let Open { number, file, length, chain, position, cut, .. } = open;
        let mut writer = Writer {
            files,
            node: node.to_string(),
            cluster,
            shared,
            number,
            file,
            synced: length,
            unsynced: Vec::new(),
            written: 0,
            is_dirty: false,
            chain,
            position,
            failure: None,
            dropped: 0,
            last_sync: Instant::now(),
            rotate_at: FILE_BYTES,
            file_bytes: FILE_BYTES,
        };
        let now = Moment::now();
        if is_new {
            writer.append(&writer.first_line(), now);
        }
        if cut > 0 {
            info!(bytes = cut, "an unfinished line of the audit log was cut off");
            writer.append(&Record::Cut { bytes: cut }, now);
        }
        writer.append(&Record::Started, now);
        let path = writer.files.path(writer.number);
        writer.try_sync().map_err(|source| failed(path, source))?;
        Ok(writer)
    }

    pub(super) fn position(&self) -> Position {
        self.position
    }

    fn first_line(&self) -> Record {
        let (number, cluster, position) = (self.number, self.cluster.clone(), self.position);
        Record::File { number, cluster, position, prev: self.chain.hash }
    }

    /// Handles messages until the node stops.
    pub(super) fn run(mut self, messages: &Receiver<Message>, urgent: &Receiver<()>) {
        loop {
            let _ = urgent.recv_timeout(PAUSE);
            let message = match messages.recv_timeout(SYNC_EVERY) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut intents = Vec::new();
            for message in message.into_iter().chain(messages.try_iter().take(MESSAGES)) {
                match message {
                    Message::Records(records, at) => self.take(&records, at),
                    Message::Intent(record, reply) => intents.push((record, reply)),
                    Message::Stop(through) => {
                        self.take(&[Record::Stopped { through }], Moment::now());
                        self.retry_or_sync();
                        return;
                    }
                }
            }
            self.rotate_if_full();
            if intents.is_empty() {
                self.write_or_sync();
            } else {
                self.intend(intents);
            }
        }
        self.retry_or_sync();
    }

    /// Adds records, or counts them while nothing can be written.
    fn take(&mut self, records: &[Record], at: Moment) {
        self.shared.taken(records.len());
        self.count_lost();
        if self.failure.is_some() {
            self.drop_records(records.len() as u64);
            return;
        }
        self.say_dropped(at);
        let time = at.to_string();
        for record in records {
            self.append_at(record, &time);
        }
        self.shared.metrics.audit_records.inc_by(records.len() as u64);
    }

    /// Counts what did not fit into the channel.
    fn count_lost(&mut self) {
        self.dropped += self.shared.take_lost();
    }

    fn drop_records(&mut self, records: u64) {
        self.dropped += records;
        self.shared.metrics.audit_dropped.inc_by(records);
    }

    fn say_dropped(&mut self, at: Moment) {
        if self.dropped > 0 {
            let why = self.shared.take_failure().unwrap_or_else(|| "too many records were waiting".into());
            let record = Record::Dropped { records: std::mem::take(&mut self.dropped), why };
            self.append(&record, at);
        }
    }

    fn append(&mut self, record: &Record, at: Moment) {
        self.append_at(record, &at.to_string());
    }

    fn append_at(&mut self, record: &Record, time: &str) {
        let start = self.unsynced.len();
        record.write(self.chain.count + 1, time, &self.node, &mut self.unsynced);
        self.chain.seal(&mut self.unsynced, start);
        self.position = self.position.after(record);
    }

    /// Writes what was added; syncs it if that is due. A failed write is tried again at intervals.
    fn write_or_sync(&mut self) {
        let is_due = self.last_sync.elapsed() >= SYNC_EVERY || self.unsynced.len() >= UNSYNCED_BYTES;
        if is_due {
            self.retry_or_sync();
        } else if self.failure.is_none() {
            let written = self.write();
            self.judge(written);
        }
    }

    fn retry_or_sync(&mut self) {
        let synced = self.try_sync();
        self.judge(synced);
        if self.failure.is_none() {
            self.count_lost();
            if self.dropped > 0 {
                self.say_dropped(Moment::now());
                let written = self.write();
                self.judge(written);
            }
        }
    }

    /// Keeps the result of a write for those that come later, and logs when it changes.
    fn judge(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => {
                if self.failure.take().is_some() {
                    info!(file = %self.files.path(self.number).display(), "the audit log is written again");
                }
            }
            Err(error) => {
                self.written = 0;
                self.is_dirty = true;
                let why = error.to_string();
                if self.failure.is_none() {
                    error!(
                        file = %self.files.path(self.number).display(),
                        error = why,
                        "the audit log cannot be written: administrative requests are refused, and other records are \
                         dropped and counted until it can"
                    );
                }
                self.shared.failed(&why);
                self.failure = Some(why);
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if self.is_dirty {
            self.file.set_length(self.synced)?;
            self.is_dirty = false;
        }
        if self.written < self.unsynced.len() {
            self.file.write_all_at(&self.unsynced[self.written..], self.synced + self.written as u64)?;
            self.written = self.unsynced.len();
        }
        Ok(())
    }

    /// Makes all lines durable. After a failed sync they are written again: the system may have
    /// forgotten them.
    fn try_sync(&mut self) -> io::Result<()> {
        self.last_sync = Instant::now();
        self.write()?;
        if self.unsynced.is_empty() {
            return Ok(());
        }
        self.file.sync_data()?;
        self.synced += self.unsynced.len() as u64;
        self.unsynced.clear();
        self.written = 0;
        Ok(())
    }

    /// Writes intents and answers when they are durable. If they cannot be, none of them was written.
    fn intend(&mut self, intents: Vec<(Record, IntentReply)>) {
        if self.failure.is_some() {
            // Perhaps there is room again.
            self.retry_or_sync();
        }
        if let Some(why) = &self.failure {
            intents.into_iter().for_each(|(_, reply)| drop(reply.send(Err(why.clone()))));
            return;
        }
        let before = (self.unsynced.len(), self.chain, self.position);
        let now = Moment::now();
        let mut replies = Vec::new();
        for (record, reply) in intents {
            self.append(&record, now);
            replies.push((self.chain.count, reply));
        }
        let synced = self.try_sync();
        if synced.is_err() {
            self.unsynced.truncate(before.0);
            (self.chain, self.position) = (before.1, before.2);
        }
        let why = synced.as_ref().err().map(ToString::to_string);
        self.judge(synced);
        self.shared.metrics.audit_records.inc_by(if why.is_none() { replies.len() as u64 } else { 0 });
        for (number, reply) in replies {
            let _ = reply.send(why.clone().map_or(Ok(number), Err));
        }
    }

    /// Begins the next file if this one has its size. Until that can be done, this one grows.
    fn rotate_if_full(&mut self) {
        if self.failure.is_some() || self.synced + (self.unsynced.len() as u64) < self.rotate_at {
            return;
        }
        self.retry_or_sync();
        if self.failure.is_some() {
            return;
        }
        match self.files.create(self.number + 1) {
            Ok(file) => {
                self.number += 1;
                (self.file, self.synced, self.rotate_at) = (file, 0, self.file_bytes);
                self.append(&self.first_line(), Moment::now());
                self.retry_or_sync();
            }
            Err(error) => {
                let file = self.files.path(self.number + 1);
                error!(file = %file.display(), %error, "cannot begin the next file of the audit log: the last one grows");
                self.rotate_at += self.file_bytes / 8 + 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
