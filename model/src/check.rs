//! Running the checker to its end, and saying honestly what came of it.
//!
//! stateright's own report says "done" also of a run that was cut short, and prints violations without failing. So the
//! verdict is made here: a run is exhaustive if the checker ended by itself, without any limit; it passes if it is, no
//! property that must hold was violated, and every property that must be possible was met.

use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, CheckerBuilder, Expectation, Model};

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// States that were generated, and how many of them were different.
    pub states: (usize, usize),
    /// The longest path that was followed.
    pub depth: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// Properties that must hold and do not, with the length of the path that shows it.
    pub violated: Vec<(&'static str, usize)>,
    /// Properties that must be possible and were not met.
    pub unmet: Vec<&'static str>,
}

impl Verdict {
    /// Whether everything is as it must be.
    pub fn passes(&self) -> bool {
        self.violated.is_empty() && self.unmet.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (generated, unique) = self.states;
        #[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
        let rate = generated as f64 / self.elapsed.as_secs_f64() / 1e6;
        let (depth, seconds) = (self.depth, self.elapsed.as_secs_f64());
        write!(f, "{generated} generated, {unique} unique, depth {depth}, {seconds:.1} s, {rate:.2} M/s")?;
        for (property, steps) in &self.violated {
            write!(f, "; VIOLATED after {steps} steps: {property}")?;
        }
        for property in &self.unmet {
            write!(f, "; never met: {property}")?;
        }
        if self.violated.is_empty() { write!(f, "; exhaustive") } else { Ok(()) }
    }
}

/// Explores everything, depth first.
pub fn exhaust<M>(checker: CheckerBuilder<M>, threads: usize) -> Verdict
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Send + Sync + 'static,
{
    let begun = Instant::now();
    // No limit of any kind is set: when this returns, there is nothing left (or everything is already known).
    let checker = checker.threads(threads).spawn_dfs().join();
    let elapsed = begun.elapsed();
    let discoveries = checker.discoveries();
    let (mut violated, mut unmet) = (Vec::new(), Vec::new());
    for property in checker.model().properties() {
        match (property.expectation, discoveries.get(property.name)) {
            (Expectation::Sometimes, None) => unmet.push(property.name),
            (Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => violated.push((property.name, path.clone().into_actions().len())),
        }
    }
    let states = (checker.state_count(), checker.unique_state_count());
    Verdict { states, depth: checker.max_depth(), elapsed, violated, unmet }
}
