//! The page of experiment `work`.

use std::collections::BTreeMap;

use super::{Figures, UNCONTENDED, WORKERS, WorkCase, Write};
use crate::report::plot::{Axes, Series, series};
use crate::report::table::{Table, ms};
use crate::report::{Page, Results};

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (parts, rates, outcomes) = (parts(results), rates(results), outcomes(results));
    let works: BTreeMap<_, _> = results
        .runs
        .iter()
        .flat_map(|run| &run.figures.cases)
        .map(|case| (case.work_ms, case.jobs.len() / WORKERS))
        .collect();
    let jobs = works.iter().map(|(work_ms, jobs)| format!("{jobs} jobs of {work_ms} ms"));
    let jobs = jobs.collect::<Vec<_>>().join(", ");
    let lengths = works.keys().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let markdown = format!(
        "# Work that takes longer than the TTL

A TTL above the work costs nothing: the work bounds the hand-overs. A TTL below it takes the lock
from the jobs. The fence then keeps stale writes out, and cannot tell what a job has read: without a
fenced read, jobs drop each other's writes, and none of these is stale.

**Question.** {WORKERS} workers do jobs on one key that take {lengths} ms, with a TTL of half the work
and of twice the work, and never renew. How many hand-overs a second are there, how many leases are
lost, and what becomes of the writes?

## Set-up

{setups}
{commands}
Each worker does {jobs}.
It acquires, reads the value, works, puts the value back with a line of its own, and releases. The
resource checks tokens (`--fence on --same-token allow`). Each worker and each resource is a
process. The cases of one length of work run at the same time, each with a key and a resource of its
own, and those of the longest work beside the others.

With a *fenced read*, the job first appends nothing to the value with its token, and then reads: from
then on the resource refuses lower tokens.

The TTL is what the backend makes of it, and the page counts with what was granted. etcd grants whole
seconds and 2 s at least, ZooKeeper 400 ms at least (two ticks), Palisade accepts none below 100 ms
(and is asked for that), Redis takes any number of milliseconds. So some cases with half the work
have a TTL above it.

## Figures

Without contention, medians of {UNCONTENDED} rounds:

{parts}
The ceiling is 1 / (work + acquire + release). Waits count from the request to the grant; with few
jobs the 99th percentile is the longest wait.

{rates}
`lost` counts the jobs that found at their release that the lock was another's; `409` the jobs whose
write or fenced read the resource refused; `dropped` the accepted writes whose line is missing from
the value at the end, because a later write put back a value that was read before them. `stale` is
`resource_stale_writes_accepted_total`, and `violations` what the checkers of histories found in the
workers' history and in the resource's. The search for linearizability is left out: where this many
leases end by themselves, it takes minutes and decides nothing.

{outcomes}
![Jobs whose line is in the value at the end](work/kept.svg)

![Hand-overs a second](work/handovers.svg)

## Predicted and seen

{predictions}
## What it means

- With a TTL above the work, the lock hardly matters for the throughput of one key: hand-overs a
  second follow 1 / work. To have more, shorten the work or split the key.
- With a TTL below the work there are more hand-overs than the ceiling: several jobs are at work at
  the same time, and each believes that it is alone.
- The fence accepts no stale write, and this is not enough for a read-modify-write. A job whose lease
  has ended still writes before the next holder does, with a token that no one has topped yet. The
  next holder has read before that write, and drops it.
- A fenced read closes this: the resource refuses the earlier job as soon as the next one reads. No
  accepted write is dropped. But hardly any job gets done while others wait, because each is refused
  at its end: the TTL must cover the work, or the holder must renew ([renew](renew.md)).
- A resource with transactions does the same without a second request: it checks the token when it
  reads, in the transaction of the write, or compares the version that was read
  ([fenced-stores](fenced-stores.md)).

## What bounds it

- A waiter's lease is renewed while it waits, by etcd's, ZooKeeper's and Palisade's rules. What is
  left of it at the grant is between two thirds and the whole of the TTL with etcd and ZooKeeper, and
  the whole of it with the others. A TTL must be above the work by that factor.
- ZooKeeper ends a session up to a tick late (200 ms here). A TTL that is a little below the work
  therefore costs some jobs their lock, and not all.
- Redlock's numbers are no fencing tokens: they can repeat, and fall. Of two jobs with the same number
  the resource accepts both writes. It counts none of them as stale; the checkers count a violation,
  because a token belongs to one grant. So of Redlock only the resource's rule and the leases are
  predicted.
- A read, a write and the resource's sync are part of a hand-over, and not of the ceiling. At 50 ms
  they are a visible part.
- Without a queue at the server (redis, redlock) the worker that has just released the lock is the
  first to ask again, and often wins: its waits are short, and those of the others are long.
- Waits end with the queue: the last jobs of a case have fewer competitors.
"
    );
    let files = vec![
        ("kept.svg".to_owned(), kept(results)),
        ("handovers.svg".to_owned(), handovers(results)),
        ("jobs.csv".to_owned(), csv(results)),
    ];
    Page { markdown, files }
}

