//! The port for nodes: strangers, nodes of another cluster or version, and damaged frames.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use palisade::peers::Answer;
use palisade::storage::Start;
use palisade_client::codec;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Index, MAX_NUMBER, Message, NodeId, Position, ReadRound, Snapshot, Stamp, Term};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Cluster, MIB, Victim, metrics, send_and_finish};

const SEED: u64 = 0x7065_6572;

/// A frame between nodes: length, CRC-32C, payload.
pub(crate) fn frame(payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&length.to_le_bytes(), &crc32c::crc32c(payload).to_le_bytes(), payload].concat()
}

/// The first frame of a connection, as `runtime/src/peers` has it.
#[derive(Clone)]
pub(crate) struct Hello {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u16,
    pub(crate) cluster: u64,
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) incarnation: u64,
    /// 0 for messages, 1 for a snapshot.
    pub(crate) purpose: u32,
    /// How often the node was started, and the numbers of its latest starts.
    pub(crate) start: (u64, Vec<u64>),
}

impl Hello {
    /// One that the victim takes for its peer's.
    pub(super) fn good(victim: &Victim) -> Hello {
        Hello::to(victim, victim.leader)
    }

    /// One that this node takes for its peer's.
    fn to(victim: &Victim, to: u16) -> Hello {
        let from = victim.cluster.others(to)[0];
        Hello::between(&victim.cluster.data(from), from, to)
    }

    /// One of node `from` with this data directory.
    pub(crate) fn between(data: &std::path::Path, from: u16, to: u16) -> Hello {
        let read = |file: &str| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(data.join(file)).unwrap()).unwrap()
        };
        let (identity, starts) = (read("identity.json"), read("start.json"));
        let start = serde_json::from_value::<Start>(starts["start"].clone()).unwrap();
        let start = (start.count, start.recent);
        let number = |field: &str| identity[field].as_u64().unwrap();
        let (cluster, incarnation) = (number("cluster"), number("incarnation"));
        Hello { magic: *b"PALISADE", version: 10, cluster, from, to, incarnation, purpose: 0, start }
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        frame(&self.payload())
    }

    fn payload(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        let Hello { magic, version, cluster, from, to, incarnation, purpose, start } = self;
        let nowhere = "127.0.0.1:1";
        let (addresses, admin_addr) = ((nowhere, nowhere), None::<String>);
        codec::encode_into(
            &((magic, version, cluster, from, to), addresses, incarnation, purpose, start, admin_addr),
            &mut payload,
        );
        payload
    }
}

/// What the node answered to a hello: its directory, where it serves clients, its start, and where it
/// answers administrative requests.
pub(crate) fn welcome(answer: &[u8]) -> Result<(u64, String, Start, Option<String>), String> {
    codec::decode(answer.get(8..).unwrap_or_default()).expect("the node answers a hello before it closes")
}

/// The payload of the next frame that the node sends.
pub(crate) fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut header = [0; 8];
    stream.read_exact(&mut header).unwrap();
    let mut payload = vec![0; u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize];
    stream.read_exact(&mut payload).unwrap();
    payload
}

/// Noise where a frame should be: refused by its length, its checksum or its content, and counted
/// each time.
#[test]
fn noise_on_the_peer_port_is_counted() {
    let victim = Victim::start();
    let port = victim.cluster.peer_addr(victim.leader);
    let mut rng = StdRng::seed_from_u64(SEED);
    let before = victim.rejected();
    for round in 0..100 {
        let mut bytes = vec![0; rng.random_range(8..5000)];
        rng.fill(bytes.as_mut_slice());
        send_and_finish(&port, &bytes);
        // A length that is allowed, and noise behind it: the checksum does not match.
        let length = u32::try_from(bytes.len() - 8).unwrap().min(4096);
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        send_and_finish(&port, &bytes);
        // A checksum that matches, of noise: no hello.
        send_and_finish(&port, &frame(&bytes[8..bytes.len().min(4000)]));
        if round % 25 == 0 {
            victim.expect_honest_service();
        }
    }
    victim.expect_rejected(before, 300);
    victim.expect_memory_within(8 * MIB);
    victim.expect_unharmed();
}

