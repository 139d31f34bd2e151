//! The verdict on a run, and the limits of the run.

use std::fmt;
use std::time::Duration;

use crate::progress::Memory;

/// Limits and resources of an exploration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Number of threads.
    pub threads: usize,
    /// Approximate maximum number of generated states.
    pub states: Option<usize>,
    /// Approximate maximum duration.
    pub time: Option<Duration>,
    /// Name under which progress is reported from time to time; without a name, progress is not
    /// reported.
    pub name: Option<&'static str>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Number of generated states, and of unique states.
    pub states: (usize, usize),
    /// Length of the longest path that was followed.
    pub depth: usize,
    /// Duration of the run.
    pub elapsed: Duration,
    /// Properties that must always hold and were violated.
    pub violated: Vec<&'static str>,
    /// Properties that must be possible and were not met.
    pub unmet: Vec<&'static str>,
    /// Why the run ended.
    pub end: End,
    /// Memory use, if known.
    pub memory: Option<Memory>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The whole state space was explored.
    Exhausted,
    /// Every property had been violated or met: the remaining states could change no result.
    Decided,
    /// A limit was reached. Unexplored states may still contain a violation.
    Cut,
}

impl Verdict {
    /// Whether every property is as it must be and the run was not cut short.
    pub fn passes(&self) -> bool {
        self.is_as(Expected::Holds)
    }

    /// Whether the number of unique states is the expected one. A run that ended early does not
    /// know its number and passes.
    pub fn is_pinned(&self, unique: usize) -> bool {
        self.end != End::Exhausted || self.states.1 == unique
    }

    /// Whether the result is the expected one: no property but the expected one is violated, every
    /// property that must be possible was met, and the run was not cut short.
    pub fn is_as(&self, expected: Expected) -> bool {
        let as_expected = match expected {
            Expected::Holds => self.violated.is_empty(),
            Expected::Violates(property) => self.violated == [property],
        };
        as_expected && self.unmet.is_empty() && self.end != End::Cut
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (generated, unique) = self.states;
        #[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
        let rate = generated as f64 / self.elapsed.as_secs_f64() / 1e6;
        let (depth, seconds) = (self.depth, self.elapsed.as_secs_f64());
        write!(f, "{generated} generated, {unique} unique, depth {depth}, {seconds:.1} s, {rate:.2} M/s")?;
        if let Some(memory) = self.memory {
            write!(f, ", peak {}", memory.peak)?;
            // With fewer states the figure would mostly be the process's own memory.
            if unique >= 100_000 {
                write!(f, ", {} B per unique state", memory.growth.0 / unique as u64)?;
            }
        }
        for property in &self.violated {
            write!(f, "; VIOLATED: {property}")?;
        }
        for property in &self.unmet {
            write!(f, "; never met: {property}")?;
        }
        match self.end {
            End::Exhausted => write!(f, "; exhaustive"),
            End::Decided => write!(f, "; ended early: every property was decided"),
            End::Cut => write!(f, "; INCOMPLETE: a limit was reached; unexplored states may contain a violation"),
        }
    }
}

/// The expected verdict of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// All properties hold within the model's bounds.
    Holds,
    /// The model's design violates this property, and no other.
    Violates(&'static str),
}
