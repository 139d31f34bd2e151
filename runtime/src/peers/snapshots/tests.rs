//! Snapshot transfer between two nodes' ports on this machine, over a proxy that breaks
//! connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_spec::lock::{Command, Opening, Owner, Principal, Proof, Ttl};
use palisade_spec::raft::{Durable, Index, Members, Position, Stamp, StateMachine};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::*;
use crate::core::CoreInbox;
use crate::descriptors::Descriptors;
use crate::metrics::Metrics;
use crate::peers::{PinnedPeers, Roster, Welcome, accept};
use crate::storage::{DataDir, Identity, Incarnation, Snapshots, Start, Wal};

const CLUSTER: u64 = 7;
const TERM: Term = Term(5);
const SENDER: NodeId = NodeId(1);
const RECEIVER: NodeId = NodeId(2);

/// A state of some three megabytes.
fn snapshot(index: u64) -> Snapshot<LockTable> {
    let mut machine = LockTable::default();
    for number in 0..12_000 {
        let opening = Opening {
            proof: Proof::from(number),
            owner: Owner::from("o".repeat(200).as_str()),
            principal: Principal::default(),
            ttl: Ttl(60_000),
        };
        machine.apply(Stamp(index), &Command::Open { opening });
    }
    let last = Position { term: Term(3), index: Index(index) };
    Snapshot { last, stamp: Stamp(index), members: Arc::default(), machine }
}

/// The snapshot store of a node, in a directory of its own.
fn snapshots(directory: &Path, node: NodeId) -> Arc<Snapshots> {
    let directory = DataDir::open(directory, &Identity::of(CLUSTER, node)).unwrap();
    let blank = Durable::blank(LockTable::default(), Members::default());
    let (wal, _, _) = Wal::open_with_segments_of(4096, directory, blank).unwrap();
    Arc::clone(wal.snapshots())
}

/// A sender, a receiver, and the inbox of the receiver's core.
struct Fixture {
    directories: [tempfile::TempDir; 2],
    sender: Arc<Peers>,
    receiver: Arc<Peers>,
    inbox: CoreInbox,
    network: Arc<Network>,
    /// Where the receiver listens for nodes, behind the proxy.
    address: SocketAddr,
}

/// The proxy between them.
#[derive(Debug, Default)]
struct Network {
    /// Number of bytes that each of the next connections carries before it breaks.
    cuts: parking_lot::Mutex<Vec<u64>>,
    connections: AtomicU64,
    carried: AtomicU64,
}

impl Fixture {
    async fn open(cuts: &[u64]) -> Fixture {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (proxy, listener) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (front, back) = (proxy.local_addr().unwrap(), listener.local_addr().unwrap());
        let peers = |node: NodeId, directory: &Path| {
            let roster = Roster {
                cluster: CLUSTER,
                cluster_name: "test".into(),
                node,
                incarnation: Incarnation(node.0.into()),
                start: Start::default(),
                client_addr: "127.0.0.1:1".into(),
                admin_addr: None,
                peer_addr: "127.0.0.1:1".into(),
                peer_addrs: BTreeMap::new(),
                tls: None,
            };
            let pinned = PinnedPeers::load(directory).unwrap();
            Peers::new(roster, pinned, snapshots(directory, node), Metrics::new()).0
        };
        let (sender, receiver) = (peers(SENDER, directories[0].path()), peers(RECEIVER, directories[1].path()));
        let network = Arc::new(Network { cuts: parking_lot::Mutex::new(cuts.to_vec()), ..Network::default() });
        tokio::spawn(carry_all(Arc::clone(&network), proxy, back.to_string()));
        let (core, inbox) = Core::channel();
        let (forwarded, _) = tokio::sync::mpsc::channel(1);
        tokio::spawn(accept(Arc::clone(&receiver), core, listener, Descriptors::AT_EASE, forwarded));
        let link = sender.get_or_create_link(RECEIVER, &front.to_string()).unwrap();
        link.state.lock().dialled = true;
        tokio::spawn(send_all(Arc::clone(&sender), link));
        Fixture { directories, sender, receiver, inbox, network, address: back }
    }

    /// Requests the snapshot as a node does with every heartbeat, until a message reaches the
    /// receiver's core.
    async fn receive(&self) -> Message<LockTable> {
        for _ in 0..2000 {
            assert!(self.sender.send_snapshot(RECEIVER, TERM), "the sender is connected");
            sleep(Duration::from_millis(10)).await;
            if let Some(message) = self.inbox.next_message() {
                return message;
            }
        }
        panic!("no snapshot arrived within 20 seconds");
    }
}

