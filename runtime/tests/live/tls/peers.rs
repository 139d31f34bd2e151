//! The port for nodes: a program that claims to be a node that it is not is refused with the reason,
//! before the node believes anything that it says.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use palisade::peers::{Answer, Offer};
use palisade::storage::{Snapshots, SystemDisk, read_snapshot};
use palisade_client::wire::{SnapshotView, StatusView};
use palisade_client::{Security, codec};
use palisade_spec::lock::{Command as LockCommand, Key, LockTable, Principal, Token};
use palisade_spec::raft::{Body, Entry, Index, Message, NodeId, Payload, Position, ReadRound, Snapshot, Stamp, Term};
use parking_lot::Mutex;
use serde_json::json;

use crate::abuse::peers::{Hello, frame, read_frame, welcome};
use crate::abuse::try_send_and_finish;
use crate::support::certificates::{Certificates, EXPIRED};
use crate::support::cluster::{CALM, Cluster};
use crate::support::locks::{acquire, open_session};
use crate::support::process::{self, Running, palisade};
use crate::support::{eventually, http, https, ports};

/// A stranger's credentials, and what the node says about them: in its log, and to the stranger.
struct Stranger {
    security: Security,
    logged: &'static str,
    answer: &'static str,
}

/// Every way not to be node `claimed` of cluster `billing`.
fn strangers(ours: &Certificates, others: &Certificates, unknown: &Certificates, claimed: u16) -> Vec<Stranger> {
    let stranger = |security, logged, answer| Stranger { security, logged, answer };
    ours.issue_node(50, &EXPIRED);
    ours.issue_node(51, &[]);
    vec![
        stranger(
            ours.anonymous(),
            "it presented no certificate",
            "it requires a certificate, and this side presented none",
        ),
        stranger(
            ours.with(unknown, &format!("node-{claimed}")),
            "its certificate was issued by another CA",
            "it refuses this side's certificate: another CA issued it",
        ),
        stranger(
            ours.with(ours, "node-50"),
            "its certificate has expired",
            "it refuses this side's certificate: it has expired",
        ),
        stranger(
            ours.with(others, &format!("node-{claimed}")),
            "its certificate is of cluster `other`, not of cluster `billing`",
            "its certificate is of cluster `other`, not of cluster `billing`",
        ),
        stranger(
            ours.with(ours, "node-51"),
            "its certificate names node 51, and it claims to be node",
            "its certificate names node 51, and it claims to be node",
        ),
        stranger(
            ours.client("test"),
            "its certificate is that of the client `test`, and no node's",
            "its certificate is that of the client `test`, and no node's",
        ),
        stranger(Security::plain(), "it does not speak TLS, which this port requires", ""),
    ]
}

/// What the node told a stranger: a sentence of TLS, or the answer to its hello.
fn answer(stranger: &Stranger, address: &str, bytes: &[u8]) -> String {
    match https::exchange(address, &stranger.security, bytes) {
        // Without TLS the node says nothing that this side could read.
        Ok(_) if !stranger.security.is_tls() => String::new(),
        Ok(answer) => welcome(&answer).expect_err("a stranger is refused"),
        Err(error) => error.to_string(),
    }
}

