//! Pins the bytes and the JSON of every type on the wire: a difference is a change of the protocol,
//! which must be intended. To write the new golden files, run with `PALISADE_BLESS=1`; read the
//! difference.

use std::fmt::{Debug, Write};
use std::{env, fs};

use palisade_client::codec::{decode, encode_into};
use palisade_client::wire::{
    AccessRule, AccessRules, AccessVerdict, Acquire, Acquired, AddMember, Answer, Because, Break, Broken, Change, Code,
    Condition, Consistency, Content, DiskView, Event, EventId, Failure, HeldBy, HolderView, Keys, LeaderView,
    ListLocks, ListRecords, Listing, LockPage, LockView, MemberChange, MemberView, MembersView, Mode, Op, OpenSession,
    Outcome, Proclaim, RecordChange, RecordPage, RecordSummary, RecordView, Release, ReplaceMember, Request, Response,
    Right, SessionId, SessionLease, SessionView, SnapshotView, Stale, StatusView, TestAccess, Transaction, Transfer,
    WaiterView, Watch, Watched,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/golden/wire.txt");

fn session() -> SessionId {
    "00112233-4455-6677-8899-aabbccddeeff".parse().unwrap()
}

fn transaction() -> Transaction {
    let key = || "key/ä".to_owned();
    let conditions =
        vec![Condition::Held { lock: "lock".into(), token: 70_000 }, Condition::Version { key: key(), version: 0 }];
    let changes = vec![
        RecordChange::Put { key: key(), value: "größe".into() },
        RecordChange::Append { key: key(), value: vec![0xFF, 0x00].into() },
        RecordChange::Delete { key: key() },
    ];
    Transaction { session: Some(session()), conditions, changes }
}

fn record(fence: Option<u64>, value: Content) -> RecordView {
    RecordView { key: "key/ä".into(), version: 70_000, fence, value }
}

fn records() -> RecordPage {
    let record = RecordSummary { key: "key/ä".into(), version: 7, fence: Some(9), bytes: 65_536 };
    RecordPage { records: vec![record], next_after: Some("key/ä".into()), stored_bytes: 65_607 }
}

fn operations() -> Vec<Op> {
    let session = session();
    let key = || "key/ä".to_owned();
    let acquire = Acquire { session: Some(session), wait_ms: 70_000, owner: "me".into(), ..Acquire::default() };
    let reader = Acquire { mode: Mode::Shared, reentrant: true, max_queue: Some(10), ..Acquire::default() };
    let (permits, of, value) = (Some(2), Some(1_000_000), Some("host:1".into()));
    let permits = Acquire { mode: Mode::Semaphore, permits, of, value, ..Acquire::default() };
    vec![
        Op::OpenSession(OpenSession { ttl_ms: 100, owner: "worker-7".into() }),
        Op::KeepAlive { session },
        Op::CloseSession { session },
        Op::ShowSession { session },
        Op::Acquire { keys: key().into(), options: acquire, number: Some(1) },
        Op::Acquire { keys: key().into(), options: Acquire::default(), number: None },
        Op::Acquire { keys: key().into(), options: reader, number: None },
        Op::Acquire { keys: ["a", "b"].into(), options: permits, number: None },
        Op::Release { keys: key().into(), grant: Release { session, token: u64::MAX }, number: Some(300) },
        Op::Withdraw { keys: key().into(), session, number: Some(251) },
        Op::Proclaim {
            key: key(),
            proclamation: Proclaim { session, token: 70_000, value: "größe".into() },
            number: Some(2),
        },
        Op::ShowLock { key: key(), consistency: Consistency::Linearizable },
        Op::ListLocks(ListLocks::default()),
        Op::ListLocks(ListLocks {
            prefix: "k".into(),
            limit: Some(1000),
            after: Some(key()),
            consistency: Consistency::Stale,
        }),
        Op::Status,
        Op::ChangeMembers(MemberChange::Add(AddMember {
            id: 4,
            peer_addr: "10.0.0.4:7500".into(),
            incarnation: Some("00000000000000c1".into()),
        })),
        Op::ChangeMembers(MemberChange::Promote { id: 4 }),
        Op::ChangeMembers(MemberChange::Remove { id: 300 }),
        Op::ChangeMembers(MemberChange::Replace(ReplaceMember {
            id: 3,
            generation: 0,
            cluster: "00000000000c1057".into(),
            lost_incarnation: "00000000000000c1".into(),
            incarnation: "00000000000000c2".into(),
            peer_addr: Some("10.0.0.3:7500".into()),
        })),
        Op::Transfer(Transfer { to: Some(2) }),
        Op::Transfer(Transfer::default()),
        Op::Break { key: key(), order: Break { token: 17, reason: "it hangs".into() } },
        Op::ShowAccess,
        Op::SetAccess(access_rules()),
        Op::SetAccess(AccessRules { revision: 7, ..AccessRules::default() }),
        Op::TestAccess(TestAccess { principal: "worker-7".into(), right: Right::Break, key: key() }),
        Op::Watch(Watch::key(key())),
        Op::Watch(Watch::prefix("jobs/").after(EventId { revision: 70_000, event: Some(2) })),
        Op::ShowRecord { key: key(), consistency: Consistency::Stale },
        Op::ListRecords(ListRecords { prefix: "r".into(), limit: Some(7), ..ListRecords::default() }),
        Op::Transact { transaction: transaction(), number: Some(3) },
        Op::Transact { transaction: Transaction::default(), number: None },
        Op::Unwatch { watch: 7 },
    ]
}

fn access_rules() -> AccessRules {
    let rule = |subject: &str, prefix: &str, rights: &[Right]| AccessRule {
        subject: subject.into(),
        prefix: prefix.into(),
        rights: rights.into(),
    };
    AccessRules {
        revision: 300,
        enabled: true,
        roles: [("ops".to_owned(), vec!["alice".to_owned(), "bob".to_owned()])].into(),
        rules: vec![
            rule("role:ops", "", &[Right::Read, Right::Acquire, Right::Break, Right::Admin]),
            rule("*", "größe/", &[]),
        ],
    }
}

fn answers() -> Vec<Answer> {
    let session = session();
    let several = vec!["a".to_owned(), "key".into()];
    let reader = HolderView {
        owner: "me".into(),
        session: session.number(),
        token: 7,
        expires_in_ms: 29_999,
        mode: Mode::Shared,
        holds: 2,
        value: Some("host:1".into()),
        ..HolderView::default()
    };
    let permits = HolderView {
        mode: Mode::Semaphore,
        permits: Some(2),
        of: Some(5),
        holds: 1,
        keys: several.clone(),
        ..HolderView::default()
    };
    let lock = LockView {
        key: "key".into(),
        held: true,
        holder: Some(reader.clone()),
        holders: vec![reader, permits],
        queue: vec![
            WaiterView { owner: "you".into(), session: 300, ..WaiterView::default() },
            WaiterView { mode: Mode::Semaphore, permits: Some(1), of: Some(5), keys: several, ..WaiterView::default() },
        ],
    };
    let free = LockView { key: "key".into(), ..LockView::default() };
    let leader = LeaderView { id: 2, client_addr: Some("10.0.0.2:7400".into()) };
    let member = MemberView {
        id: 2,
        generation: 0,
        voter: true,
        returning: false,
        peer_addr: "10.0.0.2:7500".into(),
        client_addr: Some("10.0.0.2:7400".into()),
        connected: true,
        matched: Some(12),
        version: None,
        protocol: None,
        disk: None,
    };
    let learner = MemberView {
        id: 3,
        generation: 1,
        voter: false,
        returning: true,
        peer_addr: "c:1".into(),
        client_addr: None,
        connected: false,
        matched: None,
        version: None,
        protocol: None,
        disk: None,
    };
    let page = LockPage { locks: vec![free.clone()], next_after: None };
    vec![
        Answer::Session(SessionLease { session, ttl_ms: 30_000 }),
        Answer::SessionClosed,
        Answer::SessionView(SessionView {
            session: session.number(),
            owner: "me".into(),
            ttl_ms: 30_000,
            expires_in_ms: 1,
            keys: vec!["a".into(), "b".into()],
        }),
        Answer::Acquired(Acquired { keys: "key".into(), token: 7, session, ttl_ms: 30_000, signed: Vec::new() }),
        Answer::Acquired(Acquired { keys: ["a", "b"].into(), token: 7, session, ttl_ms: 30_000, signed: Vec::new() }),
        Answer::Released,
        Answer::StillHeld { holds: 2 },
        Answer::Proclaimed,
        Answer::Record(record(Some(9), "text".into())),
        Answer::StaleRecord(Stale { view: record(None, vec![0xFF, 0, 1].into()), age_ms: Some(5) }),
        Answer::Records(records()),
        Answer::StaleRecords(Stale { view: records(), age_ms: None }),
        Answer::Written { version: 300 },
        Answer::Withdrawn,
        Answer::Lock(lock.clone()),
        Answer::Locks(LockPage { locks: vec![lock, free.clone()], next_after: Some("key".into()) }),
        Answer::StaleLock(Stale { view: free, age_ms: Some(12) }),
        Answer::StaleLocks(Stale { view: page, age_ms: None }),
        Answer::Members(MembersView { members: vec![member.clone(), learner.clone()], leader: Some(leader.clone()) }),
        Answer::Transferred(leader.clone()),
        Answer::Broken(Broken { key: "key".into(), token: 17, session: 300, principal: "worker-7".into() }),
        Answer::Lost(Broken { key: "key".into(), token: 17, session: 300, principal: String::new() }),
        Answer::Access(access_rules()),
        Answer::AccessVerdict(AccessVerdict { permitted: true, why: "a sentence".into() }),
        Answer::Status(Box::new(StatusView {
            node: 1,
            generation: 0,
            cluster: "00000000000000c1".into(),
            role: "leader".into(),
            term: 3,
            leader: Some(leader),
            commit: 300,
            applied: 299,
            cluster_time_ms: 70_000,
            sessions: 2,
            locks: 1,
            members: vec![member, learner],
            snapshot: Some(SnapshotView { index: 290, term: 2, bytes: 1_000, hash: "c0ffee".into(), age_ms: 9_000 }),
            disk: DiskView {
                free_bytes: Some(1_000_000),
                low_water_bytes: 2_000_000,
                low: true,
                obstacle: Some("no space".into()),
            },
            cluster_name: "billing".into(),
            waiting_for: vec![2, 3],
            version: "0.1.0".into(),
        })),
    ]
}

fn signed_grants() -> [Answer; 2] {
    [Keys::from("key"), Keys::from(["a", "b"])].map(|keys| {
        let signed = keys.iter().map(|key| format!("fence1.{key}.B")).collect();
        Answer::Acquired(Acquired { keys, token: 7, session: session(), ttl_ms: 30_000, signed })
    })
}

/// What watches tell.
fn watched() -> Vec<Answer> {
    let (owner, keys) = (|| "me".to_owned(), vec!["a".to_owned(), "key".into()]);
    let (session, token, mode) = (300, 7, Mode::Exclusive);
    let because = [Because::Request, Because::Expired, Because::Closed, Because::Broken, Because::Denied];
    let mut changes = vec![
        Change::Granted { session, owner: owner(), token, mode, permits: None, of: None, keys: vec![], value: None },
        Change::Granted {
            session,
            owner: owner(),
            token,
            mode: Mode::Semaphore,
            permits: Some(2),
            of: Some(5),
            keys: keys.clone(),
            value: Some("host:1".into()),
        },
        Change::Queued { session, owner: owner(), mode: Mode::Shared, permits: None, of: None, keys: vec![], ahead: 0 },
        Change::Queued {
            session,
            owner: owner(),
            mode: Mode::Semaphore,
            permits: Some(1),
            of: Some(5),
            keys,
            ahead: 3,
        },
        Change::Value { session, token, value: "größe".into() },
        Change::Expired { session, token: Some(token) },
        Change::Expired { session, token: None },
        Change::Broken { session, token },
        Change::Put { version: 7, fence: Some(token) },
        Change::Put { version: 7, fence: None },
        Change::Deleted { version: 8 },
    ];
    changes.extend(because.map(|because| Change::Released { session, token, because }));
    changes.extend(because.map(|because| Change::Withdrawn { session, because }));
    let events = (1..).zip(changes).map(|(number, change)| {
        let id = EventId { revision: 70_000, event: (number != 3).then_some(number) };
        Answer::Watched(Watched::Event(Event { id, key: "key/ä".into(), change }))
    });
    let locks = vec![LockView { key: "key".into(), ..LockView::default() }];
    let records = vec![RecordSummary { key: "key".into(), version: 7, fence: None, bytes: 5 }];
    let rest = [
        Answer::Watched(Watched::Listing(Listing { revision: 300, begins: true, locks, records, complete: false })),
        Answer::Watched(Watched::Listing(Listing {
            revision: 301,
            begins: false,
            locks: vec![],
            records: vec![],
            complete: true,
        })),
        Answer::Watched(Watched::Compacted { floor: 299 }),
        Answer::Unwatched,
    ];
    events.chain(rest).collect()
}

fn failures() -> Vec<Failure> {
    let codes = [
        Code::Held,
        Code::Timeout,
        Code::NotHolder,
        Code::NoSession,
        Code::Gone,
        Code::Withdrawn,
        Code::Invalid,
        Code::NotFound,
        Code::MethodNotAllowed,
        Code::Limit,
        Code::Overloaded,
        Code::NotLeader,
        Code::NoLeader,
        Code::LeadershipLost,
        Code::ShuttingDown,
        Code::TooLarge,
        Code::ChangeNotReady,
        Code::NotCaughtUp,
        Code::NoMember,
        Code::NodeIdInUse,
        Code::LastVoter,
        Code::NoMajority,
        Code::NotTransferred,
        Code::NoSpace,
        Code::WrongHost,
        Code::WrongOrigin,
        Code::TooSoon,
        Code::Unauthenticated,
        Code::Denied,
        Code::AccessChanged,
        Code::AuditUnavailable,
        Code::WrongListener,
        Code::StaleToken,
        Code::OtherVersion,
        Code::NoRecord,
        Code::StoreFull,
        Code::TakenOver,
    ];
    let mut failures: Vec<Failure> = codes.into_iter().map(|code| Failure::new(code, "a sentence")).collect();
    let mut held = Failure::new(Code::Held, "held");
    held.holder = Some(HeldBy { owner: "me".into(), token: 7 });
    held.queue = Some(2);
    let mut elsewhere = Failure::new(Code::NotLeader, "elsewhere");
    elsewhere.leader = Some(LeaderView { id: 2, client_addr: None });
    let mut stale = Failure::new(Code::StaleToken, "stale");
    (stale.seen, stale.got) = (Some(9), Some(7));
    let other = Failure { version: Some(0), ..Failure::new(Code::OtherVersion, "other") };
    failures.extend([held, elsewhere, stale, other]);
    failures
}

/// Compares a value's bytes and text with the golden ones, and decodes both back to the value.
fn pin<T: Serialize + DeserializeOwned + PartialEq + Debug>(golden: &mut String, value: &T) {
    let mut bytes = Vec::new();
    encode_into(value, &mut bytes);
    assert_eq!(&decode::<T>(&bytes).unwrap(), value);
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value);

    // No shorter or longer sequence of bytes decodes to the value.
    assert!(decode::<T>(&bytes[..bytes.len() - 1]).is_err());
    bytes.push(0);
    assert!(decode::<T>(&bytes).is_err());
    bytes.pop();

    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let _ = writeln!(golden, "{text}\n    {hex}");
}

