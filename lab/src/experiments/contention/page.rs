//! The page of experiment `contention`.

use super::open::{self, OpenCase};
use super::{ContentionCase, Figures, LISTED, P999_VALUES, RATE, WAIT, WORK, p999};
use crate::contend::summary::Latency;
use crate::event::micros;
use crate::report::plot::{Axes, Series, series};
use crate::report::table::{Table, ms};
use crate::report::{Page, Results};

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (machine, parts, cases, errors) = (machine(results), parts(results), cases(results), errors(results));
    let open = open_cases(results);
    let (rate, work_us) =
        results.runs.first().map_or((RATE, micros(WORK)), |run| (run.figures.rate, run.figures.asked_work_us));
    let (work, wait) = (ms(work_us), WAIT.as_secs());
    let markdown = format!(
        "# More contenders for one key buy only waiting

One key has one holder at a time, so its hand-overs a second have a ceiling. Above it, more
contenders add nothing but their own waiting.

**Question.** 50, 200 and 1000 contenders want one key and hold it for {work} ms. How long do they
wait, how many hand-overs a second does the lock service make, and what bounds them?

## Set-up

{setups}
{machine}
{commands}
Attempts arrive in the open model at {rate} a second with exponential gaps, whether earlier ones
have ended or not. By default that is twice what a lock that costs nothing could serve, so that the
queue fills up to the number of contenders. An arrival that finds all of them busy is not started,
and counts as overflow. Each attempt waits for {wait} s at most. After the last arrival, the waiters
drain.

Latencies count from the intended start of each attempt that was started, and are recorded in HDR
histograms. An arrival that was not started has no latency, so the waits of these cases are those of
a queue that is closed at the number of contenders; more arrivals than that would wait longer. The
percentiles are of granted attempts; where attempts timed out or failed, the true percentiles are
higher. Each contender has a connection of its own, made before the cases; with ZooKeeper, each
attempt opens a session of its own, because the session is the lease. All contenders are tasks of
one process, which shares the machine with the servers.

## Figures

Without contention, rounds one after the other. The ceiling is 1 / (work + acquire + release), of
the medians.

{parts}
With contention. `granted` is the number of values of the percentiles. A 99.9th percentile of fewer
than {P999_VALUES} values is the greatest of them: the tables have a dash there, and the plot leaves those
cases out.

{cases}
![Hand-overs a second](contention/handovers.svg)

![Median latency](contention/p50.svg)

![99th percentile](contention/p99.svg)

![99.9th percentile](contention/p999.svg)

The plots of latencies leave out cases in which most attempts timed out or failed: the few that were
granted did not wait.

{open}Errors:

{errors}
## Predicted and seen

{predictions}
## What it means

- A wait is the queue's length divided by the hand-overs a second. Once the throughput stays, a
  queue that is five times as long is a wait that is five times as long.
- The measured ceiling is that of a lock with that queue. A lock without a queue may serve less, and
  then its queue grows below that ceiling too. Above the ceiling, the queue grows for as long as
  attempts arrive: then the percentiles say how long the load lasted, and little about the lock.
- The column `enough` names the lowest number of contenders that reaches 90 % of the highest
  throughput of the backend. From there on, more contenders buy only waiting: shorten the work,
  or split the key.
- Waiters that spin load the servers with attempts that cannot succeed. With many of them the servers
  answer late, and with Redlock a late answer is no vote: its throughput can collapse.
- The ceiling holds for a lock whose next acquire begins after the last release. A queue at the
  server has the next request already, so a hand-over costs less than an acquire, and the measured
  value may lie above the ceiling. Spinning waiters also hit a free lock earlier the more they are.

## What bounds it

- The histories are judged by the checkers of the conformance suite. Redlock has no fencing token
  that orders its grants; its grants are numbered in the order in which the client saw them.
- The ceiling is measured before the cases. If other work on the machine takes the processor or the
  disk at that moment and not later, it comes out too low, and the other way round.
- Contenders and servers share the processor. With spinning waiters the load generator itself takes
  a large part of it; the column `generator` has the 99th percentile of its own delay.
"
    );
    let quantile = |of: fn(&Latency) -> u64| {
        move |case: &ContentionCase| if case.mostly_granted() { of(&case.summary.latency) as f64 / 1e3 } else { 0.0 }
    };
    let milliseconds = |name: &str| format!("{name} of the latency, ms");
    let mut files = vec![
        ("handovers.svg".to_owned(), plot(results, "hand-overs a second", |case| case.summary.handovers_per_second)),
        ("p50.svg".to_owned(), plot(results, &milliseconds("p50"), quantile(|latency| latency.p50_us))),
        ("p99.svg".to_owned(), plot(results, &milliseconds("p99"), quantile(|latency| latency.p99_us))),
        ("p999.svg".to_owned(), plot(results, &milliseconds("p999"), quantile(|latency| p999(latency).unwrap_or(0)))),
        ("cases.csv".to_owned(), csv(results)),
    ];
    for run in results.runs.iter().filter(|run| !run.figures.open.is_empty()) {
        files.push((queue_file(&run.backend), queue(&run.figures.open)));
    }
    if results.runs.iter().any(|run| !run.figures.open.is_empty()) {
        files.push(("queue.csv".to_owned(), queue_csv(results)));
    }
    Page { markdown, files }
}

