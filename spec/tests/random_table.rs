//! A lock table alone, under random commands and random time. Every invariant of the table is checked after every
//! entry, of the whole tables before and after it: what the table does must be what the invariants say, also where no
//! scenario went.
//!
//! A failure prints its seed and the entry; `SEED=17 cargo test -p palisade-spec --test random_table` repeats the run,
//! and `TABLES=20000` searches longer.

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

use palisade_spec::checker::{Checked, Execution, execute};
use palisade_spec::lock::{LockTable, Outcome, Reply};
use palisade_spec::raft::{Payload, Stamp};
use support::commands::{Commands, Random};

/// Number of tables, and of entries that each of them executes: about two seconds of a debug build.
const TABLES: u64 = 250;
const ENTRIES: u64 = 400;

/// All replies but one, for which a record would have to be larger than the others together can be; and all events.
const REPLIES: [&str; 23] = [
    "Opened",
    "Closed",
    "KeptAlive",
    "Granted",
    "Queued",
    "Held",
    "OtherSize",
    "OtherClaim",
    "Released",
    "StillHeld",
    "Proclaimed",
    "NotHolder",
    "Broken",
    "Gone",
    "NoSession",
    "Denied",
    "AccessSet",
    "AccessChanged",
    "Written",
    "NotHeld",
    "OtherVersion",
    "Fenced",
    "StoreFull",
];
const EVENTS: [&str; 12] = [
    "Granted",
    "Proclaimed",
    "Released",
    "Broken",
    "Withdrawn",
    "Expired",
    "Closed",
    "Denied",
    "Queued",
    "Overdue",
    "Put",
    "Deleted",
];

#[test]
fn every_entry_is_as_the_invariants_say() {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (given, tables) = (variable("SEED"), variable("TABLES").unwrap_or(TABLES));
    let mut seen = BTreeMap::new();
    for seed in given.map_or(0..tables, |seed| seed..seed + 1) {
        run(seed, &mut seen);
    }
    // What hardly occurs is hardly checked.
    let named = REPLIES.iter().map(|name| format!("reply {name}")).chain(EVENTS.map(|name| format!("event {name}")));
    let seldom: Vec<_> = named.filter(|name| seen.get(name).is_none_or(|count| *count < tables / 50)).collect();
    assert!(given.is_some() || seldom.is_empty(), "seldom: {seldom:?}; seen: {seen:?}");
}

fn run(seed: u64, seen: &mut BTreeMap<String, u64>) {
    let mut random = Random(seed);
    let mut table = LockTable::sweeping([1, 2, 4, 250][random.index(4)]);
    let (mut observer, mut at, mut next, mut replies) = (table.observer(), Stamp(0), Vec::new(), VecDeque::new());
    for number in 0..ENTRIES {
        if random.below(2) == 0 {
            at = Stamp(at.0 + random.below(30));
        }
        let mut commands = Commands { random: &mut random, table: &table };
        if next.is_empty() && commands.random.below(12) == 0 {
            next.extend(commands.acquire_and_write().map(Payload::Command).into_iter().rev());
        }
        let payload = next.pop().unwrap_or_else(|| commands.payload());
        let before = table.clone();
        let outcome = execute(&mut table, at, &payload);
        let entry = Execution::new(&before, at, &payload, &outcome, &table);
        if let Err(violation) = LockTable::check_entry(&mut observer, &entry, true) {
            panic!("SEED={seed}: entry {number} at {at}: {violation}\n{payload:?}\nhad {outcome:?}");
        }
        let seed_and_entry = format!("SEED={seed}: entry {number} at {at}");
        for other in other_replies(&mut random, &mut replies, outcome.reply.as_ref()) {
            let outcome = Outcome { reply: Some(other), events: outcome.events.clone() };
            let entry = Execution::new(&before, at, &payload, &outcome, &table);
            let judged = LockTable::check_entry(&mut before.observer(), &entry, true);
            assert!(judged.is_err(), "{seed_and_entry}: {payload:?}\nmay have {outcome:?}, too");
        }
        let told = Commands { random: &mut random, table: &before }.payload();
        let would_have = execute(&mut before.clone(), at, &told).reply;
        let entry = Execution::new(&before, at, &told, &outcome, &table);
        let judged = LockTable::check_entry(&mut before.observer(), &entry, true);
        let is_right = judged.is_err() || would_have == outcome.reply;
        assert!(
            is_right,
            "{seed_and_entry}: {payload:?}\nis as {told:?}, which would have {would_have:?}: {outcome:?}"
        );
        let replies = outcome.reply.iter().map(|reply| format!("reply {}", name(reply)));
        for name in replies.chain(outcome.events.iter().map(|event| format!("event {}", name(event)))) {
            *seen.entry(name).or_default() += 1;
        }
    }
}

/// Replies that an entry had not: those of entries before it, and the right one with other numbers.
fn other_replies(random: &mut Random, earlier: &mut VecDeque<Reply>, right: Option<&Reply>) -> Vec<Reply> {
    let Some(right) = right else { return Vec::new() };
    let number = |number: u64, random: &mut Random| number.wrapping_add([1, u64::MAX][random.index(2)]);
    let mut other = right.clone();
    match &mut other {
        Reply::Opened { session } | Reply::Broken { session, .. } => session.number = number(session.number, random),
        Reply::Granted { session, token } => match random.below(2) {
            0 => session.number = number(session.number, random),
            _ => token.0 = number(token.0, random),
        },
        Reply::Queued { session, ahead } => match random.below(2) {
            0 => session.number = number(session.number, random),
            _ => *ahead = number(*ahead, random),
        },
        Reply::Held { queue, .. } => *queue = number(*queue, random),
        Reply::Written { version } => version.0 = number(version.0, random),
        Reply::StoreFull { bytes, .. } => *bytes = number(*bytes, random),
        Reply::KeptAlive { missing } => drop(missing.pop()),
        _ => {}
    }
    let picked = earlier.get(random.index(earlier.len().max(1))).cloned();
    if !earlier.contains(right) {
        earlier.push_back(right.clone());
    }
    if earlier.len() > 30 {
        earlier.pop_front();
    }
    [Some(other), picked].into_iter().flatten().filter(|reply| reply != right).collect()
}

/// The name of a variant.
fn name(value: &impl Debug) -> String {
    format!("{value:?}").chars().take_while(|letter| letter.is_alphanumeric()).collect()
}
