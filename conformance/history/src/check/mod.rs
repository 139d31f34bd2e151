//! The checkers. The header of each file says what the checker proves and what it cannot find.
//!
//! There are two kinds. [`linearizable`] searches for an order of the operations that explains all
//! answers of a sequential lock: it is complete, for short histories of one key. The others check
//! whole histories in O(n log n) with the help of the tokens: because each grant has a number
//! greater than all before, they need not search for the order of the grants. They find less, and
//! are compared with the search on thousands of small histories (`tests/cross_check.rs`): the
//! search must refuse whatever they accuse.

pub mod acknowledged;
pub mod exclusion;
mod facts;
mod fenced_lock;
pub mod fifo;
mod intervals;
mod lasting;
pub mod linearizable;
pub mod records;
pub mod resource;
mod step;
mod steps;
#[cfg(test)]
mod test_history;
pub mod values;

use std::fmt;

use super::History;
use facts::Facts;

/// The result of one checker for one history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The checker's name.
    pub checker: &'static str,
    /// How much it checked, in words.
    pub checked: String,
    /// The violations, a sentence each; empty if none was found.
    pub violations: Vec<Violation>,
}

/// A sentence: what was expected and what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Maximum number of violations per checker: one bug of a service often causes thousands.
const MOST: usize = 10;

/// Runs the checkers whose cost is O(n log n).
pub fn check_fast(history: &History) -> Vec<Verdict> {
    let facts = Facts::of(history);
    let by_facts = [exclusion::check(&facts), acknowledged::check(&facts), fifo::check(&facts)];
    by_facts.into_iter().chain([resource::check(&facts), records::check(&facts), values::check(&facts)]).collect()
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