/// Rows 1, 2 and 6 of the issue: an AppendEntries of a later term without entries, with one that frees the lock, and
/// with one at the index of a committed entry; a snapshot of 2⁴⁰ bytes; and a hello that names another address of the
/// leader, from each kind of stranger. What the AppendEntries do to nodes without TLS, the next test shows.
#[test]
fn stranger_on_the_peer_port_is_refused_with_the_reason_and_changes_nothing() {
    let (ours, others) = (Certificates::of("billing", 3), Certificates::of("other", 3));
    // Certificates of another cluster whose CA these nodes trust, too.
    ours.trust(&others);
    let unknown = Certificates::of("billing", 3);
    let cluster = Cluster::start_secured(3, &[], &ours);
    let (leader, victim) = cluster.roles();
    let (address, client) = (cluster.client_addr(leader), ours.client("test"));
    let grant = https::post(&address, &client, "/v1/locks/k/acquire", &json!({"ttl_ms": 600_000}).to_string());
    let grant = grant.unwrap().ok();
    let before = await_applied(&cluster, leader, victim);
    let pid = cluster.pid(victim).as_raw_nonzero().get();

    for stranger in strangers(&ours, &others, &unknown, leader) {
        let hello = Hello::between(&cluster.data(leader), leader, victim);
        // A node that dials says only the hello, and reads the answer.
        let answer = answer(&stranger, &cluster.peer_addr(victim), &hello.frame());
        assert!(answer.contains(stranger.answer), "{answer}");
        let forged = |forgery| [hello.frame(), message(&before, leader, victim, forgery)].concat();
        let token = Token(grant["token"].as_u64().unwrap());
        let messages = [Forgery::NoEntry, Forgery::Break(token), Forgery::FirstEntry].map(forged);
        let offer = {
            let mut offer = Vec::new();
            let last = Position { term: Term(before.term + 1), index: Index(1_000_000) };
            codec::encode_into(&(before.term + 1, last, 1_u64, 1_u64 << 40, [7_u8; 32]), &mut offer);
            [Hello { purpose: 1, ..hello.clone() }.frame(), frame(&offer), vec![7; 1 << 16]].concat()
        };
        for bytes in messages.into_iter().chain([offer]) {
            // The connection ends with bytes unread, which may take the answer back.
            let _ = https::exchange(&cluster.peer_addr(victim), &stranger.security, &bytes);
        }
        eventually(stranger.logged, || cluster.log(victim).contains(stranger.logged).then_some(()));
    }

    let after = cluster.status(victim).unwrap();
    assert_eq!((after.term, &after.leader), (before.term, &before.leader), "nothing was believed");
    let addresses = |view: &StatusView| -> Vec<_> {
        view.members.iter().map(|member| (member.id, member.client_addr.clone())).collect()
    };
    assert_eq!(addresses(&after), addresses(&before));
    let shown = https::get(&address, &client, "/v1/locks/k").unwrap().ok();
    assert_eq!(shown["holder"]["token"], grant["token"], "the lock is still held");
    let left = std::fs::read_dir(cluster.data(victim)).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with("incoming-")));
    assert!(process::lives(pid), "node {victim} was ended");
}

/// Goal: what docs/security.md says of a port for nodes without TLS. A program that knows the cluster's ID, which each
/// node tells every client, and no member's number or directory, frees a held lock for all clients, and ends a node.
#[test]
fn without_tls_any_program_that_reaches_the_port_acts_as_a_node() {
    // Not recorded: what these nodes do is no run of the protocol.
    let cluster = Cluster::start_unrecorded(3, &CALM, |_, _| {});
    let leader = cluster.wait_ready();
    let [victim, third] = [leader % 3 + 1, (leader + 1) % 3 + 1];
    let token = acquire(&cluster, "k", open_session(&cluster, "holder", Duration::from_secs(600))).token;
    await_applied(&cluster, leader, victim);
    let held = eventually("a leader shows the lock", || holder(&cluster, victim));
    assert_eq!(held, Some(token));

    let stranger = 99;
    let cluster_id = u64::from_str_radix(&cluster.status(victim).unwrap().cluster, 16).unwrap();
    let hello = Hello {
        cluster: cluster_id,
        from: stranger,
        incarnation: 7,
        start: (1, vec![7]),
        ..Hello::between(&cluster.data(leader), leader, victim)
    };
    let send = |forgery| {
        let Some(status) = cluster.status(victim) else { return };
        let bytes = [hello.frame(), message(&status, stranger, victim, forgery)].concat();
        // A refused connection is an end of the node since it told its status.
        let _ = try_send_and_finish(&cluster.peer_addr(victim), &bytes);
    };
    // Without the third node only the victim, whose log has the later entry, can be elected.
    cluster.freeze(third);
    eventually("the lock is free for all clients", || {
        send(Forgery::Break(Token(token)));
        eventually("a leader shows the lock", || holder(&cluster, victim)).is_none().then_some(())
    });
    cluster.thaw(third);
    let pid = cluster.pid(victim).as_raw_nonzero().get();
    eventually("the node is ended", || {
        send(Forgery::FirstEntry);
        (!process::lives(pid)).then_some(())
    });
    assert!(cluster.log(victim).contains("a committed entry is never replaced"), "by the protocol's assertion");
}

