//! A network link between a client and a server that an experiment can interrupt: a TCP forwarder.
//!
//! While it is held, it forwards nothing in either direction and closes nothing, as a network that loses packets:
//! connections stay, and what was sent arrives once the link passes again. No rights are needed for it.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// A link to one server. Dropping it closes its connections.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    held: watch::Sender<bool>,
    task: AbortHandle,
}

impl Link {
    /// A link to the server at `target` (HOST:PORT), which passes everything.
    ///
    /// # Errors
    /// No port of 127.0.0.1 is free.
    pub async fn to(target: &str) -> std::io::Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let held = watch::Sender::new(false);
        let task = tokio::spawn(accept(listener, target.to_owned(), held.clone())).abort_handle();
        Ok(Link { address, held, task })
    }

    /// The address at which clients reach the server through this link, HOST:PORT.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Holds back what either side sends from now on.
    pub fn hold(&self) {
        self.held.send_replace(true);
    }

    /// Forwards what was held back, and what follows.
    pub fn pass(&self) {
        self.held.send_replace(false);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, target: String, held: watch::Sender<bool>) {
    // Ends all connections with this task.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (target, held) = (target.clone(), held.subscribe());
        connections.spawn(async move {
            // The server does not see a connection that is made while the link is held.
            let mut passes = held.clone();
            if passes.wait_for(|held| !held).await.is_err() {
                return;
            }
            let Ok(server) = TcpStream::connect(target).await else { return };
            drop((client.set_nodelay(true), server.set_nodelay(true)));
            let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
            tokio::join!(forward(from_client, to_server, held.clone()), forward(from_server, to_client, held));
        });
    }
}

/// Forwards until one side closes.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut held: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = from.read(&mut buffer).await.unwrap_or(0);
        if held.wait_for(|held| !held).await.is_err() {
            return;
        }
        if length == 0 || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_held_link_delays_both_directions_and_loses_nothing() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = Link::to(&server.local_addr().unwrap().to_string()).await.unwrap();
        let mut client = TcpStream::connect(link.address()).await.unwrap();
        let (mut at_server, _) = server.accept().await.unwrap();
        client.write_all(b"a").await.unwrap();
        assert_eq!(at_server.read_u8().await.unwrap(), b'a');
        link.hold();
        client.write_all(b"b").await.unwrap();
        at_server.write_all(b"c").await.unwrap();
        let late = |read| tokio::time::timeout(Duration::from_millis(100), read);
        assert!(late(at_server.read_u8()).await.is_err() && late(client.read_u8()).await.is_err());
        link.pass();
        assert_eq!((at_server.read_u8().await.unwrap(), client.read_u8().await.unwrap()), (b'b', b'c'));
        drop(link);
        assert!(client.read_u8().await.is_err(), "a dropped link leaves its connections");
    }
}