fn queue_file(backend: &str) -> String {
    format!("queue-{backend}.svg")
}

/// The open cases: what they are, their figures and plots.
fn open_cases(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | of the measured ceiling | arrivals a second | hand-overs a second | granted | p50, ms | p99, ms | \
         p999, ms | longest, ms | waiting at most | waiting at the last arrival | timeouts | errors | not started | \
         generator, ms | violations",
    );
    let (mut plots, mut missing) = (String::new(), Vec::new());
    for run in &results.runs {
        let backend = &run.backend;
        match run.figures.open.is_empty() {
            true => missing.push(backend.as_str()),
            false => plots += &format!("![{backend}: attempts that wait](contention/{})\n\n", queue_file(backend)),
        }
        for case in &run.figures.open {
            let summary = &case.summary;
            table.row([
                backend.clone(),
                format!("{} %", case.load),
                format!("{:.1}", case.rate),
                format!("{:.1}", summary.handovers_per_second),
                summary.granted.to_string(),
                ms(summary.latency.p50_us),
                ms(summary.latency.p99_us),
                p999_ms(&summary.latency),
                ms(summary.latency.max_us),
                case.queue.iter().max().copied().unwrap_or(0).to_string(),
                case.at_end().to_string(),
                summary.timeouts.to_string(),
                summary.errors().to_string(),
                summary.overflow.to_string(),
                ms(summary.lag.p99_us),
                case.violations.len().to_string(),
            ]);
        }
    }
    let mut text = String::new();
    if missing.len() < results.runs.len() {
        let loads = open::LOADS.map(|load| format!("{load} %")).join(", ");
        let (seconds, wait) = (open::DURATION.as_secs(), open::WAIT.as_secs());
        let (bound, redlock) = (open::BOUND, open::REDLOCK_BOUND);
        text += &format!(
            "**Open cases.** Each arrival is a task of its own, at {loads} of the measured ceiling: of the most\n\
             hand-overs a second in the table above. Attempts arrive for {seconds} s, and each waits for {wait} s at most.\n\
             Nothing but memory and sockets bounds their number: the bound is {bound} in flight, and {redlock} with\n\
             Redlock, whose attempts have ten sockets each. An arrival beyond it is counted as *not started*. Where that\n\
             column is 0, no delay is left out because the load generator had to wait (coordinated omission). An attempt\n\
             waits from its intended start to its grant:\n\n\
             {}\n{plots}",
            table.markdown()
        );
    }
    if !missing.is_empty() {
        text += &format!("These runs are older than the open cases, and have none: {}.\n\n", missing.join(", "));
    }
    text
}

/// How many attempts wait over time: a line for each load.
fn queue(cases: &[OpenCase]) -> String {
    let line = |case: &OpenCase| Series {
        name: format!("{} % of the ceiling: {:.1} arrivals a second", case.load, case.rate),
        points: case.points(),
        line: true,
    };
    let lines: Vec<_> = cases.iter().map(line).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(1.0, f64::max);
    let axes = Axes {
        x: "seconds since the start".to_owned(),
        y: "attempts that wait".to_owned(),
        x_range: (0.0, most(|point| point.0) * 1.02),
        // Room for the legend.
        y_range: (0.0, most(|point| point.1) * 1.5),
        logarithmic: false,
    };
    series(&axes, &lines)
}