/// Goal: no type on the wire changes its bytes or its JSON unnoticed.
#[test]
fn wire_format_is_pinned() {
    let mut golden = String::new();
    golden.push_str("# requests\n");
    for (id, op) in operations().into_iter().enumerate() {
        pin(&mut golden, &Request { id: id as u64 * 100, op });
    }
    golden.push_str("# responses\n");
    let done = answers().into_iter().map(Outcome::Ok);
    let all = done.chain(failures().into_iter().map(Outcome::Error)).chain(signed_grants().map(Outcome::Ok));
    let all = all.chain(watched().into_iter().map(Outcome::Ok));
    let all = all.chain([Outcome::Error(Failure::new(Code::TooSlow, "a sentence"))]);
    for (id, result) in all.enumerate() {
        pin(&mut golden, &Response { id: id as u64, result });
    }
    if env::var_os("PALISADE_BLESS").is_some() {
        fs::write(GOLDEN, &golden).unwrap();
    }
    let pinned = fs::read_to_string(GOLDEN).unwrap_or_default();
    for (line, (is, should_be)) in golden.lines().zip(pinned.lines()).enumerate() {
        assert_eq!(is, should_be, "line {} of {GOLDEN}", line + 1);
    }
    assert_eq!(golden.lines().count(), pinned.lines().count());
}

