//! Experiment `fenced-stores`: the fence where it bites, in stores that know nothing of locks.
//!
//! The pause of the experiment [`pause`](super::pause), with a PostgreSQL row and an object of an
//! object store as the resource. The check of the token is a condition of the store's own write. A
//! second part lets many writers race for one key: the highest token stays.

mod page;
mod race;
mod worker;

pub use page::page;
use palisade_history::Call;
pub use race::{Race, WRITERS, races};
use serde::{Deserialize, Serialize};
pub use worker::Command as StoreWorker;

use super::pause::{ROUNDS, times, two_workers};
use super::processes::Worker;
use super::{Context, Found, scratch};
use crate::event::{Event, Line};
use crate::history::Judgement;
use crate::report::Prediction;
use crate::resource::rule::Fence;
use crate::servers;
use crate::stores::{Kind, StoreServer, Value};
use crate::worker::job::lines;
use crate::worker::pause::How;

/// Races of one store under one rule, for each round.
pub(super) const RACES: u64 = 10;

/// What was measured on one lock service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The TTL that was asked for.
    pub ttl_ms: u64,
    /// The pause.
    pub pause_ms: u64,
    /// The stores, with their versions.
    pub stores: Vec<(Kind, String)>,
    /// The rounds with a pause.
    pub rounds: Vec<Round>,
    /// The races, which use no lock.
    pub races: Vec<Race>,
}

/// One round with a pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The store.
    pub store: Kind,
    /// How worker a was paused.
    pub how: How,
    /// Whether the writes had the condition on the token.
    pub fence: Fence,
    /// The round's number.
    pub round: u64,
    /// What worker a printed.
    pub a: Vec<Line>,
    /// What worker b printed.
    pub b: Vec<Line>,
    /// What is stored at the end.
    pub stored: Option<Value>,
    /// What the checkers say of the workers' history.
    pub judged: Judgement,
}

impl Round {
    /// The tokens of the writes that were accepted, in the order of the answers.
    #[must_use]
    pub fn accepted(&self) -> Vec<u64> {
        let mut writes: Vec<_> = self.a.iter().chain(&self.b).collect();
        writes.sort_by_key(|line| line.clock_us);
        let token = |line: &&Line| match line.event {
            Event::Written { token, .. } => Some(token),
            _ => None,
        };
        writes.iter().filter_map(token).collect()
    }

    /// Whether a's write was accepted after a write with a higher token, and has replaced it.
    #[must_use]
    pub fn stale_write(&self) -> bool {
        let stored = self.stored.as_ref().map_or(0, |stored| stored.fence);
        self.accepted().into_iter().max().is_some_and(|highest| stored < highest)
    }

    /// Whether the store refused a's write because of a higher token, which is still stored.
    #[must_use]
    pub fn refused(&self) -> bool {
        let stored = self.stored.as_ref().map(|stored| stored.fence);
        self.a.iter().any(|line| match line.event {
            Event::Refused { token, seen } => token < seen && stored == Some(seen),
            _ => false,
        })
    }

    /// Whether the value has the line of each accepted write, in the order of the tokens.
    #[must_use]
    pub fn whole(&self) -> bool {
        let mut accepted = self.accepted();
        accepted.sort_unstable();
        !accepted.is_empty() && self.stored.as_ref().is_some_and(|stored| lines(&stored.value) == accepted)
    }
}

/// Starts the stores, and runs all cases on one lock service. The cases of a round run at the same
/// time, each with a key of its own.
///
/// # Errors
/// A server or a process fails.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let start = Kind::ALL.map(|kind| async move {
        let running =
            StoreServer::start(kind, &servers::Options::default()).await.map_err(|error| error.to_string())?;
        // The table is made before workers use it.
        running.open().await?;
        Ok::<_, String>(running)
    });
    let stores = futures_util::future::try_join_all(start).await?;
    let (mut rounds, mut raced) = (Vec::new(), Vec::new());
    for round in 1..=context.rounds.unwrap_or(ROUNDS) {
        eprintln!("fenced-stores: {}: round {round}", context.backend);
        let mut cases = Vec::new();
        for store in &stores {
            for how in [How::Sleep, How::Stop] {
                cases.extend(context.fences.iter().map(|&fence| one(context, store, how, fence, round)));
            }
        }
        rounds.extend(futures_util::future::try_join_all(cases).await?);
        for store in &stores {
            for &fence in &context.fences {
                raced.extend(races(store, fence, RACES, context.seed.wrapping_add(round)).await?);
            }
        }
    }
    rounds.sort_by_key(|round| (round.store, round.how, round.fence == Fence::On, round.round));
    raced.sort_by_key(|race| (race.store, race.fence == Fence::On));
    let stores = stores.iter().map(|store| (store.kind(), store.version().to_owned())).collect();
    let (ttl_ms, pause_ms) = times(context);
    let figures = Figures { ttl_ms, pause_ms, stores, rounds, races: raced };
    let predictions = predictions(&figures);
    Ok((figures, predictions))
}

