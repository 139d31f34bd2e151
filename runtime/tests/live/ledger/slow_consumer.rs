//! One client asks for keepalives and does not read the answers. At the server that must not delay
//! any other client: neither by a queue that fills, nor by the work that it makes (etcd 7446, where
//! an unread channel made the client ask ever more).

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use palisade_client::wire::SessionId;
use palisade_client::{Client, LockOptions, Options};
use serde_json::json;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::LONG;
use crate::support::cluster::Cluster;
use crate::support::locks::open_session;
use crate::support::websocket::WebSocket;

const TTL: Duration = Duration::from_secs(6);
/// Long beside the pauses of a busy machine, and short beside a node that waits for a client that
/// does not read: such a node is deposed.
const ELECTION: &str = "3s";
const HOLDERS: usize = 20;

/// Asks for keepalives as fast as it can, and reads nothing, over one connection after the other.
/// Counts how often the node would take no more from it.
fn pour(address: &str, session: SessionId, over: &AtomicBool, full: &AtomicU64) {
    let request = json!({ "id": 7, "op": { "keep_alive": { "session": session } } }).to_string();
    let goes_on = || !over.load(Ordering::Relaxed);
    while goes_on() {
        let mut socket = WebSocket::open(address).0;
        socket.get_ref().set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut is_full = false;
        while goes_on() {
            // What could not be written is written before anything else.
            let sent = if is_full { socket.flush() } else { socket.send(Message::text(request.as_str())) };
            match sent {
                Ok(()) => is_full = false,
                Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => {
                    full.fetch_add(u64::from(!is_full), Ordering::Relaxed);
                    is_full = true;
                }
                // The node has closed the connection.
                Err(_) => break,
            }
        }
    }
}

/// Goal: while three such clients pour keepalives out, twenty holders of short leases keep them,
/// and from the same leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_no_answers_costs_no_other_client_its_lease() {
    let cluster = Cluster::start_with(3, &["--election-timeout", ELECTION]);
    let client = Client::connect(&cluster.endpoints(), Options::default()).await.expect("a leader answers");
    let mut guards = Vec::new();
    for number in 0..HOLDERS {
        let options = LockOptions::default().ttl(TTL);
        guards.push(client.lock(format!("job-{number}"), options).await.expect("the lock is free"));
    }
    let session = open_session(&cluster, "pours", LONG);
    let leader = cluster.wait_ready();
    let (address, term) = (cluster.client_addr(leader), cluster.status(leader).expect("it answers").term);
    let (over, full) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| pour(&address, session, &over, &full));
        }
        std::thread::sleep(2 * TTL);
        over.store(true, Ordering::Relaxed);
    });
    // Checks the other nodes too: a leader that is paused would be the last to notice.
    let terms = cluster.ids().into_iter().map(|id| cluster.status(id).expect("it answers").term);
    assert_eq!(terms.collect::<Vec<u64>>(), [term; 3], "the leader leads on");
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    assert_eq!(lost, 0, "holders lost their leases");
    assert!(full.load(Ordering::Relaxed) >= 3, "the node took everything: nothing was shown");
}
