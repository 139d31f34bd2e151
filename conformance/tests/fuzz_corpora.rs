//! The fuzzer's targets over their seeds and their kept corpora (`fuzz/README.md`): what once was
//! found, or leads far into a decoder, stays tried.

#[path = "../../fuzz/targets/mod.rs"]
mod targets;

use std::fs;
use std::path::Path;

use targets::{TARGETS, Target};

/// The kept inputs of a target: a file with one input a line, in hexadecimal digits.
fn corpus(target: Target) -> Vec<Vec<u8>> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("fuzz/corpus");
    let path = corpora.join(format!("{}.hex", target.name));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let byte = |line: &str, at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap_or_else(|_| panic!("{line}"));
    text.lines().map(|line| (0..line.len()).step_by(2).map(|at| byte(line, at)).collect()).collect()
}

/// A target whose seeds are refused would hardly get into its decoder.
#[test]
fn every_target_takes_its_seeds() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        for (number, seed) in seeds.iter().enumerate() {
            assert!((target.run)(seed), "{} refuses its seed {number}", target.name);
        }
    }
}

#[test]
fn no_target_panics_on_its_corpus() {
    for target in TARGETS {
        let corpus = corpus(target);
        assert!(corpus.len() > 10, "the corpus of {} has {} inputs", target.name, corpus.len());
        for (number, input) in corpus.iter().enumerate() {
            eprintln!("{}, line {}", target.name, number + 1);
            (target.run)(input);
        }
    }
}

/// A bit of every byte of a seed flipped, and the seed cut there: what a fuzzer tries first.
#[test]
fn no_target_panics_on_flipped_and_cut_seeds() {
    const BYTES: usize = 400;
    for target in TARGETS {
        for seed in (target.seeds)().into_iter().take(12) {
            for at in 0..seed.len().min(BYTES) {
                (target.run)(&seed[..at]);
                let mut flipped = seed.clone();
                flipped[at] ^= 1 << (at % 8);
                (target.run)(&flipped);
            }
        }
    }
}

/// `fuzz/run` starts from the seeds and from what was kept.
#[test]
#[ignore = "writes into PALISADE_FUZZ_SEEDS"]
fn inputs_are_written() {
    let directory = std::env::var("PALISADE_FUZZ_SEEDS").unwrap();
    for target in TARGETS {
        let directory = Path::new(&directory).join(target.name);
        fs::create_dir_all(&directory).unwrap();
        for (number, input) in (target.seeds)().iter().chain(&corpus(target)).enumerate() {
            fs::write(directory.join(format!("{number:04}")), input).unwrap();
        }
    }
}
