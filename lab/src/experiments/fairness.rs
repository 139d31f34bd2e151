//! Experiment `fairness`: arrival order against grant order.
//!
//! Waiters of Redis and Redlock spin: a free lock goes to the one that tries next. etcd, ZooKeeper and
//! Palisade have queues. Attempts arrive one by one, in even gaps shorter than the work, so the queue
//! builds; then it drains.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Context, Found, contenders};
use crate::contend::load::{Load, Model};
use crate::contend::order::Order;
use crate::contend::schedule::Gaps;
use crate::contend::summary::Summary;
use crate::dlock::Backend;
use crate::event::{micros, millis};
use crate::report::plot::{Axes, Series, series};
use crate::report::table::{Table, ms};
use crate::report::{Page, Prediction, Results, Run};

/// Arrivals a second.
const RATE: u32 = 100;
const WORK: Duration = Duration::from_millis(20);
pub(super) const DURATION: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(30);
/// Attempts that arrive so far apart reach the servers' queues in that order, also if each opens a session first.
const MARGIN: Duration = Duration::from_millis(250);

/// The run on one backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The machine's load average before the run.
    pub load_average: String,
    /// Whether the backend has a queue.
    pub queue: bool,
    /// How long attempts arrived.
    pub duration_us: u64,
    /// Arrivals a second.
    #[serde(default = "default_rate")]
    pub rate: u32,
    /// How long a lock was to be held.
    #[serde(default = "default_work")]
    pub work_us: u64,
    /// What was measured; its order counts all pairs.
    pub summary: Summary,
    /// The order of pairs that arrived at least the margin apart.
    pub apart: Order,
    /// For each grant in the order of the grants: the place of its arrival, from 1.
    pub grants: Vec<u64>,
    /// Operations that the checkers of histories judged.
    pub operations: usize,
    /// Violations that they found.
    pub violations: Vec<String>,
}

/// The rate of runs that did not record it.
fn default_rate() -> u32 {
    RATE
}

/// The work of runs that did not record it.
fn default_work() -> u64 {
    micros(WORK)
}

/// Runs on one backend.
///
/// # Errors
/// The servers could not be reached before the run. Errors within it are figures.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let load_average = contenders::load_average();
    let locks = contenders::connect(context)?;
    let duration = context.duration.unwrap_or(DURATION);
    let (rate, work) = (context.rate.unwrap_or(RATE), context.work.unwrap_or(WORK));
    let all = (millis(duration) * u64::from(rate)).div_ceil(1000);
    contenders::uncontended(&locks, "first", Duration::ZERO, 20).await?;
    contenders::warm_up(&locks, all.min(1000)).await;
    let load = Load {
        model: Model::Open { rate: rate.into() },
        gaps: Gaps::Even,
        // Nothing is left out: no arrival finds all contenders busy.
        contenders: usize::try_from(all).unwrap_or(usize::MAX),
        keys: 1,
        duration,
        seed: context.seed,
    };
    eprintln!("fairness: {}: {all} arrivals", context.backend);
    let (attempts, judgement) = contenders::case(context, &locks, "fairness", (work, WAIT), &load).await?;
    let summary = Summary::of(&attempts, context.backend.name(), &context.endpoints);
    eprint!("{}", crate::contend::describe(&summary));
    let mut arrivals: Vec<_> = attempts.iter().filter(|attempt| attempt.waited()).collect();
    arrivals.sort_by_key(|attempt| attempt.arrived_us);
    let mut grants: Vec<_> = (1..).zip(arrivals).filter(|(_, attempt)| attempt.granted()).collect();
    grants.sort_by_key(|(_, attempt)| attempt.ended_us);
    let figures = Figures {
        load_average,
        queue: !matches!(context.backend, Backend::Redis | Backend::Redlock),
        duration_us: micros(duration),
        rate,
        work_us: micros(work),
        summary,
        apart: Order::of(&attempts, micros(MARGIN)),
        grants: grants.into_iter().map(|(rank, _)| rank).collect(),
        operations: judgement.operations,
        violations: judgement.service,
    };
    let predictions = predictions(&figures);
    Ok((figures, predictions))
}

