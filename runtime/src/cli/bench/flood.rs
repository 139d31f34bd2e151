//! The flood of `palisade bench`: another client that sends as many requests as the leader takes, over
//! many connections, while the clients are measured. Without TLS it comes from another address of this
//! machine, with TLS it has another name: either way it has an account of its own.

use std::iter::repeat_with;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use palisade_client::Security;
use palisade_client::wire::{Acquire, Op};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::block_on;

/// The address that the flood comes from without TLS.
const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 0);
/// Number of unanswered requests on each connection: as many as a node reads from one.
const AT_ONCE: usize = 1_024;
/// How long the leader may take to answer one of them.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause before a connection that broke is replaced.
const PAUSE: Duration = Duration::from_millis(100);

/// A flood that goes on until it is stopped.
pub(super) struct Flood {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Flood {
    /// Starts it, on a thread of its own: its work must not delay the clients that are measured.
    pub(super) fn start(leader: String, security: Security, connections: usize) -> Flood {
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stops, counter) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = std::thread::spawn(move || block_on(run(leader, security, connections, stops, counter)));
        Flood { stop, answered, thread }
    }

    /// Number of its requests that were answered until now.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Stops it.
    ///
    /// # Errors
    /// If it has failed.
    pub(super) fn stop(self) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the thread of the flood panicked".to_owned())
    }
}

async fn run(leader: String, security: Security, connections: usize, stop: Arc<AtomicBool>, answered: Arc<AtomicU64>) {
    let (mut tasks, mut target) = (JoinSet::new(), leader.clone());
    if !security.is_tls()
        && let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await
        && let Ok(address) = listener.local_addr()
    {
        target = address.to_string();
        tasks.spawn(forward(listener, leader));
    }
    for _ in 0..connections {
        let (target, security) = (target.clone(), security.clone());
        let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let requests = repeat_with(request).take_while(|_| !stop.load(Ordering::Relaxed));
                let count = |_, _| {
                    answered.fetch_add(1, Ordering::Relaxed);
                };
                let _ = security.ask_all(&target, requests, AT_ONCE, PATIENCE, count).await;
                sleep(PAUSE).await;
            }
        });
    }
    while !stop.load(Ordering::Relaxed) {
        sleep(PAUSE).await;
    }
    tasks.shutdown().await;
}

/// Connects what comes from the flood with the leader, from the flood's address.
async fn forward(listener: TcpListener, leader: String) {
    let mut connections = JoinSet::new();
    while let Ok((inbound, _)) = listener.accept().await {
        let leader = leader.clone();
        connections.spawn(async move {
            let (mut inbound, mut outbound) = (inbound, connect(&leader).await?);
            copy_bidirectional(&mut inbound, &mut outbound).await
        });
    }
}

async fn connect(leader: &str) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(FROM)?;
    let stream = socket.connect(leader.parse().map_err(std::io::Error::other)?).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A request that is an entry of the log, and adds nothing to the state: the lock is held already.
fn request() -> Op {
    let options = Acquire { ttl_ms: 60_000, owner: "flood".to_owned(), ..Acquire::default() };
    Op::Acquire { keys: "flood".into(), options, number: None }
}

/// The rate of a flood between two moments.
pub(super) struct Rate {
    begin: Instant,
    answered: u64,
}

impl Rate {
    pub(super) fn start(flood: &Flood) -> Rate {
        Rate { begin: Instant::now(), answered: flood.answered() }
    }

    /// Answered requests a second since the start.
    pub(super) fn per_second(&self, flood: &Flood) -> f64 {
        #[expect(clippy::cast_precision_loss)]
        let answered = (flood.answered() - self.answered) as f64;
        answered / self.begin.elapsed().as_secs_f64()
    }
}
