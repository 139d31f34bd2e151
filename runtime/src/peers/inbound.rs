//! The connections that other nodes dialled, and that this node receives from.

use std::sync::Arc;
use std::time::Duration;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Message, NodeId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::frame::{self, BUFFER_KEPT, FrameError, HELLO_BYTES, MESSAGE_BYTES, ReadError};
use super::{Hello, Introduction, Link, MAGIC, Peers, Purpose, Roster, VERSION, Welcome, meant, snapshots};
use crate::core::{Core, NotTaken};
use crate::descriptors::{Descriptors, Places};
use crate::metrics::Metrics;
use crate::sockets;

/// How long a connection may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("the connection was closed")]
    Closed,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("a message claims to be from node {0}")]
    Impostor(NodeId),
    #[error("a snapshot came as a message")]
    Smuggled,
    #[error("refused: {0}")]
    Refused(String),
    #[error("no handshake within {HELLO_TIMEOUT:?}")]
    Silent,
}

/// Accepts connections from peers for as long as the task lives: up to `descriptors.strangers` that have not said yet who
/// they are, and `descriptors.peers` that have.
pub async fn accept(peers: Arc<Peers>, core: Core, listener: TcpListener, descriptors: Descriptors) {
    let refused = &peers.metrics.peer_connections_refused;
    let doorstep = Places::new(descriptors.strangers, "nodes that have not said who they are", refused);
    let inside = Places::new(descriptors.peers, "nodes", refused);
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: it passes, and looping at full speed would not help.
                warn!(%error, "cannot accept a connection from a node");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(permit) = doorstep.take() else { continue };
        let (peers, core, inside) = (Arc::clone(&peers), core.clone(), inside.clone());
        tokio::spawn(async move {
            let greeted = timeout(HELLO_TIMEOUT, greet(&peers, stream)).await;
            // Kept to the end of the connection. Past it the permit of a stranger is of no use any more.
            let _inside = match &greeted {
                Ok(Ok(_)) => match inside.take() {
                    Some(permit) => Some(permit),
                    None => return,
                },
                _ => None,
            };
            drop(permit);
            let ended = match greeted {
                Ok(Ok((link, Purpose::Snapshot, Connection { stream, bytes }))) => {
                    return snapshots::receive(&peers, link.peer, stream, bytes, &core).await;
                }
                Ok(Ok((link, _, connection))) => receive_as(&peers, &link, connection, core).await,
                Ok(Err(error)) => error,
                Err(_) => Ended::Silent,
            };
            if matches!(ended, Ended::Frame(_) | Ended::Impostor(_) | Ended::Smuggled | Ended::Refused(_)) {
                peers.metrics.frames_rejected.inc();
                warn!(%address, error = %ended, "a connection from a node was closed");
            } else {
                debug!(%address, error = %ended, "a connection from a node ended");
            }
        });
    }
}

struct Connection {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// Reads the hello and answers it.
async fn greet(peers: &Peers, mut stream: TcpStream) -> Result<(Arc<Link>, Purpose, Connection), Ended> {
    stream.set_nodelay(true)?;
    sockets::keep_alive(&stream).map_err(std::io::Error::from)?;
    let mut bytes = Vec::new();
    let Some(hello) = frame::read::<Hello>(&mut stream, &mut bytes, HELLO_BYTES).await? else {
        return Err(Ended::Closed);
    };
    let judged = judge_origin(&peers.roster, &hello);
    let judged = match hello.purpose {
        Purpose::Introduction => judged,
        Purpose::Messages | Purpose::Snapshot => judged.and_then(|()| judge_node(peers, &hello)).and_then(|()| {
            // It may have to wait for the disk, but only at the very first meeting.
            let verify_or_pin = || peers.verify(hello.from, hello.incarnation, &hello.peer_addr);
            tokio::task::block_in_place(verify_or_pin)
        }),
    };
    let Roster { incarnation, client_addr, .. } = &peers.roster;
    let welcome: Welcome =
        judged.map(|()| Introduction { incarnation: *incarnation, client_addr: client_addr.clone() });
    reply(&mut stream, &welcome).await?;
    welcome.map_err(Ended::Refused)?;
    if hello.purpose == Purpose::Introduction {
        return Err(Ended::Closed);
    }
    let link = peers.link(hello.from).or_else(|| peers.verify_or_pin(hello.from, &hello.peer_addr));
    let link = link.ok_or_else(|| Ended::Refused("it was removed just now".into()))?;
    link.state.lock().client_addr = Some(hello.client_addr);
    Ok((link, hello.purpose, Connection { stream, bytes }))
}

async fn reply(stream: &mut TcpStream, welcome: &Welcome) -> Result<(), std::io::Error> {
    let mut reply = Vec::new();
    frame::encode(welcome, &mut reply);
    stream.write_all(&reply).await
}

/// Tells each node of the cluster that dials why this one does not take part, for as long as the task lives.
pub async fn refuse_all(roster: Roster, listener: TcpListener, why: String) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let refused = async {
            let mut bytes = Vec::new();
            if let Some(hello) = frame::read::<Hello>(&mut stream, &mut bytes, HELLO_BYTES).await? {
                let refusal = judge_origin(&roster, &hello).and_then(|()| Err(why.clone()));
                reply(&mut stream, &refusal).await?;
            }
            Ok::<(), ReadError>(())
        };
        // One at a time: a slow caller delays only explanations.
        let _ = timeout(Duration::from_millis(500), refused).await;
    }
}

