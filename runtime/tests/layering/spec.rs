//! The spec does no IO, and its consensus knows nothing of locks.

use super::code::{code_below, workspace};

/// Goal: "no IO, no clock, no thread" is the compiler's word, not ours: the spec has no standard
/// library to do them with, and no unsafe code to get around that.
#[test]
fn the_spec_has_no_standard_library_and_no_unsafe_code() {
    let root = std::fs::read_to_string(workspace().join("spec/src/lib.rs")).unwrap();
    for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
        assert!(root.lines().any(|line| line == attribute), "spec/src/lib.rs lacks {attribute}");
    }
    for (path, code) in code_below("spec/src") {
        // Under `no_std` this is the only way back to it.
        assert!(!code.contains("extern crate std"), "{path} brings the standard library back");
    }
}

/// Goal: consensus is generic over what it replicates, and stays so: it never names the lock table.
#[test]
fn raft_never_names_locks() {
    assert_eq!(words("use crate::lock::LockTable; const LOCKS: Clock = relock();").iter().filter(is_lock).count(), 3);
    for (path, code) in code_below("spec/src/raft") {
        let named: Vec<String> = words(&code).into_iter().filter(|word| is_lock(&word)).collect();
        assert!(named.is_empty(), "{path} names {named:?}");
    }
}

fn is_lock(word: &&String) -> bool {
    matches!(word.as_str(), "lock" | "locks" | "locked")
}

/// The words of which identifiers are made: `LockTable`, `lock_table` and `LOCK` have "lock",
/// `clock` does not.
fn words(code: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for character in code.chars() {
        let begins = character.is_ascii_uppercase() && !before.is_ascii_uppercase();
        if begins || !character.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        if character.is_ascii_alphanumeric() {
            words.last_mut().unwrap().push(character.to_ascii_lowercase());
        }
        before = character;
    }
    words.retain(|word| !word.is_empty());
    words
}
