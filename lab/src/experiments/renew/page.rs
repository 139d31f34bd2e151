//! The page of experiment `renew`.

use super::super::judged::histories;
use super::{CASES, Figures, PAUSES, Round, TTL_MS, Write, renew_ms};
use crate::report::plot::{Axes, Series, series};
use crate::report::table::{Table, ms};
use crate::report::{Page, Results};
use crate::resource::rule::Fence;

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions, summary) =
        (results.setups(), results.commands(), results.predictions(), summary(results));
    let ttl = results.runs.first().map_or(TTL_MS, |run| run.figures.ttl_ms);
    let (renew, histories) = (renew_ms(ttl), histories(results, |figures| &figures.judged));
    let plots: String = results
        .runs
        .iter()
        .map(|run| format!("![Unsafe writes by pause, {0}](renew/{0}.svg)\n\n", run.backend))
        .collect();
    let markdown = format!(
        "# Renewing does not close the window

Renewing keeps the lock of a slow job. It does not help a process that is stopped: what is stopped
does not renew.

**Question.** A worker holds the lock with a TTL of {ttl} ms and is paused before its write, for
half the TTL up to two and a half times the TTL. How often does it write after the lock's next
holder, without renewals and with a renewal every {renew} ms in the background?

## Set-up

{setups}
{commands}
Worker b waits for the lock and writes as soon as it is granted. Worker a works for a random time of
up to {renew} ms, is paused, and writes. Before the write it checks whether a renewal has found
the lock lost, and then does not write (`abandoned`). The pause comes before this check, and in one
series between the check and the write. A write of a after b's is *unsafe*: the fence refuses it,
and without the fence it corrupts the value. Both are counted together below, because the fence does
not change the timing; `accepted` is what went through.

## Figures

{summary}
In the plots, each line is 0.6 % above the one before it, so that equal lines do not hide each other.

{plots}{histories}## Predicted and seen

{predictions}
## What it means

- Without renewals, a pause longer than the rest of the lease is unsafe, whatever its kind.
- With renewals, a job may take longer than its TTL, as long as the process runs. That is what
  renewing is for.
- A stopped process renews nothing. Renewals move the border: what remains of the lease when the
  stop begins is between two thirds and the whole of the TTL. They do not remove it.
- A check before the write narrows the window further: after a stop, the renewal that is due often
  finds the loss before the check. But the process can also be stopped after the check, and then
  nothing in the worker prevents the write.
- With the fence on, no unsafe write was accepted, at any pause.

## What bounds it

- After a stop before the check, the renewal and the check race: when the process wakes, both are
  due. `abandoned` counts the rounds in which the renewal came first, which depends on the machine.
- A check that compares a deadline with the clock would find the loss in all rounds of that series,
  if the clocks are right. It does not help in the series with a stop after the check.
- Redlock has no fencing token. Its number grows here, because all five servers answer and each key
  has two workers; see [redlock](redlock.md) for where it does not.
- Unsafe writes need a waiter that writes meanwhile; here there always is one.
"
    );
    let mut files: Vec<_> =
        results.runs.iter().map(|run| (format!("{}.svg", run.backend), plot(&run.figures))).collect();
    files.push(("rounds.csv".to_owned(), csv(results)));
    Page { markdown, files }
}

fn summary(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | renewals | pause | pause / TTL | rounds | unsafe | accepted, fence off | accepted, fence on | \
         abandoned",
    );
    for run in &results.runs {
        for case in CASES {
            for pause in PAUSES {
                let rounds: Vec<_> = run.figures.rounds.iter().filter(|round| round.is(case, pause)).collect();
                let count = |of: &dyn Fn(&Round) -> bool| rounds.iter().filter(|round| of(round)).count().to_string();
                let stale = |fence| count(&|round| round.fence == fence && round.write == Write::Stale);
                table.row([
                    run.backend.clone(),
                    case.renewals().to_owned(),
                    case.pause().to_owned(),
                    hundredths(pause),
                    rounds.len().to_string(),
                    count(&Round::unsafe_write),
                    stale(Fence::Off),
                    stale(Fence::On),
                    count(&|round| round.write == Write::Abandoned),
                ]);
            }
        }
    }
    table.markdown()
}

fn csv(results: &Results<Figures>) -> String {
    let mut table =
        Table::of("backend | renews | pause_how | pause_ms | fence | round | granted_ttl_ms | held_ms | write");
    for run in &results.runs {
        for round in &run.figures.rounds {
            let write = match round.write {
                Write::InOrder => "in order",
                Write::Stale => "stale",
                Write::Refused => "refused",
                Write::Abandoned => "abandoned",
            };
            table.row([
                run.backend.clone(),
                round.case.renews.to_string(),
                round.case.pause().to_owned(),
                (run.figures.ttl_ms * round.pause / 100).to_string(),
                round.fence.name().to_owned(),
                round.round.to_string(),
                round.granted_ttl_ms.to_string(),
                ms(round.held_us),
                write.to_owned(),
            ]);
        }
    }
    table.csv()
}

fn plot(figures: &Figures) -> String {
    let lines = CASES.iter().enumerate().map(|(number, &case)| {
        let points = PAUSES.iter().map(|&pause| {
            let rounds: Vec<_> = figures.rounds.iter().filter(|round| round.is(case, pause)).collect();
            let found = rounds.iter().filter(|round| round.unsafe_write()).count();
            // A little apart, so that equal lines do not hide each other.
            let aside = number as f64 * 0.6;
            (pause as f64 / 100.0, 100.0 * found as f64 / rounds.len().max(1) as f64 + aside)
        });
        let renews = if case.renews { "renewals" } else { "no renewals" };
        Series { name: format!("{renews}, {}", case.pause()), points: points.collect(), line: true }
    });
    let axes = Axes {
        x: "pause / TTL".to_owned(),
        y: "writes after the next holder's, %".to_owned(),
        x_range: (0.4, 2.6),
        y_range: (-2.0, 110.0),
        logarithmic: false,
    };
    series(&axes, &lines.collect::<Vec<_>>())
}

fn hundredths(number: u64) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}