/// A snapshot that no node has taken: as node `victim`'s own, by the same writer, but of a later term and entry, and without a
/// lock. Returns its offer, and the file.
fn forged_snapshot(cluster: &Cluster, victim: u16, security: &Security) -> (Vec<u8>, Vec<u8>) {
    let taken = https::post(&cluster.client_addr(victim), security, "/v1/snapshot", "").unwrap().ok();
    let taken: SnapshotView = serde_json::from_value(taken).unwrap();
    let file = |directory: &Path, index: u64, term: u64| {
        std::fs::read(directory.join(format!("snapshot-{index:020}-{term}.snap"))).unwrap()
    };
    let status = cluster.status(victim).unwrap();
    let cluster_id = u64::from_str_radix(&status.cluster, 16).unwrap();
    let own = file(&cluster.data(victim), taken.index, taken.term);
    let (own, _) = read_snapshot::<LockTable>(own.as_slice(), Some(cluster_id)).unwrap();
    assert!(own.machine.locks().len() == 1, "the lock of the test");
    let last = Position { term: Term(status.term + 1_000), index: Index(status.applied + 1_000) };
    let forged = Snapshot { last, machine: LockTable::default(), ..own };
    let directory = tempfile::tempdir().unwrap();
    let (snapshots, _) = Snapshots::open::<LockTable>(&SystemDisk::shared(), directory.path(), cluster_id).unwrap();
    let info = snapshots.write(&forged).unwrap();
    let mut offer = Vec::new();
    codec::encode_into(&Offer { term: last.term, info }, &mut offer);
    (frame(&offer), file(directory.path(), last.index.0, last.term.0))
}

/// Goal: with TLS a node refuses a valid snapshot that a stranger has forged, of each kind of stranger, and nothing changes.
/// Without TLS the same one replaces the state of a node, so it is valid.
#[test]
fn forged_snapshot_replaces_a_state_without_tls_only() {
    let open = Cluster::start_unrecorded(3, &["--election-timeout", "750ms"], |_, _| {});
    let leader = open.wait_ready();
    let victim = open.others(leader)[0];
    acquire(&open, "k", open_session(&open, "holder", Duration::from_secs(600)));
    await_applied(&open, leader, victim);
    let (offer, file) = forged_snapshot(&open, victim, &Security::plain());
    let hello = Hello { purpose: 1, ..Hello::between(&open.data(leader), leader, victim) };
    let mut stream = TcpStream::connect(open.peer_addr(victim)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(&[hello.frame(), offer].concat()).unwrap();
    assert!(welcome(&[vec![0; 8], read_frame(&mut stream)].concat()).is_ok());
    let answer: Answer = codec::decode(&read_frame(&mut stream)).unwrap();
    assert!(matches!(answer, Answer::From(0)), "{answer:?}");
    stream.write_all(&file).unwrap();
    let verdict: Result<(), String> = codec::decode(&read_frame(&mut stream)).unwrap();
    assert_eq!(verdict, Ok(()));
    let held = |cluster: &Cluster, security: &Security| {
        let view = https::get(&cluster.client_addr(victim), security, "/v1/locks/k?consistency=stale");
        view.ok().filter(|response| response.status == 200).map(|response| response.ok()["held"] == true)
    };
    eventually("the node has the forged state", || (held(&open, &Security::plain()) == Some(false)).then_some(()));
    drop(open);

    let (ours, others) = (Certificates::of("billing", 3), Certificates::of("other", 3));
    ours.trust(&others);
    let unknown = Certificates::of("billing", 3);
    let cluster = Cluster::start_secured(3, &[], &ours);
    let (leader, victim) = cluster.roles();
    let client = ours.client("test");
    let body = json!({ "ttl_ms": 600_000 }).to_string();
    https::post(&cluster.client_addr(leader), &client, "/v1/locks/k/acquire", &body).unwrap().ok();
    await_applied(&cluster, leader, victim);
    let (offer, file) = forged_snapshot(&cluster, victim, &client);
    let before = cluster.status(victim).unwrap();
    let hello = Hello { purpose: 1, ..Hello::between(&cluster.data(leader), leader, victim) };
    for stranger in strangers(&ours, &others, &unknown, leader) {
        // Before a byte of the file, and with all of it.
        for bytes in [[hello.frame(), offer.clone()].concat(), [hello.frame(), offer.clone(), file.clone()].concat()] {
            match https::exchange(&cluster.peer_addr(victim), &stranger.security, &bytes) {
                Ok(answer) if stranger.security.is_tls() => {
                    let refusal = welcome(&answer).expect_err("a stranger is refused");
                    assert!(refusal.contains(stranger.answer), "{refusal}");
                }
                Ok(_) | Err(_) => {}
            }
        }
        eventually(stranger.logged, || cluster.log(victim).contains(stranger.logged).then_some(()));
    }
    let after = cluster.status(victim).unwrap();
    assert!(after.term < before.term + 1_000, "no term of a stranger: {after:?}");
    let content = |status: &StatusView| status.snapshot.as_ref().map(|taken| (taken.index, taken.hash.clone()));
    assert_eq!(content(&after), content(&before));
    assert_eq!(held(&cluster, &client), Some(true));
    let left = std::fs::read_dir(cluster.data(victim)).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with("incoming-")));
}

