//! Experiment `clocks`: the wall clocks of servers are set, or run fast, while a client holds a lock.
//!
//! The holder acquires the lock, and writes and releases it well within its TTL by its own monotonic clock. Meanwhile
//! the wall clocks of some servers jump ahead, or back, or they differed from the beginning, or run too fast. A server
//! that counts a lease by its wall clock ends it early, or late.

mod page;
mod round;

use std::time::Duration;

pub use page::page;
use serde::{Deserialize, Serialize};

use super::clients::{Job, whole};
use super::processes::Counts;
use super::{Context, Found};
use crate::dlock::Backend;
use crate::history::Judgement;
use crate::report::Prediction;
use crate::resource::rule::Fence;

pub(super) const TTL_MS: u64 = 6_000;
const JUMP_S: i64 = 60;
/// How fast clocks run in the case [`ClockCase::Fast`]: a lease by such a clock ends after a fourth of its TTL.
const RATE: u32 = 4;
pub(super) const ROUNDS: u64 = 3;
/// How much later than a TTL after its grant a lease may be noticed to have ended.
pub(super) const LATE_MS: u64 = 3_000;
/// How exactly a server states its time: it has to be asked.
const EXACT_MS: u64 = 5_000;

/// The rounds of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// What the backend's leases follow.
    pub leases: Leases,
    /// Number of servers.
    pub servers: usize,
    /// The rounds.
    pub rounds: Vec<Round>,
}

/// What the leases of a backend follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leases {
    /// The wall clock.
    WallClock,
    /// The monotonic clock.
    Monotonic,
    /// libfaketime does not reach the servers, so a run shows nothing.
    Untestable,
}

impl Leases {
    fn of(backend: Backend) -> Leases {
        match backend {
            Backend::Redis | Backend::Redlock => Leases::WallClock,
            Backend::ZooKeeper | Backend::Palisade => Leases::Monotonic,
            Backend::Etcd | Backend::EtcdLock => Leases::Untestable,
        }
    }
}

/// What happens to the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockCase {
    /// They differ before the grant, and do not change.
    Skew,
    /// So many of them jump ahead during the lease; the leader's first.
    Ahead(usize),
    /// All of them jump back during the lease, and the holder does not release.
    Back,
    /// All of them run [`RATE`] times as fast during the lease.
    Fast,
}

impl ClockCase {
    /// The cases with so many servers. Ahead jumps a minority, a majority, all of them.
    #[must_use]
    pub fn all(servers: usize) -> Vec<ClockCase> {
        let mut numbers = vec![(servers - 1) / 2, servers / 2 + 1, servers];
        numbers.retain(|&number| number > 0);
        numbers.dedup();
        let ahead = numbers.into_iter().map(ClockCase::Ahead);
        // One clock cannot differ from others.
        let skew = (servers > 1).then_some(ClockCase::Skew);
        skew.into_iter().chain(ahead).chain([ClockCase::Back, ClockCase::Fast]).collect()
    }

    /// By how many milliseconds the clock of a server is off in this case, so long after it was first set; the
    /// leader's `index` is 0.
    #[must_use]
    pub fn offset_ms(self, index: usize, since: Duration) -> i64 {
        const SKEW_S: [i64; 5] = [200, -200, 100, -100, 0];
        match self {
            ClockCase::Skew => 1000 * SKEW_S[index % SKEW_S.len()],
            ClockCase::Ahead(number) => {
                if index < number {
                    1000 * JUMP_S
                } else {
                    0
                }
            }
            ClockCase::Back => -1000 * JUMP_S,
            ClockCase::Fast => i64::try_from((since * (RATE - 1)).as_millis()).unwrap_or(i64::MAX),
        }
    }

    fn describe(self, servers: usize) -> String {
        match self {
            ClockCase::Skew => "clocks differ by up to 400 s".to_owned(),
            ClockCase::Ahead(number) => format!("{number} of {servers} jump ahead by {JUMP_S} s"),
            ClockCase::Back => format!("all jump back by {JUMP_S} s"),
            ClockCase::Fast => format!("all run {RATE} times as fast"),
        }
    }
}

/// One round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// What happened to the clocks.
    pub case: ClockCase,
    /// The round's number.
    pub round: u64,
    /// When the clocks were first set, in microseconds since the start of the round.
    pub set_us: u64,
    /// By how much each server's clock was off, the leader's first.
    pub clocks: Vec<Clock>,
    /// The rest, for each rule of the resource.
    pub contests: Vec<Contest>,
}

/// A server's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The server's name.
    pub server: String,
    /// The offset that was set.
    pub set_ms: i64,
    /// The offset that the server shows, against this machine's clock.
    pub seen_ms: i64,
}

impl Clock {
    /// Whether the server shows this offset.
    fn shows(&self, offset_ms: i64) -> bool {
        self.seen_ms.abs_diff(offset_ms) < EXACT_MS
    }
}

/// A holder and its competitor, under one rule of the resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contest {
    /// The resource's rule.
    pub fence: Fence,
    /// The holder.
    pub holder: Job,
    /// The other client, which asks for the lock after the clocks were set.
    pub other: Job,
    /// The value at the end.
    pub value: String,
    /// What the resource counted.
    pub counts: Counts,
    /// What the checkers say of the history.
    pub judged: Judgement,
}

