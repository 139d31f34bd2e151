//! Decoders of what lies in files: the log, snapshots, identity and peers of a data directory, audit logs,
//! recordings.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use palisade::audit::{self, verify};
use palisade::metrics::Metrics;
use palisade::peers::PinnedPeers;
use palisade::recording::{self, Reading};
use palisade::storage::{DataDir, Identity, SnapshotFlaw, StorageError, SystemDisk, Wal, read_snapshot};
use palisade::tls::Tokens;
use palisade_client::codec;
use palisade_spec::lock::{
    Bytes, Change, Claim, Command, Condition, Key, Keys, LockRequest, LockTable, Mode, Opening, Owner, Prefix,
    Principal, Proof, Revision, Right, Rights, Role, RoleMembers, Rule, Rules, Sequence, SessionId, Subject, Token,
    Transaction, Ttl, Version, Writer,
};
use palisade_spec::raft::{
    Durable, Entry, HardState, Index, Members, NodeId, Payload, Persist, Stamp, StateMachine, Term,
};
use tempfile::TempDir;

type Disk = Durable<LockTable>;

/// Small enough that a short log has several segments.
const SEGMENT: u64 = 3072;
/// The last entry in the snapshot: locks are held and sessions wait, in all modes, records are written, and access rules
/// are in force.
const SNAPSHOT: Index = Index(15);

fn identity() -> Identity {
    Identity::of(0xC1, NodeId(2))
}

/// In memory, if the machine has such a file system.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary directory")
}

fn open(directory: &Path) -> Result<(Wal<LockTable>, Disk), StorageError> {
    let blank = Durable::blank(LockTable::default(), Members::default());
    let opened = Wal::open_with_segments_of(SEGMENT, DataDir::open(directory, &identity())?, blank)?;
    Ok((opened.0, opened.1))
}

/// Every kind of entry, in an order in which each command changes something when it comes first.
fn payloads() -> Vec<Payload<Command>> {
    let session = |number: u64| SessionId { number, proof: Proof::from(u128::from(number) << 60) };
    let opening = |number| Opening {
        proof: session(number).proof,
        owner: Owner::from("job"),
        principal: Principal::from("worker-7"),
        ttl: Ttl(60_000),
    };
    let [a, b] = ["a", "billing/b"].map(Key::from);
    let (alice, operators) = (Principal::from("admin/alice"), Role::from("operators"));
    let members = RoleMembers { role: operators.clone(), members: vec![Principal::from("worker-7")] };
    let rule = |subject, prefix, rights| Rule { subject, prefix: Prefix::from(prefix), rights };
    let rules = vec![
        rule(Subject::Everyone, "", Rights::of([Right::Acquire, Right::Break])),
        rule(Subject::Role(operators), "billing/", Rights::of([Right::Acquire])),
    ];
    let rules = Some(Arc::new(Rules::new(vec![members], rules)));
    let acquire = |session, key: &Key, number| Command::Acquire {
        session,
        sequence: Sequence::new(number),
        request: LockRequest::exclusive(key.clone(), true),
    };
    let once = |number, key: &Key, wait| Command::AcquireOnce {
        opening: opening(number),
        request: LockRequest::exclusive(key.clone(), wait),
    };
    let release = |session, key: &Key, claim| {
        let keys = key.clone().into();
        Command::Release { session, sequence: None, keys, claim }
    };
    let both = Keys::new(["c", "d"].map(Key::from).to_vec()).expect("two keys");
    let request = |keys: &Keys, mode| LockRequest {
        keys: keys.clone(),
        mode,
        max_queue: 5,
        reentrant: true,
        value: Some("value".into()),
    };
    let shared =
        |keys: &Keys| Command::Acquire { session: session(1), sequence: None, request: request(keys, Mode::SHARED) };
    let once_in =
        |number, keys: &Keys, mode| Command::AcquireOnce { opening: opening(number), request: request(keys, mode) };
    let put = |key: &Key| Change::Put { record: key.clone(), bytes: Bytes::from("content") };
    let fenced = Transaction {
        conditions: vec![Condition::Held { lock: a.clone(), token: Token(1) }],
        changes: vec![put(&a), Change::Append { record: b.clone(), bytes: Bytes::from(vec![0xFF, 0]) }],
        limit: 1 << 20,
    };
    let compared = Transaction {
        conditions: vec![Condition::Version { record: a.clone(), version: Some(Version(1)) }],
        changes: vec![put(&b), Change::Delete { record: b.clone() }, put(&Key::from("e"))],
        limit: 1 << 20,
    };
    let commands = [
        Command::Open { opening: opening(1) },
        acquire(session(1), &a, 1),
        once(2, &a, true),
        once(3, &b, false),
        acquire(session(1), &b, 2),
        Command::KeepAlive { sessions: vec![session(1), session(2)] },
        Command::Transact { writer: Writer::Client(alice.clone()), transaction: fenced },
        Command::Transact {
            writer: Writer::Session { session: session(1), sequence: Sequence::new(3) },
            transaction: compared,
        },
        once_in(4, &both, Mode::SHARED),
        shared(&both),
        shared(&both),
        once_in(5, &both, Mode::EXCLUSIVE),
        once_in(6, &Keys::from("e"), Mode::semaphore(2, 5).expect("two of five permits")),
        Command::Proclaim {
            session: session(1),
            sequence: None,
            key: both.first().clone(),
            token: Token(3),
            value: "another".into(),
        },
        Command::SetAccess { principal: alice.clone(), revision: Revision(0), rules },
        Command::Break { key: b.clone(), token: Token(2), principal: alice.clone() },
        release(session(1), &a, Claim::Held(Token(1))),
        acquire(session(1), &a, 4),
        release(session(1), &a, Claim::Waiting),
        release(session(2), &a, Claim::Either),
        Command::Release { session: session(1), sequence: None, keys: both.clone(), claim: Claim::Held(Token(4)) },
        Command::Release { session: session(4), sequence: None, keys: both, claim: Claim::Held(Token(3)) },
        Command::SetAccess { principal: alice, revision: Revision(1), rules: None },
        Command::Close { session: session(1) },
    ];
    let rest = [Payload::Noop, Payload::Members(Members::of([NodeId(2), NodeId(3)]).into())];
    commands.into_iter().map(Payload::Command).chain(rest).collect()
}

