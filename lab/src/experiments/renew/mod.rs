//! Experiment `renew`: renewing narrows the window, and never closes it.
//!
//! Worker a works, is paused, and writes; worker b waits for the lock and writes as soon as it has it.
//! Pauses around the TTL, with and without renewals in the background, as a sleep of the job and as a
//! stop of the whole process. A write is *stale* if the resource has seen b's token before it.

mod page;

use futures_util::{StreamExt, stream};
pub use page::page;
use palisade_history::{History, Key};
use serde::{Deserialize, Serialize};

use super::judged::{self, Judged};
use super::processes::{Resource, Worker};
use super::{Context, Found, path_text, scratch};
use crate::event::{Event, millis};
use crate::history::merge;
use crate::report::Prediction;
use crate::resource::rule::Fence;
use crate::worker::pause::How;

pub(super) const TTL_MS: u64 = 2_000;
/// Pauses, in hundredths of the TTL.
pub(super) const PAUSES: [u64; 6] = [50, 80, 100, 120, 150, 250];
/// Rounds of each case.
pub(super) const ROUNDS: u64 = 5;
/// Rounds that run at the same time.
pub(super) const AT_ONCE: usize = 10;

/// The rounds of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The TTL that was asked for.
    #[serde(default = "default_ttl")]
    pub ttl_ms: u64,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// What the checkers say of their histories, for each rule of the resource; empty in runs that recorded none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<Judged>,
}

/// The TTL of runs that did not record it.
fn default_ttl() -> u64 {
    TTL_MS
}

/// A renewing holder renews once in a third of its TTL, as is usual.
fn renew_ms(ttl_ms: u64) -> u64 {
    ttl_ms / 3
}

/// What became of a's write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Write {
    /// Accepted, and in order.
    InOrder,
    /// Accepted after b's: the value is corrupted.
    Stale,
    /// Refused by the fence.
    Refused,
    /// Not sent: a renewal had found that the lock is lost.
    Abandoned,
}

/// How a worker renews, and how and where it is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewCase {
    /// Whether a renews.
    pub renews: bool,
    /// How a is paused.
    pub how: How,
    /// Whether the pause comes after a has looked whether its lock is lost.
    pub after_check: bool,
}

/// One round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// How a renewed and was paused.
    pub case: RenewCase,
    /// The pause, in hundredths of the TTL.
    pub pause: u64,
    /// The resource's rule.
    pub fence: Fence,
    /// The round's number.
    pub round: u64,
    /// The TTL that the backend granted.
    pub granted_ttl_ms: u64,
    /// From a's grant to its write, in microseconds.
    pub held_us: u64,
    /// What became of a's write.
    pub write: Write,
}

impl Round {
    fn is(&self, case: RenewCase, pause: u64) -> bool {
        self.case == case && self.pause == pause
    }

    /// Whether only the fence stood between a's write and corruption, or nothing.
    fn unsafe_write(&self) -> bool {
        matches!(self.write, Write::Stale | Write::Refused)
    }
}

const RENEWED_SLEEP: RenewCase = RenewCase { renews: true, how: How::Sleep, after_check: false };
const RENEWED_STOP: RenewCase = RenewCase { renews: true, how: How::Stop, after_check: false };
const STOP_AFTER_CHECK: RenewCase = RenewCase { renews: true, how: How::Stop, after_check: true };
pub(super) const CASES: [RenewCase; 5] = [
    RenewCase { renews: false, how: How::Sleep, after_check: false },
    RenewCase { renews: false, how: How::Stop, after_check: false },
    RENEWED_SLEEP,
    RENEWED_STOP,
    STOP_AFTER_CHECK,
];

impl RenewCase {
    fn renewals(self) -> &'static str {
        if self.renews { "every third of the TTL" } else { "none" }
    }

    fn pause(self) -> &'static str {
        match (self.how, self.after_check) {
            (How::Sleep, _) => "sleep",
            (How::Stop, false) => "stop",
            (How::Stop, true) => "stop, after the check",
        }
    }
}

