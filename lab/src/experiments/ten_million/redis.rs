//! Redis: active expiry at its default pace, and lazy expiry alone.

use std::time::Duration;

use super::cases::Plan;
use super::sample::Sampled;
use super::watch::{Sample, Watch};
use super::{Case, Context, Figures, Found, KEYS, Note, fill_limit, text};
use crate::generate::fill::key;
use crate::report::Prediction;
use crate::servers::{self, Durability, Kind, Options};

/// Reads in a pipeline.
const READS: u64 = 1_000;

pub(super) async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let keys = context.keys.unwrap_or(KEYS);
    let plan = Plan {
        name: "active",
        backend: context.backend,
        cluster: &context.cluster,
        keys,
        share: 1,
        fill_limit: fill_limit(context, Duration::from_secs(300)),
        margin: 1.3,
        expiry_limit: Duration::from_secs(300),
        seed: context.seed,
        metrics: &context.metrics,
    };
    let active = plan.run().await?;
    let settings = vec![("enable-debug-command".to_owned(), "local".to_owned())];
    let options = Options { durability: Durability::Volatile, settings, ..Options::default() };
    let cluster = servers::start(Kind::Redis, &options).await.map_err(text)?;
    let client = redis::Client::open(format!("redis://{}/", cluster.endpoints()[0])).map_err(text)?;
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.map_err(text)?;
    let active_expiry = |on: &'static str| {
        let mut command = redis::cmd("DEBUG");
        command.arg("SET-ACTIVE-EXPIRE").arg(on);
        command
    };
    let plan = Plan {
        name: "lazy",
        cluster: &cluster,
        keys: (keys / 20).max(1_000),
        expiry_limit: Duration::from_secs(10),
        ..plan
    };
    // The keys of the calibration run are gone before active expiry ends.
    let off = async || active_expiry("0").query_async(&mut connection.clone()).await.map_err(text);
    let lazy = plan.run_after_calibration(off).await?;
    let watch = Watch::new(&cluster, plan.name).await?;
    let kept = watch.sample().await?;
    let half = lazy.taken / 2;
    for first in (0..half).step_by(usize::try_from(READS).unwrap_or(1)) {
        let mut pipeline = redis::Pipeline::new();
        for number in first..half.min(first + READS) {
            pipeline.cmd("EXISTS").arg(key(plan.name, plan.seed, number)).ignore();
        }
        pipeline.query_async::<()>(&mut connection).await.map_err(text)?;
    }
    let read = watch.sample().await?;
    active_expiry("1").query_async::<()>(&mut connection).await.map_err(text)?;
    let gone = watch.until_left(0, Duration::from_secs(60)).await;
    let end = watch.sample().await?;
    let notes = vec![
        Note::new("10 s after all TTLs, no key read, active expiry off", state(&kept)),
        Note::new(format!("{half} of the keys read with EXISTS"), state(&read)),
        Note::new("active expiry on again, after it was done", state(&end)),
    ];
    let passed = lazy.at_passed().and_then(|sample| sample.used).unwrap_or(u64::MAX);
    let before = active.samples.first().and_then(|sample| sample.used).unwrap_or(0);
    let filled = active.samples.iter().filter_map(|sample| sample.used).max().unwrap_or(0);
    let after = active.samples.last().and_then(|sample| sample.used).unwrap_or(u64::MAX);
    let predictions = vec![
        one("all keys are set", format!("{} of {keys}", active.taken), active.taken == keys),
        held(&[&active, &lazy]),
        sound(&[&active, &lazy]),
        one(
            "active expiry removes all keys, and a fifth of their memory at most stays",
            format!(
                "{} left, used_memory {before}, then {filled}, then {after} bytes",
                active.samples.last().map_or(0, |sample| sample.locks)
            ),
            active.gone_ms.is_some() && after.saturating_sub(before) <= filled.saturating_sub(before) / 5,
        ),
        one(
            "without active expiry, expired keys that are not read stay, with all their memory",
            format!("{} of {} keys, {} of {passed} bytes", kept.locks, lazy.taken, kept.used.unwrap_or(0)),
            kept.locks == lazy.taken
                && kept.used.unwrap_or(0).saturating_mul(20) >= passed.saturating_mul(19)
                && kept.other == lazy.samples.first().and_then(|sample| sample.other),
        ),
        one(
            "a read removes the expired key that it names, and no other",
            format!("{} left", read.locks),
            read.locks == lazy.taken - half,
        ),
        one("active expiry removes the others", format!("{} left", end.locks), gone.is_some()),
    ];
    Ok((Figures { keys, cases: vec![active, lazy], notes }, predictions))
}

