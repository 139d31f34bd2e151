//! Pins the bytes of commands in a log, and of a lock table in a snapshot: a difference is a change of a
//! format, which must be intended. To write the new golden file, run with `PALISADE_BLESS=1`, and read the
//! difference.

use std::fmt::Write;
use std::{env, fs};

use palisade_client::codec::{decode, encode_into};
use palisade_spec::lock::{
    Change, Claim, Command, Condition, Key, Keys, LockRequest, LockTable, Mode, Opening, Owner, Principal, Proof,
    Revision, Sequence, SessionId, Token, Transaction, Ttl, Version, Writer,
};
use palisade_spec::raft::{Stamp, StateMachine};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wal/pinned.txt");

fn session(number: u64) -> SessionId {
    SessionId { number, proof: Proof::from(u128::from(number)) }
}

fn opening(number: u64) -> Opening {
    let (owner, principal) = (Owner::from("worker"), Principal::from("ann"));
    Opening { proof: session(number).proof, owner, principal, ttl: Ttl(30_000) }
}

fn acquire(number: u64, sequence: Option<u64>, request: LockRequest) -> Command {
    Command::Acquire { session: session(number), sequence: sequence.and_then(Sequence::new), request }
}

fn release(number: u64, keys: Keys, claim: Claim) -> Command {
    Command::Release { session: session(number), sequence: Sequence::new(300), keys, claim }
}

/// A command of every form in which a log has them.
pub(crate) fn commands() -> Vec<Command> {
    let key = || Key::from("k");
    let both = || Keys::new(vec![Key::from("k"), Key::from("l")]).unwrap();
    let (value, mode) = (Some("host:1".into()), Mode::semaphore(2, 5).unwrap());
    let shared = LockRequest { mode: Mode::SHARED, ..LockRequest::exclusive(both(), true) };
    let valued = LockRequest { mode, max_queue: 7, reentrant: true, value, ..LockRequest::exclusive(key(), true) };
    vec![
        Command::Open { opening: opening(1) },
        Command::Open { opening: Opening { principal: Principal::default(), ..opening(2) } },
        acquire(1, Some(1), LockRequest::exclusive(key(), false)),
        acquire(2, None, LockRequest::exclusive(key(), true)),
        acquire(2, Some(2), shared.clone()),
        Command::AcquireOnce { opening: opening(3), request: LockRequest::exclusive(Key::from("m"), false) },
        Command::AcquireOnce { opening: opening(4), request: LockRequest { keys: Key::from("s").into(), ..valued } },
        Command::AcquireOnce { opening: opening(5), request: LockRequest { value: Some("v".into()), ..shared } },
        Command::KeepAlive { sessions: vec![session(1), session(70_000)] },
        Command::Proclaim {
            session: session(4),
            sequence: None,
            key: Key::from("s"),
            token: Token(3),
            value: "v".into(),
        },
        release(1, key().into(), Claim::Held(Token(1))),
        release(2, both(), Claim::Either),
        Command::Break { key: Key::from("m"), token: Token(2), principal: Principal::from("admin/eve") },
        Command::SetAccess { principal: Principal::from("admin/eve"), revision: Revision(0), rules: None },
        Command::Close { session: session(1) },
        Command::Transact {
            writer: Writer::Session { session: session(4), sequence: Sequence::new(300) },
            transaction: Transaction {
                conditions: vec![Condition::Held { lock: Key::from("s"), token: Token(3) }],
                changes: vec![
                    Change::Put { record: Key::from("r"), bytes: vec![0xff, 0].into() },
                    Change::Append { record: Key::from("t"), bytes: "text".into() },
                ],
                limit: 1 << 30,
            },
        },
        Command::Transact {
            writer: Writer::Client(Principal::from("ann")),
            transaction: Transaction {
                conditions: vec![
                    Condition::Version { record: Key::from("t"), version: Some(Version(1)) },
                    Condition::Version { record: Key::from("u"), version: None },
                    Condition::Held { lock: Key::from("s"), token: Token(3) },
                ],
                changes: vec![Change::Delete { record: Key::from("t") }],
                limit: 0,
            },
        },
    ]
}

pub(crate) fn hex(value: &impl serde::Serialize) -> (Vec<u8>, String) {
    let mut bytes = Vec::new();
    encode_into(value, &mut bytes);
    let text = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    (bytes, text)
}

/// Goal: what one version writes, the next one reads. Each command and each table is also read back as it
/// was written.
#[test]
fn bytes_of_commands_and_tables_are_pinned() {
    let (mut text, mut table) = (String::new(), LockTable::default());
    for command in commands() {
        let (bytes, shown) = hex(&command);
        assert_eq!(decode::<Command>(&bytes).unwrap(), command);
        writeln!(text, "{command:?}\n  {shown}").unwrap();
        table.apply(Stamp(1_000), &command);
        let (bytes, shown) = hex(&table);
        assert_eq!(decode::<LockTable>(&bytes).unwrap(), table, "after {command:?}");
        writeln!(text, "  table {shown}").unwrap();
    }
    if env::var_os("PALISADE_BLESS").is_some() {
        fs::write(GOLDEN, &text).unwrap();
    }
    let golden = fs::read_to_string(GOLDEN).unwrap();
    for (line, expected) in text.lines().zip(golden.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(text.lines().count(), golden.lines().count());
}
