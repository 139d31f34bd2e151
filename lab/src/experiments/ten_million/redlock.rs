//! Redlock: a key in five instances for each lock, and the counter of its token, which outlasts it.

use std::time::Duration;

use super::cases::Plan;
use super::redis::{held, one, sound};
use super::watch::Sample;
use super::{Context, Figures, Found, KEYS, Note, fill_limit};

/// How long the fill may take.
pub(super) const LIMIT: Duration = Duration::from_secs(90);

pub(super) async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let keys = context.keys.unwrap_or(KEYS);
    let plan = Plan {
        name: "majority",
        backend: context.backend,
        cluster: &context.cluster,
        keys: (keys / 100).max(1_000),
        share: 1,
        fill_limit: fill_limit(context, LIMIT),
        margin: 1.5,
        expiry_limit: Duration::from_secs(60),
        seed: context.seed,
        metrics: &context.metrics,
    };
    let majority = plan.run().await?;
    let (first, last) = (majority.samples.first(), majority.samples.last());
    let grown = |value: fn(&Sample) -> Option<u64>| {
        last.and_then(value).unwrap_or(0).saturating_sub(first.and_then(value).unwrap_or(0))
    };
    let (counters, bytes) = (grown(|sample| sample.other), grown(|sample| sample.used));
    let each = bytes / counters.max(1);
    let notes = vec![
        Note::new("all locks are gone", format!("{counters} keys more than before, which take {} MiB", bytes >> 20)),
        Note::new(
            "computed from the bytes of a counter, for each of the five instances",
            format!("{:.1} GiB for ever, after {keys} different keys", (each * keys) as f64 / f64::from(1 << 30)),
        ),
    ];
    let predictions = vec![
        one("all keys of locks end", format!("{} locks", majority.taken), majority.gone_ms.is_some()),
        held(&[&majority]),
        sound(&[&majority]),
        one(
            "the counter of each key's tokens stays",
            format!("{counters} keys more than before, for {} locks", majority.taken),
            majority.taken > 0 && counters == majority.taken,
        ),
    ];
    Ok((Figures { keys, cases: vec![majority], notes }, predictions))
}
