//! Snapshot transfer to followers that need entries which the leader's log has lost.
//!
//! A snapshot can be large, so it has a connection of its own, beside the one for messages: a
//! heartbeat never waits behind it. It is sent from the file and written to a file, piece by piece:
//! neither side has more than one piece in memory until the file is complete. If the connection
//! breaks, the sender resumes where the receiver's file ends. A transfer that has begun continues
//! with the same snapshot, even if a newer one exists by then; since every replica's file has the
//! same bytes, another node could continue it as well.
//!
//! ```text
//! sender                                  receiver
//!   Hello { purpose: Snapshot }    →
//!                                  ←      Welcome
//!   Offer { term, info }           →
//!                                  ←      Answer: from which byte on, or that it has enough, or why not
//!   the file's bytes               →
//!                                  ←      Verdict: received, or what is wrong with it
//! ```
//!
//! A node receives one snapshot at a time ([`turn`]), at a rate of [`SNAPSHOT_PIECE`] bytes within
//! [`SNAPSHOT_PATIENCE`] at least.
//!
//! An error costs nothing but the attempt: the protocol requests the snapshot again with every
//! heartbeat until the follower has it, and the follower's node checks the term, the position and
//! the state as in any other message.

mod turn;

use std::sync::Arc;
use std::time::Duration;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Message, NodeId, Snapshot, Term};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, error::Elapsed, sleep, timeout, timeout_at};
use tracing::{debug, info, warn};

pub(super) use self::turn::Turns;

use self::turn::{Rank, Turn};
use super::dial::{DialError, connect};
use super::frame::{self, HELLO_BYTES, ReadError};
use super::{Link, Peers, Purpose, REFUSAL_PAUSE};
use crate::core::{Core, NotTaken};
use crate::limits::{SNAPSHOT_BYTES, SNAPSHOT_PATIENCE, SNAPSHOT_PIECE, SNAPSHOT_RESUMED_WITHIN};
use crate::storage::{DiskFile, Incoming, SnapshotFlaw, SnapshotInfo};
use crate::tls::Stream;

/// Pause of a sender after a failed attempt.
const PAUSE: Duration = Duration::from_millis(500);
/// Time within which a receiver must check and load a complete snapshot.
const LOADED_WITHIN: Duration = Duration::from_secs(300);

/// A sender's offer of a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The term in which the sender's node requested the transfer.
    pub term: Term,
    /// The snapshot.
    pub info: SnapshotInfo,
}

/// The receiver's answer to an [`Offer`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It needs the bytes from this offset on.
    From(u64),
    /// It needs nothing: it already has everything that the snapshot includes.
    Enough,
    /// It cannot receive at the moment, for this reason.
    Refused(String),
}