/// Goal: JSON may omit a field that has a default, and must not have an unknown field.
#[test]
fn json_may_omit_defaults_only() {
    let short: Request = serde_json::from_str(r#"{"id":1,"op":{"acquire":{"key":"k"}}}"#).unwrap();
    assert_eq!(short.op, Op::Acquire { keys: "k".into(), options: Acquire::default(), number: None });
    let several: Request = serde_json::from_str(r#"{"id":1,"op":{"acquire":{"keys":["a","b"]}}}"#).unwrap();
    assert_eq!(several.op, Op::Acquire { keys: ["a", "b"].into(), options: Acquire::default(), number: None });
    assert!(serde_json::from_str::<Request>(r#"{"id":1,"op":{"acquire":{"key":"a","keys":["b"]}}}"#).is_err());
    assert!(serde_json::from_str::<Request>(r#"{"id":1,"op":{"acquire":{"key":7}}}"#).is_err());
    assert_eq!(serde_json::from_str::<Acquire>("{}").unwrap().ttl_ms, 30_000);
    assert_eq!(
        serde_json::from_str::<OpenSession>("{}").unwrap(),
        OpenSession { ttl_ms: 30_000, owner: String::new() }
    );
    assert!(serde_json::from_str::<Acquire>(r#"{"ttl":1}"#).is_err());
    assert!(serde_json::from_str::<Request>(r#"{"id":1,"op":"status","more":1}"#).is_err());
}

/// Goal: the bytes of a member are those that the version before reads; what a node tells more, it tells in JSON.
#[test]
fn program_of_a_member_is_only_in_json() {
    let member = |version: Option<&str>, protocol, disk| MemberView {
        id: 2,
        generation: 0,
        voter: true,
        returning: false,
        peer_addr: "b:1".into(),
        client_addr: None,
        connected: true,
        matched: None,
        version: version.map(str::to_owned),
        protocol,
        disk,
    };
    let complete = member(Some("0.2.0"), Some(11), Some(DiskView::default()));
    let silent = member(None, None, None);
    let (mut bytes, mut fewer) = (Vec::new(), Vec::new());
    encode_into(&complete, &mut bytes);
    encode_into(&silent, &mut fewer);
    assert_eq!(bytes, fewer);
    assert_eq!(decode::<MemberView>(&bytes).unwrap(), silent);
    let mut text = serde_json::to_value(&complete).unwrap();
    assert_eq!(serde_json::from_value::<MemberView>(text.clone()).unwrap(), complete);
    for field in ["version", "protocol", "disk"] {
        text.as_object_mut().unwrap().remove(field).unwrap();
    }
    assert_eq!(serde_json::from_value::<MemberView>(text).unwrap(), silent, "the version before has no such fields");
}

/// Goal: what a node of another version says of its status is refused, and never read as something else: the version is
/// the last field, so without it the value ends too early.
#[test]
fn status_without_a_version_is_refused_in_bincode_and_read_in_json() {
    let status =
        answers().into_iter().find_map(|answer| if let Answer::Status(status) = answer { Some(*status) } else { None });
    let status = status.unwrap();
    let mut bytes = Vec::new();
    encode_into(&status, &mut bytes);
    let earlier = &bytes[..bytes.len() - 1 - status.version.len()];
    assert!(decode::<StatusView>(earlier).is_err());
    let mut text = serde_json::to_value(&status).unwrap();
    text.as_object_mut().unwrap().remove("version").unwrap();
    assert_eq!(serde_json::from_value::<StatusView>(text).unwrap(), StatusView { version: String::new(), ..status });
}
