//! The cost of a large lock table: memory, copies, writes after a copy, sweeps; and its map
//! compared with a `BTreeMap`.
//!
//! These are measurements, not tests: the figures go into docs/performance.md, each with its
//! command. Run one at a time, because memory is measured for the whole process: `cargo test
//! --release -p palisade-spec --test table_cost -- --ignored --nocapture NAME`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use palisade_spec::lock::{
    Command, Key, LockRequest, LockTable, Opening, Owner, Principal, Proof, Reply, SessionId, SharedMap, Ttl,
};
use palisade_spec::raft::{Stamp, StateMachine};

/// Number of locks; an environment variable overrides the default.
fn count() -> u64 {
    std::env::var("LOCKS").map_or(1_000_000, |count| count.parse().expect("LOCKS is a number"))
}

/// A permutation of the numbers below `count`: each mixing step is invertible, so no number
/// repeats.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    let bits = 64 - (count - 1).leading_zeros();
    let mask = u64::MAX >> (64 - bits);
    let mix = move |number: u64| {
        let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        (number ^ (number >> (bits / 2))).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask
    };
    (0..=mask).map(mix).filter(move |&number| number < count)
}

/// A proof with as many bits as those of a server.
fn proof(number: u64) -> Proof {
    Proof::from(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// An acquire that opens a session for one lock: a key of 20 bytes, an owner of 8.
fn acquire(number: u64, ttl: u64) -> Command {
    let opening = Opening {
        proof: proof(number),
        owner: Owner::from("worker-7"),
        principal: Principal::default(),
        ttl: Ttl(ttl),
    };
    let key = Key::from(format!("job/{number:016}").as_str());
    Command::AcquireOnce { opening, request: LockRequest::exclusive(key, false) }
}

/// Acquires this many locks in a table, with keys in scattered order.
fn filled(mut table: LockTable, locks: u64) -> LockTable {
    for number in scattered(locks) {
        table.apply(Stamp(number % 1_000), &acquire(number, 60_000));
    }
    table
}

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line for it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn each(elapsed: Duration, count: u64) -> String {
    format!("{:.0} ns", elapsed.as_secs_f64() * 1e9 / count as f64)
}

#[test]
#[ignore = "measures"]
fn bytes_of_a_lock() {
    let before = resident();
    let start = Instant::now();
    let table = filled(LockTable::default(), count());
    let locks = table.locks().len() as u64;
    println!(
        "{locks} locks, {} bytes each, {} to acquire",
        (resident() - before) / locks,
        each(start.elapsed(), locks)
    );
}

#[test]
#[ignore = "measures"]
fn a_copy_and_the_writes_after_it() {
    let mut table = filled(LockTable::default(), count());
    let ids: Vec<SessionId> = table.sessions().keys().copied().collect();
    let renew = |table: &mut LockTable, at: u64| {
        let start = Instant::now();
        for number in scattered(ids.len() as u64).take(10_000) {
            let id = ids[usize::try_from(number).expect("it fits")];
            let outcome = table.apply(Stamp(at), &Command::KeepAlive { sessions: vec![id] });
            assert!(matches!(outcome.reply, Some(Reply::KeptAlive { missing }) if missing.is_empty()));
        }
        each(start.elapsed(), 10_000)
    };
    println!("a keepalive: {}", renew(&mut table, 2_000));
    let start = Instant::now();
    let copy = table.clone();
    println!("a copy of {} locks: {:.1} ms", ids.len(), start.elapsed().as_secs_f64() * 1e3);
    println!("a keepalive of 10,000 after it: {}", renew(&mut table, 3_000));
    let start = Instant::now();
    drop(copy);
    println!("to let go of the copy: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
}

#[test]
#[ignore = "measures"]
fn sweeps_when_all_is_due() {
    for most in [1_000, 2_000, 4_000] {
        let mut table = filled(LockTable::sweeping(most), count());
        let (mut longest, mut sweeps, start) = (Duration::ZERO, 0, Instant::now());
        while table.next_deadline().is_some() {
            let start = Instant::now();
            black_box(table.advance(Stamp(1_000_000)));
            longest = longest.max(start.elapsed());
            sweeps += 1;
        }
        let [mean, longest] = [start.elapsed() / sweeps, longest].map(|time| time.as_secs_f64() * 1e3);
        println!("sweeps of {most}: {sweeps}, {mean:.2} ms each, the longest {longest:.2} ms");
    }
}

#[test]
#[ignore = "measures"]
fn the_map_beside_a_btree_map() {
    macro_rules! measured {
        ($name:literal, $map:ident, $keys:expr) => {
            let mut map = $map::new();
            let start = Instant::now();
            $keys.for_each(|key| _ = black_box(map.insert(key, [key; 8]).is_some()));
            let inserted = start.elapsed();
            let start = Instant::now();
            $keys.rev().for_each(|key| _ = black_box(map.get(&key).is_some()));
            let got = start.elapsed();
            let start = Instant::now();
            $keys.for_each(|key| _ = black_box(map.remove(&key).is_some()));
            let [inserted, got, removed] = [inserted, got, start.elapsed()].map(|elapsed| each(elapsed, count()));
            println!("{}: insert {inserted}, get {got}, remove {removed}", $name);
        };
    }
    let keys: Vec<u64> = scattered(count()).collect();
    measured!("BTreeMap, keys in no order", BTreeMap, keys.iter().copied());
    measured!("SharedMap, keys in no order", SharedMap, keys.iter().copied());
    measured!("BTreeMap, keys in order", BTreeMap, 0..count());
    measured!("SharedMap, keys in order", SharedMap, 0..count());
}
