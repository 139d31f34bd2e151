//! A stream to somebody who has to read what he asked for.
//!
//! Who does not, makes the node keep the answer, a MiB perhaps, and the connection. A write that makes no progress for
//! [`limits::WRITE_TIMEOUT`] fails, and that ends the connection.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::listen::ConnectionPermit;
use crate::limits;

pub(super) struct WriteTimeout {
    // Closed before its place is given to another: fields are dropped in their order.
    stream: TcpStream,
    /// Runs while the other side takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    _place: ConnectionPermit,
}

impl WriteTimeout {
    pub(super) fn new(stream: TcpStream, place: ConnectionPermit) -> WriteTimeout {
        WriteTimeout { stream, stalled: None, _place: place }
    }

    /// What came of a write; an error if it is out of time.
    fn judge<T>(&mut self, context: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.stalled.get_or_insert_with(|| Box::pin(sleep(limits::WRITE_TIMEOUT)));
        patience.as_mut().poll(context).map(|()| Err(Error::new(ErrorKind::TimedOut, "the answers are not being read")))
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
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, written)
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
