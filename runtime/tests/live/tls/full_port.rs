//! The port for nodes while strangers at many addresses use up the connections that it has for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::eventually;

/// Strangers at each of 39 addresses. All of them together are more than the 128 connections, half of its 256 without
/// a hello, that a node leaves to strangers.
const AT_EACH_ADDRESS: usize = 5;
/// Connections that the strangers must hold: no more than the node leaves to strangers.
const HELD: usize = 90;
/// The node closes a connection that it has no room for at once, and others 5 s after it has accepted them.
const WAS_HELD: Duration = Duration::from_millis(500);

/// Strangers at 127.0.0.2 to 127.0.0.40 that connect to a port for nodes and say nothing, or stop within the handshake
/// of TLS. A stranger whose connection was closed opens the next one.
struct Strangers {
    /// Connections that the node holds for them.
    held: Arc<AtomicUsize>,
    _runtime: Runtime,
}

impl Strangers {
    fn at(port: &str) -> Strangers {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (port, held): (SocketAddr, _) = (port.parse().unwrap(), Arc::new(AtomicUsize::new(0)));
        for number in 0..39 * AT_EACH_ADDRESS {
            let (host, held) = (2 + number % 39, Arc::clone(&held));
            let says: &[u8] = if number < 39 { b"\x16\x03\x01" } else { b"" };
            runtime.spawn(async move {
                loop {
                    if let Ok(mut stream) = connect(&format!("127.0.0.{host}:0"), port).await {
                        let _ = stream.write_all(says).await;
                        if timeout(WAS_HELD, stream.read(&mut [0])).await.is_err() {
                            held.fetch_add(1, Ordering::Relaxed);
                            let _ = stream.read(&mut [0]).await;
                            held.fetch_sub(1, Ordering::Relaxed);
                            continue;
                        }
                    }
                    sleep(WAS_HELD).await;
                }
            });
        }
        Strangers { held, _runtime: runtime }
    }

    fn wait_until_they_hold_all_they_can(&self) {
        eventually("the strangers have their connections", || {
            (self.held.load(Ordering::Relaxed) >= HELD).then_some(())
        });
    }
}

async fn connect(from: &str, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(from.parse().unwrap())?;
    socket.connect(to).await
}

/// Goal: strangers at many addresses leave connections to the members: a node that was killed and is started again is
/// accepted at the ports that they have filled, and follows.
#[test]
fn strangers_keep_no_member_out() {
    let ours = Certificates::of("billing", 3);
    let mut cluster = Cluster::start_secured(3, &[], &ours);
    let leader = cluster.wait_connected();
    let restarted = cluster.others(leader)[0];
    let others = cluster.others(restarted);
    cluster.kill(restarted);
    let strangers: Vec<Strangers> = others.iter().map(|&id| Strangers::at(&cluster.peer_addr(id))).collect();
    strangers.iter().for_each(Strangers::wait_until_they_hold_all_they_can);
    for &id in &others {
        let full = "have not completed the handshake are closed at once";
        eventually("the port is full", || cluster.log(id).contains(full).then_some(()));
    }
    cluster.restart(restarted);
    cluster.wait_connected();
    strangers.iter().for_each(Strangers::wait_until_they_hold_all_they_can);
}
