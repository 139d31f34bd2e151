//! Experiment `pause`: a pause longer than the TTL, between acquire and write.
//!
//! Worker a takes the lock, reads the value, is paused for longer than its TTL, and writes. Meanwhile
//! the lock service rightly grants the lock to worker b, which reads, writes and releases. Without a
//! fence the resource accepts a's write after b's, and b's line is lost. With the fence it refuses it.
//!
//! Three sources must agree: what the resource counts, what the checkers say of the workers' history,
//! and what they say of the resource's.

mod page;

use std::path::Path;

pub use page::page;
use palisade_history::History;
use serde::{Deserialize, Serialize};

use super::processes::{Counts, Resource, Worker};
use super::{Context, Found, path_text, scratch};
use crate::event::{Event, Line, millis};
use crate::history::{Judgement, merge, seen_by_resource};
use crate::report::Prediction;
use crate::resource::rule::Fence;
use crate::servers::Signing;
use crate::worker::job::lines;
use crate::worker::pause::How;

const TTL_MS: u64 = 2_000;
pub(super) const PAUSE_MS: u64 = 5_000;
pub(super) const ROUNDS: u64 = 3;

/// The rounds of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The TTL that was asked for.
    pub ttl_ms: u64,
    /// The pause.
    pub pause_ms: u64,
    /// The rounds.
    pub rounds: Vec<Round>,
}

/// One round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// How worker a was paused.
    pub how: How,
    /// The resource's rule.
    pub fence: Fence,
    /// The round's number.
    pub round: u64,
    /// What worker a printed.
    pub a: Vec<Line>,
    /// What worker b printed.
    pub b: Vec<Line>,
    /// The value at the end.
    pub value: String,
    /// What the resource counted.
    pub counts: Counts,
    /// What the checkers say of the workers' history.
    pub workers_judged: Judgement,
    /// What the checkers say of the grants as the workers saw them, and the accesses as the resource did.
    pub resource_judged: Judgement,
}

impl Round {
    /// Whether a's write was accepted after b's.
    #[must_use]
    pub fn stale_write(&self) -> bool {
        self.a.iter().any(|line| matches!(line.event, Event::Written { token, max_fence } if token < max_fence))
    }

    /// Whether a's write was refused.
    #[must_use]
    pub fn refused(&self) -> bool {
        self.a.iter().any(|line| matches!(line.event, Event::Refused { .. }))
    }

    /// Whether the value has the line of each accepted write, in the order of the tokens.
    #[must_use]
    pub fn whole(&self) -> bool {
        let mut accepted: Vec<_> = self.a.iter().chain(&self.b).filter_map(|line| written(&line.event)).collect();
        accepted.sort_unstable();
        lines(&self.value) == accepted
    }

    /// Whether the lock service did what it promised: the checkers accuse it of nothing.
    #[must_use]
    pub fn service_sound(&self) -> bool {
        self.workers_judged.service.is_empty() && self.resource_judged.service.is_empty()
    }

    /// Whether both histories have as many violations as the resource has counted stale writes.
    #[must_use]
    pub fn agrees(&self) -> bool {
        [&self.workers_judged, &self.resource_judged]
            .into_iter()
            .all(|judged| u64::try_from(judged.resource.len()).is_ok_and(|found| found == self.counts.stale_accepted))
    }
}

fn written(event: &Event) -> Option<u64> {
    match event {
        Event::Written { token, .. } => Some(*token),
        _ => None,
    }
}

/// Runs all cases on one backend. The cases of a round run at the same time, each with a key and a
/// resource of its own.
///
/// # Errors
/// A process fails.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let mut rounds = Vec::new();
    for round in 1..=context.rounds.unwrap_or(ROUNDS) {
        eprintln!("pause: {}: round {round}", context.backend);
        let cases =
            [How::Sleep, How::Stop].into_iter().flat_map(|how| context.fences.iter().map(move |&fence| (how, fence)));
        let cases = cases.map(|(how, fence)| one(context, how, fence, round));
        rounds.extend(futures_util::future::try_join_all(cases).await?);
    }
    rounds.sort_by_key(|round| (round.how, round.fence == Fence::On, round.round));
    let (ttl_ms, pause_ms) = times(context);
    let figures = Figures { ttl_ms, pause_ms, rounds };
    let predictions = predictions(&figures);
    Ok((figures, predictions))
}

/// The TTL and the pause, in milliseconds.
pub(super) fn times(context: &Context) -> (u64, u64) {
    (context.ttl.map_or(TTL_MS, millis), context.pause.map_or(PAUSE_MS, millis))
}

