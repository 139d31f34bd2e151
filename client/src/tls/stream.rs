//! A TCP connection, with or without TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// Bytes that a connection between nodes may have encrypted before they are written: a large write becomes few system
/// calls. Every other connection has 64 KiB, for there may be thousands.
const LARGE_WRITES: usize = 1 << 20;

/// A connection of either side.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS: every call goes to the socket.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// A connection whose handshake is done.
    pub fn tls(stream: impl Into<TlsStream<TcpStream>>) -> Stream {
        Stream::Tls(Box::new(stream.into()))
    }

    /// The same connection with a buffer for the large writes between nodes.
    #[must_use]
    pub fn with_large_writes(mut self) -> Stream {
        if let Stream::Tls(stream) = &mut self {
            match &mut **stream {
                TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(LARGE_WRITES)),
                TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(LARGE_WRITES)),
            }
        }
        self
    }

    /// The certificate of the other side, which the handshake has verified; `None` without TLS, or if it presented none.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(stream) => stream.get_ref().1.peer_certificates()?.first(),
        }
    }

    /// Whether it is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => match Pin::new(stream.as_mut()).poll_read(context, buffer) {
                // The other process ended without a word: the error's text is a link to an essay about that.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
                }
                read => read,
            },
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
