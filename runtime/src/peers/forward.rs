//! Connections over which another node forwards requests of its clients: HTTP behind the handshake of every
//! connection between nodes (decision 0034). `http::forward` speaks it, on both sides.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use palisade_spec::raft::NodeId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::dial::{DialError, connect};
use super::{Link, Peers, Purpose};
use crate::addresses::ClientAddress;
use crate::tls::Stream;

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
        Forwarded { stream: PeerStream::new(link, stream), is_certified, address }
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
        Ok(PeerStream::new(&link, stream))
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

/// A connection with another node. It breaks when that node is removed from the cluster.
pub struct PeerStream {
    stream: Stream,
    /// Completes when the node is removed; `None` once it was.
    removal: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl PeerStream {
    fn new(link: &Link, stream: Stream) -> PeerStream {
        let mut ended = link.ended.subscribe();
        let removal = Box::pin(async move { drop(ended.wait_for(|&ended| ended).await) });
        PeerStream { stream, removal: Some(removal) }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(removal) = &mut self.removal
            && removal.as_mut().poll(context).is_pending()
        {
            return Ok(());
        }
        self.removal = None;
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the node was removed from the cluster"))
    }
}

impl std::fmt::Debug for PeerStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}

// A connection that is idle, or waits for an answer, is being read: so it ends at once.
impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
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
