//! A trace of no model: a cluster of one node whose table grows far beyond what models have room for.
//!
//! Models have a few sessions and keys, so there are rules of the table that they never come to: how a map of many entries
//! branches and closes up again. Here clients open sessions by the hundred, take locks, queue, go, and are forgotten; what they do
//! is drawn from a seed. What the table must be after each entry, the twin says.

use palisade_spec::lock::{Claim, Command, Key, LockTable, Opening, Owner, Sequence, SessionId, Ttl};
use palisade_spec::raft::{Payload, Stamp, StateMachine};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::trace::{Trace, TraceError};

/// How long a session lives, in milliseconds.
const TTL: u64 = 400;
/// How many keys there are.
const KEYS: u64 = 120;

/// How many sessions and claims a sweep ends: enough for a crowd that goes all at once to be gone before the trace ends.
const SWEEP: u64 = 400;

/// So many entries of a crowd, on a table that has so many sessions at the beginning: the same for the same seed.
///
/// # Errors
/// Never: what is written here can be read.
pub fn crowd(seed: u64, sessions: u64, entries: usize) -> Result<Trace, TraceError> {
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
        "model": "a crowd",
        "property": "a crowd",
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
    Opening { nonce: 1, owner: Owner::from("somebody"), ttl: Ttl(TTL) }
}

fn sentence(event: &Value) -> String {
    match event["milliseconds"].as_u64() {
        Some(milliseconds) => format!("{milliseconds} ms pass"),
        None => format!("somebody asks for {}", event["payload"]["Command"]),
    }
}

/// What the next client asks for. `opened` sessions are known to have been asked for.
fn command(random: &mut StdRng, opened: &mut u64) -> Command {
    // Half of them are the last who came, and half of what is done is about few keys: so things are said twice, and in vain.
    let first = if random.random() { opened.saturating_sub(4).max(1) } else { 1 };
    let session = SessionId { number: random.random_range(first..=*opened + 1), nonce: 1 };
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
            sessions: (1..=*opened).step_by(3).map(|number| SessionId { number, nonce: 1 }).collect(),
        },
        9..12 => {
            let claim = if random.random() { Claim::Either } else { Claim::Waiting };
            Command::Release { session, sequence, key, claim }
        }
        _ => Command::Acquire { session, sequence, key, wait: random.random_bool(0.8) },
    }
}
