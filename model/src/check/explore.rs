//! Explores one model.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::report::ReportData;
use stateright::{Checker, Model};

use super::verdict::{Effort, End, Verdict};
use crate::presentation::Representative;
use crate::progress::Watch;
use crate::property_set::PropertySet;

/// Explores the whole state space, depth first. Without `representative`, only equal states count
/// as one.
pub fn exhaust<M>(model: M, representative: Option<Representative<M::State>>, threads: usize) -> Verdict
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    explore(model, representative, &Effort { threads, ..Effort::default() })
}

/// Explores, depth first, until no state is left or a limit is reached.
///
/// # Panics
/// If the model panics.
pub fn explore<M>(model: M, representative: Option<Representative<M::State>>, effort: &Effort) -> Verdict
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let mut checker = PropertySet::new(model).checker().threads(effort.threads);
    if let Some(representative) = representative {
        checker = checker.symmetry_fn(representative);
    }
    if let Some(states) = effort.states {
        checker = checker.target_state_count(states);
    }
    if let Some(time) = effort.time {
        // With a single thread stateright never checks the timeout and would run to the end.
        checker = checker.timeout(time).threads(effort.threads.max(2));
    }
    let begun = Instant::now();
    let mut watch = Watch::new(effort.name, begun);
    let mut checker = checker.spawn_dfs();
    watch.wait(checker.handles(), &|| ReportData {
        total_states: checker.state_count(),
        unique_states: checker.unique_state_count(),
        max_depth: checker.max_depth(),
        duration: begun.elapsed(),
        done: false,
    });
    let elapsed = watch.ended().unwrap_or_else(Instant::now) - begun;
    let watched = checker.model();
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
