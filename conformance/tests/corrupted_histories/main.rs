//! Valid histories, corrupted in every way that no correct service explains: the checkers refuse all of them. On small
//! histories an independent search ([`oracle`]) has a second opinion.
//!
//! `SEED=17 cargo test -p palisade-conformance --test corrupted_histories -- --nocapture` begins with another seed and prints how
//! many corruptions of each kind every checker refuses.

mod corrupt;
#[path = "../support/mutate.rs"]
mod mutate;
mod oracle;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use corrupt::{KINDS, Valid, spread};
use mutate::mutate;
use oracle::{Opinion, judge};
use palisade_conformance::history::History;
use palisade_conformance::history::check::{Verdict, check_fast};
use palisade_conformance::sim::simulate;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use support::{Size, correct};

/// At most so many corruptions of each kind are tried on one history.
const EACH: usize = 12;

/// Several keys, sessions that live long, and few clients: much of it is certain.
const CALM: Size = Size { clients: 5, keys: 3, operations: 400, ttl_ms: 400, resource: true };

fn first_seed() -> u64 {
    std::env::var("SEED").map_or(1, |seed| seed.parse().expect("SEED is a number"))
}

/// Simulated clusters, each of two storms and two calms. `CLUSTERS=100` takes more.
fn clusters() -> u64 {
    std::env::var("CLUSTERS").map_or(8, |count| count.parse().expect("CLUSTERS is a number"))
}

fn kept() -> Vec<(String, History)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories/good");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |file: &Path| History::read(fs::read(file).unwrap().as_slice()).unwrap();
    let mut kept: Vec<_> = files.map(|file| (file.display().to_string(), read(&file))).collect();
    kept.sort_by(|(one, _), (other, _)| one.cmp(other));
    kept
}

fn generated() -> Vec<(String, History)> {
    (first_seed()..first_seed() + 25).map(|seed| (format!("generated, seed {seed}"), correct(seed, CALM))).collect()
}

fn simulated() -> Vec<(String, History)> {
    let live = |seed| {
        let outcome = simulate(seed, Duration::from_secs(100));
        assert!(outcome.failure.is_none(), "seed {seed}: {:?}", outcome.failure);
        (format!("simulated, seed {seed}"), History::from_events(outcome.history).unwrap())
    };
    (first_seed()..first_seed() + clusters()).map(live).collect()
}

fn accusers(verdicts: &[Verdict]) -> Vec<&'static str> {
    verdicts.iter().filter(|verdict| !verdict.violations.is_empty()).map(|verdict| verdict.checker).collect()
}

/// What became of the corruptions of one kind.
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
                let accusers = accusers(&check_fast(&corrupted));
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

/// Goal: whatever no correct service can have shown, the fast checkers refuse, whichever way the history came to be.
#[test]
fn checkers_refuse_every_corruption() {
    let sources = [("kept", kept()), ("generated", generated()), ("simulated", simulated())];
    let tables = sources.map(|(title, sources)| {
        let table = try_all(&sources);
        print(title, &table);
        table
    });
    for (kind, _) in KINDS {
        let tried: usize = tables.iter().map(|table| table[kind].tried).sum();
        assert!(tried >= 5, "{kind} was tried {tried} times");
    }
    let missed: Vec<String> = tables.into_iter().flat_map(BTreeMap::into_values).flat_map(|kind| kind.missed).collect();
    assert!(missed.is_empty(), "{} corruptions were not refused: {:#?}", missed.len(), &missed[..missed.len().min(10)]);
}

/// So few operations that everything can be tried.
const SMALL: Size = Size { clients: 3, keys: 2, operations: 11, ttl_ms: 25, resource: false };

const BUDGET: usize = 20_000;

/// Goal: the checkers and a search that shares nothing with them agree. What is valid is possible for both; what was corrupted
/// is impossible for both; and whatever the fast checkers accuse, the search finds impossible.
#[test]
fn an_independent_search_agrees() {
    let (mut undecided, mut valid, mut corrupted, mut mutants) = (0, 0, 0, [0; 3]);
    let mut random = StdRng::seed_from_u64(first_seed());
    for seed in first_seed()..first_seed() + 300 {
        let history = spread(&correct(seed, SMALL));
        let lines = |history: &History| -> String {
            history.operations.iter().map(|operation| format!("  {operation}\n")).collect()
        };
        valid += 1;
        match judge(&history, BUDGET) {
            Opinion::Possible => {}
            Opinion::Undecided => undecided += 1,
            Opinion::Impossible => panic!("seed {seed} is valid, and the search refuses it:\n{}", lines(&history)),
        }
        for (kind, corruptions) in KINDS {
            for corruption in corruptions(&Valid::new(&history)).choose_multiple(&mut random, 3) {
                let changed = corruption.apply(&history);
                corrupted += 1;
                assert!(
                    !accusers(&check_fast(&changed)).is_empty(),
                    "seed {seed}, {kind}, {corruption}:\n{}",
                    lines(&changed)
                );
                match judge(&changed, BUDGET) {
                    Opinion::Impossible => {}
                    Opinion::Undecided => undecided += 1,
                    Opinion::Possible => panic!("seed {seed}, {kind}: {corruption} is possible:\n{}", lines(&changed)),
                }
            }
        }
        for mutant in (0..4).filter_map(|_| mutate(&history, &mut random)) {
            let verdicts = check_fast(&mutant);
            let (opinion, accused) = (judge(&mutant, BUDGET), !accusers(&verdicts).is_empty());
            undecided += usize::from(opinion == Opinion::Undecided);
            assert!(!accused || opinion != Opinion::Possible, "seed {seed}: {verdicts:?}\n{}", lines(&mutant));
            mutants[0] += 1;
            mutants[1] += usize::from(opinion == Opinion::Impossible);
            mutants[2] += usize::from(opinion == Opinion::Impossible && accused);
        }
    }
    let [mutants, impossible, accused] = mutants;
    println!("{valid} valid and {corrupted} corrupted histories, {mutants} mutants; {undecided} undecided");
    println!("the search refuses {impossible} mutants, of which the fast checkers accuse {accused}");
    assert!(corrupted > 300 && impossible > 100, "{corrupted} corruptions, {impossible} impossible mutants");
    assert!(undecided * 20 < valid + corrupted + mutants, "the search decides nearly all: {undecided} are left");
}
