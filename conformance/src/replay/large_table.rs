//! Generated traces without a model: a one-node cluster whose table grows far beyond those of the
//! models.
//!
//! Models have a few sessions and keys, so they never reach some rules of the table, such as how a
//! map of many entries splits and merges its nodes. Here clients open hundreds of sessions,
//! acquire, queue, release and expire; a seed chooses their requests. The expected node says what
//! the table must be after each entry.

use palisade_spec::lock::{Claim, Command, Key, LockTable, Opening, Owner, Principal, Proof, Sequence, SessionId, Ttl};
use palisade_spec::raft::{Payload, Stamp, StateMachine};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::trace::{Trace, TraceError};

/// Time-to-live of a session, in milliseconds.
const TTL: u64 = 400;
/// Number of keys.
const KEYS: u64 = 120;

/// How many sessions and claims one sweep ends: enough to remove sessions that all expire at once
/// before the trace ends.
const SWEEP: u64 = 400;

/// A trace of `entries` steps, on a table that begins with `sessions` sessions. The same seed gives
/// the same trace.
///
/// # Errors
/// Never: the generated lines are a valid trace.
pub fn large_table(seed: u64, sessions: u64, entries: usize) -> Result<Trace, TraceError> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut table = LockTable::sweeping(SWEEP);
    for _ in 0..sessions {
        table.apply(Stamp(0), &Command::Open { opening: opening() });
    }
    let turn = json!({
        "server": 1,
        "stimulus": "election timeout",
        "inputs": [{ "input": "ElectionTimeout", "done": true }],
    });
    let head = json!({
        "format": 1,
        "model": "a large table",
        "property": "a large table",
        "setting": {
            "founders": 1,
            "joiners": 0,
            "batch": 64,
            "machine": table,
            "starts": [],
            "prelude": [{ "kind": "election timeout", "server": 1, "turns": [turn] }],
        },
    });
    let mut lines = vec![head];
    let mut opened = sessions;
    for step in 1..=entries {
        let event = if random.random_bool(0.1) {
            json!({ "kind": "tick", "milliseconds": random.random_range(1..60) })
        } else {
            let command = command(&mut random, &mut opened);
            json!({ "kind": "apply", "payload": Payload::Command(command) })
        };
        lines.push(json!({ "step": step, "sentence": sentence(&event), "event": event }));
    }
    Trace::read(lines)
}

fn opening() -> Opening {
    Opening { proof: Proof::from(1), owner: Owner::from("client"), principal: Principal::default(), ttl: Ttl(TTL) }
}

fn sentence(event: &Value) -> String {
    match event["milliseconds"].as_u64() {
        Some(milliseconds) => format!("{milliseconds} ms pass"),
        None => format!("a client asks for {}", event["payload"]["Command"]),
    }
}

/// The next client's request. `opened` is the number of sessions that were opened so far.
fn command(random: &mut StdRng, opened: &mut u64) -> Command {
    // Half of the requests use one of the newest sessions, and half use one of three keys, so that
    // requests are repeated and refused.
    let first = if random.random() { opened.saturating_sub(4).max(1) } else { 1 };
    let session = SessionId { number: random.random_range(first..=*opened + 1), proof: Proof::from(1) };
    let keys = if random.random() { 3 } else { KEYS };
    let key = Key::from(format!("key {}", random.random_range(0..keys)).as_str());
    let sequence = random.random_bool(0.3).then(|| Sequence(random.random_range(1..9)));
    match random.random_range(0..20) {
        0..5 => {
            *opened += 1;
            Command::Open { opening: opening() }
        }
        5..7 => {
            *opened += 1;
            Command::AcquireOnce { opening: opening(), key, wait: random.random() }
        }
        7 => Command::Close { session },
        8 => Command::KeepAlive {
            sessions: (1..=*opened).step_by(3).map(|number| SessionId { number, proof: Proof::from(1) }).collect(),
        },
        9..12 => {
            let claim = if random.random() { Claim::Either } else { Claim::Waiting };
            Command::Release { session, sequence, key, claim }
        }
        _ => Command::Acquire { session, sequence, key, wait: random.random_bool(0.8) },
    }
}