/// The files of a directory with a log of several segments and a snapshot in its middle: its table has
/// a holder, waiters, sessions and access rules.
fn sound_directory() -> &'static [(String, Vec<u8>)] {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let directory = directory();
        let (mut wal, mut durable) = open(directory.path()).expect("a new log");
        let mut write = |write: Persist<LockTable>| {
            wal.write(std::slice::from_ref(&write)).expect("a write");
            durable.apply(&write);
        };
        write(Persist::HardState(HardState { term: Term(1), vote: Some(NodeId(2)) }));
        for (index, payload) in (1..=64).zip(payloads().into_iter().cycle()) {
            let entry = Entry { term: Term(1), index: Index(index), stamp: Stamp(index), payload };
            write(Persist::Entries([entry].into()));
        }
        wal.snapshots().write(&durable.snapshot_at(SNAPSHOT)).expect("a snapshot");
        drop(wal);
        let files = fs::read_dir(directory.path()).expect("the directory").map(|entry| entry.expect("a file"));
        let files = files.filter(|file| file.file_type().is_ok_and(|kind| kind.is_file()));
        let mut files: Vec<_> = files
            .map(|file| (file.file_name().into_string().expect("ASCII"), fs::read(file.path()).expect("a file")))
            .filter(|(name, _)| name != "lock")
            .collect();
        files.sort();
        files
    })
}

/// Changes the files of a sound directory: each five bytes name a file, a kind of change, an offset and a value.
fn damaged(data: &[u8]) -> TempDir {
    let mut files = sound_directory().to_vec();
    for edit in data.as_chunks::<5>().0 {
        let [file, kind, high, low, value] = *edit;
        let count = files.len();
        let (_, content) = &mut files[usize::from(file) % count];
        if content.is_empty() {
            continue;
        }
        let at = usize::from(u16::from_be_bytes([high, low])) % content.len();
        match kind % 5 {
            0 => content[at] ^= value,
            1 => content.truncate(at),
            2 => content[at..].fill(0),
            3 => content.extend_from_within(..at),
            _ => drop(content.drain(at..(at + usize::from(value)).min(content.len()))),
        }
    }
    let directory = directory();
    for (name, content) in files {
        fs::write(directory.path().join(name), content).expect("a file in the temporary directory");
    }
    directory
}