/// Whether the dialling node speaks this protocol and is of this cluster.
fn judge_origin(roster: &Roster, hello: &Hello) -> Result<(), String> {
    if hello.magic != MAGIC {
        return Err("this is not Palisade's protocol between nodes".into());
    }
    if hello.version != VERSION {
        return Err(format!("it speaks version {} of the protocol, this node version {VERSION}", hello.version));
    }
    if hello.cluster != roster.cluster {
        let (theirs, ours) = (hello.cluster, roster.cluster);
        return Err(format!(
            "it is of cluster {theirs:016x}, this node of {ours:016x}: the founders of a cluster must all be given the \
             same --cluster and --peers"
        ));
    }
    Ok(())
}

/// Whether the dialling node is the one that it says it is, and means this one.
fn judge_node(peers: &Peers, hello: &Hello) -> Result<(), String> {
    let roster = &peers.roster;
    if hello.to != roster.node {
        return Err(format!("it looks for node {}, this is node {}: check the addresses", hello.to, roster.node));
    }
    if hello.from == roster.node {
        return Err(format!("it says that it is node {}, which is this node", hello.from));
    }
    let members = Arc::clone(&peers.members.lock());
    if members.was_removed(hello.from) {
        return Err(format!(
            "node {} was removed from this cluster, or came back with another data directory: stop it",
            hello.from
        ));
    }
    if meant(&members, hello.from).is_some_and(|meant| meant != hello.incarnation) {
        return Err(format!("another server was added under the number of node {}; choose another one", hello.from));
    }
    Ok(())
}

/// Receives from a peer in a task that its next connection ends.
async fn receive_as(peers: &Peers, link: &Link, connection: Connection, core: Core) -> Ended {
    let reader = tokio::spawn(receive(link.peer, connection, core, Arc::clone(&peers.metrics)));
    let previous = link.state.lock().inbound.replace(reader.abort_handle());
    if let Some(previous) = previous {
        previous.abort();
    }
    // The peer may have been removed since it was let in, and what ends its connections may have come before this one was there.
    if link.outbox.is_closed() {
        reader.abort();
    }
    let id = reader.id();
    let ended = reader.await.unwrap_or(Ended::Closed);
    link.state.lock().inbound.take_if(|inbound| inbound.id() == id);
    ended
}

async fn receive(peer: NodeId, connection: Connection, core: Core, metrics: Arc<Metrics>) -> Ended {
    let Connection { mut stream, mut bytes } = connection;
    loop {
        let mut used = 0;
        let mut messages = Vec::new();
        loop {
            match frame::decode::<Message<LockTable>>(&bytes[used..], MESSAGE_BYTES) {
                Ok(Some((message, _))) if message.from != peer => return Ended::Impostor(message.from),
                // It has a connection of its own, so that its bytes are checked and durable before the core has it.
                Ok(Some((Message { body: Body::InstallSnapshot { .. }, .. }, _))) => return Ended::Smuggled,
                Ok(Some((message, length))) => {
                    messages.push(message);
                    used += length;
                }
                Ok(None) => break,
                Err(error) => return error.into(),
            }
        }
        bytes.drain(..used);
        if bytes.is_empty() {
            bytes.shrink_to(BUFFER_KEPT);
        }
        if !messages.is_empty() {
            // What the core does not take is lost, as on a bad network; the heartbeats will show it.
            let count = messages.len() as u64;
            if core.receive(messages) == Err(NotTaken::Full) {
                metrics.overloaded(count);
            }
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) => return Ended::Closed,
            Ok(_) => {}
            Err(error) => return error.into(),
        }
    }
}

impl From<ReadError> for Ended {
    fn from(error: ReadError) -> Ended {
        match error {
            ReadError::Io(error) => error.into(),
            ReadError::Frame(error) => error.into(),
        }
    }
}