fn predictions(figures: &Figures) -> Vec<Prediction> {
    let [granted, overtakings] =
        [figures.summary.granted, figures.apart.overtakings].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    let what = format!("overtakings of attempts that arrived {} ms earlier", MARGIN.as_millis());
    let order = if figures.queue { Prediction::none } else { Prediction::some };
    let mut order: Prediction = order(what, granted, overtakings);
    order.predicted =
        if figures.queue { format!("no {}", order.predicted) } else { format!("some {}", order.predicted) };
    order.seen = format!("{overtakings} among {granted} grants");
    let violations = Prediction::none("violations in the histories", figures.operations, figures.violations.len());
    vec![order, violations]
}

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (order, waits, errors) = (order(results), waits(results), errors(results));
    let plots: String = results
        .runs
        .iter()
        .map(|run| format!("![Arrival and grant order, {0}](fairness/{0}.svg)\n\n", run.backend))
        .collect();
    let (rate, work_us) =
        results.runs.first().map_or((RATE, micros(WORK)), |run| (run.figures.rate, run.figures.work_us));
    let (work, margin) = (work_us / 1000, MARGIN.as_millis());
    let markdown = format!(
        "# Waiters that spin overtake each other

A lock whose waiters spin goes to the waiter that tries next, not to the one that waits longest. A
queue serves them in the order of their arrival.

**Question.** How often does a waiter overtake another, and how long does the unluckiest one wait,
with spinning waiters (redis, redlock) and with queues (etcd, zookeeper, palisade)?

## Set-up

{setups}
{commands}
{rate} attempts a second arrive at one key, in even gaps, and hold it for {work} ms: a queue builds,
and then drains. Each contender has a connection of its own, made before. An attempt *overtakes*
another if it arrived later and was granted while the other still waited.

Arrivals are the client's: attempts that start close together may reach the queue in the other
order. With ZooKeeper they do so most, because each attempt opens a session before it can queue. So
overtakings are counted a second time among attempts that arrived at least {margin} ms apart.

The wait in grants is the number of grants to others between an attempt's arrival and its own grant.
In a first-come-first-served queue, it is the number of those ahead of it. A load average above zero
is other work that ran beside the experiment.

## Figures

{order}
{waits}
{plots}{errors}
## Predicted and seen

{predictions}
## What it means

- A spinning waiter's chance does not grow with the time that it has waited. The longest wait has no
  bound; with a queue, it is the queue's length at the arrival.
- Overtakings of near neighbours in a queue are requests that changed places on their way.
- Fairness is no safety: the histories of all backends are judged alike.

## What bounds it

- Clients pause up to 50 ms between two attempts (`--spin-max`), at random. Another pause changes how
  far the order is mixed.
- An attempt that waited in vain counts as overtaken by all that came later and were granted meanwhile.
"
    );
    let mut files: Vec<_> =
        results.runs.iter().map(|run| (format!("{}.svg", run.backend), plot(&run.figures))).collect();
    files.push(("grants.csv".to_owned(), csv(results)));
    Page { markdown, files }
}

fn order(results: &Results<Figures>) -> String {
    let mut table = Table::of(&format!(
        "backend | waiters | granted | overtakings | at least {} ms apart | attempts overtaken | one of them, times | \
         longest wait, grants",
        MARGIN.as_millis()
    ));
    for Run { backend, figures, .. } in lines(results) {
        let (summary, order) = (&figures.summary, &figures.summary.order);
        table.row([
            backend.clone(),
            (if figures.queue { "queue" } else { "spin" }).to_owned(),
            summary.granted.to_string(),
            order.overtakings.to_string(),
            figures.apart.overtakings.to_string(),
            order.overtaken.to_string(),
            order.most_overtaken.to_string(),
            order.longest_wait_grants.to_string(),
        ]);
    }
    table.markdown()
}

fn waits(results: &Results<Figures>) -> String {
    let mut table =
        Table::of("backend | p50, ms | p99, ms | longest, ms | timeouts | errors | violations | load average before");
    for Run { backend, figures, .. } in lines(results) {
        let summary = &figures.summary;
        table.row([
            backend.clone(),
            ms(summary.latency.p50_us),
            ms(summary.latency.p99_us),
            ms(summary.latency.max_us),
            summary.timeouts.to_string(),
            summary.errors().to_string(),
            figures.violations.len().to_string(),
            figures.load_average.clone(),
        ]);
    }
    table.markdown()
}

fn errors(results: &Results<Figures>) -> String {
    let mut text = String::new();
    for Run { backend, figures, .. } in lines(results) {
        for failure in &figures.summary.failures {
            text += &format!("\n- {backend}: {} times: {}", failure.count, failure.error);
        }
    }
    match text.is_empty() {
        true => "No attempt and no release failed.\n".to_owned(),
        false => format!("Errors:\n{text}\n"),
    }
}

/// Those that spin first.
fn lines(results: &Results<Figures>) -> Vec<&Run<Figures>> {
    let mut lines: Vec<_> = results.runs.iter().collect();
    lines.sort_by_key(|run| run.figures.queue);
    lines
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of("backend | grant | arrival");
    for run in &results.runs {
        for (grant, arrival) in (1..).zip(&run.figures.grants) {
            let grant: u64 = grant;
            table.row([run.backend.clone(), grant.to_string(), arrival.to_string()]);
        }
    }
    table.csv()
}

fn plot(figures: &Figures) -> String {
    let points = (1..).zip(&figures.grants).map(|(grant, &arrival): (u32, _)| (arrival as f64, f64::from(grant)));
    let name = if figures.queue { "grants of a queue" } else { "grants to spinning waiters" };
    let grants = Series { name: name.to_owned(), points: points.collect(), line: false };
    let most = figures.grants.iter().copied().max().unwrap_or(1) as f64;
    let fair =
        Series { name: "in the order of arrival".to_owned(), points: vec![(1.0, 1.0), (most, most)], line: true };
    let axes = Axes {
        x: "place in the order of arrivals".to_owned(),
        y: "place in the order of grants".to_owned(),
        x_range: (0.0, most * 1.05),
        y_range: (0.0, most * 1.3),
        logarithmic: false,
    };
    series(&axes, &[grants, fair])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(queue: bool, overtakings: u64, granted: u64) -> Figures {
        Figures {
            load_average: "0".to_owned(),
            queue,
            duration_us: 0,
            rate: RATE,
            work_us: 0,
            summary: Summary { granted, ..Summary::default() },
            apart: Order { overtakings, ..Order::default() },
            grants: vec![1],
            operations: 10,
            violations: Vec::new(),
        }
    }

    #[test]
    fn a_queue_that_is_overtaken_and_a_spin_that_is_fair_are_not_as_predicted() {
        let holds = |queue, overtakings, granted| predictions(&figures(queue, overtakings, granted))[0].holds;
        assert!(holds(true, 0, 5) && holds(false, 3, 5));
        assert!(!holds(true, 1, 5) && !holds(false, 0, 5));
        assert!(!holds(true, 0, 0), "a queue that grants nothing is not fair");
    }
}
