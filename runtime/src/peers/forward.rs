//! Connections over which another node forwards requests of its clients: HTTP behind the handshake of every
//! connection between nodes (decision 0034). `http::forward` speaks it, on both sides.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use palisade_spec::raft::NodeId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::sleep;

use super::dial::{DialError, connect};
use super::{Link, Peers, Purpose};
use crate::addresses::ClientAddress;
use crate::tls::Stream;

/// How long the answers to requests of a removed node are still carried: the answer to its own removal is one.
const FAREWELL: Duration = Duration::from_millis(500);

/// A connection over which another node forwards requests.
#[derive(Debug)]
pub struct Forwarded {
    /// The connection.
    pub stream: PeerStream,
    /// Whether a certificate has proved which node it is. Without that, what it says of the identity of clients
    /// is not believed where clients have identities.
    pub is_certified: bool,
    /// Where that node is.
    pub address: ClientAddress,
}

impl Forwarded {
    pub(super) fn new(link: &Link, stream: Stream, is_certified: bool, address: ClientAddress) -> Forwarded {
        Forwarded { stream: PeerStream::new(link, stream, End::Asked), is_certified, address }
    }
}

impl Peers {
    /// Dials a node to forward requests to it.
    ///
    /// # Errors
    /// If it cannot be reached, or one of the two nodes refuses the other.
    pub async fn dial_for_requests(&self, node: NodeId) -> Result<PeerStream, DialError> {
        let unknown = || DialError::Io(io::Error::other(format!("this node does not know node {node}")));
        let link = self.link(node).ok_or_else(unknown)?;
        let stream = connect(self, &link, Purpose::Requests).await?;
        Ok(PeerStream::new(&link, stream, End::Asking))
    }

    /// Refuses to take requests from a node that is no member.
    pub(super) fn may_forward(&self, node: NodeId) -> Result<(), String> {
        if self.is_member(node) || self.uncommitted.lock().contains(&node) {
            return Ok(());
        }
        Err(format!(
            "node {node} is no member of the cluster, so it may not forward requests: add it first (palisade members add)"
        ))
    }
}

/// The end of a connection at which this node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// This node forwards.
    Asking,
    /// The other node forwards.
    Asked,
}

/// A connection with another node. When that node is removed from the cluster, nothing that it forwards is read any
/// more, the answers that are under way are still carried, for a moment, and then the connection breaks.
pub struct PeerStream {
    stream: Stream,
    end: End,
    is_removed: watch::Receiver<bool>,
    /// Completes a moment after the removal; `None` once it has.
    farewell: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl PeerStream {
    fn new(link: &Link, stream: Stream, end: End) -> PeerStream {
        let is_removed = link.ended.subscribe();
        let mut removal = is_removed.clone();
        let farewell = Box::pin(async move {
            drop(removal.wait_for(|&ended| ended).await);
            sleep(FAREWELL).await;
        });
        PeerStream { stream, end, is_removed, farewell: Some(farewell) }
    }

    /// Whether this node may read.
    fn poll_may_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(farewell) = &mut self.farewell
            && farewell.as_mut().poll(context).is_pending()
        {
            let reads = self.end == End::Asking || !*self.is_removed.borrow();
            return if reads { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        self.farewell = None;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the node was removed from the cluster")))
    }
}

impl std::fmt::Debug for PeerStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}

// A connection that is idle, or waits for an answer, is being read: so it ends although no bytes come.
impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_may_read(context))?;
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