/// Otherwise the first locks ended before the last ones were acquired, and the figures for each lock are too low.
pub(super) fn held(cases: &[&Case]) -> Prediction {
    let most = |case: &Case| case.samples.iter().map(|sample| sample.locks).max().unwrap_or(0);
    let seen = |case: &&Case| {
        let late = if case.in_time { "" } else { ", acquired after the first TTLs were over" };
        format!("{} of {}{late}", most(case), case.taken)
    };
    one(
        "all locks are acquired before the first TTLs are over, and are held at the same time",
        cases.iter().map(seen).collect::<Vec<_>>().join("; "),
        cases.iter().all(|case| case.in_time && case.taken > 0 && most(case) == case.taken),
    )
}

/// A lock that a fill has acquired is a lock.
pub(super) fn sound(cases: &[&Case]) -> Prediction {
    let sampled: Vec<_> = cases.iter().map(|case| case.sampled.clone().unwrap_or_default()).collect();
    one(
        "a sample of keys: each is refused to a second client while it is held, and granted again when it has ended, and \
         the checkers of histories find no violation",
        sampled.iter().map(Sampled::words).collect::<Vec<_>>().join("; "),
        sampled.iter().all(Sampled::sound),
    )
}

fn state(sample: &Sample) -> String {
    let mib = |bytes: u64| bytes >> 20;
    format!(
        "DBSIZE {}, used_memory {} MiB, VmRSS {} MiB",
        sample.locks,
        mib(sample.used.unwrap_or(0)),
        mib(sample.resident)
    )
}

pub(super) fn one(predicted: &str, seen: String, holds: bool) -> Prediction {
    Prediction { predicted: predicted.to_owned(), seen, holds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_that_outlasts_its_ttls_is_not_as_predicted() {
        let sample = |locks| Sample { locks, ..Sample::default() };
        let case = |in_time, most| Case { taken: 10, in_time, samples: vec![sample(most)], ..Case::default() };
        assert!(held(&[&case(true, 10)]).holds);
        assert!(!held(&[&case(true, 10), &case(false, 10)]).holds);
        assert!(!held(&[&case(true, 9)]).holds);
        assert!(!held(&[&Case { in_time: true, ..Case::default() }]).holds, "no lock was acquired");
    }

    #[test]
    fn sample_without_a_refusal_or_with_a_violation_is_not_as_predicted() {
        let violations = Vec::new();
        let sampled = Sampled { keys: 3, rivals: Some(0), refused: 3, again: Some(3), operations: 9, violations };
        let holds = |sampled: Sampled| sound(&[&Case { sampled: Some(sampled), ..Case::default() }]).holds;
        assert!(holds(sampled.clone()));
        assert!(holds(Sampled { again: None, ..sampled.clone() }), "locks of lazy expiry never end by themselves");
        assert!(!holds(Sampled { rivals: Some(1), ..sampled.clone() }));
        assert!(!holds(Sampled { rivals: None, ..sampled.clone() }));
        assert!(!holds(Sampled { refused: 2, ..sampled.clone() }), "a rival got no answer");
        assert!(!holds(Sampled { again: Some(2), ..sampled.clone() }));
        assert!(!holds(Sampled { violations: vec![String::new()], ..sampled }));
        assert!(!sound(&[&Case::default()]).holds, "no history was recorded");
    }
}