impl Contest {
    /// Whether the other client was granted the lock within the TTL of a holder that had not released it.
    #[must_use]
    pub fn two_holders(&self) -> bool {
        self.holder.overlaps(&self.other) && self.waited_us().is_some_and(|waited| waited < TTL_MS * 1000)
    }

    /// From the holder's request, before which its lease cannot have begun, to the other's grant.
    #[must_use]
    pub fn waited_us(&self) -> Option<u64> {
        Some(self.other.granted?.at_us.saturating_sub(self.holder.asked_us))
    }

    /// Whether the value has the line of each accepted write.
    #[must_use]
    pub fn whole(&self) -> bool {
        whole(&self.value, [&self.holder, &self.other])
    }

    /// Whether the history has as many stale writes as the resource has counted, and the checkers accuse the lock service
    /// if there were two holders, and only then.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let stale = u64::try_from(self.judged.resource.len()).is_ok_and(|found| found == self.counts.stale_accepted);
        stale && self.judged.service.is_empty() != self.two_holders()
    }
}

/// Runs all rounds on one backend.
///
/// # Errors
/// A server or the resource fails.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let servers = context.cluster.len();
    let mut rounds = Vec::new();
    for case in ClockCase::all(servers) {
        for round in 1..=context.rounds.unwrap_or(ROUNDS) {
            eprintln!("clocks: {}: {}, round {round}", context.backend, case.describe(servers));
            rounds.push(round::one(context, case, round).await?);
        }
    }
    let figures = Figures { leases: Leases::of(context.backend), servers, rounds };
    let predictions = predictions(&figures);
    Ok((figures, predictions))
}

fn predictions(figures: &Figures) -> Vec<Prediction> {
    let mut predictions = Vec::new();
    let clocks: Vec<_> = figures.rounds.iter().flat_map(|round| &round.clocks).collect();
    if figures.leases == Leases::Untestable {
        let unmoved = clocks.iter().filter(|clock| clock.shows(0)).count();
        predictions.push(Prediction::all("no server notices that its clock was set", clocks.len(), unmoved));
        return predictions;
    }
    let moved = clocks.iter().filter(|clock| clock.shows(clock.set_ms)).count();
    predictions.push(Prediction::all("each server shows the offset to which its clock was set", clocks.len(), moved));
    for case in ClockCase::all(figures.servers) {
        let contests: Vec<_> =
            figures.rounds.iter().filter(|round| round.case == case).flat_map(|round| &round.contests).collect();
        let mut all = |fence: Option<Fence>, what: &str, holds: &dyn Fn(&Contest) -> bool| {
            let contests: Vec<_> =
                contests.iter().filter(|contest| fence.is_none_or(|fence| fence == contest.fence)).collect();
            if contests.is_empty() && fence.is_some() {
                return;
            }
            let seen = contests.iter().filter(|contest| holds(contest)).count();
            let rule = fence.map_or_else(String::new, |fence| format!(", fence {}", fence.name()));
            let what = format!("{}{rule}: {what}", case.describe(figures.servers));
            predictions.push(Prediction::all(what, contests.len(), seen));
        };
        if breaks(figures, case) {
            all(None, "a second client is granted the lock within the holder's TTL", &Contest::two_holders);
            all(Some(Fence::Off), "the holder's stale write is accepted, and the value loses a line", &|contest| {
                contest.counts.stale_accepted == 1 && !contest.whole()
            });
            all(Some(Fence::On), "the holder's stale write is refused, and the value is whole", &|contest| {
                contest.holder.refused() && contest.counts.stale_rejections == 1 && contest.whole()
            });
        } else if case == ClockCase::Back && figures.leases == Leases::WallClock {
            all(None, &format!("the lock is still held {LATE_MS} ms after the end of its TTL"), &|contest| {
                !contest.other.granted() && contest.other.error.is_none()
            });
        } else if case == ClockCase::Back {
            all(
                None,
                &format!("the lock is granted at the end of its TTL, and {LATE_MS} ms later at most"),
                &|contest| !contest.two_holders() && contest.other.granted(),
            );
        } else {
            all(None, "the lock is granted after its release, and the value is whole", &|contest| {
                !contest.two_holders() && contest.other.granted() && contest.whole()
            });
        }
    }
    let contests: Vec<_> = figures.rounds.iter().flat_map(|round| &round.contests).collect();
    let agree = contests.iter().filter(|contest| contest.agrees()).count();
    let what = "the checkers find what the resource counts, and two holders where there were two";
    predictions.push(Prediction::all(what, contests.len(), agree));
    predictions
}

/// Whether a case is predicted to give the lock to a second holder: the clocks of a majority get ahead of the
/// machine's, and leases follow them.
fn breaks(figures: &Figures, case: ClockCase) -> bool {
    let is_ahead = match case {
        ClockCase::Ahead(number) => number > figures.servers / 2,
        ClockCase::Fast => true,
        ClockCase::Skew | ClockCase::Back => false,
    };
    figures.leases == Leases::WallClock && is_ahead
}

#[cfg(test)]
mod tests;
