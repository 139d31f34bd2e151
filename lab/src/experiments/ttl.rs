//! Experiment `ttl`: a holder is killed by SIGKILL. How long does its lock stay blocked?
//!
//! Beside it, the same hand-over after a release, which shows what the TTL alone costs.

use std::time::Duration;

use futures_util::future::try_join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::processes::Worker;
use super::{Context, Found};
use crate::history::monotonic;
use crate::report::plot::{Axes, Series, series};
use crate::report::table::{Table, median, ms};
use crate::report::{Page, Prediction, Results};
use crate::worker::event::Event;

const TTLS_MS: [u64; 3] = [500, 2_000, 10_000];
const ROUNDS: u64 = 5;
/// How much later than its end a lease may be noticed. etcd looks for expired leases twice a second
/// and ZooKeeper once in a tick; the rest is for a machine that is busy.
const LATE_MS: u64 = 2_000;
/// How much earlier than a TTL after its request a lease may end: servers count whole milliseconds.
const EARLY_MS: u64 = 5;

/// The rounds of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The rounds.
    pub rounds: Vec<Round>,
}

/// How the holder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By SIGKILL.
    Killed,
    /// It released its lock.
    Released,
}

/// One round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// How the holder ended.
    pub end: End,
    /// The TTL that was asked for.
    pub ttl_ms: u64,
    /// The TTL that the backend granted.
    pub granted_ttl_ms: u64,
    /// The round's number.
    pub round: u64,
    /// From the holder's request to its grant, in microseconds. The lease begins between the two.
    pub granting_us: u64,
    /// From the holder's grant to its end, in microseconds.
    pub held_us: u64,
    /// From the holder's end to the next grant, in microseconds.
    pub blocked_us: u64,
}

/// Runs all rounds of one TTL at the same time, each on a key of its own.
///
/// # Errors
/// A process fails.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let mut rng = StdRng::seed_from_u64(context.seed);
    let mut rounds = Vec::new();
    for ttl_ms in TTLS_MS {
        eprintln!("ttl: {}: {ttl_ms} ms", context.backend);
        for end in [End::Killed, End::Released] {
            // The holder ends in the first half of its lease, which it does not renew.
            let many = (1..=context.rounds.unwrap_or(ROUNDS)).map(|round| (round, rng.random_range(50..ttl_ms / 2)));
            let many: Vec<_> = many.map(|(round, hold_ms)| one(context, end, ttl_ms, round, hold_ms)).collect();
            rounds.extend(try_join_all(many).await?);
        }
    }
    let predictions = predictions(&rounds);
    Ok((Figures { rounds }, predictions))
}

async fn one(context: &Context, end: End, ttl_ms: u64, round: u64, hold_ms: u64) -> Result<Round, String> {
    let key = format!("ttl-{end:?}-{ttl_ms}-{round}").to_lowercase();
    let work = if end == End::Killed { 3_600_000 } else { hold_ms };
    let flags = |work: u64| {
        let flags = ["--key".to_owned(), key.clone(), "--ttl".to_owned(), format!("{ttl_ms}ms")];
        flags.into_iter().chain(["--work".to_owned(), format!("{work}ms")]).collect::<Vec<_>>()
    };
    let mut holder = Worker::start(context, "holder", &flags(work))?;
    let granted = holder.wait_for("was granted the lock", |event| matches!(event, Event::Acquired { .. })).await?;
    let mut waiter = Worker::start(context, "waiter", &flags(0))?;
    waiter.wait_for("asked for the lock", |event| matches!(event, Event::Acquiring)).await?;
    let ended_us = match end {
        End::Killed => {
            tokio::time::sleep(Duration::from_millis(hold_ms)).await;
            let now = monotonic().0 / 1000;
            holder.kill().await?;
            now
        }
        End::Released => {
            let released = |event: &Event| matches!(event, Event::Released { .. });
            holder.wait_for("released the lock", released).await?.clock_us
        }
    };
    let next = waiter.wait_for("was granted the lock", |event| matches!(event, Event::Acquired { .. })).await?;
    waiter.finish().await?;
    let Event::Acquired { ttl_ms: granted_ttl_ms, waited_us: granting_us, .. } = granted.event else {
        unreachable!("it was waited for")
    };
    let held_us = ended_us.saturating_sub(granted.clock_us);
    let blocked_us = next.clock_us.saturating_sub(ended_us);
    Ok(Round { end, ttl_ms, granted_ttl_ms, round, granting_us, held_us, blocked_us })
}

