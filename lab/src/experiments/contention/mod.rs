//! Experiment `contention`: what more contenders for one key buy.
//!
//! Attempts arrive in the open model at a rate above what any lock can serve, so the queue fills up to the
//! number of contenders, and stays full until the arrivals end. Then the waiters drain. An arrival beyond the contenders is
//! not started, so these cases are closed at that number; [`open`] has those that leave nothing out.

pub(super) mod open;
mod page;

use std::time::Duration;

pub use open::OpenCase;
pub use page::page;
use serde::{Deserialize, Serialize};

use super::{Context, Found, contenders};
use crate::contend::load::{Load, Model};
use crate::contend::schedule::Gaps;
use crate::contend::summary::{Latency, Summary};
use crate::event::micros;
use crate::report::Prediction;
use crate::report::table::ms;

pub(super) const CONTENDERS: [u32; 3] = [50, 200, 1000];
pub(super) const WORK: Duration = Duration::from_millis(2);
/// Arrivals a second: twice the ceiling of a lock that costs nothing.
const RATE: u32 = 1000;
pub(super) const DURATION: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(10);
/// Errors of a case that the page lists; results.json has all.
const LISTED: usize = 3;
/// Rounds without contention.
pub(super) const UNCONTENDED: u64 = 1_000;
/// A 99.9th percentile of fewer values is the greatest of them.
const P999_VALUES: u64 = 1_000;

/// The cases of one backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The machine's load average before the run.
    pub load_average: String,
    /// How long attempts arrived in each case.
    pub duration_us: u64,
    /// Arrivals a second.
    #[serde(default = "default_rate")]
    pub rate: u32,
    /// How long a lock was to be held.
    #[serde(default = "default_work")]
    pub asked_work_us: u64,
    /// Rounds without contention, with those that failed.
    #[serde(default = "default_uncontended")]
    pub uncontended: u64,
    /// Acquires without contention.
    pub acquire: Latency,
    /// What the work took, with the timer's rounding.
    pub work: Latency,
    /// Releases without contention.
    pub release: Latency,
    /// Contenders whose connection could not be made before the cases.
    pub cold: u64,
    /// The first error of those.
    pub cold_error: Option<String>,
    /// The cases.
    pub cases: Vec<ContentionCase>,
    /// The open cases; empty in runs that are older than these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<OpenCase>,
}

/// A number of contenders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContentionCase {
    /// The number.
    pub contenders: u32,
    /// What was measured.
    pub summary: Summary,
    /// Operations that the checkers of histories judged.
    pub operations: usize,
    /// Violations that they found.
    pub violations: Vec<String>,
}

impl ContentionCase {
    /// Whether most attempts were granted. If not, the latencies of those that were say little about waiting.
    fn mostly_granted(&self) -> bool {
        2 * self.summary.granted > self.summary.arrivals - self.summary.overflow
    }
}

/// The rate of runs that did not record it.
fn default_rate() -> u32 {
    RATE
}

/// The work of runs that did not record it.
fn default_work() -> u64 {
    micros(WORK)
}

/// The rounds without contention of runs that did not record their number.
fn default_uncontended() -> u64 {
    200
}

/// The 99.9th percentile, if there are enough values for one.
fn p999(latency: &Latency) -> Option<u64> {
    (latency.count >= P999_VALUES).then_some(latency.p999_us)
}

impl Figures {
    /// Hand-overs a second if nothing overlaps: 1 / (work + acquire + release), of medians.
    pub(super) fn ceiling(&self) -> f64 {
        1e6 / (self.work.p50_us + self.acquire.p50_us + self.release.p50_us).max(1) as f64
    }

    /// The most hand-overs a second that were measured; without any, the computed ceiling.
    fn highest(&self) -> f64 {
        let highest = self.cases.iter().map(|case| case.summary.handovers_per_second).fold(0.0, f64::max);
        if highest > 0.0 { highest } else { self.ceiling() }
    }

    /// The lowest number of contenders with 90 % of the highest throughput: beyond it, more contenders buy only waiting.
    fn enough(&self) -> Option<u32> {
        let enough = |case: &&ContentionCase| case.summary.handovers_per_second >= 0.9 * self.highest();
        self.cases.iter().find(enough).map(|case| case.contenders)
    }
}

