//! The resource that a lock protects: it refuses a token lower than the highest that it has
//! accepted.

use std::collections::BTreeMap;

use palisade_spec::lock::{Key, Token};

use super::tally::Tally;

/// A resource for each key.
#[derive(Debug, Default)]
pub(super) struct Resource {
    highest: BTreeMap<Key, Token>,
}

impl Resource {
    /// A client accesses the resource with a token. Returns whether the token is accepted.
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