/// A hello that stops in the middle identifies no peer: not refused, not counted, and soon timed
/// out.
#[test]
fn a_hello_that_breaks_off_is_forgotten() {
    let victim = Victim::start();
    let port = victim.cluster.peer_addr(victim.leader);
    let before = victim.rejected();
    let hello = Hello::good(&victim).frame();
    for cut in 0..hello.len() {
        assert_eq!(send_and_finish(&port, &hello[..cut]), b"");
    }
    // Many that say nothing at all take up the doorstep, but not for long, and not the nodes that
    // are inside.
    let silent: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(&port).unwrap()).collect();
    victim.expect_honest_service();
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let ended = stream.read(&mut [0]);
        assert!(!matches!(ended, Ok(1..)), "the stranger is told nothing");
        assert!(
            !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
            "it is closed in time"
        );
    }
    victim.expect_rejected(before, 0);
    victim.expect_unharmed();
}

/// Nodes that do not belong to the cluster are refused with a sentence for their operator, and
/// counted.
#[test]
fn a_node_of_another_kind_is_refused_with_the_reason() {
    let victim = Victim::start();
    let port = victim.cluster.peer_addr(victim.leader);
    let before = victim.rejected();
    let good = Hello::good(&victim);
    let strangers = [
        (Hello { magic: *b"REDISCLI", ..good.clone() }, "not Palisade's protocol"),
        (Hello { version: 12, ..good.clone() }, "version 12"),
        (Hello { cluster: good.cluster ^ 1, ..good.clone() }, "cluster"),
        (Hello { to: good.to + 1, ..good.clone() }, "check the addresses"),
        (Hello { from: good.to, ..good.clone() }, "which is this node"),
        (Hello { incarnation: good.incarnation ^ 1, ..good.clone() }, "was here before with another data directory"),
    ];
    for (hello, reason) in &strangers {
        let refusal = welcome(&send_and_finish(&port, &hello.frame())).expect_err("it is refused");
        assert!(refusal.contains(reason), "{refusal}");
    }
    // A range of versions that has none in common with the node's, an inverted one, and an invalid program version.
    for (versions, program, reason) in [
        ((12_u16, 13_u16), "0.9.0", "(Palisade 0.9.0) speaks the versions 12 to 13 of the protocol between nodes"),
        ((8, 9), "0.0.1", "(Palisade 0.0.1) first"),
        ((11, 10), "0.1.0", "sent an invalid range of protocol versions"),
        ((10, 11), "0.1.0\n", "sent an invalid program version"),
    ] {
        let mut ranged = Hello { version: 11, ..good.clone() }.payload();
        codec::encode_into(&(versions, program, Vec::<u8>::new()), &mut ranged);
        let refusal = welcome(&send_and_finish(&port, &frame(&ranged))).expect_err("it is refused");
        assert!(refusal.contains(reason), "{refusal}");
    }
    // The last version's hello, which had fewer fields.
    let mut payload = Vec::new();
    let nowhere = ("127.0.0.1:1", "127.0.0.1:1");
    codec::encode_into(
        &((*b"PALISADE", 4_u16, good.cluster, good.from, good.to), nowhere, good.incarnation, 0_u32),
        &mut payload,
    );
    let refusal = welcome(&send_and_finish(&port, &frame(&payload))).expect_err("it is refused");
    assert!(refusal.contains("speaks version 4 of the protocol"), "{refusal}");
    victim.expect_rejected(before, strangers.len() + 4 + 1);
    victim.expect_unharmed();
}