/// The hello to node `to` of the server with this data directory, in a generation of its number that it chooses.
fn hello_in_generation(data: &Path, number: u16, generation: u16, to: u16) -> Vec<u8> {
    let first = Hello::between(data, number, to).frame();
    let mut hello: palisade::peers::Hello = codec::decode(&first[8..]).unwrap();
    hello.from = NodeId::new(number, generation);
    let mut payload = Vec::new();
    codec::encode_into(&hello, &mut payload);
    frame(&payload)
}

/// Goal: with the certificate of a removed node a program is refused in every generation of its number, also in one
/// that was no member, and changes nothing. Before the removal a node may not refuse a later generation: a replacement
/// that the node has not heard of yet can have made it a member.
#[test]
fn removed_node_is_refused_in_every_generation() {
    let ours = Certificates::of("billing", 3);
    let mut cluster = Cluster::start_secured(3, &[], &ours);
    let leader = cluster.wait_connected();
    let [removed, victim] = cluster.others(leader)[..] else { unreachable!() };
    let (address, client) = (cluster.client_addr(leader), ours.client("test"));
    let grant = https::post(&address, &client, "/v1/locks/k/acquire", &json!({"ttl_ms": 600_000}).to_string());
    let grant = grant.unwrap().ok();

    let (certificate, data) = (ours.with(&ours, &format!("node-{removed}")), cluster.data(removed));
    let hello = |generation, to| hello_in_generation(&data, removed, generation, to);
    let others = [leader, victim].map(|id| (id, cluster.peer_addr(id)));
    let greet = |generation, (to, port): &(u16, String), more: &[u8]| {
        welcome(&https::exchange(port, &certificate, &[&hello(generation, *to)[..], more].concat()).unwrap())
    };
    for other in &others {
        // What is no message ends the connection, behind the answer to the hello.
        let welcomed = greet(1, other, &frame(b"no message at all"));
        assert!(welcomed.is_ok(), "{welcomed:?}");
    }

    https::send(&address, &client, "DELETE", &format!("/v1/members/{removed}"), "").unwrap().ok();
    cluster.kill(removed);
    let before = await_applied(&cluster, leader, victim);
    for other in &others {
        let reason = format!("node {removed} was removed from this cluster, or came back with another data directory");
        eventually("the node has heard of the removal", || {
            greet(0, other, b"").is_err_and(|refusal| refusal.contains(&reason)).then_some(())
        });
        for generation in [1, 7] {
            let refusal = greet(generation, other, b"").expect_err("the number was removed");
            let reason = format!(
                "node {removed} was removed from this cluster, and node IDs are not reused: stop the server that claims \
                 to be node {removed}.{generation}"
            );
            assert!(refusal.contains(&reason), "{refusal}");
        }
    }
    let pid = cluster.pid(victim).as_raw_nonzero().get();
    let token = Token(grant["token"].as_u64().unwrap());
    for forgery in [Forgery::NoEntry, Forgery::Break(token), Forgery::FirstEntry] {
        let bytes = [hello(1, victim), message(&before, NodeId::new(removed, 1).0, victim, forgery)].concat();
        // The connection ends with bytes unread, which may take the answer back.
        let _ = https::exchange(&cluster.peer_addr(victim), &certificate, &bytes);
    }
    let after = cluster.status(victim).unwrap();
    assert_eq!((after.term, &after.leader), (before.term, &before.leader), "nothing was believed");
    let shown = https::get(&address, &client, "/v1/locks/k").unwrap().ok();
    assert_eq!(shown["holder"]["token"], grant["token"], "the lock is still held");
    assert!(process::lives(pid), "node {victim} was ended");
}