/// Runs all cases on one backend.
///
/// # Errors
/// A process fails.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let (directory, ttl_ms) = (scratch()?, context.ttl.map_or(TTL_MS, millis));
    let mut resources = Vec::new();
    for &fence in &context.fences {
        let directory = directory.path().join(format!("{fence:?}"));
        std::fs::create_dir(&directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
        resources.push((fence, Resource::start(&directory, fence).await?));
    }
    let mut cases = Vec::new();
    for case in CASES {
        for pause in PAUSES {
            for (fence, resource) in &resources {
                cases
                    .extend((1..=context.rounds.unwrap_or(ROUNDS)).map(|round| (case, pause, *fence, resource, round)));
            }
        }
    }
    eprintln!("renew: {}: {} rounds, {AT_ONCE} at a time", context.backend, cases.len());
    let rounds = cases.into_iter().zip(context.seed..).map(|((case, pause, fence, resource, round), seed)| {
        one(context, (ttl_ms, resource), seed, (case, pause, fence, round))
    });
    let done: Vec<_> = stream::iter(rounds).buffered(AT_ONCE).collect().await;
    let done = done.into_iter().collect::<Result<Vec<_>, String>>()?;
    let (rounds, histories): (Vec<_>, Vec<(Key, History)>) = done.into_iter().unzip();
    let (mut predictions, mut judged) = (predictions(&rounds), Vec::new());
    for (fence, resource) in resources {
        let own = rounds.iter().zip(&histories).filter(|(round, _)| round.fence == fence);
        let own = own.map(|(_, history)| history.clone()).collect();
        let of = Judged::of(fence, resource, own).await?;
        let count = |write| rounds.iter().filter(|round| round.fence == fence && round.write == write).count() as u64;
        let seen = (of.counts.stale_accepted, of.counts.stale_rejections);
        let expected = (count(Write::Stale), count(Write::Refused));
        let fence = fence.name();
        predictions.push(Prediction {
            predicted: format!(
                "fence {fence}: the resource counts the {} stale and {} refused writes that the workers saw",
                expected.0, expected.1
            ),
            seen: format!("{} and {}", seen.0, seen.1),
            holds: seen == expected,
        });
        judged.push(of);
    }
    predictions.extend(judged::predictions(&judged));
    Ok((Figures { ttl_ms, rounds, judged }, predictions))
}

async fn one(
    context: &Context,
    (ttl_ms, resource): (u64, &Resource),
    seed: u64,
    (case, pause, fence, round): (RenewCase, u64, Fence, u64),
) -> Result<(Round, (Key, History)), String> {
    let how_flag = case.how.name();
    let key = format!("renew-{}-{how_flag}-{}-{pause}-{fence:?}-{round}", case.renews, case.after_check).to_lowercase();
    let (ttl, renew) = (format!("{ttl_ms}ms"), format!("{}ms", renew_ms(ttl_ms)));
    let (length, seed, directory) = (format!("{}ms", ttl_ms * pause / 100), seed.to_string(), scratch()?);
    let [a_history, b_history] = ["a.jsonl", "b.jsonl"].map(|file| directory.path().join(file));
    let mut a_flags = vec!["--resource", &resource.url, "--key", &key, "--ttl", &ttl];
    let b_flags = [&a_flags[..], &["--history", path_text(&b_history)?]].concat();
    a_flags.extend(["--history", path_text(&a_history)?]);
    // The pause begins at a random moment between two renewals.
    a_flags.extend(["--pause", &length, "--pause-how", how_flag, "--work-jitter", &renew, "--seed", &seed]);
    if case.renews {
        a_flags.extend(["--renew", &renew]);
    }
    if case.after_check {
        a_flags.push("--pause-after-check");
    }
    let mut a = Worker::start(context, "a", &a_flags)?;
    let granted = a.wait_for("was granted the lock", |event| matches!(event, Event::Acquired { .. })).await?;
    let b = Worker::start(context, "b", &b_flags)?;
    let (a, _) = tokio::try_join!(a.finish(), b.finish())?;
    let Event::Acquired { ttl_ms: granted_ttl_ms, .. } = granted.event else { unreachable!("it was waited for") };
    let ended = a.iter().find_map(|line| {
        let write = match line.event {
            Event::Written { token, max_fence } if token < max_fence => Write::Stale,
            Event::Written { .. } => Write::InOrder,
            Event::Refused { .. } => Write::Refused,
            Event::Abandoned { .. } => Write::Abandoned,
            _ => return None,
        };
        Some((write, line.clock_us))
    });
    let (write, at) = ended.ok_or_else(|| format!("worker a has ended without a write: {a:?}"))?;
    let held_us = at.saturating_sub(granted.clock_us);
    let round = Round { case, pause, fence, round, granted_ttl_ms, held_us, write };
    Ok((round, (Key::from(key.as_str()), merge(&[&a_history, &b_history])?)))
}

