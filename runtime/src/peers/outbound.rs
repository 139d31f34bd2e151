//! Outbound connections for messages: this node keeps one to every peer, and sends over it.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;
use tracing::{info, warn};

use super::dial::{DialError, connect};
use super::frame::{self, BUFFER_KEPT};
use super::{Link, Peers, Program, Purpose, REFUSAL_PAUSE, ToDial, snapshots};
use crate::tls::Stream;

/// Pause between attempts: doubles from the first value to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Minimum time between two equal log lines about a node that cannot be reached, as when it is
/// down.
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(60);

/// Bytes from which no further message is encoded before those are written.
const WRITTEN_AT_ONCE: usize = 1 << 20;

/// Keeps a connection to every other node, also to later members, for as long as the task lives.
pub async fn dial_all(peers: Arc<Peers>, mut to_dial: ToDial) {
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            link = to_dial.0.recv() => {
                let Some(link) = link else { return };
                let dialling = links.spawn(keep_connected(Arc::clone(&peers), Arc::clone(&link)));
                let sending = links.spawn(snapshots::send_all(Arc::clone(&peers), Arc::clone(&link)));
                link.state.lock().outbound = vec![dialling, sending];
            }
            // The tasks of a node that was removed or forgotten.
            Some(ended) = links.join_next() => {
                // Without its task, the peer would get no message any more.
                if let Some(panic) = ended.err().and_then(|error| error.try_into_panic().ok()) {
                    resume_unwind(panic);
                }
            }
        }
    }
}

/// Keeps a connection to a peer until the peer is removed, and sends the messages of its outbox.
async fn keep_connected(peers: Arc<Peers>, link: Arc<Link>) {
    let peer = link.peer;
    let mut pause = BACKOFF.0;
    while !link.outbox.is_closed() {
        match connect(&peers, &link, Purpose::Messages).await {
            Ok(stream) => {
                log_connection(&link);
                let connected = Instant::now();
                let ended = send_all(&link, stream).await;
                link.state.lock().dialled = false;
                // Not for a peer that welcomes this node and closes the connection at once, as one without
                // descriptors for it does.
                if connected.elapsed() >= BACKOFF.1 {
                    pause = BACKOFF.0;
                }
                info!(%peer, error = %ended, "the connection to a node ended; connecting again");
            }
            Err(error) => {
                if error.is_refusal() {
                    pause = BACKOFF.1;
                }
                log_failure(&peers, &link, &error);
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(BACKOFF.1);
    }
}

/// Logs which program is at the other end of a connection, and in which version of the protocol the two nodes speak.
fn log_connection(link: &Link) {
    let (peer, program) = (link.peer, link.state.lock().program.clone());
    let Some(Program { version, protocol, .. }) = program else { return };
    let version = version.as_deref().unwrap_or("not announced");
    info!(%peer, version, protocol, "connected to a node");
}

/// Logs why a peer is not connected: at once, and then at intervals.
fn log_failure(peers: &Peers, link: &Link, error: &DialError) {
    let (peer, address) = (link.peer, link.state.lock().address.clone());
    let due = |pause| peers.due_about(peer, &format!("to {peer} {address} {error}"), pause);
    if error.is_refusal() {
        if let Some(repeats) = due(REFUSAL_PAUSE) {
            warn!(%peer, address, %error, repeats, "cannot connect to a node: one of the two refuses the other; trying again");
        }
    } else if let Some(repeats) = due(UNREACHABLE_PAUSE) {
        info!(%peer, address, %error, repeats, "cannot reach a node; trying again");
    }
}

/// Sends until the connection breaks; returns the error. All waiting messages are sent with one
/// wake-up and, unless they are long, one write.
async fn send_all(link: &Link, mut stream: Stream) -> std::io::Error {
    // Messages queued for the previous connection are outdated.
    link.outbox.clear();
    link.state.lock().dialled = true;
    let (mut messages, mut bytes) = (Vec::new(), Vec::new());
    let mut nothing = [0; 1];
    loop {
        tokio::select! {
            open = link.outbox.take(&mut messages) => {
                if !open {
                    return std::io::Error::other("the peer was removed from the cluster");
                }
            }
            // The peer sends nothing on this connection: a read that returns means its end.
            end = stream.read(&mut nothing) => {
                return end.err().unwrap_or_else(|| std::io::ErrorKind::ConnectionAborted.into());
            }
        }
        let mut waiting = messages.drain(..).peekable();
        while waiting.peek().is_some() {
            // As many as are written in a moment: then messages to other nodes have their turn.
            while bytes.len() < WRITTEN_AT_ONCE
                && let Some(message) = waiting.next()
            {
                frame::encode(&message, &mut bytes);
            }
            // With TLS the flush writes what the socket did not take at once; without, it does nothing.
            if let Err(error) = write(&mut stream, &bytes).await {
                return error;
            }
            bytes.clear();
            bytes.shrink_to(BUFFER_KEPT);
            if waiting.peek().is_some() {
                yield_now().await;
            }
        }
    }
}

async fn write(stream: &mut Stream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}