/// The token of lock `k`'s holder, if there is one, as the leader has it; asked for at node `id`.
fn holder(cluster: &Cluster, id: u16) -> Option<Option<u64>> {
    let shown = http::get(&cluster.client_addr(id), "/v1/locks/k").ok().filter(|response| response.status == 200)?;
    Some(shown.ok()["holder"]["token"].as_u64())
}

/// What a forged AppendEntries of the next term asks for.
#[derive(Clone, Copy)]
enum Forgery {
    /// Nothing but that its sender leads: enough to unseat a leader.
    NoEntry,
    /// To append an entry that takes lock `k` from the holder with this token, and to commit it.
    Break(Token),
    /// To replace the first entry of the log, which is committed.
    FirstEntry,
}

/// An AppendEntries for node `to`, whose status this is, from a node of the next term.
fn message(status: &StatusView, from: impl Into<u32>, to: u16, forgery: Forgery) -> Vec<u8> {
    let (term, stamp) = (Term(status.term + 1), Stamp(status.cluster_time_ms));
    let entry = |index, payload| Entry { term, index, stamp, payload };
    let (prev, entries, commit) = match forgery {
        Forgery::NoEntry => (Position::default(), vec![], Index(0)),
        Forgery::Break(token) => {
            let last = Position { term: Term(status.term), index: Index(status.applied) };
            let order = LockCommand::Break { key: Key::from("k"), token, principal: Principal::default() };
            (last, vec![entry(last.index.next(), Payload::Command(order))], last.index.next())
        }
        Forgery::FirstEntry => (Position::default(), vec![entry(Index(1), Payload::Noop)], Index(0)),
    };
    let body = Body::<LockTable>::AppendEntries { prev, entries, commit, stamp, round: ReadRound(0) };
    let message = Message { from: NodeId(from.into()), to: NodeId(to.into()), term, body };
    let mut payload = Vec::new();
    codec::encode_into(&message, &mut payload);
    frame(&payload)
}

/// Node `follower`'s status, once it has applied what the leader has.
fn await_applied(cluster: &Cluster, leader: u16, follower: u16) -> StatusView {
    eventually("the follower has applied what the leader has", || {
        let (leader, follower) = (cluster.status(leader)?, cluster.status(follower)?);
        (follower.applied == leader.applied && leader.commit == leader.applied).then_some(follower)
    })
}