fn queue_csv(results: &Results<Figures>) -> String {
    let mut table = Table::of("backend | load_percent | arrivals_per_second | at_s | waiting");
    for run in &results.runs {
        for case in &run.figures.open {
            for (at, waiting) in case.points() {
                let (load, rate) = (case.load.to_string(), format!("{:.3}", case.rate));
                table.row([run.backend.clone(), load, rate, format!("{at:.2}"), format!("{waiting:.0}")]);
            }
        }
    }
    table.csv()
}

fn machine(results: &Results<Figures>) -> String {
    let mut table = Table::of("backend | load average before the run | arrivals for, s | cold contenders");
    for run in &results.runs {
        let Figures { load_average, duration_us, cold, cold_error, .. } = &run.figures;
        let cold = cold_error.as_ref().map_or_else(|| cold.to_string(), |error| format!("{cold}: {error}"));
        let duration = format!("{:.1}", *duration_us as f64 / 1e6);
        table.row([run.backend.clone(), load_average.clone(), duration, cold]);
    }
    table.markdown() + "\nA load average above zero is other work that ran beside the experiment.\n"
}

/// The 99.9th percentile in milliseconds; a dash if there are too few values.
fn p999_ms(latency: &Latency) -> String {
    p999(latency).map_or_else(|| "–".to_owned(), ms)
}

fn parts(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | rounds that did not fail | acquire p50, ms | acquire p99, ms | work p50, ms | release p50, ms | \
         ceiling, hand-overs a second",
    );
    for run in &results.runs {
        let figures = &run.figures;
        table.row([
            run.backend.clone(),
            format!("{} of {}", figures.acquire.count, figures.uncontended),
            ms(figures.acquire.p50_us),
            ms(figures.acquire.p99_us),
            ms(figures.work.p50_us),
            ms(figures.release.p50_us),
            format!("{:.1}", figures.ceiling()),
        ]);
    }
    table.markdown()
}

fn cases(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | contenders | hand-overs a second | of the ceiling | granted | p50, ms | p99, ms | p999, ms | \
         timeouts | errors | overflow | generator, ms | violations | enough",
    );
    for run in &results.runs {
        let enough = run.figures.enough();
        for case in &run.figures.cases {
            let summary = &case.summary;
            let rate = summary.handovers_per_second;
            table.row([
                run.backend.clone(),
                case.contenders.to_string(),
                format!("{rate:.1}"),
                format!("{:.0} %", 100.0 * rate / run.figures.ceiling()),
                summary.granted.to_string(),
                ms(summary.latency.p50_us),
                ms(summary.latency.p99_us),
                p999_ms(&summary.latency),
                summary.timeouts.to_string(),
                summary.errors().to_string(),
                summary.overflow.to_string(),
                ms(summary.lag.p99_us),
                case.violations.len().to_string(),
                (if enough == Some(case.contenders) { "enough" } else { "" }).to_owned(),
            ]);
        }
    }
    table.markdown()
}

fn errors(results: &Results<Figures>) -> String {
    let mut table = Table::of("backend | contenders | server | times | error");
    let mut none = true;
    for run in &results.runs {
        let closed = run.figures.cases.iter().map(|case| (case.contenders.to_string(), &case.summary));
        let open = run.figures.open.iter().map(|case| (format!("open, {} %", case.load), &case.summary));
        for (contenders, summary) in closed.chain(open) {
            let failures = &summary.failures;
            let (listed, others) = failures.split_at(LISTED.min(failures.len()));
            for failure in listed {
                none = false;
                table.row([
                    run.backend.clone(),
                    contenders.clone(),
                    failure.server.clone().unwrap_or_default(),
                    failure.count.to_string(),
                    failure.error.clone(),
                ]);
            }
            if !others.is_empty() {
                let times = others.iter().map(|failure| failure.count).sum::<u64>().to_string();
                let texts = format!("{} other texts", others.len());
                table.row([run.backend.clone(), contenders, String::new(), times, texts]);
            }
        }
    }
    if none { "No attempt and no release failed.\n".to_owned() } else { table.markdown() }
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | contenders | handovers_per_second | ceiling_per_second | p50_us | p99_us | p999_us | max_us | \
         ended_p99_us | arrivals | granted | timeouts | failed | failed_releases | overflow | elapsed_us",
    );
    for run in &results.runs {
        for case in &run.figures.cases {
            let summary = &case.summary;
            table.row([
                run.backend.clone(),
                case.contenders.to_string(),
                format!("{:.3}", summary.handovers_per_second),
                format!("{:.3}", run.figures.ceiling()),
                summary.latency.p50_us.to_string(),
                summary.latency.p99_us.to_string(),
                summary.latency.p999_us.to_string(),
                summary.latency.max_us.to_string(),
                summary.ended.p99_us.to_string(),
                summary.arrivals.to_string(),
                summary.granted.to_string(),
                summary.timeouts.to_string(),
                summary.failed.to_string(),
                summary.failed_releases.to_string(),
                summary.overflow.to_string(),
                summary.elapsed_us.to_string(),
            ]);
        }
    }
    table.csv()
}