/// A damaged directory is refused, or recovered; recovered a second time, it is the same.
pub(super) fn log(data: &[u8]) -> bool {
    let directory = damaged(data);
    let Ok((wal, first)) = open(directory.path()) else { return false };
    drop(wal);
    let second = open(directory.path()).unwrap_or_else(|error| panic!("recovered once, then refused: {error}")).1;
    assert!(first == second, "recovered twice, to two states");
    true
}

/// No change.
pub(super) fn log_seeds() -> Vec<Vec<u8>> {
    vec![Vec::new()]
}

/// A snapshot's file, from any cluster. With an odd first byte the bytes are the state in it.
pub(super) fn snapshot(data: &[u8]) -> bool {
    match data.split_first() {
        Some((kind, state)) if kind % 2 == 1 => {
            let Ok(table) = codec::decode::<LockTable>(state) else { return false };
            let _ = table.in_range();
            let mut bytes = Vec::new();
            codec::encode_into(&table, &mut bytes);
            assert!(codec::decode::<LockTable>(&bytes).is_ok_and(|again| again == table), "{table:?}");
            true
        }
        Some((_, file)) => match read_snapshot::<LockTable>(file, None) {
            Ok((snapshot, info)) => {
                assert_eq!((snapshot.last, snapshot.stamp), (info.last, info.stamp));
                true
            }
            Err(SnapshotFlaw::Damaged { offset, .. } | SnapshotFlaw::NotUnderstood { offset, .. }) => {
                assert!(offset <= file.len() as u64);
                false
            }
            Err(_) => false,
        },
        None => false,
    }
}

pub(super) fn snapshot_seeds() -> Vec<Vec<u8>> {
    let files = sound_directory().iter().filter(|(name, _)| name.ends_with(".snap"));
    let mut table = LockTable::default();
    let states = std::iter::once(table.clone()).chain((1..).zip(payloads()).map(|(stamp, payload)| {
        table.apply_payload(Stamp(stamp), &payload);
        table.clone()
    }));
    let states: Vec<Vec<u8>> = states
        .map(|state| {
            let mut bytes = vec![1];
            codec::encode_into(&state, &mut bytes);
            bytes
        })
        .collect();
    files.map(|(_, content)| [&[0], content.as_slice()].concat()).chain(states).collect()
}

/// `identity.json` (an even first byte) or `peers.json` of a data directory.
pub(super) fn configuration(data: &[u8]) -> bool {
    let Some((kind, content)) = data.split_first() else { return false };
    let directory = directory();
    if kind % 2 == 1 {
        fs::write(directory.path().join("peers.json"), content).expect("a file in the temporary directory");
        return PinnedPeers::load(directory.path()).is_ok_and(|peers| !peers.addresses().is_empty());
    }
    for (name, sound) in sound_directory() {
        let content = if name == "identity.json" { content } else { sound };
        fs::write(directory.path().join(name), content).expect("a file in the temporary directory");
    }
    open(directory.path()).is_ok()
}

pub(super) fn configuration_seeds() -> Vec<Vec<u8>> {
    let identity = sound_directory().iter().filter(|(name, _)| name == "identity.json");
    let peers = br#"{"format":3,"met":[{"node":3,"generation":0,"incarnation":7,"start":{"count":1,"recent":[5]},"peer_addr":"127.0.0.1:7503"}]}"#;
    identity
        .map(|(_, content)| [&[0], content.as_slice()].concat())
        .chain([[&[1], peers.as_slice()].concat()])
        .collect()
}

/// The file of the bearer tokens of clients.
pub(super) fn tokens(data: &[u8]) -> bool {
    let directory = directory();
    let path = directory.path().join("tokens");
    fs::write(&path, data).expect("a file in the temporary directory");
    Tokens::load(&path).map_err(|refusal| assert!(!refusal.to_string().is_empty())).is_ok()
}

pub(super) fn tokens_seeds() -> Vec<Vec<u8>> {
    let hash = "ab".repeat(32);
    let texts = [format!("worker-7:{hash}\n"), format!("# tokens\n\nworker-7:{hash}\r\n  billing-run: {hash} ")];
    texts.map(String::into_bytes).into()
}