/// A connection with a valid hello is taken for the peer; its broken frames end the connection and
/// are counted, and the real peer, whose connection it replaced, reconnects by itself.
#[test]
fn a_broken_frame_after_a_good_hello_ends_the_connection() {
    let victim = Victim::start();
    let port = victim.cluster.peer_addr(victim.leader);
    let before = victim.rejected();
    let hello = Hello::good(&victim).frame();
    let mut damaged = frame(b"a message that was hit on its way");
    damaged[20] ^= 1;
    let too_long = [(64_u32 * 1024 * 1024 + 1).to_le_bytes(), [0; 4]].concat();
    let broken = [damaged, too_long, u32::MAX.to_le_bytes().repeat(2), frame(b"no message at all"), frame(b"")];
    for bytes in &broken {
        let answer = send_and_finish(&port, &[hello.clone(), bytes.clone()].concat());
        assert!(welcome(&answer).is_ok());
    }
    victim.expect_rejected(before, broken.len());
    // A frame that is announced to be huge takes no memory before its bytes come.
    let mut waiting = TcpStream::connect(&port).unwrap();
    waiting.write_all(&[hello, (64_u32 * 1024 * 1024).to_le_bytes().to_vec(), vec![0; 4 + 4096]].concat()).unwrap();
    victim.expect_honest_service();
    victim.expect_memory_within(8 * MIB);
    drop(waiting);
    victim.expect_unharmed();
    super::eventually("all peers are connected again", || {
        let status = victim.cluster.status(victim.leader)?;
        status.members.iter().all(|member| member.connected).then_some(())
    });
}

/// A snapshot comes over a connection of its own, in pieces that are checked before the core hears
/// of it; one in a message is refused, and so is what is no offer, and a file that is no snapshot.
#[test]
fn a_snapshot_has_to_come_the_proper_way() {
    let victim = Victim::start();
    let port = victim.cluster.peer_addr(victim.leader);
    let before = victim.rejected();
    let hello = Hello::good(&victim);
    let last = Position { term: Term(1), index: Index(1_000_000) };
    let snapshot = Arc::new(Snapshot { last, stamp: Stamp(1), members: Arc::default(), machine: LockTable::default() });
    let body = Body::InstallSnapshot { snapshot };
    let smuggled = Message { from: NodeId(hello.from.into()), to: NodeId(hello.to.into()), term: Term(1_000), body };
    let mut payload = Vec::new();
    codec::encode_into(&smuggled, &mut payload);
    send_and_finish(&port, &[hello.frame(), frame(&payload)].concat());
    victim.expect_rejected(before, 1);

    let for_snapshots = Hello { purpose: 1, ..hello };
    let mut no_snapshot = Vec::new();
    // An offer: the term, the position, the stamp, the length, the hash.
    codec::encode_into(&(1_000_u64, last, 1_u64, 500_u64, [7_u8; 32]), &mut no_snapshot);
    send_and_finish(&port, &[for_snapshots.frame(), frame(b"no offer")].concat());
    victim.expect_rejected(before, 2);
    // Its bytes are sent before they are asked for.
    send_and_finish(&port, &[for_snapshots.frame(), frame(&no_snapshot), vec![7; 500]].concat());
    victim.expect_rejected(before, 3);
    // They are sent in turn, and make no sense.
    let mut stream = TcpStream::connect(&port).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(&[for_snapshots.frame(), frame(&no_snapshot)].concat()).unwrap();
    // Its welcome, and from where on it wants the file.
    for _ in 0..2 {
        read_frame(&mut stream);
    }
    stream.write_all(&[7; 500]).unwrap();
    let verdict: Result<(), String> = codec::decode(&read_frame(&mut stream)).unwrap();
    let verdict = verdict.expect_err("it is refused");
    assert!(verdict.contains("damaged at byte 0: this is not a snapshot"), "{verdict}");
    victim.expect_rejected(before, 4);
    let left: Vec<_> = std::fs::read_dir(victim.cluster.data(victim.leader)).unwrap().map(Result::unwrap).collect();
    assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().starts_with("incoming-")), "{left:?}");
    victim.expect_unharmed();
}

