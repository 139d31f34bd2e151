//! A bad network between clients and nodes: one proxy before each node, that speaks WebSocket to
//! both sides.
//!
//! The nodes advertise the proxies' addresses, so that clients that are sent on to the leader come
//! to its proxy. What a proxy does to messages is what [`Faults`] say; what it has done is counted,
//! so that a test can say that it happened.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use palisade_client::codec;
use palisade_client::wire::{Answer, Outcome, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, accept_async, connect_async};

use super::cluster::Cluster;
use super::ports;

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Every message of a client arrives twice.
    pub repeat: bool,
    /// Every n-th reply is lost, with its repetitions; 0: none.
    pub lose_every: u64,
    /// When a connection is cut, its node sees the last messages once more, so much later at the
    /// most; then only it learns that the connection is gone.
    pub late: Option<Duration>,
}

/// What went wrong so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Messages of clients that were sent again at once.
    pub repeated: AtomicU64,
    /// Replies that were lost: grants, releases and all others.
    pub lost_grants: AtomicU64,
    pub lost_releases: AtomicU64,
    pub lost_others: AtomicU64,
    /// Connections that were cut.
    pub cut: AtomicU64,
    /// Messages that arrived once more after their connection was cut.
    pub late: AtomicU64,
}

/// The proxies of a cluster.
pub struct Proxies {
    addresses: Vec<String>,
    shared: Arc<Shared>,
}

struct Shared {
    faults: Faults,
    counts: Counts,
    /// Whether clients get through to a node at all.
    open: AtomicBool,
    /// Connections that are not over on both sides.
    connections: AtomicUsize,
    replies: AtomicU64,
    /// Changes when every connection is to be cut.
    cut: watch::Sender<u64>,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// So many messages may arrive late after a cut.
const LATE_MESSAGES: usize = 4;
/// How long a node may take to accept a connection or to say goodbye.
const PATIENCE: Duration = Duration::from_secs(5);

impl Proxies {
    /// Starts `size` nodes, each behind a proxy. The cluster has its own addresses, for tests that
    /// look past the proxies.
    pub async fn before(size: u16, faults: Faults) -> (Proxies, Cluster) {
        let addresses: Vec<String> =
            ports::free(size.into()).into_iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let mut listeners = Vec::new();
        for address in &addresses {
            listeners.push(TcpListener::bind(address).await.expect("the port is still free"));
        }
        let advertised = addresses.clone();
        // Its leader should stay: one test needs no more trouble than a proxy makes.
        let start = move || {
            Cluster::start_adjusted(size, &["--election-timeout", "750ms"], move |id, command| {
                command.args(["--advertise-client-addr", &advertised[usize::from(id) - 1]]);
            })
        };
        let cluster = tokio::task::spawn_blocking(start).await.expect("the cluster starts");
        let shared = Arc::new(Shared {
            faults,
            counts: Counts::default(),
            open: AtomicBool::new(true),
            connections: AtomicUsize::new(0),
            replies: AtomicU64::new(0),
            cut: watch::Sender::new(0),
        });
        for (listener, node) in listeners.into_iter().zip(cluster.endpoints()) {
            tokio::spawn(accept(Arc::clone(&shared), listener, node));
        }
        (Proxies { addresses, shared }, cluster)
    }

    /// Where clients come in.
    pub fn endpoints(&self) -> &[String] {
        &self.addresses
    }

    /// What went wrong so far.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|generation| *generation += 1);
    }

    /// Lets no new connection through. What nodes have sent on the old ones still arrives.
    pub fn shut(&self) {
        self.shared.open.store(false, Ordering::SeqCst);
    }

    /// Lets new connections through again.
    pub fn open(&self) {
        self.shared.open.store(true, Ordering::SeqCst);
    }

    /// Connections that are not over yet; what was sent on the others has arrived.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, node: String) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        // Counted before the look: a test that has shut the proxies and finds no connection will
        // find none later.
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let (shared, node) = (Arc::clone(&shared), node.clone());
        tokio::spawn(async move {
            if shared.open.load(Ordering::SeqCst) {
                connect(&shared, stream, &node).await;
            }
            shared.connections.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Connects a client with its node. If either refuses, the other connection is closed too.
async fn connect(shared: &Shared, client: TcpStream, node: &str) {
    let mut cut = shared.cut.subscribe();
    let dialled = timeout(PATIENCE, connect_async(format!("ws://{node}/v1/ws"))).await;
    let Ok(Ok((mut node, _))) = dialled else { return };
    let Ok(Ok(mut client)) = timeout(PATIENCE, accept_async(client)).await else { return };
    let mut last = VecDeque::new();
    let was_cut = tokio::select! {
        () = carry(shared, &mut client, &mut node, &mut last) => false,
        _ = cut.changed() => true,
    };
    // The client sees its socket end, without a goodbye.
    drop(client);
    if was_cut {
        shared.counts.cut.fetch_add(1, Ordering::Relaxed);
        if let Some(at_most) = shared.faults.late {
            sleep(at_most.mul_f64(rand::random())).await;
            for message in last {
                shared.counts.late.fetch_add(1, Ordering::Relaxed);
                let _ = node.send(message).await;
            }
        }
    }
    let _ = timeout(PATIENCE, node.close(None)).await;
}

/// Carries messages both ways until one side ends.
async fn carry(
    shared: &Shared,
    client: &mut WebSocketStream<TcpStream>,
    node: &mut Socket,
    last: &mut VecDeque<Message>,
) {
    // Whether the replies to a request are lost.
    let mut fates: HashMap<u64, bool> = HashMap::new();
    loop {
        tokio::select! {
            message = client.next() => {
                let Some(Ok(message)) = message else { return };
                if !message.is_binary() {
                    continue;
                }
                last.push_back(message.clone());
                if last.len() > LATE_MESSAGES {
                    last.pop_front();
                }
                if shared.faults.repeat {
                    shared.counts.repeated.fetch_add(1, Ordering::Relaxed);
                    if node.feed(message.clone()).await.is_err() {
                        return;
                    }
                }
                if node.send(message).await.is_err() {
                    return;
                }
            }
            message = node.next() => {
                let Some(Ok(message)) = message else { return };
                if let Message::Binary(frame) = &message {
                    let response: Response = codec::decode(frame).expect("a node speaks the protocol");
                    if shared.is_lost(&mut fates, &response) {
                        continue;
                    }
                    if client.send(message).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

impl Shared {
    /// Decides over a reply; the repetition of a reply shares its fate, or nothing would be lost.
    fn is_lost(&self, fates: &mut HashMap<u64, bool>, response: &Response) -> bool {
        let Faults { lose_every, .. } = self.faults;
        if lose_every == 0 {
            return false;
        }
        *fates.entry(response.id).or_insert_with(|| {
            let lost = self.replies.fetch_add(1, Ordering::Relaxed) % lose_every == lose_every - 1;
            if lost {
                let counter = match &response.result {
                    Outcome::Ok(Answer::Acquired(_)) => &self.counts.lost_grants,
                    Outcome::Ok(Answer::Released) => &self.counts.lost_releases,
                    _ => &self.counts.lost_others,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            lost
        })
    }
}