/// Runs all cases on one backend.
///
/// # Errors
/// The servers could not be reached before the cases. Errors within a case are figures.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let load_average = contenders::load_average();
    let locks = contenders::connect(context)?;
    let numbers = if context.contenders.is_empty() { &CONTENDERS[..] } else { &context.contenders };
    let duration = context.duration.unwrap_or(DURATION);
    let (rate, work_time) = (context.rate.unwrap_or(RATE), context.work.unwrap_or(WORK));
    // ZooKeeper needs some rounds before it is as fast as it stays.
    contenders::uncontended(&locks, "first", Duration::ZERO, 20).await?;
    let [acquire, work, release] = contenders::uncontended(&locks, "uncontended", work_time, UNCONTENDED).await?;
    let most = numbers.iter().copied().max().unwrap_or(0);
    let (cold, cold_error) = contenders::warm_up(&locks, most.into()).await;
    let mut cases = Vec::new();
    for &number in numbers {
        eprintln!("contention: {}: {number} contenders", context.backend);
        let load = Load {
            model: Model::Open { rate: rate.into() },
            gaps: Gaps::Exponential,
            contenders: number as usize,
            keys: 1,
            duration,
            seed: context.seed,
        };
        let name = format!("contention-{number}");
        let (attempts, judgement) = contenders::case(context, &locks, &name, (work_time, WAIT), &load).await?;
        let summary = Summary::of(&attempts, context.backend.name(), &context.endpoints);
        eprint!("{}", crate::contend::describe(&summary));
        let (operations, violations) = (judgement.operations, judgement.service);
        cases.push(ContentionCase { contenders: number, summary, operations, violations });
    }
    let (duration_us, asked_work_us) = (micros(duration), micros(work_time));
    let mut figures = Figures {
        load_average,
        duration_us,
        rate,
        asked_work_us,
        uncontended: UNCONTENDED,
        acquire,
        work,
        release,
        cold,
        cold_error,
        cases,
        open: Vec::new(),
    };
    figures.open = open::run(context, &locks, figures.highest(), work_time).await?;
    let predictions = predictions(&figures);
    Ok((figures, predictions))
}