/// A line for each backend; cases without a value are left out, because both axes are logarithmic.
fn plot(results: &Results<Figures>, y: &str, value: impl Fn(&ContentionCase) -> f64) -> String {
    let lines = results.runs.iter().map(|run| {
        let points = run.figures.cases.iter().map(|case| (f64::from(case.contenders), value(case)));
        Series { name: run.backend.clone(), points: points.filter(|point| point.1 > 0.0).collect(), line: true }
    });
    let lines: Vec<_> = lines.collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let range = |of: fn(&(f64, f64)) -> f64, below: f64| {
        let widest = |(least, most): (f64, f64), value: f64| (value.min(least), value.max(most));
        let (least, most) = points().map(of).fold((f64::MAX, 0.0), widest);
        if most > 0.0 { (least / below, most * 1.5) } else { (1.0, 10.0) }
    };
    let axes = Axes {
        x: "contenders".to_owned(),
        y: y.to_owned(),
        // Room for the legend left of the lines.
        x_range: range(|point| point.0, 4.0),
        y_range: range(|point| point.1, 1.5),
        logarithmic: true,
    };
    series(&axes, &lines)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::contend::summary::{Failure, Summary};
    use crate::report::Run;
    use crate::report::setup::Setup;

    fn run(backend: &str, open: Vec<OpenCase>) -> Run<Figures> {
        let figures = Figures {
            load_average: String::new(),
            duration_us: 0,
            rate: 1,
            asked_work_us: 0,
            uncontended: 1,
            acquire: Latency::default(),
            work: Latency::default(),
            release: Latency::default(),
            cold: 0,
            cold_error: None,
            cases: Vec::new(),
            open,
        };
        let setup = Setup::of("", String::new(), Path::new("/"));
        Run { backend: backend.to_owned(), setup, figures, predictions: Vec::new() }
    }

    #[test]
    fn open_cases_have_figures_and_a_plot_of_the_queue() {
        let failures =
            vec![Failure { backend: "redis".to_owned(), server: None, error: "no answer".to_owned(), count: 3 }];
        let summary = Summary { granted: 7, overflow: 2, failures, ..Summary::default() };
        let (queue, violations) = (vec![0, 3, 2, 0], Vec::new());
        let open = OpenCase { load: 120, rate: 24.0, duration_us: 500_000, summary, queue, operations: 14, violations };
        let results = Results { runs: vec![run("old", Vec::new()), run("redis", vec![open])] };
        let page = page(&results);
        let row = "| redis | 120 % | 24.0 | 0.0 | 7 | 0.0 | 0.0 | – | 0.0 | 3 | 2 | 0 | 0 | 2 | 0.0 | 0 |";
        for text in [
            row,
            "| redis | open, 120 % |  | 3 | no answer |",
            "(contention/queue-redis.svg)",
            "older than the open cases, and have none: old.",
            "50 %, 90 %, 120 %",
        ] {
            assert!(page.markdown.contains(text), "{text} is missing in\n{}", page.markdown);
        }
        let file = |name: &str| page.files.iter().find(|(file, _)| file == name).map(|(_, text)| text.as_str());
        assert!(file("queue-redis.svg").unwrap().contains("120 % of the ceiling: 24.0 arrivals a second"));
        assert!(file("queue.csv").unwrap().contains("redis,120,24.000,0.25,3\n"));
        assert_eq!(file("queue-old.svg"), None);
    }
}
