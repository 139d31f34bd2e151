//! Experiment `ttl`: a holder is killed by SIGKILL. How long does its lock stay blocked?
//!
//! Beside it, the same hand-over after a release, which shows what the TTL alone costs.

mod page;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::future::try_join_all;
pub use page::page;
use palisade_history::{History, Key};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::judged::{self, Judged};
use super::processes::{Resource, Worker};
use super::{Context, Found, path_text, scratch};
use crate::event::{Event, millis};
use crate::history::{merge, monotonic};
use crate::report::Prediction;
use crate::resource::rule::Fence;

pub(super) const TTLS_MS: [u64; 3] = [500, 2_000, 10_000];
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
    /// What the checkers say of their histories; empty in runs that recorded none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<Judged>,
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
    let directory = scratch()?;
    let resource = Resource::start(directory.path(), Fence::On).await?;
    let (mut rounds, mut histories) = (Vec::new(), BTreeMap::new());
    for ttl_ms in context.ttl.map_or(TTLS_MS.to_vec(), |ttl| vec![millis(ttl)]) {
        eprintln!("ttl: {}: {ttl_ms} ms", context.backend);
        for end in [End::Killed, End::Released] {
            // The holder ends in the first half of its lease, which it does not renew.
            let many = (1..=context.rounds.unwrap_or(ROUNDS)).map(|round| (round, rng.random_range(50..ttl_ms / 2)));
            let many: Vec<_> =
                many.map(|(round, hold_ms)| one(context, &resource, end, ttl_ms, (round, hold_ms))).collect();
            for (round, history) in try_join_all(many).await? {
                rounds.push(round);
                histories.extend([history]);
            }
        }
    }
    let judged = vec![Judged::of(Fence::On, resource, histories).await?];
    let mut predictions = predictions(&rounds);
    predictions.extend(judged::predictions(&judged));
    Ok((Figures { rounds, judged }, predictions))
}

async fn one(
    context: &Context,
    resource: &Resource,
    end: End,
    ttl_ms: u64,
    (round, hold_ms): (u64, u64),
) -> Result<(Round, (Key, History)), String> {
    let key = format!("ttl-{end:?}-{ttl_ms}-{round}").to_lowercase();
    let work = if end == End::Killed { 3_600_000 } else { hold_ms };
    let directory = scratch()?;
    let [holders, waiters] = ["holder.jsonl", "waiter.jsonl"].map(|file| directory.path().join(file));
    let start = |owner: &str, work: u64, history: &Path| {
        let (ttl, work) = (format!("{ttl_ms}ms"), format!("{work}ms"));
        let flags = ["--key", &key, "--ttl", &ttl, "--work", &work, "--resource", &resource.url];
        Worker::start(context, owner, &[&flags[..], &["--history", path_text(history)?]].concat())
    };
    let mut holder = start("holder", work, &holders)?;
    let granted = holder.wait_for("was granted the lock", |event| matches!(event, Event::Acquired { .. })).await?;
    let mut waiter = start("waiter", 0, &waiters)?;
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
    let round = Round { end, ttl_ms, granted_ttl_ms, round, granting_us, held_us, blocked_us };
    Ok((round, (Key::from(key.as_str()), merge(&[&holders, &waiters])?)))
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