async fn one(context: &Context, how: How, fence: Fence, round: u64) -> Result<Round, String> {
    let directory = scratch()?;
    let flags = context.signing.as_deref().map(Signing::resource_flags);
    let flags = flags.as_ref().map_or(&[][..], |flags| &flags[..]);
    let resource = Resource::start_with(directory.path(), fence, flags).await?;
    let key = format!("pause-{how:?}-{fence:?}-{round}").to_lowercase();
    let start = |owner: &str, flags: &[&str]| {
        Worker::start(context, owner, &[&["--resource", &resource.url, "--key", &key], flags].concat())
    };
    let (a, b, workers) = two_workers(directory.path(), how, times(context), start).await?;
    let counts = resource.counts().await?;
    let value = resource.client.read(&key).await?.map(|value| value.value).unwrap_or_default();
    let resource_history = resource.end().await?;
    let resource = seen_by_resource(&workers, merge(&[&resource_history])?);
    let (workers_judged, resource_judged) = (Judgement::of(&workers), Judgement::of(&resource));
    Ok(Round { how, fence, round, a, b, value, counts, workers_judged, resource_judged })
}

/// Worker a is paused after its acquire, and worker b takes the lock meanwhile. `start` starts the worker of a name with
/// more flags. Returns what a and b printed, and their history.
pub(super) async fn two_workers(
    directory: &Path,
    how: How,
    (ttl_ms, pause_ms): (u64, u64),
    start: impl Fn(&str, &[&str]) -> Result<Worker, String>,
) -> Result<(Vec<Line>, Vec<Line>, History), String> {
    let (a_history, b_history) = (directory.join("a.jsonl"), directory.join("b.jsonl"));
    let (ttl, pause) = (format!("{ttl_ms}ms"), format!("{pause_ms}ms"));
    let a_flags = ["--ttl", &ttl, "--history", path_text(&a_history)?, "--pause", &pause, "--pause-how", how.name()];
    let mut a = start("a", &a_flags)?;
    a.wait_for("was paused", |event| matches!(event, Event::Paused { .. })).await?;
    let b = start("b", &["--ttl", &ttl, "--history", path_text(&b_history)?])?;
    let (a, b) = tokio::try_join!(a.finish(), b.finish())?;
    Ok((a, b, merge(&[&a_history, &b_history])?))
}

fn predictions(figures: &Figures) -> Vec<Prediction> {
    let mut predictions = Vec::new();
    let mut all = |what: &str, rounds: &[&Round], holds: &dyn Fn(&Round) -> bool| {
        predictions.push(Prediction::all(what, rounds.len(), rounds.iter().filter(|round| holds(round)).count()));
    };
    let rounds: Vec<_> = figures.rounds.iter().collect();
    let of = |fence| rounds.iter().copied().filter(|round| round.fence == fence).collect::<Vec<_>>();
    let (off, on) = (of(Fence::Off), of(Fence::On));
    if !off.is_empty() {
        all("fence off: the paused worker's write is accepted after the other's", &off, &|round| {
            round.stale_write() && round.counts.stale_accepted == 1
        });
        all("fence off: the value has lost a line of an accepted write", &off, &|round| !round.whole());
    }
    if !on.is_empty() {
        all("fence on: the paused worker's write is refused and counted", &on, &|round| {
            round.refused() && round.counts.stale_rejections == 1 && round.counts.stale_accepted == 0
        });
        all("fence on: the value is whole", &on, &|round| round.whole());
    }
    all("both histories have as many violations as the resource counts stale writes", &rounds, &|round| round.agrees());
    all("the checkers accuse the lock service of nothing", &rounds, &|round| round.service_sound());
    predictions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(a: Event, value: &str, stale_accepted: u64, found: usize) -> Round {
        let line = |event| Line { at_us: 0, clock_us: 0, job: 1, event };
        let judged = Judgement { resource: vec![String::new(); found], ..Judgement::default() };
        Round {
            how: How::Sleep,
            fence: Fence::Off,
            round: 1,
            a: vec![line(a)],
            b: vec![line(Event::Written { token: 2, max_fence: 2 })],
            value: value.to_owned(),
            counts: Counts { stale_accepted, ..Counts::default() },
            workers_judged: judged.clone(),
            resource_judged: judged,
        }
    }

    #[test]
    fn a_lost_line_is_corruption() {
        let stale = Event::Written { token: 1, max_fence: 2 };
        assert!(!round(stale.clone(), "a job 1 token 1\n", 1, 1).whole());
        assert!(!round(stale.clone(), "b job 1 token 2\na job 1 token 1\n", 1, 1).whole());
        assert!(round(Event::Written { token: 1, max_fence: 1 }, "a job 1 token 1\nb job 1 token 2\n", 0, 0).whole());
        assert!(round(Event::Refused { token: 1, seen: 2 }, "b job 1 token 2\n", 0, 0).whole());
        assert!(round(stale, "", 1, 1).stale_write());
    }

    #[test]
    fn sources_that_disagree_are_found() {
        let stale = Event::Written { token: 1, max_fence: 2 };
        assert!(round(stale.clone(), "", 1, 1).agrees());
        assert!(!round(stale.clone(), "", 1, 0).agrees());
        assert!(!round(stale, "", 0, 1).agrees());
    }

    #[test]
    fn a_run_without_violations_has_failed_with_the_fence_off() {
        let rounds = vec![round(Event::Refused { token: 1, seen: 2 }, "b job 1 token 2\n", 0, 0)];
        let predictions = predictions(&Figures { ttl_ms: 1, pause_ms: 2, rounds });
        assert!(!predictions[0].holds && !predictions[1].holds, "{predictions:?}");
    }
}