/// Carries bytes both ways, and breaks connections.
async fn carry_all(network: Arc<Network>, proxy: TcpListener, to: String) {
    loop {
        let (mut client, _) = proxy.accept().await.unwrap();
        network.connections.fetch_add(1, Ordering::SeqCst);
        let cut = {
            let mut cuts = network.cuts.lock();
            if cuts.is_empty() { u64::MAX } else { cuts.remove(0) }
        };
        let mut server = TcpStream::connect(&to).await.unwrap();
        let network = Arc::clone(&network);
        tokio::spawn(async move {
            let (mut there, mut back) = (vec![0; 4096], vec![0; 4096]);
            let mut carried = 0;
            while carried < cut {
                let (read, forward) = tokio::select! {
                    read = client.read(&mut there) => (read, true),
                    read = server.read(&mut back) => (read, false),
                };
                let Ok(length @ 1..) = read else { return };
                let sent = if forward {
                    carried += length as u64;
                    network.carried.fetch_add(length as u64, Ordering::SeqCst);
                    server.write_all(&there[..length]).await
                } else {
                    client.write_all(&back[..length]).await
                };
                if sent.is_err() {
                    return;
                }
            }
        });
    }
}

/// The snapshot of an InstallSnapshot message.
fn installed(message: Message<LockTable>) -> Arc<Snapshot<LockTable>> {
    assert_eq!((message.from, message.to, message.term), (SENDER, RECEIVER, TERM));
    let Body::InstallSnapshot { snapshot } = message.body else { panic!("{} arrived", message.body.name()) };
    snapshot
}

/// Goal: when a connection breaks during the transfer, twice, no received byte is sent again; a
/// newer snapshot that the sender takes meanwhile does not interfere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_transfer_resumes_at_the_received_bytes() {
    let fixture = Fixture::open(&[900_000, 700_000]).await;
    let first = snapshot(100);
    let info = fixture.sender.snapshots.write(&first).unwrap();
    assert!(info.bytes > 2_500_000, "{info:?}");
    let newer = {
        let (snapshots, network) = (Arc::clone(&fixture.sender.snapshots), Arc::clone(&fixture.network));
        tokio::spawn(async move {
            while network.connections.load(Ordering::SeqCst) < 1 {
                sleep(Duration::from_millis(1)).await;
            }
            // Three, so that the file of the snapshot in transfer has been removed.
            spawn_blocking(move || (101..104).for_each(|index| assert!(snapshots.write(&snapshot(index)).is_ok())))
                .await
        })
    };
    assert_eq!(*installed(fixture.receive().await), first);
    newer.await.unwrap().unwrap();
    assert!(fixture.network.connections.load(Ordering::SeqCst) >= 3);
    let carried = fixture.network.carried.load(Ordering::SeqCst);
    // Bytes in the sockets' buffers when a connection broke are sent again, and so are the
    // handshakes.
    assert!(carried < info.bytes + 1_000_000, "{carried} bytes for a snapshot of {}", info.bytes);
}

/// Goal: a snapshot that the receiver finds damaged is not offered again when there is a newer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_snapshot_gives_way_to_the_newest() {
    let fixture = Fixture::open(&[]).await;
    fixture.sender.snapshots.write(&snapshot(100)).unwrap();
    damage(fixture.directories[0].path());
    let rejected = &fixture.receiver.metrics.frames_rejected;
    for _ in 0..2000 {
        assert!(fixture.sender.send_snapshot(RECEIVER, TERM), "the sender is connected");
        sleep(Duration::from_millis(10)).await;
        if rejected.get() > 0 {
            break;
        }
    }
    assert!(rejected.get() > 0, "the receiver has noticed the damage");
    let newest = snapshot(101);
    fixture.sender.snapshots.write(&newest).unwrap();
    assert_eq!(*installed(fixture.receive().await), newest);
}

/// Goal: a receiver that is busy for a moment does not make the sender begin again with a newer snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_receiver_gets_the_rest_of_the_same_snapshot() {
    let fixture = Fixture::open(&[900_000]).await;
    let first = snapshot(100);
    fixture.sender.snapshots.write(&first).unwrap();
    let carried = || fixture.network.carried.load(Ordering::SeqCst);
    while carried() < 900_000 {
        assert!(fixture.sender.send_snapshot(RECEIVER, TERM), "the sender is connected");
        sleep(Duration::from_millis(10)).await;
    }
    // The turn of the broken connection, which the receiver has not noticed.
    let turn =
        fixture.receiver.receiving.begin(Rank { is_member: true, term: Term(9) }).await.expect("the turn is free");
    fixture.sender.snapshots.write(&snapshot(101)).unwrap();
    let refused = fixture.network.connections.load(Ordering::SeqCst) + 1;
    while fixture.network.connections.load(Ordering::SeqCst) <= refused {
        assert!(fixture.sender.send_snapshot(RECEIVER, TERM), "the sender is connected");
        sleep(Duration::from_millis(10)).await;
    }
    drop(turn);
    assert_eq!(*installed(fixture.receive().await), first);
}