/// Goal: both operators read the reason, in the log of the node that refuses and in that of the node
/// that is refused; the right certificate lets it in again.
#[test]
fn both_logs_have_the_reason_for_a_refused_node() {
    let (ours, others) = (Certificates::of("billing", 3), Certificates::of("other", 3));
    ours.trust(&others);
    let unknown = Certificates::of("billing", 3);
    let flags: Arc<Mutex<Vec<String>>> = Arc::new(Mutex::new(ours.flags(3)));
    let (of_3, adjust) = (Arc::clone(&flags), ours.adjust());
    let adjusted = move |id: u16, command: &mut Command| {
        if id == 3 {
            command.args(of_3.lock().iter());
        } else {
            adjust(id, command);
        }
    };
    let mut cluster = Cluster::start_adjusted_secured(3, adjusted, ours.client("test"));
    let cases = [
        (
            ours.flags_with(&unknown, "node-3"),
            "its certificate was issued by another CA",
            "it refuses this side's certificate: another CA issued it",
        ),
        (
            {
                ours.issue_node(3, &EXPIRED);
                ours.flags(3)
            },
            "its certificate has expired",
            "it refuses this side's certificate: it has expired",
        ),
    ];
    for (wrong, refusing, refused) in cases {
        cluster.kill(3);
        *flags.lock() = wrong;
        cluster.restart(3);
        let dialled = eventually("a node that refuses says why", || {
            [1, 2].into_iter().find(|&id| cluster.log(id).contains(refusing))
        });
        eventually("the refused node says why", || cluster.log(3).contains(refused).then_some(()));
        assert!(cluster.status(dialled).is_some(), "the other nodes go on");
    }
    cluster.kill(3);
    ours.issue_node(3, &[]);
    *flags.lock() = ours.flags(3);
    cluster.restart(3);
    cluster.wait_ready();
}

/// Row 5 of the issue: a hello as node 2 before node 2's first start pins nothing, so that the
/// cluster can be founded.
#[test]
fn stranger_cannot_replace_a_founder() {
    let (ours, others) = (Certificates::of("billing", 2), Certificates::of("other", 2));
    ours.trust(&others);
    let unknown = Certificates::of("billing", 2);
    let directory = tempfile::tempdir().unwrap();
    let addresses: Vec<String> = ports::free(4).iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let peers = format!("1={},2={}", addresses[2], addresses[3]);
    let data = |id: u16| directory.path().join(format!("node-{id}"));
    let start = |id: u16| {
        let at = usize::from(id) - 1;
        let log = std::fs::File::create(directory.path().join(format!("log-{id}"))).unwrap();
        let mut command = palisade();
        command
            .args(["serve", "--id", &id.to_string(), "--client-addr", &addresses[at]])
            .args(["--peer-addr", &addresses[at + 2], "--peers", &peers, "--data"])
            .arg(data(id))
            .args(ours.flags(id));
        Running::start(command.stderr(Stdio::from(log)))
    };
    let one = start(1);
    let client = ours.client("test");
    eventually("node 1 listens", || https::status(&addresses[0], &client));
    for stranger in strangers(&ours, &others, &unknown, 2) {
        let hello = Hello { from: 2, incarnation: 7, ..Hello::between(&data(1), 1, 1) };
        let answer = answer(&stranger, &addresses[2], &hello.frame());
        assert!(answer.contains(stranger.answer), "{answer}");
    }
    let two = start(2);
    eventually("the cluster is founded", || {
        let ready = https::get(&addresses[0], &client, "/readyz").ok()?;
        (ready.status == 200).then_some(())
    });
    drop((one, two));
}

/// Goal: a node that dials does not tell its hello to another node than the one that it means.
#[test]
fn dialler_checks_which_node_it_reached() {
    let ours = Certificates::of("billing", 3);
    let cluster = Cluster::start_secured(3, &[], &ours);
    // Node 4 looks for node 1 at the address of node 2.
    ours.issue_node(4, &[]);
    let [clients, nodes] = ports::free(2)[..] else { unreachable!() };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let mut command = palisade();
    command
        .args(["serve", "--id", "4", "--client-addr", &format!("127.0.0.1:{clients}")])
        .args(["--peer-addr", &format!("127.0.0.1:{nodes}")])
        .args(["--peers", &format!("4=127.0.0.1:{nodes},1={}", cluster.peer_addr(2)), "--data"])
        .arg(directory.path().join("node-4"))
        .args(ours.flags(4));
    let running = Running::start(command.stderr(std::fs::File::create(&log).unwrap()));
    eventually("the dialler says whom it reached", || {
        let log = std::fs::read_to_string(&log).unwrap();
        log.contains("its certificate names node 2, not node 1: check the addresses").then_some(())
    });
    drop(running);
    cluster.wait_ready();
}
