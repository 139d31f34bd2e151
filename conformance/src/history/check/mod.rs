//! The checkers. Each says what it proves, and what it cannot see, at the top of its file.
//!
//! Two kinds work together. [`linearizable`] searches for an order of the operations that a sequential lock could have
//! answered so: it is complete, for short histories of one key. The others look at everything in O(n log n), by what
//! tokens give away: because each grant has a number that is greater than all before, the order of the grants need not be
//! searched for. They find less, and are compared with the search on thousands of small histories
//! (`tests/cross_check.rs`): whatever they accuse, the search refuses too.

pub mod acknowledged;
pub mod exclusion;
mod facts;
mod fenced_lock;
pub mod fifo;
mod intervals;
pub mod linearizable;
pub mod resource;
mod steps;

use std::fmt;

use super::History;
use facts::Facts;

/// What one checker says of one history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The checker's name.
    pub checker: &'static str,
    /// How much it looked at, in words.
    pub checked: String,
    /// What is wrong, a sentence each. Empty: nothing was found.
    pub violations: Vec<Violation>,
}

/// What was expected and what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A checker collects no more violations than somebody will read: one mistake of a service often shows a thousand times.
const MOST: usize = 10;

/// Runs the checkers whose cost is O(n log n).
pub fn check_fast(history: &History) -> Vec<Verdict> {
    let facts = Facts::of(history);
    let by_facts = [exclusion::check(&facts), acknowledged::check(&facts), fifo::check(&facts)];
    by_facts.into_iter().chain([resource::check(&facts)]).collect()
}

/// Runs all checkers.
pub fn check_all(history: &History) -> Vec<Verdict> {
    let mut verdicts = check_fast(history);
    verdicts.push(linearizable::check(history, linearizable::BUDGET));
    verdicts
}

/// "1 read", "2 reads".
fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
