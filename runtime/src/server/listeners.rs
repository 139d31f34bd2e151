//! The two addresses on which a node listens. They are reserved before the data directory is
//! written or a cluster is asked to add the node, so that a first start with an unusable address
//! leaves nothing behind and can be repeated with another address. The node accepts connections
//! only when it can serve them: until then the system refuses them, and clients go to another node.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, lookup_host};

use super::{ServeError, ServerConfig};

/// Number of connections that may wait to be accepted, as in the standard library. With a long
/// queue, clients that connect again and again at once after they were refused leave no turn to a
/// node that connects once a second.
const BACKLOG: u32 = 128;

/// The node's addresses, reserved.
#[derive(Debug)]
pub(super) struct Listeners {
    /// For clients.
    pub(super) clients: Reserved,
    /// For other nodes.
    pub(super) nodes: Reserved,
}

/// An address that this process has bound, and on which it does not listen yet.
#[derive(Debug)]
pub(super) struct Reserved {
    socket: TcpSocket,
    address: String,
    whom: &'static str,
}

impl Listeners {
    /// Reserves both addresses of the command line.
    pub(super) async fn reserve(config: &ServerConfig) -> Result<Listeners, ServeError> {
        let exposed = config.tls.as_ref().is_some_and(|files| !files.optional) || config.insecure;
        Ok(Listeners {
            clients: Reserved::reserve(&config.client_addr, "clients", exposed).await?,
            nodes: Reserved::reserve(&config.peer_addr, "nodes", exposed).await?,
        })
    }
}

impl Reserved {
    /// Binds an address. Without `exposed`, only one that no other machine reaches.
    async fn reserve(address: &str, whom: &'static str, exposed: bool) -> Result<Reserved, ServeError> {
        let failed = |source| ServeError::Listen { address: address.to_owned(), whom, source };
        let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
        // As a listener does: the first address of the name that can be bound.
        for resolved in lookup_host(address).await.map_err(failed)? {
            if !exposed && !resolved.ip().to_canonical().is_loopback() {
                return Err(ServeError::Config(format!(
                    "without TLS, the program on any machine that reaches {address} could act as a client or as a node: give \
                     --tls-ca, --tls-cert and --tls-key (docs/security.md), listen for {whom} on 127.0.0.1, or give \
                     --insecure on a network that you trust"
                )));
            }
            match bind(resolved) {
                Ok(socket) => return Ok(Reserved { socket, address: address.to_owned(), whom }),
                Err(error) => last_error = error,
            }
        }
        Err(failed(last_error))
    }

    /// Begins to accept connections.
    pub(super) fn listen(self) -> Result<TcpListener, ServeError> {
        let Reserved { socket, address, whom } = self;
        socket.listen(BACKLOG).map_err(|source| ServeError::Listen { address, whom, source })
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restart must not wait for the connections of the process before it.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    /// Goal: while a node recovers or waits to be added, clients do not hang at its port: they are
    /// refused, and go to another node.
    #[tokio::test]
    async fn reserved_address_refuses_connections_until_the_node_listens() {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap().to_string();
        let taken = Reserved::reserve(&address, "clients", false).await.unwrap_err();
        assert!(taken.to_string().contains(&format!("cannot listen on {address} for clients")), "{taken}");
        drop(probe);
        let reserved = Reserved::reserve(&address, "clients", false).await.unwrap();
        assert_eq!(TcpStream::connect(&address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listening = reserved.listen().unwrap();
        assert!(TcpStream::connect(&address).is_ok());
        drop(listening);
    }
}
