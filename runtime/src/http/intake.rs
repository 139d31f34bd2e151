//! Counts what clients have sent of requests that are not answered yet towards the budget that all
//! unknown programs at the port for clients share. The HTTP server reads a head of up to 16 KiB before
//! a handler sees anything, on each of thousands of connections.
//!
//! A client with a certificate is not counted: strangers cannot end its connections. A WebSocket is no
//! longer counted: its client has completed a request, its messages are limited, and its buffer is
//! allocated when it opens. Both cost nothing here but a look at a flag.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::addresses::ClientAddress;
use crate::budget::{Budget, Share};

/// What a connection has sent of requests that are not answered.
#[derive(Debug)]
pub(super) struct Unanswered {
    share: Share,
    counts: AtomicBool,
}

impl Unanswered {
    pub(super) fn new(budget: &Arc<Budget>, address: ClientAddress) -> Arc<Unanswered> {
        Arc::new(Unanswered { share: budget.share(address), counts: AtomicBool::new(true) })
    }

    /// A request's head has been handled, or a request has been answered.
    pub(super) fn handled(&self) {
        self.share.release();
    }

    /// Nothing that comes from now on is counted.
    pub(super) fn stop(&self) {
        self.counts.store(false, Ordering::Relaxed);
        self.share.release();
    }

    pub(super) fn received(&self, bytes: usize) -> io::Result<()> {
        if !self.counts.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.share.hold_more(bytes).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::super::client_stream::ClientStream;
    use super::super::pace::Pace;
    use super::*;
    use crate::budget::SENT_BY_STRANGERS;

    fn counted(stream: DuplexStream, unanswered: Option<Arc<Unanswered>>) -> ClientStream<DuplexStream> {
        ClientStream::new(stream, unanswered, Pace::for_connection())
    }

    async fn send(to: &mut DuplexStream, from: &mut ClientStream<DuplexStream>, bytes: usize) -> io::Result<usize> {
        to.write_all(&vec![b'x'; bytes]).await.unwrap();
        from.read(&mut vec![0; 1000]).await
    }

    /// Goal: the connection that exceeds the budget ends, others go on, and what is answered, or no
    /// longer there, is free again.
    #[tokio::test]
    async fn unanswered_bytes_of_all_connections_are_bounded() {
        let budget = Budget::new(&SENT_BY_STRANGERS, 200);
        let [mut one, mut two] = [(); 2].map(|()| {
            let (client, server) = duplex(1000);
            let unanswered = Unanswered::new(&budget, loopback());
            (client, counted(server, Some(Arc::clone(&unanswered))), unanswered)
        });
        assert_eq!(send(&mut one.0, &mut one.1, 70).await.unwrap(), 70);
        let refused = send(&mut two.0, &mut two.1, 31).await.unwrap_err();
        assert!(refused.to_string().contains("is used up"), "{refused}");
        one.2.handled();
        assert_eq!(send(&mut two.0, &mut two.1, 31).await.unwrap(), 31);
        assert_eq!(send(&mut one.0, &mut one.1, 69).await.unwrap(), 69);
        drop(two);
        one.2.stop();
        assert_eq!(send(&mut one.0, &mut one.1, 900).await.unwrap(), 900);
        assert_eq!(budget.share(loopback()).hold(100), Ok(()));
    }

    /// Goal: strangers that use the whole budget up end no connection of a client with a certificate.
    #[tokio::test]
    async fn a_certified_client_is_not_counted() {
        let budget = Budget::new(&SENT_BY_STRANGERS, 200);
        let stranger = budget.whole_share(loopback());
        stranger.hold(200).unwrap();
        let (mut client, server) = duplex(1000);
        assert_eq!(send(&mut client, &mut counted(server, None), 900).await.unwrap(), 900);
    }

    fn loopback() -> ClientAddress {
        ClientAddress::of([127, 0, 0, 1].into())
    }
}
