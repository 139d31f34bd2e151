//! The resource that a lock protects: it refuses a write with a token lower than the highest that it has
//! accepted, and a read with one lower than that of a write (docs/fencing.md, "Several holders").

use std::collections::BTreeMap;

use palisade_spec::lock::{Key, Token};

use super::tally::Tally;

/// A resource for each key.
#[derive(Debug, Default)]
pub(super) struct Resource {
    highest: BTreeMap<Key, Highest>,
}

/// The highest tokens that were accepted.
#[derive(Debug, Default)]
struct Highest {
    of_all: Token,
    of_writes: Token,
}

impl Resource {
    /// A client accesses the resource with a token; `reads`: it only reads. Returns whether the token is
    /// accepted.
    pub(super) fn access(&mut self, key: &Key, token: Token, reads: bool, tally: &mut Tally) -> bool {
        let highest = self.highest.entry(key.clone()).or_default();
        if token < if reads { highest.of_writes } else { highest.of_all } {
            tally.accesses_refused += 1;
            return false;
        }
        highest.of_all = highest.of_all.max(token);
        if !reads {
            highest.of_writes = token;
        }
        tally.accesses += 1;
        tally.accesses_of_readers += u64::from(reads);
        true
    }
}
