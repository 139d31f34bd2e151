//! Experiment `failover`: the leader is killed under load, on each backend that is replicated.
//!
//! Three things happen at the same time. Clients take locks without a competitor, which shows for how long the
//! service grants nothing. A holder keeps its lock over the failover while another client waits for it. And
//! waiters stand in a queue that another holder releases after the failover.
//!
//! A round has one of two beginnings. *In sync*: all servers have the holder's grant before the kill. *Lagging*: one
//! follower is stopped before the grant, and resumed after the kill. A majority has the grant nevertheless; an
//! asynchronous replica that is promoted does not.

mod page;
mod round;

pub use page::page;
use serde::{Deserialize, Serialize};

use super::clients::{Job, tokens_not_above, whole};
use super::processes::Counts;
use super::{Context, Found};
use crate::dlock::Backend;
use crate::history::Judgement;
use crate::report::Prediction;
use crate::resource::rule::Fence;

pub(super) const ROUNDS: u64 = 3;
/// From the kill of Redis's primary to its replica's promotion, by the experiment in Sentinel's place.
const PROMOTION_MS: u64 = 1_000;
/// From the order to kill the leader to the last grant that it had answered.
const KILL_MS: u64 = 100;

/// The rounds of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Whether waiters stand in a queue.
    pub queue: bool,
    /// Whether a grant is acknowledged before another server has it.
    pub asynchronous: bool,
    /// The rounds.
    pub rounds: Vec<Round>,
}

/// How a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailoverCase {
    /// All servers have the holder's grant.
    InSync,
    /// One follower lacks it.
    Lagging,
}

impl FailoverCase {
    /// Both.
    pub const ALL: [FailoverCase; 2] = [FailoverCase::InSync, FailoverCase::Lagging];

    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FailoverCase::InSync => "in sync",
            FailoverCase::Lagging => "lagging",
        }
    }
}

/// One round. Times are in microseconds since its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// How it begins.
    pub case: FailoverCase,
    /// Its number.
    pub round: u64,
    /// The server that was killed.
    pub killed: String,
    /// When it was killed.
    pub kill_us: u64,
    /// Number of grants to clients that had no competitor.
    pub grants: usize,
    /// The last of these grants before the longest time without one.
    pub gap_from_us: u64,
    /// The longest time without such a grant.
    pub gap_us: u64,
    /// The rest, for each rule of the resource.
    pub contests: Vec<Contest>,
}

/// A holder and its competitor, which waits for the lock, and a queue; under one rule of the resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contest {
    /// The resource's rule.
    pub fence: Fence,
    /// A client that had the lock before the holder, and released it.
    pub earlier: Job,
    /// The holder, which holds over the kill.
    pub holder: Job,
    /// The client that waits for the holder's lock.
    pub challenger: Job,
    /// The value of their key at the end.
    pub value: String,
    /// The holder of the queue's lock, then the waiters, in the order of their arrival.
    pub queue: Vec<Job>,
    /// The value of the queue's key at the end.
    pub queue_value: String,
    /// What the resource counted.
    pub counts: Counts,
    /// What the checkers say of the two keys' histories.
    pub judged: [Judgement; 2],
}

impl Contest {
    /// Whether the challenger was granted the lock while the holder held it.
    #[must_use]
    pub fn lost(&self) -> bool {
        self.holder.overlaps(&self.challenger)
    }

    /// The jobs of the holder's key.
    pub fn held_jobs(&self) -> impl Iterator<Item = &Job> {
        [&self.earlier, &self.holder, &self.challenger].into_iter()
    }

    /// Pairs of waiters that were granted the lock against the order of their arrival.
    #[must_use]
    pub fn overtakings(&self) -> usize {
        overtakings(&self.queue)
    }

