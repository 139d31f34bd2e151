//! The page of experiment `ttl`.

use std::collections::BTreeSet;

use super::super::judged::histories;
use super::{End, Figures, Round};
use crate::report::plot::{Axes, Series, series};
use crate::report::table::{Table, median, ms};
use crate::report::{Page, Results};

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let (summary, histories) = (summary(results), histories(results, |figures| &figures.judged));
    let resource = match results.runs.iter().any(|run| !run.figures.judged.is_empty()) {
        true => "All workers write to one resource with the fence on; a killed holder has not written yet.\n",
        false => "",
    };
    let ttls: BTreeSet<_> = results.runs.iter().flat_map(|run| ttls(&run.figures)).collect();
    let ttls = ttls.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let markdown = format!(
        "# A killed holder and the TTL

A lock whose holder was killed stays blocked for the rest of its TTL. Fencing allows a short TTL,
because a lease that ends too early then costs a repeated job and no data.

**Question.** A holder is killed by SIGKILL, and another worker waits for the lock. How long is the
time from the kill to the next grant? TTLs, in milliseconds: {ttls}.

## Set-up

{setups}
{commands}
The holder is killed at a random moment in the first half of its lease, and never renews it. All
rounds of one TTL run at the same time, each on a key of its own. A second series ends with a
release instead.
{resource}
## Figures

{summary}
`late` is the time from the end of the lease (the grant as its holder saw it, plus the granted TTL)
to the next grant. It includes the pause between two attempts of a waiter of Redis and Redlock. The
lease begins between the holder's request and its answer, so `late` is too small by that time at
most (`granting_ms` in the CSV file). `blocked` depends on the moment of the kill, which is
random; `late` does not. After a release, `blocked` counts from the moment at which the former holder
had the answer, and is 0.0 if the next grant arrived before it.

{histories}![Time that a lock stays blocked after its holder was killed](ttl/blocked.svg)

## Predicted and seen

{predictions}
## What it means

- The TTL is the price of a crash: it bounds how long the lock stays blocked. It is also the longest
  pause that a holder survives. Without a fence both wishes conflict, and a TTL that is safe against
  pauses does not exist (see [pause](pause.md)).
- With a fence, a lease that ends under a live holder costs one refused write. So the TTL may
  follow from the time that a crash may block, and a live holder renews (see [renew](renew.md)).
- A release hands the lock over without the TTL: only crashes pay for it.

## What bounds it

- A backend rounds: `granted TTL` is what it agreed to. etcd grants whole seconds, and 2 s at least
  with its usual election timeout.
- etcd looks for expired leases twice a second, and ZooKeeper's sessions end at its ticks. That is
  the larger part of `late` there.
- Servers and workers share one machine: there are no network delays, and all compete for its
  cores, also with other programs that ran at the time.
"
    );
    let files = vec![("blocked.svg".to_owned(), plot(results)), ("rounds.csv".to_owned(), csv(results))];
    Page { markdown, files }
}

/// The TTLs of a run, in their order.
fn ttls(figures: &Figures) -> BTreeSet<u64> {
    figures.rounds.iter().map(|round| round.ttl_ms).collect()
}

fn summary(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "backend | holder | TTL, ms | granted TTL, ms | rounds | blocked, median, ms | blocked, maximum, ms | \
         late, median, ms | late, maximum, ms",
    );
    for run in &results.runs {
        for end in [End::Killed, End::Released] {
            for ttl_ms in ttls(&run.figures) {
                let rounds: Vec<_> =
                    run.figures.rounds.iter().filter(|round| round.end == end && round.ttl_ms == ttl_ms).collect();
                let Some(first) = rounds.first() else { continue };
                let mut blocked: Vec<_> = rounds.iter().map(|round| round.blocked_us).collect();
                let lasted = rounds.iter().map(|round| round.held_us + round.blocked_us);
                let mut late: Vec<_> =
                    lasted.map(|lasted| lasted.saturating_sub(first.granted_ttl_ms * 1000)).collect();
                blocked.sort_unstable();
                late.sort_unstable();
                let median = |sorted: &[u64]| median(sorted, u64::midpoint).map_or_else(String::new, ms);
                let (late_median, late_maximum) = match end {
                    End::Killed => (median(&late), ms(late[late.len() - 1])),
                    End::Released => ("–".to_owned(), "–".to_owned()),
                };
                table.row([
                    run.backend.clone(),
                    word(end).to_owned(),
                    ttl_ms.to_string(),
                    first.granted_ttl_ms.to_string(),
                    rounds.len().to_string(),
                    median(&blocked),
                    ms(blocked[blocked.len() - 1]),
                    late_median,
                    late_maximum,
                ]);
            }
        }
    }
    table.markdown()
}

fn csv(results: &Results<Figures>) -> String {
    let mut table =
        Table::of("backend | holder | ttl_ms | granted_ttl_ms | round | granting_ms | held_ms | blocked_ms");
    for run in &results.runs {
        for round in &run.figures.rounds {
            table.row([
                run.backend.clone(),
                word(round.end).to_owned(),
                round.ttl_ms.to_string(),
                round.granted_ttl_ms.to_string(),
                round.round.to_string(),
                ms(round.granting_us),
                ms(round.held_us),
                ms(round.blocked_us),
            ]);
        }
    }
    table.csv()
}

fn plot(results: &Results<Figures>) -> String {
    let point = |round: &Round| (round.ttl_ms as f64, round.blocked_us as f64 / 1e3);
    let killed = |round: &&Round| round.end == End::Killed;
    let clouds = results.runs.iter().enumerate().map(|(number, run)| {
        // Side by side, so that backends do not hide each other.
        let aside = 1.0 + 0.06 * (number as f64 - results.runs.len() as f64 / 2.0);
        let points = run.figures.rounds.iter().filter(killed).map(|round| (point(round).0 * aside, point(round).1));
        Series { name: run.backend.clone(), points: points.collect(), line: false }
    });
    let clouds: Vec<_> = clouds.collect();
    let axes = Axes {
        x: "TTL that was asked for, ms (backends side by side)".to_owned(),
        y: "blocked after the kill, ms".to_owned(),
        x_range: (300.0, 16_000.0),
        y_range: (100.0, 20_000.0),
        logarithmic: true,
    };
    series(&axes, &clouds)
}

fn word(end: End) -> &'static str {
    match end {
        End::Killed => "killed",
        End::Released => "released",
    }
}