/// The files of an audit log, with a zero between two of them. With an odd first byte each line gets its hash here. What
/// `palisade audit verify` accepts, a node continues, and then it is accepted again.
pub(super) fn audit(data: &[u8]) -> bool {
    static METRICS: OnceLock<Arc<Metrics>> = OnceLock::new();
    let Some((kind, content)) = data.split_first() else { return false };
    let directory = directory();
    for (number, file) in (1..).zip(content.splitn(3, |&byte| byte == 0)) {
        let file = if kind % 2 == 1 { verify::seal(file) } else { file.to_vec() };
        let path = directory.path().join(format!("audit-{number:08}.jsonl"));
        fs::write(path, file).expect("a file in the temporary directory");
    }
    let verify = || verify::verify(&[directory.path().to_owned()], None);
    let verified = verify().map_err(|flaw| assert!(!flaw.to_string().is_empty()));
    let metrics = Arc::clone(METRICS.get_or_init(Metrics::new));
    match audit::start(Arc::new(SystemDisk), directory.path(), &identity(), metrics) {
        Ok((audit, trail, thread)) => {
            drop((audit, trail));
            thread.join().expect("the writer's thread");
        }
        Err(error) => assert!(verified.is_err(), "a node refuses a sound audit log: {error}"),
    }
    let Ok(before) = verified else { return false };
    let after = verify().unwrap_or_else(|flaw| panic!("a node has continued it, and it is not sound: {flaw}"));
    assert!(after.records > before.records, "{before:?} {after:?}");
    true
}

pub(super) fn audit_seeds() -> Vec<Vec<u8>> {
    let first = |n: u64, prev: &str| {
        format!(
            r#"{{"n":{n},"time":"2026-01-02T03:04:05.678Z","node":"2","event":"file","format":1,"cluster":"","cluster_id":"00000000000000c1","file":1,"through":4,"parts":1,"prev":"{prev}""#
        )
    };
    let rest = [
        r#"{"n":2,"time":"2026-01-02T03:04:05.678Z","node":"2","event":"started","version":"0.2.0""#,
        r#"{"n":3,"time":"t","node":"2","event":"granted","index":5,"term":2,"key":"k","token":9,"session":3,"principal":"w","address":"[::1]:7""#,
        r#"{"n":4,"time":"t","node":"2","event":"released","index":5,"term":2,"key":"k","token":9,"session":3"#,
        r#"{"n":5,"time":"t","node":"2","event":"dropped","records":7,"why":"no space""#,
        r#"{"n":6,"time":"t","node":"2","event":"unseen","from":6,"through":8"#,
        r#"{"n":7,"time":"t","node":"2","event":"refused","why":"denied","repeats":2,"principal":"w""#,
        r#"{"n":8,"time":"t","node":"2","event":"stopped","through":9"#,
    ];
    let lines = [&[first(1, &"0".repeat(64)).as_str()], rest.as_slice()].concat().join("\n");
    let file = verify::seal(lines.as_bytes());
    let hash = str::from_utf8(&file[file.len() - 67..file.len() - 3]).expect("the last line's hash");
    let next = verify::seal(first(9, hash).as_bytes());
    vec![
        [&[0], file.as_slice()].concat(),
        [&[1], lines.as_bytes()].concat(),
        [&[0], file.as_slice(), &[0], next.as_slice(), b"{\"n\":10,"].concat(),
    ]
}

/// A recording of a node.
pub(super) fn recording(data: &[u8]) -> bool {
    let directory = directory();
    let path = directory.path().join("recording");
    fs::write(&path, data).expect("a file in the temporary directory");
    let Ok(Some((_, mut reading))) = Reading::open(&path) else { return false };
    while let Ok(Some(record)) = reading.record() {
        drop(format!("{record:?}"));
    }
    true
}

pub(super) fn recording_seeds() -> Vec<Vec<u8>> {
    let header = recording::Header {
        version: env!("CARGO_PKG_VERSION").into(),
        cluster: 7,
        incarnation: 5,
        config: palisade_spec::raft::Config::new(NodeId(1)),
        began: 3,
    };
    let durable: Disk = Durable::blank(LockTable::default(), Members::default());
    let written = recording::Record::Written { after: 5, writes: 1, digest: recording::Digest::of(&1) };
    let records: [recording::Record; 3] =
        [recording::Record::Began(header), recording::Record::Recovered { after: 4, durable }, written];
    vec![recording::format::whole(&records)]
}
