//! The fast checkers against the search, on small random histories, and on correct histories that
//! are too long for it.
//!
//! `SEED=17 cargo test -p palisade-conformance --test cross_check` begins with another seed. The test
//! prints its counts (`--nocapture`).

#[path = "support/mutate.rs"]
mod mutate;
mod support;

use mutate::mutate;
use palisade_history::History;
use palisade_history::check::{Verdict, check_fast, linearizable};
use rand::SeedableRng;
use rand::rngs::StdRng;
use support::{Claims, Size, correct};

use linearizable::Outcome;

/// Number of correct histories, and of mutants of each.
const HISTORIES: u64 = 200;
const MUTANTS: usize = 3;
const BUDGET: usize = 4_000;

const SMALL: Size = Size {
    clients: 3,
    keys: 1,
    operations: 16,
    ttl_ms: 25,
    resource: false,
    operators: false,
    claims: Claims::Exclusive,
};
const LONG: Size = Size {
    clients: 8,
    keys: 4,
    operations: 2_000,
    ttl_ms: 60,
    resource: true,
    operators: false,
    claims: Claims::Exclusive,
};

fn first_seed() -> u64 {
    std::env::var("SEED").map_or(1, |seed| seed.parse().expect("SEED must be a number"))
}

fn accusations(verdicts: &[Verdict]) -> Vec<String> {
    let all = verdicts.iter().flat_map(|verdict| verdict.violations.iter().map(move |violation| (verdict, violation)));
    all.map(|(verdict, violation)| format!("{}: {violation}", verdict.checker)).collect()
}

fn lines(history: &History) -> String {
    history.operations.iter().map(|operation| format!("  {operation}\n")).collect()
}

/// Number of histories. `HISTORIES=20000` checks more; `just long-tests` has its own number.
fn histories() -> u64 {
    std::env::var("HISTORIES").map_or(HISTORIES, |count| count.parse().expect("HISTORIES must be a number"))
}

/// The seed's history. In every other one operators break grants and change the access rules, and in every
/// other one clients ask for locks in all modes, and again for what they hold; for several keys and with
/// values only in long histories, because the search does not know them.
fn correct_by(seed: u64, size: Size) -> History {
    let claims = if size.keys == 1 { Claims::OneKey } else { Claims::All };
    let claims = if seed % 4 < 2 { claims } else { Claims::Exclusive };
    correct(seed, Size { operators: seed.is_multiple_of(2), claims, ..size })
}

/// Goal: no checker accuses a correct history, and the search refuses whatever a fast checker
/// accuses.
#[test]
fn search_refuses_what_fast_checkers_accuse() {
    let (mut undecided, mut refused, mut found, mut looked) = (0, 0, 0, 0);
    let count = histories();
    for seed in first_seed()..first_seed() + count {
        let history = correct_by(seed, SMALL);
        let accused = accusations(&check_fast(&history));
        assert_eq!(accused, Vec::<String>::new(), "seed {seed} is correct:\n{}", lines(&history));
        match linearizable::decide(&history, BUDGET) {
            Outcome::Linearizable => {}
            Outcome::Undecided => undecided += 1,
            Outcome::Unknown => panic!("seed {seed} has claims that the search does not know:\n{}", lines(&history)),
            Outcome::Refused => panic!("seed {seed} is correct, and no order was found:\n{}", lines(&history)),
        }
        let mut random = StdRng::seed_from_u64(seed);
        for number in 0..MUTANTS {
            let Some(mutant) = (0..20).find_map(|_| mutate(&history, &mut random)) else { continue };
            looked += 1;
            let accused = accusations(&check_fast(&mutant));
            let outcome = linearizable::decide(&mutant, BUDGET);
            undecided += u64::from(outcome == Outcome::Undecided);
            refused += u64::from(outcome == Outcome::Refused);
            found += u64::from(outcome == Outcome::Refused && !accused.is_empty());
            let explained = outcome == Outcome::Linearizable && !accused.is_empty();
            assert!(!explained, "seed {seed}, mutant {number}: {accused:#?} can be explained:\n{}", lines(&mutant));
        }
    }
    println!("{count} correct histories, {looked} mutants; {undecided} undecided");
    println!("the search refuses {refused} mutants, of which the fast checkers accuse {found}");
    assert!(undecided * 20 < count + looked, "the search must decide nearly all histories; {undecided} are undecided");
    assert!(
        found * 2 > refused && found > 100,
        "the fast checkers must find most refused mutants, not {found} of {refused}"
    );
}

/// Goal: no false accusations in histories too long for the search, with several keys, a resource
/// and stale reads.
#[test]
fn long_correct_histories_are_not_accused() {
    for seed in first_seed()..first_seed() + 40 {
        let history = correct_by(seed, LONG);
        let accused = accusations(&check_fast(&history));
        assert_eq!(accused, Vec::<String>::new(), "seed {seed}");
    }
}

/// Goal: checking a million operations takes seconds. Run in a release build with `-- --ignored
/// --nocapture`.
#[test]
#[ignore = "a measurement: run it in a release build"]
fn a_million_operations() {
    let size = Size {
        clients: 64,
        keys: 200,
        operations: 1_000_000,
        ttl_ms: 3_000,
        resource: true,
        operators: false,
        claims: Claims::Exclusive,
    };
    let begun = std::time::Instant::now();
    let history = correct(1, size);
    println!("{} operations generated in {:?}", history.operations.len(), begun.elapsed());
    let begun = std::time::Instant::now();
    let verdicts = check_fast(&history);
    println!("checked in {:?}", begun.elapsed());
    for verdict in &verdicts {
        println!("{:<14} {}", verdict.checker, verdict.checked);
    }
    assert_eq!(accusations(&verdicts), Vec::<String>::new());
    let path = std::env::temp_dir().join("palisade-million.jsonl");
    if std::env::var_os("KEEP").is_some() {
        history.write(std::io::BufWriter::new(std::fs::File::create(&path).unwrap())).unwrap();
        println!("written to {}", path.display());
    }
}
