//! Valid histories, corrupted in ways that no correct service explains: the fast checkers must
//! refuse all of them.
//!
//! `SEED=17 cargo test -p palisade-conformance --test corrupted_histories -- --nocapture` begins
//! with another seed and prints how many corruptions of each kind each checker refuses.

mod corrupt;
#[path = "../support/mod.rs"]
mod support;
mod valid;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use corrupt::{KINDS, OTHER_VALUE, spread};
use palisade_conformance::sim::simulate;
use palisade_history::History;
use palisade_history::check::{Verdict, check_fast, values};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use support::{Claims, Size, correct};
use valid::Valid;

/// Maximum number of corruptions of each kind that are tried on one history.
const EACH: usize = 12;

/// Several keys, long sessions and few clients leave few unknown outcomes.
const CALM: Size = Size {
    clients: 5,
    keys: 3,
    operations: 400,
    ttl_ms: 400,
    resource: true,
    operators: false,
    claims: Claims::Exclusive,
};

fn first_seed() -> u64 {
    std::env::var("SEED").map_or(1, |seed| seed.parse().expect("SEED must be a number"))
}

/// Number of simulated clusters, each with two storms and two calms. `CLUSTERS=100` simulates more.
fn clusters() -> u64 {
    std::env::var("CLUSTERS").map_or(8, |count| count.parse().expect("CLUSTERS must be a number"))
}

fn hand_made() -> Vec<(String, History)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories/good");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |file: &Path| History::read(fs::read(file).unwrap().as_slice()).unwrap();
    let mut hand_made: Vec<_> = files.map(|file| (file.display().to_string(), read(&file))).collect();
    hand_made.sort_by(|(one, _), (other, _)| one.cmp(other));
    hand_made
}

fn generated() -> Vec<(String, History)> {
    let claims = [Claims::Exclusive, Claims::All, Claims::All];
    let size = |seed: u64| {
        let claims = claims[usize::try_from(seed % 3).expect("below 3")];
        Size { operators: seed.is_multiple_of(2), claims, ..CALM }
    };
    (first_seed()..first_seed() + 40)
        .map(|seed| (format!("generated, seed {seed}"), correct(seed, size(seed))))
        .collect()
}

/// Every second cluster, beginning with the one at this offset, 0 or 1: two threads share them.
fn simulated(offset: u64) -> Vec<(String, History)> {
    let live = |seed| {
        let outcome = simulate(seed, Duration::from_secs(100));
        assert!(outcome.failure.is_none(), "seed {seed}: {:?}", outcome.failure);
        (format!("simulated, seed {seed}"), History::from_events(outcome.history).unwrap())
    };
    (first_seed() + offset..first_seed() + clusters()).step_by(2).map(live).collect()
}

fn accusers(verdicts: &[Verdict]) -> Vec<&'static str> {
    verdicts.iter().filter(|verdict| !verdict.violations.is_empty()).map(|verdict| verdict.checker).collect()
}

/// The results for the corruptions of one kind.
#[derive(Default)]
struct Tried {
    tried: usize,
    refused: usize,
    by: BTreeMap<&'static str, usize>,
    missed: Vec<String>,
}

fn try_all(sources: &[(String, History)]) -> BTreeMap<&'static str, Tried> {
    let mut table: BTreeMap<&'static str, Tried> = BTreeMap::new();
    let mut random = StdRng::seed_from_u64(first_seed());
    for (name, history) in sources {
        let history = spread(history);
        assert_eq!(accusers(&check_fast(&history)), Vec::<&str>::new(), "{name} is valid");
        let valid = Valid::new(&history);
        for (kind, corruptions) in KINDS {
            let corruptions = corruptions(&valid);
            let tried = table.entry(kind).or_default();
            for corruption in corruptions.choose_multiple(&mut random, EACH) {
                let corrupted = corruption.apply(&history);
                let mut accusers = accusers(&check_fast(&corrupted));
                // A corrupted holder has no value, or that of another grant: the other checkers must see it.
                accusers.retain(|checker| *checker != values::NAME || kind == OTHER_VALUE);
                tried.tried += 1;
                tried.refused += usize::from(!accusers.is_empty());
                if accusers.is_empty() {
                    tried.missed.push(format!("{name}: {corruption}"));
                }
                accusers.into_iter().for_each(|checker| *tried.by.entry(checker).or_default() += 1);
            }
        }
    }
    table
}

fn print(title: &str, table: &BTreeMap<&'static str, Tried>) {
    println!("{title}:");
    for (kind, Tried { tried, refused, by, missed }) in table {
        println!("  {kind:<32} {refused:>5} of {tried:>5} refused {by:?}");
        missed.iter().take(2).for_each(|missed| println!("    missed: {missed}"));
    }
    let (refused, tried) = table.values().fold((0, 0), |sum, kind| (sum.0 + kind.refused, sum.1 + kind.tried));
    println!("  all: {refused} of {tried}");
}

/// Goal: the fast checkers refuse every answer that no correct service can give, in generated and
/// in simulated histories.
#[test]
fn checkers_refuse_every_corruption() {
    type Source = fn() -> Vec<(String, History)>;
    let sources: [(_, Source); 4] = [
        ("hand-made", hand_made),
        ("generated", generated),
        ("simulated", || simulated(0)),
        ("simulated, the others", || simulated(1)),
    ];
    let tables = thread::scope(|scope| {
        let tried = sources.map(|(title, source)| (title, scope.spawn(move || try_all(&source()))));
        tried.map(|(title, table)| (title, table.join().expect("every history is valid")))
    });
    let tables = tables.map(|(title, table)| {
        print(title, &table);
        table
    });
    for (kind, _) in KINDS {
        let tried: usize = tables.iter().filter_map(|table| Some(table.get(kind)?.tried)).sum();
        assert!(tried >= 5, "{kind} was tried {tried} times");
    }
    let missed: Vec<String> = tables.into_iter().flat_map(BTreeMap::into_values).flat_map(|kind| kind.missed).collect();
    assert!(missed.is_empty(), "{} corruptions were not refused: {:#?}", missed.len(), &missed[..missed.len().min(10)]);
}
