//! The two or three addresses on which a node listens. They are reserved before the data directory is
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
    /// For administrative requests, if the node has an address of its own for them.
    pub(super) admin: Option<Reserved>,
}

/// An address that this process has bound, and on which it does not listen yet.
#[derive(Debug)]
pub(super) struct Reserved {
    socket: TcpSocket,
    address: String,
    whom: &'static str,
}

impl Listeners {
    /// Reserves the addresses of the command line.
    pub(super) async fn reserve(config: &ServerConfig) -> Result<Listeners, ServeError> {
        let exposed = may_be_exposed(config);
        let clients = Reserved::reserve(&config.client_addr, "clients", exposed).await?;
        let nodes = Reserved::reserve(&config.peer_addr, "nodes", exposed).await?;
        nodes.check_differs(&clients)?;
        let admin = match &config.admin_addr {
            Some(address) => {
                let admin = Reserved::reserve(address, "operators", exposed).await?;
                admin.check_differs(&clients)?;
                admin.check_differs(&nodes)?;
                Some(admin)
            }
            None => None,
        };
        Ok(Listeners { clients, nodes, admin })
    }

    /// Refuses addresses that [`reserve`](Listeners::reserve) would refuse whether or not they are in use.
    pub(super) async fn check(config: &ServerConfig) -> Result<(), ServeError> {
        let exposed = may_be_exposed(config);
        let clients = resolve(&config.client_addr, "clients", exposed).await?;
        let nodes = resolve(&config.peer_addr, "nodes", exposed).await?;
        if overlap(nodes, clients) {
            return Err(same_address(&config.peer_addr, "nodes", "clients", &config.client_addr));
        }
        let Some(admin) = &config.admin_addr else { return Ok(()) };
        let resolved = resolve(admin, "operators", exposed).await?;
        let others = [(clients, "clients", &config.client_addr), (nodes, "nodes", &config.peer_addr)];
        match others.into_iter().find(|(other, ..)| overlap(resolved, *other)) {
            Some((_, whom, other)) => Err(same_address(admin, "operators", whom, other)),
            None => Ok(()),
        }
    }
}

/// Whether the node may listen on an address that other machines reach.
fn may_be_exposed(config: &ServerConfig) -> bool {
    config.tls.as_ref().is_some_and(|files| !files.optional) || config.insecure
}

/// The first address of a name. Without `exposed`, only one that no other machine reaches.
async fn resolve(address: &str, whom: &'static str, exposed: bool) -> Result<SocketAddr, ServeError> {
    let failed = |source| ServeError::Listen { address: address.to_owned(), whom, source };
    let resolved = lookup_host(address).await.map_err(failed)?.next();
    let resolved = resolved.ok_or_else(|| failed(io::ErrorKind::AddrNotAvailable.into()))?;
    refuse_exposed(resolved, address, whom, exposed)?;
    Ok(resolved)
}

/// Without `exposed`, refuses an address that other machines reach.
fn refuse_exposed(resolved: SocketAddr, address: &str, whom: &'static str, exposed: bool) -> Result<(), ServeError> {
    if exposed || resolved.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(ServeError::Config(format!(
        "without TLS, the program on any machine that reaches {address} could act as a client or as a node: give \
         --tls-ca, --tls-cert and --tls-key (docs/security.md), listen for {whom} on 127.0.0.1, or give \
         --insecure on a network that you trust"
    )))
}

/// The refusal of an address for nodes or operators on which the node listens for others, too.
fn same_address(address: &str, whom: &str, others: &str, other: &str) -> ServeError {
    let option = if whom == "nodes" { "--peer-addr" } else { "--admin-addr" };
    ServeError::Config(format!(
        "{option} {address} is the address on which this node listens for {others} ({other}): give {option} a port of its own"
    ))
}

/// What an operator does about an address on which the node cannot listen.
pub(super) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process uses the port (`ss -ltnp` shows which): stop that process, or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: correct it, or listen on 0.0.0.0:PORT and advertise the address at which \
             others reach this machine"
        }
        io::ErrorKind::PermissionDenied => {
            "the user of this process may not use the port: choose one from 1024 up, or give the process CAP_NET_BIND_SERVICE"
        }
        _ => "check the address",
    }
}

