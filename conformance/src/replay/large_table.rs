//! Generated traces without a model: a one-node cluster whose table grows far beyond those of the
//! models.
//!
//! Models have a few sessions and keys, so they never reach some rules of the table, such as how a
//! map of many entries splits and merges its nodes. Here clients open hundreds of sessions,
//! acquire in all modes, one key or two, queue, release and expire; a seed chooses their requests.
//! The expected node says what the table must be after each entry.

use palisade_spec::lock::{
    self, Claim, Command, Holder, Key, Keys, LockRequest, LockTable, Mode, Opening, Owner, Principal, Proof, Sequence,
    SessionId, Token, Ttl,
};
use palisade_spec::raft::{Payload, Stamp, StateMachine};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::trace::{Trace, TraceError};

/// Time-to-live of a session, in milliseconds.
const TTL: u64 = 400;
/// Number of keys.
const KEYS: u64 = 120;
/// Number of permits of a semaphore.
const PERMITS: u32 = 3;

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
    let mut now = Stamp(0);
    for step in 1..=entries {
        let event = if random.random_bool(0.1) {
            let milliseconds = random.random_range(1..60);
            pass(&mut table, &mut now, milliseconds);
            json!({ "kind": "tick", "milliseconds": milliseconds })
        } else {
            let command = command(&mut random, &table);
            table.apply(now, &command);
            json!({ "kind": "apply", "payload": Payload::Command(command) })
        };
        lines.push(json!({ "step": step, "sentence": sentence(&event), "event": event }));
    }
    Trace::read(lines)
}

