//! Runs the checker and derives the verdict.
//!
//! stateright's own report says "done" even of a run that was cut short, and prints violations
//! without failing. So this module decides the verdict. A run passes if the checker finished before
//! any limit, no property that must always hold was violated, and every property that must be
//! possible was met.

pub(crate) mod explore;
pub(crate) mod verdict;

pub use explore::{exhaust, explore};
pub use verdict::{Effort, End, Expected, Verdict};