impl Reserved {
    /// Binds an address. Without `exposed`, only one that no other machine reaches.
    async fn reserve(address: &str, whom: &'static str, exposed: bool) -> Result<Reserved, ServeError> {
        let failed = |source| ServeError::Listen { address: address.to_owned(), whom, source };
        let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
        // As a listener does: the first address of the name that can be bound.
        for resolved in lookup_host(address).await.map_err(failed)? {
            refuse_exposed(resolved, address, whom, exposed)?;
            match bind(resolved) {
                Ok(socket) => return Ok(Reserved { socket, address: address.to_owned(), whom }),
                Err(error) => last_error = error,
            }
        }
        Err(failed(last_error))
    }

    /// Refuses an address that is one of the node's other addresses. Two sockets can be bound to one address, and only
    /// one of them can listen.
    fn check_differs(&self, other: &Reserved) -> Result<(), ServeError> {
        let failed = |source| ServeError::Listen { address: self.address.clone(), whom: self.whom, source };
        let (own, others) = (self.socket.local_addr().map_err(failed)?, other.socket.local_addr().map_err(failed)?);
        if !overlap(own, others) {
            return Ok(());
        }
        Err(same_address(&self.address, self.whom, other.whom, &other.address))
    }

    /// Begins to accept connections.
    pub(super) fn listen(self) -> Result<TcpListener, ServeError> {
        let Reserved { socket, address, whom } = self;
        socket.listen(BACKLOG).map_err(|source| ServeError::Listen { address, whom, source })
    }
}

/// Whether a connection could reach both addresses.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (ip, other_ip) = (one.ip().to_canonical(), other.ip().to_canonical());
    one.port() == other.port() && (ip == other_ip || ip.is_unspecified() || other_ip.is_unspecified())
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

    /// Goal: an admin address that is another one of the node's is refused with the option's name, however
    /// it is written; another port or another address of the machine is not.
    #[tokio::test]
    async fn admin_address_differs_from_the_others() {
        for (one, other, both) in [
            ("127.0.0.1:7400", "127.0.0.1:7400", true),
            ("127.0.0.1:7400", "0.0.0.0:7400", true),
            ("[::]:7400", "127.0.0.1:7400", true),
            ("127.0.0.1:7400", "127.0.0.2:7400", false),
            ("127.0.0.1:7400", "127.0.0.1:7401", false),
        ] {
            assert_eq!(overlap(one.parse().unwrap(), other.parse().unwrap()), both, "{one} {other}");
        }
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        drop(probe);
        let clients = Reserved::reserve(&format!("127.0.0.1:{port}"), "clients", false).await.unwrap();
        let admin = Reserved::reserve(&format!("localhost:{port}"), "operators", false).await.unwrap();
        let refused = admin.check_differs(&clients);
        if admin.socket.local_addr().unwrap().is_ipv4() {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("give --admin-addr a port of its own"), "{refused}");
        }
        let nodes = Reserved::reserve(&format!("127.0.0.1:{port}"), "nodes", false).await.unwrap();
        let refused = nodes.check_differs(&clients).unwrap_err().to_string();
        assert!(refused.contains("give --peer-addr a port of its own"), "{refused}");
    }

    /// Goal: while a node recovers or waits to be added, clients do not hang at its port: they are
    /// refused, and go to another node.
    #[tokio::test]
    async fn reserved_address_refuses_connections_until_the_node_listens() {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap().to_string();
        let taken = Reserved::reserve(&address, "clients", false).await.unwrap_err();
        assert!(taken.to_string().contains(&format!("cannot listen on {address} for clients")), "{taken}");
        assert!(taken.to_string().contains("another process uses the port"), "{taken}");
        // TEST-NET-1: no machine has it.
        let foreign = Reserved::reserve("192.0.2.1:7400", "clients", true).await.unwrap_err();
        assert!(foreign.to_string().contains("this machine has no such address"), "{foreign}");
        drop(probe);
        let reserved = Reserved::reserve(&address, "clients", false).await.unwrap();
        assert_eq!(TcpStream::connect(&address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listening = reserved.listen().unwrap();
        assert!(TcpStream::connect(&address).is_ok());
        drop(listening);
    }
}
