//! ZooKeeper: a session for each lock, and the container of its key, which outlasts it.

use std::time::Duration;

use super::cases::Plan;
use super::redis::{held, one, sound};
use super::watch::{Sample, Watch};
use super::{Context, Figures, Found, KEYS, Note, fill_limit};

/// How long the fill may take. No session lasts longer than a minute here (`maxSessionTimeout`), so the fill must be shorter.
pub(super) const LIMIT: Duration = Duration::from_secs(40);
/// The longest session, in seconds.
const LONGEST_S: u64 = 60;
/// The containers without children that ZooKeeper deletes in a minute at most (`znode.container.maxPerMinute`).
const CONTAINERS_A_MINUTE: u64 = 10_000;
/// When to look at the containers again. ZooKeeper looks for them once a minute.
pub(super) const LATER: [Duration; 2] = [Duration::from_secs(65), Duration::from_secs(60)];

pub(super) async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let keys = context.keys.unwrap_or(KEYS);
    let plan = Plan {
        name: "session-each",
        backend: context.backend,
        cluster: &context.cluster,
        keys: (keys / 1_000).max(1_000),
        share: 1,
        fill_limit: fill_limit(context, LIMIT),
        margin: 1.5,
        expiry_limit: Duration::from_secs(60),
        seed: context.seed,
        metrics: &context.metrics,
    };
    let nodes = |sample: &Sample| sample.other.unwrap_or(0);
    // Before the calibration run: its containers may stay for a minute, into the fill.
    let watch = Watch::new(&context.cluster, plan.name).await?;
    let before = nodes(&watch.sample().await?);
    let each = plan.run().await?;
    let watch = Watch::new(&context.cluster, plan.name).await?;
    let after = each.samples.last().map_or(0, nodes);
    let mut notes = vec![Note::new("all locks are gone", format!("{after} znodes, {before} before any lock"))];
    for wait in LATER {
        tokio::time::sleep(wait).await;
        let now = nodes(&watch.sample().await?);
        notes.push(Note::new(format!("{} s later", watch.elapsed_ms() / 1_000), format!("{now} znodes")));
    }
    notes.push(Note::new(
        format!("computed from {CONTAINERS_A_MINUTE} containers a minute (`znode.container.maxPerMinute`)"),
        format!(
            "the containers of {keys} keys are deleted in {:.1} hours",
            keys as f64 / CONTAINERS_A_MINUTE as f64 / 60.0
        ),
    ));
    notes.push(Note::new(
        format!("computed from the rate, for sessions of {LONGEST_S} s at most (`maxSessionTimeout`)"),
        format!("{:.0} locks at the same time, if none is renewed", each.rate() * LONGEST_S as f64),
    ));
    let predictions = vec![
        one("all sessions end, and their nodes with them", format!("{} locks", each.taken), each.gone_ms.is_some()),
        held(&[&each]),
        sound(&[&each]),
        one(
            "each key's container is still there when its lock is gone",
            format!("{} znodes more than before, for {} locks", after.saturating_sub(before), each.taken),
            each.taken > 0 && after.saturating_sub(before) >= each.taken,
        ),
    ];
    Ok((Figures { keys, cases: vec![each], notes }, predictions))
}