/// The result of a transfer: received, or the error.
pub type Verdict = Result<(), String>;

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the connection was closed")]
    Closed,
    #[error("the peer did not go on within {SNAPSHOT_PATIENCE:?}")]
    Silent(#[from] Elapsed),
    #[error("the peer cannot receive the snapshot now: {0}")]
    Refused(String),
    #[error("the peer rejects the snapshot: {0}")]
    Rejected(String),
    #[error("the peer broke the order of the transfer protocol")]
    OutOfTurn,
    #[error("the peer gives way to another that offers a snapshot: to a member, or to the leader of a later term")]
    GaveWay,
    #[error("the received snapshot is invalid: {0}")]
    Flaw(#[from] SnapshotFlaw),
    #[error("the task that works on the file was aborted: {0}")]
    Stopped(#[from] JoinError),
    #[error("the snapshot's file cannot be read: {0}")]
    Unreadable(#[source] std::io::Error),
}

/// A snapshot in transfer.
#[derive(Clone, Debug)]
struct Outgoing {
    info: SnapshotInfo,
    /// Open during the whole transfer: the file may have been removed from its directory meanwhile.
    file: Arc<dyn DiskFile>,
    /// When the last attempt to send it ended.
    tried: Instant,
}

/// Sends snapshots to a peer when this node requests it, one at a time, until the peer is removed.
pub(super) async fn send_all(peers: Arc<Peers>, link: Arc<Link>) {
    let peer = link.peer;
    let mut wanted = Vec::new();
    let mut begun: Option<Outgoing> = None;
    loop {
        // A file that is open takes its space on the disk, although a newer one has replaced it.
        let left =
            begun.as_ref().map_or(Duration::MAX, |begun| SNAPSHOT_RESUMED_WITHIN.saturating_sub(begun.tried.elapsed()));
        match timeout(left, link.snapshots.take(&mut wanted)).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(Elapsed { .. }) => {
                begun = None;
                continue;
            }
        }
        let Some(term) = wanted.drain(..).next_back() else { continue };
        let outgoing = match begun.take() {
            Some(begun) => begun,
            None => match open_newest(&peers).await {
                Ok(Some(newest)) => newest,
                Ok(None) => continue,
                Err(error) => {
                    if let Some(repeats) = due(&peers, peer, "open") {
                        warn!(
                            %peer, %error, repeats,
                            "cannot open this node's newest snapshot, which a peer needs to catch up; trying again. Check the disk \
                             of the data directory"
                        );
                    }
                    sleep(PAUSE).await;
                    continue;
                }
            },
        };
        match send(&peers, &link, term, &outgoing).await {
            Ok((sent, stream)) => {
                // This transfer also serves the requests that came meanwhile. One that comes after the connection has
                // ended is for another transfer.
                link.snapshots.clear();
                drop(stream);
                if let Some(bytes) = sent {
                    peers.metrics.snapshots_sent.inc();
                    info!(%peer, index = outgoing.info.last.index.0, bytes, "sent a snapshot to a node");
                }
            }
            Err(trouble) => {
                match &trouble {
                    Trouble::Rejected(_) | Trouble::Unreadable(_) => {
                        if let Some(repeats) = due(&peers, peer, "send") {
                            warn!(%peer, error = %trouble, repeats, "cannot send this snapshot; the next heartbeat tries again with the newest");
                        }
                    }
                    // A peer that is busy may have a part of it. One that has no room for it may have room for the newest,
                    // which is offered when the time is over.
                    Trouble::Refused(_) => {
                        if let Some(repeats) = due(&peers, peer, "offer") {
                            warn!(%peer, error = %trouble, repeats, "cannot send a snapshot; the next heartbeat tries again");
                        }
                        begun = Some(outgoing);
                    }
                    _ => {
                        info!(%peer, error = %trouble, "a snapshot transfer to a peer was interrupted; it resumes later");
                        begun = Some(Outgoing { tried: Instant::now(), ..outgoing });
                    }
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Whether to log an error of this kind, which each heartbeat may repeat, with other numbers in its text: at once, and
/// then at intervals.
fn due(peers: &Peers, peer: NodeId, kind: &str) -> Option<u64> {
    peers.due_about(peer, &format!("snapshot {peer} {kind}"), REFUSAL_PAUSE)
}

async fn open_newest(peers: &Peers) -> std::io::Result<Option<Outgoing>> {
    let snapshots = Arc::clone(&peers.snapshots);
    let opened = spawn_blocking(move || snapshots.open_newest()).await?;
    Ok(opened?.map(|(info, file)| Outgoing { info, file: Arc::from(file), tried: Instant::now() }))
}

/// Sends the part of a snapshot that the peer lacks; returns its number of bytes, or `None` if the
/// peer needs nothing, and the connection.
async fn send(
    peers: &Arc<Peers>,
    link: &Link,
    term: Term,
    outgoing: &Outgoing,
) -> Result<(Option<u64>, Stream), Trouble> {
    let peer = link.peer;
    let mut stream = connect(peers, link, Purpose::Snapshot).await?;
    let Outgoing { info, file, .. } = outgoing;
    write(&mut stream, &Offer { term, info: *info }).await?;
    let mut bytes = Vec::new();
    let from = match read(&mut stream, &mut bytes, SNAPSHOT_PATIENCE).await? {
        Answer::From(from) if from <= info.bytes => from,
        Answer::From(_) => return Err(Trouble::OutOfTurn),
        Answer::Enough => return Ok((None, stream)),
        Answer::Refused(reason) => return Err(Trouble::Refused(reason)),
    };
    debug!(%peer, index = info.last.index.0, from, bytes = info.bytes, "sending a snapshot");
    let mut at = from;
    while at < info.bytes {
        let (file, length) = (Arc::clone(file), length_of_next(info.bytes - at));
        let piece = spawn_blocking(move || {
            let mut piece = vec![0; length];
            file.read_exact_at(&mut piece, at).map(|()| piece)
        });
        let piece = piece.await?.map_err(Trouble::Unreadable)?;
        timeout(SNAPSHOT_PATIENCE, stream.write_all(&piece)).await??;
        at += piece.len() as u64;
        peers.metrics.snapshot_bytes_sent.inc_by(piece.len() as u64);
    }
    timeout(SNAPSHOT_PATIENCE, stream.flush()).await??;
    let verdict: Verdict = read(&mut stream, &mut bytes, LOADED_WITHIN).await?;
    verdict.map(|()| (Some(at - from), stream)).map_err(Trouble::Rejected)
}

/// Receives a snapshot over a connection with that purpose.
pub(super) async fn receive(peers: &Peers, peer: NodeId, mut stream: Stream, mut bytes: Vec<u8>, core: &Core) {
    match receive_from(peers, peer, &mut stream, &mut bytes, core).await {
        Ok(Some(info)) => info!(%peer, index = info.last.index.0, bytes = info.bytes, "received the leader's snapshot"),
        Ok(None) => {}
        Err(trouble @ (Trouble::Flaw(_) | Trouble::OutOfTurn | Trouble::Read(ReadError::Frame(_)))) => {
            peers.metrics.frames_rejected.inc();
            if let Some(repeats) = due(peers, peer, "reject") {
                warn!(
                    %peer, error = %trouble, repeats,
                    "rejected a snapshot from a peer, which sends it again: until then this node does not catch up. If this \
                     repeats, check the peer's disk, and that both nodes run versions that work together"
                );
            }
        }
        Err(trouble) => info!(%peer, error = %trouble, "a snapshot transfer from a peer was interrupted"),
    }
}

async fn receive_from(
    peers: &Peers,
    peer: NodeId,
    stream: &mut Stream,
    bytes: &mut Vec<u8>,
    core: &Core,
) -> Result<Option<SnapshotInfo>, Trouble> {
    let Offer { term, info } = read(stream, bytes, SNAPSHOT_PATIENCE).await?;
    let Some(mut turn) = peers.receiving.begin(Rank { is_member: peers.is_member(peer), term }).await else {
        write(stream, &Answer::Refused("the receiver is receiving another snapshot".into())).await?;
        return Ok(None);
    };
    if core.view().get().commit >= info.last.index.0 {
        write(stream, &Answer::Enough).await?;
        return Ok(None);
    }
    if info.bytes > SNAPSHOT_BYTES {
        let refusal = format!(
            "the offered snapshot has {} bytes, which is over the limit of {SNAPSHOT_BYTES} bytes for a snapshot",
            info.bytes
        );
        if let Some(repeats) = due(peers, peer, "size") {
            warn!(%peer, repeats, "refused a snapshot: {refusal}");
        }
        write(stream, &Answer::Refused(refusal)).await?;
        return Ok(None);
    }
    let snapshots = Arc::clone(&peers.snapshots);
    let incoming = match spawn_blocking(move || snapshots.receive(info)).await? {
        Ok(Some(incoming)) => incoming,
        Ok(None) => {
            write(stream, &Answer::Enough).await?;
            return Ok(None);
        }
        Err(error) => {
            if let Some(repeats) = due(peers, peer, "receive") {
                warn!(%peer, %error, repeats, "cannot receive a snapshot; the sender tries again");
            }
            write(stream, &Answer::Refused(error.to_string())).await?;
            return Ok(None);
        }
    };
    write(stream, &Answer::From(incoming.have())).await?;
    let incoming = match take_pieces(peers, stream, bytes, incoming, &mut turn).await? {
        Ok(incoming) => incoming,
        Err(error) => {
            let (index, needed) = (info.last.index.0, info.bytes);
            if let Some(repeats) = due(peers, peer, "write") {
                warn!(%peer, index, needed, %error, repeats, "cannot write the leader's snapshot (is the disk full?); the sender tries again");
            }
            write(stream, &Verdict::Err(format!("the snapshot cannot be written: {error}"))).await?;
            return Ok(None);
        }
    };
    // Neither on the core nor on a thread that serves sockets: loading a large state takes long.
    let snapshots = Arc::clone(&peers.snapshots);
    let snapshot = match spawn_blocking(move || snapshots.accept::<LockTable>(incoming)).await? {
        Ok(snapshot) => snapshot,
        Err(flaw) => {
            write(stream, &Verdict::Err(flaw.to_string())).await?;
            return Err(flaw.into());
        }
    };
    deliver(peers, peer, term, snapshot, core);
    write(stream, &Verdict::Ok(())).await?;
    Ok(Some(info))
}

/// Receives the rest of a file, piece by piece. The inner error is the disk's.
async fn take_pieces(
    peers: &Peers,
    stream: &mut Stream,
    bytes: &mut Vec<u8>,
    mut incoming: Incoming,
    turn: &mut Turn<'_>,
) -> Result<std::io::Result<Incoming>, Trouble> {
    bytes.clear();
    let (mut piece_ends, mut deadline) = (0, Instant::now());
    while incoming.lacks() > 0 {
        // Not for each byte: a peer could keep its turn with a few of them for ever.
        if incoming.have() >= piece_ends {
            piece_ends = incoming.have() + length_of_next(incoming.lacks()) as u64;
            deadline = Instant::now() + SNAPSHOT_PATIENCE;
        }
        let mut piece = std::mem::take(bytes);
        piece.reserve(SNAPSHOT_PIECE);
        let mut rest = (&mut *stream).take(piece_ends - incoming.have());
        let length = tokio::select! {
            read = timeout_at(deadline, rest.read_buf(&mut piece)) => read??,
            () = turn.is_over() => return Err(Trouble::GaveWay),
        };
        if length == 0 {
            return Err(Trouble::Closed);
        }
        let append = spawn_blocking(move || {
            let appended = incoming.append(&piece);
            piece.clear();
            (appended, incoming, piece)
        });
        let appended;
        (appended, incoming, *bytes) = append.await?;
        if let Err(error) = appended {
            // The log needs the disk space more.
            let snapshots = Arc::clone(&peers.snapshots);
            spawn_blocking(move || snapshots.discard(incoming)).await?;
            return Ok(Err(error));
        }
    }
    Ok(Ok(incoming))
}

/// Passes a snapshot to the core, as the message that the sender's node would have sent.
fn deliver(peers: &Peers, peer: NodeId, term: Term, snapshot: Snapshot<LockTable>, core: &Core) {
    let table = snapshot.machine.clone();
    let body = Body::InstallSnapshot { snapshot: Arc::new(snapshot) };
    let message = Message { from: peer, to: peers.roster.node, term, body };
    if core.receive(vec![message]) == Err(NotTaken::Full) {
        // Lost as on a bad network. The file is complete, so the next offer needs no bytes.
        peers.metrics.overloaded(1);
    }
    // Freeing the memory of a large table that the core has not taken takes seconds.
    drop(spawn_blocking(move || drop(table)));
}

/// Length of the next piece, in bytes.
fn length_of_next(left: u64) -> usize {
    usize::try_from(left).unwrap_or(SNAPSHOT_PIECE).min(SNAPSHOT_PIECE)
}

async fn write<T: Serialize>(stream: &mut Stream, value: &T) -> Result<(), Trouble> {
    let mut bytes = Vec::new();
    frame::encode(value, &mut bytes);
    let written = async {
        stream.write_all(&bytes).await?;
        stream.flush().await
    };
    timeout(SNAPSHOT_PATIENCE, written).await??;
    Ok(())
}

async fn read<T: serde::de::DeserializeOwned>(
    stream: &mut Stream,
    bytes: &mut Vec<u8>,
    patience: Duration,
) -> Result<T, Trouble> {
    let read = timeout(patience, frame::read(stream, bytes, HELLO_BYTES)).await??;
    // The two sides take turns: no bytes may follow a frame.
    let value = read.ok_or(Trouble::Closed)?;
    if bytes.is_empty() { Ok(value) } else { Err(Trouble::OutOfTurn) }
}

#[cfg(test)]
mod tests;