    /// Waiters that were not granted the lock.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.queue.iter().filter(|job| !job.granted()).count()
    }

    /// Grants, on either key, whose token is not above those before it.
    #[must_use]
    pub fn tokens_not_above(&self) -> usize {
        tokens_not_above(self.held_jobs()) + tokens_not_above(&self.queue)
    }

    /// Whether both values have a line of each accepted write.
    #[must_use]
    pub fn whole(&self) -> bool {
        whole(&self.value, self.held_jobs()) && whole(&self.queue_value, &self.queue)
    }

    /// Whether the checkers accuse neither the lock service nor the resource, which has counted no stale write.
    #[must_use]
    pub fn sound(&self) -> bool {
        let accused = |judged: &Judgement| !judged.service.is_empty() || !judged.resource.is_empty();
        !self.judged.iter().any(accused) && self.counts.stale_accepted == 0 && self.counts.stale_rejections == 0
    }
}

fn overtakings(queue: &[Job]) -> usize {
    let grants: Vec<_> = queue.iter().filter_map(|job| job.granted.map(|grant| grant.at_us)).collect();
    let later = |index: usize| grants[index + 1..].iter().filter(|&&later| later < grants[index]).count();
    (0..grants.len()).map(later).sum()
}

/// The longest time between two of these moments, and its beginning.
fn longest_gap(moments: &mut [u64]) -> (u64, u64) {
    moments.sort_unstable();
    let gaps = moments.windows(2).map(|pair| (pair[1] - pair[0], pair[0]));
    gaps.max().map(|(gap, from)| (from, gap)).unwrap_or_default()
}

/// Runs all rounds on one backend. A server that was killed is restarted after the round.
///
/// # Errors
/// A server or the resource fails.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let mut rounds = Vec::new();
    for case in FailoverCase::ALL {
        for round in 1..=context.rounds.unwrap_or(ROUNDS) {
            eprintln!("failover: {}: {}, round {round}", context.backend, case.name());
            rounds.push(round::one(context, case, round).await?);
        }
    }
    let asynchronous = context.backend == Backend::Redis;
    let figures = Figures { queue: !asynchronous, asynchronous, rounds };
    let predictions = predictions(&figures);
    Ok((figures, predictions))
}

fn predictions(figures: &Figures) -> Vec<Prediction> {
    let mut predictions = Vec::new();
    let rounds = &figures.rounds;
    let resumed = rounds.iter().filter(|round| round.gap_from_us + round.gap_us > round.kill_us);
    let longest = resumed.filter(|round| round.gap_from_us <= round.kill_us + KILL_MS * 1000).count();
    predictions.push(Prediction::all(
        "the longest time without a grant is that after the kill, and grants go on after it",
        rounds.len(),
        longest,
    ));
    for case in FailoverCase::ALL {
        let contests: Vec<_> =
            rounds.iter().filter(|round| round.case == case).flat_map(|round| &round.contests).collect();
        let mut all = |what: &str, holds: &dyn Fn(&Contest) -> bool| {
            let seen = contests.iter().filter(|contest| holds(contest)).count();
            predictions.push(Prediction::all(format!("{}: {what}", case.name()), contests.len(), seen));
        };
        if figures.queue {
            all("all waiters are granted the lock in the order of their arrival", &|contest| {
                contest.overtakings() == 0 && contest.left_out() == 0
            });
        }
        if figures.asynchronous && case == FailoverCase::Lagging {
            all("a second client is granted the lock that is held", &Contest::lost);
            all("a token is granted that is not above all earlier ones", &|contest| contest.tokens_not_above() > 0);
            all("the resource refuses neither client, and the value loses a line", &|contest| {
                contest.holder.accepted().is_some() && contest.challenger.accepted().is_some() && !contest.whole()
            });
            all("the checkers accuse the lock service", &|contest| !contest.judged[0].service.is_empty());
        } else {
            all("the held lock survives, and is handed over after its release", &|contest| {
                !contest.lost() && contest.challenger.granted()
            });
            all("tokens grow with every grant", &|contest| contest.tokens_not_above() == 0);
            all("values are whole; neither checkers nor resource find a violation", &|contest| {
                contest.whole() && contest.sound()
            });
        }
    }
    predictions
}

#[cfg(test)]
mod tests;