fn predictions(rounds: &[Round]) -> Vec<Prediction> {
    let killed: Vec<_> = rounds.iter().filter(|round| round.end == End::Killed).collect();
    let lasted = |round: &Round| round.held_us + round.blocked_us;
    let not_early = killed
        .iter()
        .filter(|round| round.granting_us + lasted(round) + EARLY_MS * 1000 >= round.granted_ttl_ms * 1000);
    let in_time = killed.iter().filter(|round| lasted(round) <= (round.granted_ttl_ms + LATE_MS) * 1000);
    let released: Vec<_> = rounds.iter().filter(|round| round.end == End::Released).collect();
    let at_once = released.iter().filter(|round| round.blocked_us < 500_000);
    vec![
        Prediction::all(
            "killed: no other grant until a TTL after the holder's request",
            killed.len(),
            not_early.count(),
        ),
        Prediction::all(
            format!("killed: the lock is granted again {LATE_MS} ms after the lease's end at the latest"),
            killed.len(),
            in_time.count(),
        ),
        Prediction::all("released: the lock is granted again within 500 ms", released.len(), at_once.count()),
    ]
}

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let summary = summary(results);
    let markdown = format!(
        "# A killed holder and the TTL

A lock whose holder was killed stays blocked for the rest of its TTL. Fencing allows a short TTL,
because a lease that ends too early then costs a repeated job and no data.

**Question.** A holder is killed by SIGKILL, and another worker waits for the lock. How long is the
time from the kill to the next grant, with a TTL of 500 ms, 2 s and 10 s?

## Set-up

{setups}
{commands}
The holder is killed at a random moment in the first half of its lease, and never renews it. All
rounds of one TTL run at the same time, each on a key of its own. A second series ends with a
release instead.

## Figures

{summary}
`late` is the time from the end of the lease (the grant as its holder saw it, plus the granted TTL)
to the next grant. It includes the pause between two attempts of a waiter of Redis and Redlock. The
lease begins between the holder's request and its answer, so `late` is too small by that time at
most (`granting_ms` in the CSV file). `blocked` depends on the moment of the kill, which is
random; `late` does not. After a release, `blocked` counts from the moment at which the former holder
had the answer, and is 0.0 if the next grant arrived before it.

![Time that a lock stays blocked after its holder was killed](ttl/blocked.svg)

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

fn summary(results: &Results<Figures>) -> String {
    let mut table = Table::new(&[
        "backend",
        "holder",
        "TTL, ms",
        "granted TTL, ms",
        "rounds",
        "blocked, median, ms",
        "blocked, maximum, ms",
        "late, median, ms",
        "late, maximum, ms",
    ]);
    for run in &results.runs {
        for end in [End::Killed, End::Released] {
            for ttl_ms in TTLS_MS {
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
        Table::new(&["backend", "holder", "ttl_ms", "granted_ttl_ms", "round", "granting_ms", "held_ms", "blocked_ms"]);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(held_us: u64, blocked_us: u64) -> Vec<bool> {
        let round = Round {
            end: End::Killed,
            ttl_ms: 500,
            granted_ttl_ms: 1000,
            round: 1,
            granting_us: 0,
            held_us,
            blocked_us,
        };
        predictions(&[round]).iter().map(|prediction| prediction.holds).collect()
    }

    #[test]
    fn a_lease_that_ends_early_or_far_too_late_is_found() {
        assert_eq!(killed(200_000, 800_000)[..2], [true, true]);
        assert_eq!(killed(200_000, 700_000)[..2], [false, true]);
        assert_eq!(killed(200_000, 2_900_000)[..2], [true, false]);
        assert!(!killed(0, 1_000_000)[2], "no release was seen");
    }
}
