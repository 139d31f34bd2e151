//! The open cases: a task for each arrival, at a part of what the lock was measured to serve, and above it. What waits is
//! counted over time.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Context, contenders};
use crate::contend::attempt::Attempt;
use crate::contend::load::{Load, Model};
use crate::contend::schedule::Gaps;
use crate::contend::summary::Summary;
use crate::dlock::{Backend, Locks};
use crate::event::micros;

/// Arrivals a second, in hundredths of the measured ceiling.
pub(in super::super) const LOADS: [u64; 3] = [50, 90, 120];
/// How long attempts arrive: `--duration` is of the other cases, because a longer queue would reach the bound.
pub(in super::super) const DURATION: Duration = Duration::from_secs(10);
/// How long an attempt waits: as long as a lock lasts.
pub(super) const WAIT: Duration = contenders::TTL;
/// Attempts in flight at most, because a process has 20,000 sockets or so. It is no part of the model, so an arrival beyond it
/// is a prediction that failed.
pub(super) const BOUND: usize = 3_000;
/// The same with Redlock: an attempt keeps its connections to five servers while it undoes a split vote over five others.
pub(super) const REDLOCK_BOUND: usize = 1_900;
/// Time between two looks at the queue.
const STEP_US: u64 = 250_000;

/// What was measured at one offered load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenCase {
    /// Arrivals a second, in hundredths of the measured ceiling.
    pub load: u64,
    /// Arrivals a second.
    pub rate: f64,
    /// How long attempts arrived.
    pub duration_us: u64,
    /// What was measured.
    pub summary: Summary,
    /// Attempts that had arrived and still waited, at the beginning and then four times a second until none waited.
    pub queue: Vec<usize>,
    /// Operations that the checkers of histories judged.
    pub operations: usize,
    /// Violations that they found.
    pub violations: Vec<String>,
}

impl OpenCase {
    /// The queue over time: seconds, and attempts that wait.
    pub(super) fn points(&self) -> Vec<(f64, f64)> {
        let at = |index: usize| (index as u64 * STEP_US) as f64 / 1e6;
        self.queue.iter().enumerate().map(|(index, &waiting)| (at(index), waiting as f64)).collect()
    }

    /// Attempts that waited when the last one had arrived.
    pub(super) fn at_end(&self) -> usize {
        let index = usize::try_from(self.duration_us / STEP_US).unwrap_or(usize::MAX);
        self.queue.get(index).copied().unwrap_or(0)
    }
}

/// Runs the open cases. `ceiling` are the most hand-overs a second that were measured.
pub(super) async fn run(
    context: &Context,
    locks: &Arc<dyn Locks>,
    ceiling: f64,
    work: Duration,
) -> Result<Vec<OpenCase>, String> {
    let contenders = if context.backend == Backend::Redlock { REDLOCK_BOUND } else { BOUND };
    let mut cases = Vec::new();
    for load in LOADS {
        let rate = (ceiling * load as f64 / 100.0).max(0.1);
        eprintln!("contention: {}: open, {load} % of the ceiling: {rate:.1} arrivals a second", context.backend);
        let model = Model::Open { rate };
        let gaps = Gaps::Exponential;
        let plan = Load { model, gaps, contenders, keys: 1, duration: DURATION, seed: context.seed };
        let name = format!("contention-open-{load}");
        let (attempts, judgement) = contenders::case(context, locks, &name, (work, WAIT), &plan).await?;
        let summary = Summary::of(&attempts, context.backend.name(), &context.endpoints);
        eprint!("{}", crate::contend::describe(&summary));
        let (operations, violations) = (judgement.operations, judgement.service);
        // JSON with more digits may read back as a neighbouring number.
        let rate = (rate * 1e3).round() / 1e3;
        let duration_us = micros(DURATION);
        cases.push(OpenCase { load, rate, duration_us, summary, queue: queue(&attempts), operations, violations });
    }
    Ok(cases)
}

/// How many attempts wait, at the beginning and then in steps until none waits. An attempt waits from its intended start on,
/// so that a load generator that is late hides no waiter.
fn queue(attempts: &[Attempt]) -> Vec<usize> {
    let last = attempts.iter().map(|attempt| attempt.ended_us).max().unwrap_or(0);
    let waits = |at: u64| move |attempt: &&Attempt| attempt.intended_us <= at && at < attempt.ended_us;
    (0..=last.div_ceil(STEP_US)).map(|step| attempts.iter().filter(waits(step * STEP_US)).count()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contend::attempt::{Outcome, Release};

    fn attempt(intended_us: u64, ended_us: u64) -> Attempt {
        let (outcome, release) = (Outcome::Granted { token: 1 }, Release::Done);
        // The generator was late by 100 ms.
        let arrived_us = intended_us + 100_000;
        Attempt {
            number: 1,
            key: 0,
            intended_us,
            arrived_us,
            ended_us,
            finished_us: ended_us + 900_000,
            outcome,
            release,
        }
    }

    #[test]
    fn attempt_waits_from_its_intended_start_to_its_grant() {
        assert_eq!(queue(&[]), [0]);
        // At 0, 250, 500 and 750 ms. The second one is not seen yet at 250 ms, and waits at 500 ms.
        let attempts = [attempt(0, 600_000), attempt(250_001, 700_000), attempt(450_000, 500_000)];
        assert_eq!(queue(&attempts), [1, 1, 2, 0]);
    }

    #[test]
    fn queue_at_the_last_arrival_is_not_the_longest_one() {
        let case = OpenCase {
            load: 120,
            rate: 1.0,
            duration_us: 2 * STEP_US,
            summary: Summary::default(),
            queue: vec![0, 9, 5, 1],
            operations: 0,
            violations: Vec::new(),
        };
        assert_eq!(case.at_end(), 5);
        assert_eq!(case.points()[3], (0.75, 1.0));
    }
}
