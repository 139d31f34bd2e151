//! Running the checker to its end, and saying honestly what came of it.
//!
//! stateright's own report says "done" also of a run that was cut short, and prints violations without failing. So the
//! verdict is made here: a run passes if the checker came to its end before any limit, no property that must hold was
//! violated, and every property that must be possible was met.

use std::fmt::{self, Debug};
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Model, Property};

use crate::models::Expected;
use crate::progress::{Memory, Watch};
use crate::readable::Representative;
use crate::watched::Watched;

/// How much is explored, and with how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// With how many threads.
    pub threads: usize,
    /// At most about so many states are generated.
    pub states: Option<usize>,
    /// It takes at most about so long.
    pub time: Option<Duration>,
    /// Under this name it is said from time to time how far the run is; without a name, never.
    pub name: Option<&'static str>,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// States that were generated, and how many of them were different.
    pub states: (usize, usize),
    /// The longest path that was followed.
    pub depth: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// Properties that must hold and do not.
    pub violated: Vec<&'static str>,
    /// Properties that must be possible and were not met.
    pub unmet: Vec<&'static str>,
    /// Why the run ended.
    pub end: End,
    /// How much memory it took, if that is known.
    pub memory: Option<Memory>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There was nothing left to explore.
    Exhausted,
    /// Every property had been violated or met: there was nothing left to find out.
    Decided,
    /// A limit was reached. What was not seen may still be there.
    Cut,
}

impl Verdict {
    /// Whether everything is as it must be.
    pub fn passes(&self) -> bool {
        self.is_as(Expected::Holds)
    }

    /// Whether the number of different states is the one that is pinned. A run that ended early does not know it.
    pub fn is_pinned(&self, unique: usize) -> bool {
        self.end != End::Exhausted || self.states.1 == unique
    }

    /// Whether everything is as expected: nothing but the expected property is violated, everything that must be possible
    /// was met, and the run was not cut short.
    pub fn is_as(&self, expected: Expected) -> bool {
        let as_told = match expected {
            Expected::Holds => self.violated.is_empty(),
            Expected::Violates(property) => self.violated == [property],
        };
        as_told && self.unmet.is_empty() && self.end != End::Cut
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
            // Of fewer it would say what the process needs by itself.
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
            End::Decided => write!(f, "; ended when all was decided"),
            End::Cut => write!(f, "; INCOMPLETE: a limit was reached, what was not seen may still be there"),
        }
    }
}

/// Explores everything, depth first. Without `representative`, all states are different that are not equal.
pub fn exhaust<M>(model: M, representative: Option<Representative<M::State>>, threads: usize) -> Verdict
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    explore(model, representative, &Effort { threads, ..Effort::default() })
}

/// A model to explore: its only property is that there is something left to find out.
struct Explored<M: Model>(Watched<M>);

impl<M: Model> Model for Explored<M> {
    type State = M::State;
    type Action = M::Action;

    fn init_states(&self) -> Vec<M::State> {
        self.0.model.init_states()
    }

    fn actions(&self, state: &M::State, actions: &mut Vec<M::Action>) {
        self.0.model.actions(state, actions);
    }

    fn next_state(&self, last: &M::State, action: M::Action) -> Option<M::State> {
        self.0.model.next_state(last, action)
    }

    fn properties(&self) -> Vec<Property<Explored<M>>> {
        vec![Property::always(UNDECIDED, |explored: &Explored<M>, state| {
            explored.0.look(state);
            !explored.0.is_decided()
        })]
    }
}

const UNDECIDED: &str = "there is something left to find out";

/// Explores, depth first, until nothing is left or a limit is reached.
///
/// # Panics
/// If the model does.
pub fn explore<M>(model: M, representative: Option<Representative<M::State>>, effort: &Effort) -> Verdict
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let mut checker = Explored(Watched::new(model)).checker().threads(effort.threads);
    if let Some(representative) = representative {
        checker = checker.symmetry_fn(representative);
    }
    if let Some(states) = effort.states {
        checker = checker.target_state_count(states);
    }
    if let Some(time) = effort.time {
        // A single thread never looks at the clock: it would run to its end.
        checker = checker.timeout(time).threads(effort.threads.max(2));
    }
    let begun = Instant::now();
    let mut watch = Watch::new(effort.name, begun);
    // Unlike `report`, this panics if a thread did.
    let checker = checker.spawn_dfs().join_and_report(&mut watch);
    let elapsed = watch.ended().unwrap_or_else(Instant::now) - begun;
    let watched = &checker.model().0;
    let states = (checker.state_count(), checker.unique_state_count());
    let cut = effort.states.is_some_and(|limit| states.0 >= limit) || effort.time.is_some_and(|limit| elapsed >= limit);
    let end = match cut {
        true => End::Cut,
        false if watched.is_decided() => End::Decided,
        false => End::Exhausted,
    };
    Verdict {
        states,
        depth: checker.max_depth(),
        elapsed,
        violated: watched.shown(true).map(|property| property.name).collect(),
        unmet: watched.unmet().map(|property| property.name).collect(),
        end,
        memory: watch.memory(),
    }
}