fn parts(results: &Results<Figures>) -> String {
    let mut table = Table::of("backend | acquire, ms | release, ms | load average before the run");
    for run in &results.runs {
        let Figures { acquire, release, load_average, .. } = &run.figures;
        table.row([run.backend.clone(), ms(acquire.p50_us), ms(release.p50_us), load_average.clone()]);
    }
    table.markdown()
}

fn rates(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | work, ms | TTL asked, ms | TTL granted, ms | read | hand-overs a second | ceiling | wait p50, ms | \
         wait p99, ms",
    );
    for run in &results.runs {
        for case in &run.figures.cases {
            let waits = case.waits();
            let [work, asked, granted, read] = words(case);
            table.row([
                run.backend.clone(),
                work,
                asked,
                granted,
                read,
                format!("{:.2}", case.handovers_per_second()),
                format!("{:.2}", run.figures.ceiling(case.work_ms)),
                ms(waits.p50_us),
                ms(waits.p99_us),
            ]);
        }
    }
    table.markdown()
}

fn outcomes(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | work, ms | TTL granted, ms | TTL | read | jobs | lost | 409 | accepted | dropped | stale | \
         violations",
    );
    for run in &results.runs {
        for case in &run.figures.cases {
            let [work, _, granted, read] = words(case);
            table.row([
                run.backend.clone(),
                work,
                granted,
                (if case.is_below() { "**below the work**" } else { "above" }).to_owned(),
                read,
                case.jobs.len().to_string(),
                case.lost().to_string(),
                case.refused().to_string(),
                case.accepted().to_string(),
                case.dropped().to_string(),
                case.counts.stale_accepted.to_string(),
                format!("{} and {}", case.workers_judged.resource.len(), case.resource_judged.resource.len()),
            ]);
        }
    }
    table.markdown()
}

/// Work, TTL as asked and as granted, and the read.
fn words(case: &WorkCase) -> [String; 4] {
    let read = if case.fenced_read { "fenced" } else { "plain" };
    [case.work_ms.to_string(), case.asked_ttl_ms.to_string(), case.granted_ttl_ms.to_string(), read.to_owned()]
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | work_ms | asked_ttl_ms | granted_ttl_ms | read | worker | token | asked_ms | granted_ms | used_ms | \
         write | lost",
    );
    for run in &results.runs {
        for case in &run.figures.cases {
            for job in &case.jobs {
                let [work, asked, granted, read] = words(case);
                table.row([
                    run.backend.clone(),
                    work,
                    asked,
                    granted,
                    read,
                    job.worker.to_string(),
                    job.token.to_string(),
                    ms(job.asked_us),
                    ms(job.granted_us),
                    ms(job.used_us),
                    (if job.write == Write::Accepted { "accepted" } else { "refused" }).to_owned(),
                    job.lost.to_string(),
                ]);
            }
        }
    }
    table.csv()
}

/// Backends side by side, so that equal values do not hide each other.
fn aside(number: usize, of: usize) -> f64 {
    1.0 + 0.05 * (number as f64 - of as f64 / 2.0)
}

fn kept(results: &Results<Figures>) -> String {
    let cloud = |name: &str, fenced_read: bool| {
        let mut points = Vec::new();
        for (number, run) in results.runs.iter().enumerate() {
            for case in run.figures.cases.iter().filter(|case| case.fenced_read == fenced_read) {
                let ratio = case.granted_ttl_ms as f64 / case.work_ms as f64;
                let share = 100.0 * case.kept as f64 / case.jobs.len().max(1) as f64;
                // The axis is logarithmic.
                points.push((ratio * aside(number, results.runs.len()), share.max(1.0)));
            }
        }
        Series { name: name.to_owned(), points, line: false }
    };
    let edge = Series { name: "TTL = work".to_owned(), points: vec![(1.0, 1.0), (1.0, 110.0)], line: true };
    let axes = Axes {
        x: "granted TTL / work (backends side by side)".to_owned(),
        y: "jobs whose line is in the value at the end, %".to_owned(),
        x_range: (0.3, 60.0),
        y_range: (0.9, 300.0),
        logarithmic: true,
    };
    series(&axes, &[cloud("plain reads", false), cloud("fenced reads", true), edge])
}

/// Those with a TTL above the work, as one works with a lock.
fn handovers(results: &Results<Figures>) -> String {
    let clouds = results.runs.iter().enumerate().map(|(number, run)| {
        let above = run.figures.cases.iter().filter(|case| !case.is_below() && !case.fenced_read);
        let points =
            above.map(|case| (case.work_ms as f64 * aside(number, results.runs.len()), case.handovers_per_second()));
        Series { name: run.backend.clone(), points: points.collect(), line: false }
    });
    let mut all: Vec<_> = clouds.collect();
    let bound = [30.0, 9_000.0].map(|work_ms| (work_ms, 1e3 / work_ms));
    all.push(Series { name: "1 / work".to_owned(), points: bound.into(), line: true });
    let axes = Axes {
        x: "work, ms (backends side by side; TTL above the work)".to_owned(),
        y: "hand-overs a second".to_owned(),
        x_range: (20.0, 12_000.0),
        // Room for the legend.
        y_range: (0.05, 2_000.0),
        logarithmic: true,
    };
    series(&axes, &all)
}