fn predictions(figures: &Figures) -> Vec<Prediction> {
    let sum = |closed: fn(&ContentionCase) -> usize, open: fn(&OpenCase) -> usize| {
        figures.cases.iter().map(closed).chain(figures.open.iter().map(open)).sum()
    };
    let operations = sum(|case| case.operations, |case| case.operations);
    let violations = sum(|case| case.violations.len(), |case| case.violations.len());
    let mut predictions = vec![Prediction::none("violations in the histories", operations, violations)];
    if let (Some(least), Some(most)) = (figures.open.first(), figures.open.last()) {
        let all = |of: fn(&Summary) -> u64| figures.open.iter().map(|case| of(&case.summary)).sum::<u64>();
        let (arrivals, left_out) = (all(|summary| summary.arrivals), all(|summary| summary.overflow));
        let count = |number| usize::try_from(number).unwrap_or(usize::MAX);
        predictions.push(Prediction::none("open: arrivals that were not started", count(arrivals), count(left_out)));
        let longest = |case: &OpenCase| case.queue.iter().max().copied().unwrap_or(0);
        predictions.push(Prediction {
            predicted: format!(
                "open: the longest queue at {} % of the ceiling is longer than at {} %",
                most.load, least.load
            ),
            seen: format!("{}, and {}", longest(most), longest(least)),
            holds: longest(most) > longest(least),
        });
    }
    let case = |number| figures.cases.iter().find(|case| case.contenders == number);
    if let (Some(some), Some(many)) = (case(CONTENDERS[1]), case(CONTENDERS[2])) {
        let rates = [some, many].map(|case| case.summary.handovers_per_second);
        predictions.push(Prediction {
            predicted: "from 200 to 1000 contenders, hand-overs a second grow by less than a half".to_owned(),
            seen: format!("{:.1}, then {:.1}", rates[0], rates[1]),
            holds: rates[0] > 0.0 && rates[1] < 1.5 * rates[0],
        });
        let cases = [some, many].map(|case| (case.summary.granted, case.summary.latency.p50_us));
        let [(granted, median), (many_granted, many_median)] = cases;
        predictions.push(Prediction {
            predicted: "from 200 to 1000 contenders, the median wait more than doubles, or fewer are granted"
                .to_owned(),
            seen: format!("{} ms for {granted}, then {} ms for {many_granted}", ms(median), ms(many_median)),
            holds: granted > 0 && (many_median > 2 * median || many_granted < granted),
        });
    }
    predictions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rates: [f64; 3], medians: [u64; 3], violations: usize) -> Figures {
        let latency = |p50_us| Latency { p50_us, ..Latency::default() };
        let cases = CONTENDERS.iter().enumerate().map(|(index, &contenders)| ContentionCase {
            contenders,
            summary: Summary {
                handovers_per_second: rates[index],
                latency: latency(medians[index]),
                granted: if rates[index] > 100.0 { 100 } else { u64::from(rates[index] > 0.0) },
                ..Summary::default()
            },
            operations: 10,
            violations: vec!["a violation".to_owned(); violations],
        });
        Figures {
            load_average: "0".to_owned(),
            duration_us: 0,
            rate: RATE,
            asked_work_us: 0,
            uncontended: 1,
            acquire: latency(1_000),
            work: latency(3_000),
            release: latency(1_000),
            cold: 0,
            cold_error: None,
            cases: cases.collect(),
            open: Vec::new(),
        }
    }

    fn open(load: u64, waiting: usize, overflow: u64) -> OpenCase {
        let summary = Summary { arrivals: 10, overflow, ..Summary::default() };
        let (operations, violations) = (1, Vec::new());
        OpenCase { load, rate: 1.0, duration_us: 0, summary, queue: vec![waiting], operations, violations }
    }

    #[test]
    fn predictions_of_the_open_cases_can_fail() {
        let holds = |open: Vec<OpenCase>| -> Vec<bool> {
            let figures = Figures { open, ..figures([1.0, 200.0, 210.0], [1, 100, 500], 0) };
            predictions(&figures)[1..3].iter().map(|prediction| prediction.holds).collect()
        };
        assert_eq!(holds(vec![open(50, 1, 0), open(120, 5, 0)]), [true, true]);
        assert_eq!(holds(vec![open(50, 5, 0), open(120, 5, 1)]), [false, false]);
    }

    #[test]
    fn p999_needs_1000_values() {
        let of = |count| p999(&Latency { count, p999_us: 7, ..Latency::default() });
        assert_eq!([of(0), of(P999_VALUES - 1), of(P999_VALUES)], [None, None, Some(7)]);
        // With fewer values, the histogram's percentile is the greatest one.
        let latency = Latency::of(1..P999_VALUES);
        assert_eq!((latency.count, latency.p999_us), (P999_VALUES - 1, latency.max_us));
    }

    #[test]
    fn the_ceiling_and_the_knee_are_computed() {
        let figures = figures([150.0, 190.0, 200.0], [1, 2, 3], 0);
        assert!((figures.ceiling() - 200.0).abs() < 1e-9);
        assert_eq!(figures.enough(), Some(200));
        assert!((figures.highest() - 200.0).abs() < 1e-9);
    }

    #[test]
    fn predictions_can_fail() {
        let holds = |figures: &Figures| -> Vec<bool> {
            predictions(figures).iter().map(|prediction| prediction.holds).collect()
        };
        assert_eq!(holds(&figures([1.0, 200.0, 210.0], [1, 100, 500], 0)), [true, true, true]);
        assert_eq!(holds(&figures([1.0, 200.0, 301.0], [1, 100, 200], 1)), [false, false, false]);
        // A backend that grants nothing confirms nothing.
        // A collapse is no waiting, but buys nothing either.
        assert_eq!(holds(&figures([1.0, 200.0, 2.0], [1, 100, 50], 0)), [true, true, true]);
        assert_eq!(holds(&figures([0.0; 3], [0; 3], 0)), [true, false, false]);
    }
}