async fn one(context: &Context, store: &StoreServer, how: How, fence: Fence, round: u64) -> Result<Round, String> {
    let directory = scratch()?;
    let key = format!("{}-{how:?}-{fence:?}-{round}", store.kind()).to_lowercase();
    let (name, address) = (store.kind().name(), store.address());
    let own = ["--store", name, "--store-address", address, "--key", &key, "--fence", fence.name()];
    let start = |owner: &str, flags: &[&str]| Worker::start_as("store-worker", context, owner, &[&own, flags].concat());
    let (a, b, history) = two_workers(directory.path(), how, times(context), start).await?;
    let stored = store.open().await?.read(&key).await?;
    let writes = history.operations.iter().filter(|operation| matches!(operation.call, Call::Access { .. })).count();
    if writes != 2 {
        return Err(format!("the workers of {key} have recorded {writes} writes instead of 2"));
    }
    Ok(Round { store: store.kind(), how, fence, round, a, b, stored, judged: Judgement::of(&history) })
}

fn predictions(figures: &Figures) -> Vec<Prediction> {
    let mut predictions = Vec::new();
    for store in Kind::ALL {
        let rounds = |fence| figures.rounds.iter().filter(move |round| (round.store, round.fence) == (store, fence));
        let races = |fence| figures.races.iter().filter(move |race| (race.store, race.fence) == (store, fence));
        let mut all = |fence, what: &str, holds: &dyn Fn(&Round) -> bool| {
            let (of, seen) = (rounds(fence).count(), rounds(fence).filter(|round| holds(round)).count());
            if of > 0 {
                predictions.push(Prediction::all(format!("{store}, {what}"), of, seen));
            }
        };
        all(Fence::Off, "fence off: the paused worker's write replaces a newer one", &|round| round.stale_write());
        all(Fence::Off, "fence off: the value has lost a line of an accepted write", &|round| !round.whole());
        all(Fence::Off, "fence off: the checkers find one violation", &|round| round.judged.resource.len() == 1);
        all(Fence::On, "fence on: the store refuses the paused worker's write", &|round| round.refused());
        all(Fence::On, "fence on: the value is whole", &|round| round.whole());
        all(Fence::On, "fence on: the checkers find no violation", &|round| round.judged.resource.is_empty());
        for fence in [Fence::Off, Fence::On] {
            let rule = if fence == Fence::On { "fence on" } else { "fence off" };
            all(fence, &format!("{rule}: the checkers accuse the lock service of nothing"), &|round| {
                round.judged.service.is_empty()
            });
        }
        let count =
            |fence, holds: &dyn Fn(&Race) -> bool| (races(fence).count(), races(fence).filter(|r| holds(r)).count());
        let (of, seen) = count(Fence::Off, &|race| !race.highest_stays());
        if of > 0 {
            let what = format!("{store}, fence off: a lower token stays after a race");
            predictions.push(Prediction::some(what, of, seen));
        }
        let (of, seen) =
            count(Fence::On, &|race| race.highest_stays() && race.late_refused && race.judged.resource.is_empty());
        if of > 0 {
            let what = format!("{store}, fence on: the highest token stays after a race, and a late write is refused");
            predictions.push(Prediction::all(what, of, seen));
        }
    }
    predictions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(fence: Fence, a: Event, stored: (u64, &str), found: usize) -> Round {
        let line = |clock_us, event| Line { at_us: 0, clock_us, job: 1, event };
        Round {
            store: Kind::Objects,
            how: How::Sleep,
            fence,
            round: 1,
            a: vec![line(9, a)],
            b: vec![line(5, Event::Written { token: 2, max_fence: 2 })],
            stored: Some(Value { fence: stored.0, value: stored.1.to_owned() }),
            judged: Judgement { resource: vec![String::new(); found], ..Judgement::default() },
        }
    }

    fn figures(round: Round) -> Figures {
        Figures { ttl_ms: 1, pause_ms: 2, stores: Vec::new(), rounds: vec![round], races: Vec::new() }
    }

    #[test]
    fn a_lower_token_that_stays_is_a_stale_write() {
        let written = Event::Written { token: 1, max_fence: 1 };
        let stale = round(Fence::Off, written.clone(), (1, "a job 1 token 1\n"), 1);
        assert!(stale.stale_write() && !stale.whole() && !stale.refused());
        assert_eq!(stale.accepted(), [2, 1]);
        assert!(predictions(&figures(stale)).iter().all(|prediction| prediction.holds));
    }

    #[test]
    fn a_refusal_leaves_the_value_whole() {
        let refused = round(Fence::On, Event::Refused { token: 1, seen: 2 }, (2, "b job 1 token 2\n"), 0);
        assert!(refused.refused() && refused.whole() && !refused.stale_write());
        assert!(predictions(&figures(refused.clone())).iter().all(|prediction| prediction.holds));
        let mut emptied = refused;
        emptied.stored = None;
        assert!(!emptied.refused() && !emptied.whole());
    }

    #[test]
    fn a_run_without_corruption_has_failed_with_the_fence_off() {
        let clean = round(Fence::Off, Event::Refused { token: 1, seen: 2 }, (2, "b job 1 token 2\n"), 0);
        let predictions = predictions(&figures(clean));
        assert_eq!(predictions.iter().filter(|prediction| !prediction.holds).count(), 3, "{predictions:?}");
    }

    #[test]
    fn a_store_that_accepts_a_stale_write_has_failed_with_the_fence_on() {
        let written = Event::Written { token: 1, max_fence: 1 };
        let broken = round(Fence::On, written, (1, "a job 1 token 1\n"), 1);
        let predictions = predictions(&figures(broken));
        assert_eq!(predictions.iter().filter(|prediction| !prediction.holds).count(), 3, "{predictions:?}");
    }
}
