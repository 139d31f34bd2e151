//! A client's connection that its task can look at beside the HTTP server, which reads and writes.
//!
//! While a request is under way, the server reads on only to learn of the end of the connection; and it
//! does not even do that once it has read a byte of the next request. A client that has sent one more
//! byte (a line end behind its body, a pipelined request) and has left is then not noticed, and what it
//! waits for stays in the queue for as long as it may wait. So the task of the connection also looks at
//! the socket from time to time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::time::sleep;

use crate::sync::Mutex;
use crate::tls::Stream;

/// The pause between two looks at a connection.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A connection. Its clones are the same connection, and belong to the same task: the lock is never waited for.
#[derive(Clone, Debug)]
pub(super) struct SharedStream(Arc<Mutex<Stream>>);

impl SharedStream {
    pub(super) fn new(stream: Stream) -> SharedStream {
        SharedStream(Arc::new(Mutex::new(stream)))
    }

    /// Whether the client has closed the connection, or its direction of it, whatever it has sent before
    /// that nothing has read yet.
    fn has_ended(&self) -> bool {
        let stream = self.0.lock();
        let socket = match &*stream {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream.get_ref().0,
        };
        let ready = socket.ready(Interest::READABLE).now_or_never();
        ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
    }

    /// Resolves when the client has ended the connection, and the HTTP server has not ended it for at
    /// least a pause: it does so at once, if it sees the end.
    pub(super) async fn ended(&self) {
        let mut had_ended = false;
        loop {
            sleep(LOOK_EVERY).await;
            let has_ended = self.has_ended();
            if has_ended && had_ended {
                return;
            }
            had_ended = has_ended;
        }
    }
}

impl AsyncRead for SharedStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(context, into)
    }
}

impl AsyncWrite for SharedStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;

    /// Goal: the end of a connection is seen although nothing reads what was sent before it.
    #[tokio::test]
    async fn end_is_seen_behind_bytes_that_nothing_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let shared = SharedStream::new(Stream::Plain(listener.accept().await.unwrap().0));
        client.write_all(b"GET").await.unwrap();
        sleep(Duration::from_millis(50)).await;
        assert!(!shared.has_ended());
        drop(client);
        let ends = async {
            while !shared.has_ended() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(30), ends).await.expect("the end is seen");
    }
}