/// A snapshot is offered that is larger than any, or that the disk has no room for: the offer is
/// refused with the reason, before a byte of it is sent, and nothing is left of it.
#[test]
fn an_offer_of_a_snapshot_without_room_is_refused() {
    let size = |bytes: u64| (1_000_u64, Position { term: Term(1), index: Index(1_000_000) }, 1_u64, bytes, [7_u8; 32]);
    let limit = 16 * 1024 * 1024 * 1024_u64;
    let offer = |victim: &Victim, bytes: u64| -> Answer {
        let mut payload = Vec::new();
        codec::encode_into(&size(bytes), &mut payload);
        let hello = Hello { purpose: 1, ..Hello::good(victim) };
        let mut stream = TcpStream::connect(victim.cluster.peer_addr(victim.leader)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(&[hello.frame(), frame(&payload)].concat()).unwrap();
        assert!(welcome(&[vec![0; 8], read_frame(&mut stream)].concat()).is_ok());
        codec::decode(&read_frame(&mut stream)).unwrap()
    };
    let refused = |answer: Answer, reason: &str| match answer {
        Answer::Refused(sentence) => assert!(sentence.contains(reason), "{sentence}"),
        other => panic!("it is not refused: {other:?}"),
    };
    let no_file_is_left = |victim: &Victim| {
        let left =
            std::fs::read_dir(victim.cluster.data(victim.leader)).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("incoming-")).collect();
        assert!(left.is_empty(), "{left:?}");
    };
    let victim = Victim::start();
    for bytes in [1 << 40, limit + 1, u64::MAX] {
        refused(offer(&victim, bytes), "over the limit of 17179869184 bytes");
        no_file_is_left(&victim);
    }
    victim.expect_unharmed();
    drop(victim);

    // A disk of which all but a little is reserved, once the node has begun.
    let cluster = Cluster::start_unrecorded(3, &["--election-timeout", "750ms"], |_, _| {});
    let mut cluster = Victim::of(cluster).cluster;
    let (_, full) = cluster.roles();
    cluster.stop(full);
    cluster.add_flags(&["--min-free-bytes", &(1_u64 << 60).to_string()]);
    cluster.restart(full);
    super::eventually("it follows again", || cluster.status(full)?.leader);
    let processes = Vec::new();
    let victim = Victim { address: cluster.client_addr(full), leader: full, cluster, memory: 0, processes };
    refused(offer(&victim, 500), "the disk has no room for the offered snapshot: 500 bytes of it are missing");
    no_file_is_left(&victim);
}

/// A number that no node counts to is refused. Adopted and written down, the greatest term there is
/// became 0 at the next election, and every node refused its own log for ever.
#[test]
fn numbers_out_of_range_are_dropped() {
    // Not recorded: no node sent the messages that this node receives.
    let victim = Victim::of(Cluster::start_unrecorded(3, &["--election-timeout", "750ms"], |_, _| {}));
    for id in victim.cluster.ids() {
        let address = victim.cluster.client_addr(id);
        let dropped =
            || metrics::sample(&address, "palisade_peer_messages_rejected_total{reason=\"malformed\"}").unwrap_or(0.0);
        let (before, hello) = (dropped(), Hello::to(&victim, id));
        let mut bytes = hello.frame();
        for term in [u64::MAX, MAX_NUMBER + 1] {
            let body = Body::<LockTable>::AppendAccepted { matched: Index(1), round: ReadRound(0) };
            let message = Message { from: NodeId(hello.from.into()), to: NodeId(id.into()), term: Term(term), body };
            let mut payload = Vec::new();
            codec::encode_into(&message, &mut payload);
            bytes.extend(frame(&payload));
        }
        assert!(welcome(&send_and_finish(&victim.cluster.peer_addr(id), &bytes)).is_ok());
        super::eventually("both messages are dropped", || (dropped() >= before + 2.0).then_some(()));
        assert!(victim.cluster.status(id).expect("it answers").term < 1_000);
    }
    victim.expect_unharmed();
}
