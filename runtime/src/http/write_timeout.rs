//! A stream that times out when its client stops reading.
//!
//! A client that does not read its answers makes the node keep them in memory, perhaps a MiB, and
//! keep the connection open. A write that makes no progress for [`limits::WRITE_TIMEOUT`] fails,
//! which ends the connection.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::listen::ConnectionPermit;
use crate::limits;

pub(super) struct WriteTimeout {
    // Before the permit, as fields are dropped in order: the stream is closed before its permit is
    // free again.
    stream: TcpStream,
    /// The timeout, which runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
    _permit: ConnectionPermit,
}

impl WriteTimeout {
    pub(super) fn new(stream: TcpStream, permit: ConnectionPermit) -> WriteTimeout {
        WriteTimeout { stream, stalled: None, _permit: permit }
    }

    /// Passes on the result of a write; an error if the write is pending and the timeout has
    /// passed.
    fn check_timeout<T>(&mut self, context: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let timeout = self.stalled.get_or_insert_with(|| Box::pin(sleep(limits::WRITE_TIMEOUT)));
        let timed_out = || Error::new(ErrorKind::TimedOut, "the client does not read its answers");
        timeout.as_mut().poll(context).map(|()| Err(timed_out()))
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_timeout(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_timeout(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