/// Time passes; a leader sweeps the table once a deadline has passed.
fn pass(table: &mut LockTable, now: &mut Stamp, milliseconds: u64) {
    *now = now.plus(milliseconds);
    if table.next_deadline().is_some_and(|deadline| deadline < *now) {
        table.advance(*now);
    }
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

/// The next client's request; `table` is the table at about that time.
fn command(random: &mut StdRng, table: &LockTable) -> Command {
    // Half of the requests use one of the newest sessions, and half use the first keys, so that
    // requests are repeated and refused.
    let opened = table.next_session() - 1;
    let first = if random.random() { opened.saturating_sub(4).max(1) } else { 1 };
    let session = SessionId { number: random.random_range(first..=opened + 1), proof: Proof::from(1) };
    let keys = keys(random);
    let sequence = random.random_bool(0.3).then(|| random.random_range(1..9)).and_then(Sequence::new);
    match random.random_range(0..20) {
        0..5 => Command::Open { opening: opening() },
        5..7 => Command::AcquireOnce { opening: opening(), request: request(random, keys, 0.5) },
        7 => Command::Close { session },
        8 => Command::KeepAlive {
            sessions: (1..=opened).step_by(3).map(|number| SessionId { number, proof: Proof::from(1) }).collect(),
        },
        9..12 => {
            let claim = if random.random_bool(0.7) { Claim::Either } else { Claim::Waiting };
            let (session, keys) = match claim_of(random, table) {
                Some((session, keys, _)) if random.random_bool(0.7) => (session, keys),
                _ => (session, keys),
            };
            Command::Release { session, sequence, keys, claim }
        }
        12 => {
            let held = table.locks().iter().nth(random.random_range(0..table.locks().len().max(1)));
            let holder = held.and_then(|(key, lock)| Some((key.clone(), lock.first_holder()?.clone())));
            match holder {
                Some((key, Holder { session, token, .. })) => {
                    // Some are late: they name an earlier grant.
                    let token = Token(token.0 - u64::from(random.random_bool(0.2)));
                    Command::Proclaim { session, sequence, key, token, value: value(random) }
                }
                None => Command::Open { opening: opening() },
            }
        }
        _ => {
            let request = request(random, keys, 0.8);
            let (session, keys, mode) = match claim_of(random, table) {
                Some(claim) if random.random_bool(0.3) => claim,
                _ => (session, request.keys, request.mode),
            };
            Command::Acquire { session, sequence, request: LockRequest { keys, mode, ..request } }
        }
    }
}

/// A claim on one of the locks: its session, its keys and its mode.
fn claim_of(random: &mut StdRng, table: &LockTable) -> Option<(SessionId, Keys, Mode)> {
    let locks = table.locks();
    let (key, lock) = locks.iter().nth(random.random_range(0..locks.len().max(1)))?;
    let held = lock.holders.iter().map(|holder| (holder.session, holder.keys(key), holder.mode));
    let waiting = lock.queue.iter().map(|waiter| (waiter.session, waiter.keys(key), waiter.mode));
    held.chain(waiting).nth(random.random_range(0..lock.holders.len() + lock.queue.len()))
}

/// One key or two neighbours, so that requests often name the same two.
fn keys(random: &mut StdRng) -> Keys {
    let keys = if random.random() { 3 } else { KEYS };
    let first = random.random_range(0..keys);
    let last = first + u64::from(random.random_bool(0.4));
    let names = (first..=last).map(|number| Key::from(format!("key {number}").as_str()));
    Keys::new(names.collect()).expect("the keys differ")
}

/// A request for these keys, which waits with this probability. Half of the requests are exclusive.
fn request(random: &mut StdRng, keys: Keys, waits: f64) -> LockRequest {
    let mode = match random.random_range(0..8) {
        0..4 => Mode::EXCLUSIVE,
        4..7 => Mode::SHARED,
        _ => Mode::semaphore(random.random_range(1..=PERMITS), PERMITS).expect("at most all permits"),
    };
    let max_queue = match random.random_bool(waits) {
        false => 0,
        true if random.random_bool(0.2) => random.random_range(1..4),
        true => LockRequest::ANY_QUEUE,
    };
    let value = random.random_bool(0.3).then(|| value(random));
    LockRequest { keys, mode, max_queue, reentrant: random.random_bool(0.3), value }
}

fn value(random: &mut StdRng) -> lock::Value {
    lock::Value::from(["one", "two", "three"][random.random_range(0..3)])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use palisade_spec::lock::Reply;

    use super::*;

    /// Goal: the requests lead to every reply of the table to an acquire or a release, and to locks with
    /// several holders, with waiters only, and with claims on several keys.
    #[test]
    fn requests_lead_to_every_reply() {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut table, mut now) = (LockTable::sweeping(SWEEP), Stamp(0));
        for step in large_table(1, 0, 700).unwrap().steps {
            pass(&mut table, &mut now, step.event.milliseconds.unwrap_or(0));
            let Some(payload) = step.event.payload else { continue };
            let payload: Payload<Command> = serde_json::from_value(payload).unwrap();
            let Payload::Command(command) = payload else { panic!("every payload is a command") };
            let reply = match table.apply(now, &command).reply.unwrap() {
                Reply::Granted { .. } => "granted",
                Reply::Queued { .. } => "queued",
                Reply::Held { token: Some(_), .. } => "held",
                Reply::Held { token: None, .. } => "waited for",
                Reply::OtherSize { .. } => "other size",
                Reply::OtherClaim { .. } => "other claim",
                Reply::Released => "released",
                Reply::StillHeld { .. } => "still held",
                Reply::NotHolder => "not holder",
                Reply::Proclaimed => "proclaimed",
                Reply::Gone => "gone",
                Reply::NoSession => "no session",
                _ => "another reply",
            };
            let locks = || table.locks().iter();
            let shown = [
                ("several holders", locks().any(|(_, lock)| lock.holders.len() > 1)),
                ("waiters only", locks().any(|(_, lock)| lock.holders.is_empty())),
                (
                    "several keys",
                    locks().any(|(key, lock)| lock.holders.iter().any(|holder| holder.keys(key).count() > 1)),
                ),
            ];
            let shown = shown.into_iter().filter(|(_, is_shown)| *is_shown).map(|(name, _)| name);
            for name in shown.chain([reply]) {
                *seen.entry(name).or_default() += 1;
            }
        }
        assert_eq!(seen.len(), 16, "{seen:?}");
    }
}
