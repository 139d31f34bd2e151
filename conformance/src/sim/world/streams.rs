//! Snapshot transfers to followers, chunk by chunk, from file to file.
//!
//! This models what the server's peers do over a separate connection (`peers/snapshots.rs`), in
//! steps: an offer, the offset from which the receiver wants the snapshot, the chunks, and the
//! check of the whole file. A stream breaks when a link is cut, when one of the two processes dies, or at
//! random.

use palisade_spec::invariants::Property;
use palisade_spec::violated;
use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use palisade::storage::{DiskFile, Incoming, SnapshotFlaw, SnapshotInfo};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Message, NodeId, Term};
use rand::Rng;

use super::{EventKind, World};

/// A snapshot transfer.
pub(super) struct Stream {
    from: NodeId,
    to: NodeId,
    /// The boot numbers of sender and receiver at the start.
    boots: (u64, u64),
    term: Term,
    info: SnapshotInfo,
    file: Box<dyn DiskFile>,
    /// The receiver's part, once the receiver has accepted the offer.
    incoming: Option<Incoming>,
    /// The receiver has the whole snapshot and loads it.
    is_loading: bool,
}

/// How a stream ends.
enum End {
    /// The receiver needs no more of the snapshot.
    Done,
    /// The stream broke.
    Broken,
}

impl World {
    /// A node asks for a snapshot to be sent. Only one stream per pair of nodes runs at a time.
    pub(super) fn begin_stream(&mut self, from: NodeId, to: NodeId, term: Term) {
        let is_on_its_way = self.streams.values().any(|stream| (stream.from, stream.to) == (from, to));
        let receiver = self.servers.get(&to).filter(|server| server.process.is_some());
        let (Some(receiver), Some(sender), false) = (receiver, self.servers.get(&from), is_on_its_way) else { return };
        let Some(process) = &sender.process else { return };
        let newest = process.snapshots.open_newest();
        if let Err(error) = &newest {
            self.report_disk_error(from, error);
        }
        if let Ok(Some((info, file))) = newest {
            let boots = (sender.boot(), receiver.boot());
            let stream = Stream { from, to, boots, term, info, file, incoming: None, is_loading: false };
            self.scheduled += 1;
            let number = self.scheduled;
            self.streams.insert(number, stream);
            let delay = self.quality.base * 3;
            self.after(delay, EventKind::Stream(number));
        }
        self.crash_if_off(from);
    }

    /// Advances a stream by one step.
    pub(super) fn stream(&mut self, number: u64) {
        let Some(stream) = self.streams.remove(&number) else { return };
        let to = stream.to;
        match self.next_step(stream) {
            Continue(stream) => {
                let loading = if stream.is_loading { self.plan.loading } else { Duration::ZERO };
                self.streams.insert(number, stream);
                let delay = self.quality.base + self.quality.spread.mul_f64(self.rng.random());
                self.after(delay + loading, EventKind::Stream(number));
            }
            Break(End::Done) => {}
            Break(End::Broken) => self.tally.streams_broken += 1,
        }
        self.crash_if_off(to);
    }

    fn next_step(&mut self, mut stream: Stream) -> ControlFlow<End, Stream> {
        let Stream { from, to, boots, term, info, .. } = stream;
        let is_open = self.links.is_open(from, to) && self.links.is_open(to, from);
        let lives = |id: NodeId, boot| self.servers.get(&id).is_some_and(|server| server.runs(boot));
        let breaks = self.storms && self.rng.random_bool(0.01);
        if breaks || !is_open || !lives(from, boots.0) || !lives(to, boots.1) {
            return Break(End::Broken);
        }
        let is_taken = self.streams.values().any(|other| other.to == to && other.incoming.is_some());
        let Some(process) = &self.servers[&to].process else { return Break(End::Broken) };
        let Some(incoming) = &mut stream.incoming else {
            if is_taken {
                return Break(End::Broken);
            }
            if process.driver.node().commit() >= info.last.index {
                return Break(End::Done);
            }
            return match process.snapshots.receive(info) {
                Ok(Some(incoming)) => Continue(Stream { incoming: Some(incoming), ..stream }),
                Ok(None) => Break(End::Done),
                // A full disk refuses the offer before it takes a byte.
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => Break(End::Broken),
                Err(error) => {
                    self.report_disk_error(to, &error);
                    Break(End::Broken)
                }
            };
        };
        if incoming.lacks() > 0 {
            let length = usize::try_from(incoming.lacks()).unwrap_or(self.plan.chunk).min(self.plan.chunk);
            let mut chunk = vec![0; length];
            if let Err(error) = stream.file.read_exact_at(&mut chunk, incoming.have()) {
                self.report_disk_error(from, &error);
                return Break(End::Broken);
            }
            return match incoming.append(&chunk) {
                Ok(()) => Continue(stream),
                Err(error) => {
                    self.report_disk_error(to, &error);
                    if let Some(incoming) = stream.incoming {
                        process.snapshots.discard(incoming);
                    }
                    Break(End::Broken)
                }
            };
        }
        if !stream.is_loading {
            return Continue(Stream { is_loading: true, ..stream });
        }
        let Some(incoming) = stream.incoming else { return Break(End::Broken) };
        match process.snapshots.accept::<LockTable>(incoming) {
            Ok(snapshot) => {
                self.tally.streams += 1;
                let body = Body::InstallSnapshot { snapshot: snapshot.into() };
                self.enqueue(to, |inbox| inbox.messages.push(Message { from, to, term, body }));
                Break(End::Done)
            }
            Err(SnapshotFlaw::Io(error)) => {
                self.report_disk_error(to, &error);
                Break(End::Broken)
            }
            Err(flaw) => {
                let detail = format!("node {to} cannot use the snapshot that {from} sent: {flaw}");
                self.judge.lock().note(violated!(Property::SnapshotsArriveWhole, "{detail}"));
                Break(End::Broken)
            }
        }
    }
}