fn predictions(rounds: &[Round]) -> Vec<Prediction> {
    let longest = PAUSES[PAUSES.len() - 1];
    let count = |of: &dyn Fn(&Round) -> bool, seen: &dyn Fn(&Round) -> bool| {
        let rounds: Vec<_> = rounds.iter().filter(|round| of(round)).collect();
        (rounds.len(), rounds.iter().filter(|round| seen(round)).count())
    };
    let mut predictions = Vec::new();
    let (all, seen) = count(&|round| round.fence == Fence::On, &|round| round.write == Write::Stale);
    if all > 0 {
        predictions.push(Prediction::none("fence on: stale writes that are accepted", all, seen));
    }
    let (all, seen) = count(&|round| !round.case.renews && round.pause == longest, &Round::unsafe_write);
    predictions.push(Prediction::all("no renewals, the longest pause: a writes after b", all, seen));
    let (all, seen) = count(&|round| round.case == RENEWED_SLEEP, &Round::unsafe_write);
    predictions.push(Prediction::none("renewals, the job sleeps: a writes after b", all, seen));
    let (all, seen) = count(&|round| round.is(STOP_AFTER_CHECK, longest), &Round::unsafe_write);
    let what = "renewals, the process is stopped after its check, for the longest pause: a writes after b";
    predictions.push(Prediction::all(what, all, seen));
    let off = |round: &Round| round.fence == Fence::Off && round.is(STOP_AFTER_CHECK, longest);
    let (all, seen) = count(&off, &|round| round.write == Write::Stale);
    if all > 0 {
        predictions.push(Prediction::all("the same with the fence off: the resource accepts it", all, seen));
    }
    predictions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(case: RenewCase, fence: Fence, write: Write) -> Round {
        Round { case, pause: 250, fence, round: 1, granted_ttl_ms: 2000, held_us: 0, write }
    }

    #[test]
    fn a_run_without_stale_writes_has_failed_with_the_fence_off() {
        let holds = |off| {
            let rounds = [
                round(STOP_AFTER_CHECK, Fence::Off, off),
                round(STOP_AFTER_CHECK, Fence::On, Write::Refused),
                round(CASES[0], Fence::On, Write::Refused),
                round(RENEWED_SLEEP, Fence::On, Write::InOrder),
            ];
            predictions(&rounds).iter().all(|prediction| prediction.holds)
        };
        assert!(holds(Write::Stale) && !holds(Write::InOrder) && !holds(Write::Abandoned));
    }

    #[test]
    fn an_accepted_stale_write_with_the_fence_on_is_found() {
        let predictions = predictions(&[round(CASES[0], Fence::On, Write::Stale)]);
        assert!(!predictions[0].holds, "{predictions:?}");
    }
}