/// Changes a byte in the middle of the snapshot in a data directory.
fn damage(directory: &Path) {
    let mut files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|file| file.extension().is_some_and(|suffix| suffix == "snap")).expect("there is a snapshot");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
}

/// Goal: a snapshot is not sent to a receiver that has it, and a receiver that has received but not
/// installed it passes it to its core again without any byte being sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn received_snapshot_is_not_sent_again() {
    let fixture = Fixture::open(&[]).await;
    let info = fixture.sender.snapshots.write(&snapshot(100)).unwrap();
    installed(fixture.receive().await);
    let carried = fixture.network.carried.load(Ordering::SeqCst);
    assert!(carried >= info.bytes);
    installed(fixture.receive().await);
    assert!(fixture.network.carried.load(Ordering::SeqCst) < carried + 10_000);
    // From now on the receiver has the snapshot.
    fixture.receiver.snapshots.write(&snapshot(100)).unwrap();
    let connections = fixture.network.connections.load(Ordering::SeqCst);
    while fixture.network.connections.load(Ordering::SeqCst) < connections + 3 {
        assert!(fixture.sender.send_snapshot(RECEIVER, TERM), "the sender is connected");
        sleep(Duration::from_millis(5)).await;
    }
    assert!(fixture.network.carried.load(Ordering::SeqCst) < carried + 20_000);
    assert!(fixture.sender.metrics.snapshots_sent.get() >= 1);
}

/// A node that is no member begins to send a snapshot and then sends a byte at a time. Resolves when
/// the receiver ends the connection.
async fn trickle(receiver: &Peers, address: SocketAddr, has_begun: Arc<Notify>) {
    let stranger = Roster { node: NodeId(77), incarnation: Incarnation(77), ..receiver.roster.clone() };
    let mut stream = Stream::Plain(TcpStream::connect(address).await.unwrap());
    write(&mut stream, &stranger.hello(RECEIVER, Purpose::Snapshot)).await.unwrap();
    let mut bytes = Vec::new();
    read::<Welcome>(&mut stream, &mut bytes, SNAPSHOT_PATIENCE).await.unwrap().unwrap();
    let last = Position { term: Term(3), index: Index(200) };
    let info = SnapshotInfo { last, bytes: 1 << 20, ..an_info() };
    write(&mut stream, &Offer { term: TERM, info }).await.unwrap();
    let answer: Answer = read(&mut stream, &mut bytes, SNAPSHOT_PATIENCE).await.unwrap();
    assert!(matches!(answer, Answer::From(0)), "{answer:?}");
    has_begun.notify_one();
    while stream.write_all(b"x").await.is_ok() {
        sleep(Duration::from_millis(20)).await;
    }
}

fn an_info() -> SnapshotInfo {
    let directory = tempfile::tempdir().unwrap();
    snapshots(directory.path(), SENDER).write(&snapshot(1)).unwrap()
}

/// Goal: a node that is no member and trickles bytes keeps no member's snapshot waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stranger_gives_way_to_a_member() {
    let fixture = Fixture::open(&[]).await;
    let members = Arc::new(Members::of([SENDER, RECEIVER]));
    fixture.receiver.set_members(&members, &members);
    fixture.sender.snapshots.write(&snapshot(100)).unwrap();
    let (receiver, address, has_begun) = (Arc::clone(&fixture.receiver), fixture.address, Arc::new(Notify::new()));
    let begun = Arc::clone(&has_begun);
    let stranger = tokio::spawn(async move { trickle(&receiver, address, begun).await });
    has_begun.notified().await;
    let begin = Instant::now();
    installed(fixture.receive().await);
    assert!(begin.elapsed() < SNAPSHOT_PATIENCE, "the member waited for {:?}", begin.elapsed());
    timeout(SNAPSHOT_PATIENCE, stranger).await.expect("the stranger's connection ends").unwrap();
}

/// Goal: a transfer that trickles ends, also if no member waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_without_progress_ends() {
    let fixture = Fixture::open(&[]).await;
    timeout(2 * SNAPSHOT_PATIENCE, trickle(&fixture.receiver, fixture.address, Arc::default()))
        .await
        .expect("the transfer ends");
    assert!(
        fixture.receiver.receiving.begin(Rank { is_member: false, term: TERM }).await.is_some(),
        "the next one may begin"
    );
}
