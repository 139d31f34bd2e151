//! What the locks protect: it refuses a token that is lower than the highest it has seen.

use std::collections::BTreeMap;

use palisade_spec::lock::{Key, Token};

use super::tally::Tally;

/// A resource for each key.
#[derive(Debug, Default)]
pub(super) struct Resource {
    highest: BTreeMap<Key, Token>,
}

impl Resource {
    /// Somebody wants to be let in with a token, and is or is not.
    pub(super) fn access(&mut self, key: &Key, token: Token, tally: &mut Tally) -> bool {
        let highest = self.highest.entry(key.clone()).or_default();
        if token < *highest {
            tally.accesses_refused += 1;
            return false;
        }
        *highest = token;
        tally.accesses += 1;
        true
    }
}
