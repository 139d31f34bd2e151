//! Palisade: locks on shared sessions, a session for each lock, and the limits of both.

use std::time::Duration;

use super::cases::Plan;
use super::redis::{held, one, sound};
use super::{Context, Figures, Found, KEYS, Note, fill_limit, text};
use crate::generate::fill::Lasts;
use crate::generate::taken::Taken;
use crate::servers::{self, Kind, Options};

/// The limit of locks that one session holds or waits for (docs/capacity.md).
const CLAIMS: u64 = 10_000;
/// How long a fill may take.
pub(super) const LIMIT: Duration = Duration::from_secs(600);
/// Requests on their way on a connection. The leader compares a limit with what it has applied, so that those may exceed it.
const AT_ONCE: u64 = 500;
/// The limit of sessions of a cluster that is asked for more.
const SESSIONS: u64 = 10_000;

pub(super) async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let keys = context.keys.unwrap_or(KEYS);
    let plan = Plan {
        name: "session-shared",
        backend: context.backend,
        cluster: &context.cluster,
        keys,
        share: (keys / 10).clamp(100, CLAIMS),
        fill_limit: fill_limit(context, LIMIT),
        // Ten million locks were acquired at 0.4 times the rate of the calibration run.
        margin: 4.0,
        expiry_limit: Duration::from_secs(1200),
        seed: context.seed,
        metrics: &context.metrics,
    };
    let shared = plan.run().await?;
    let each = {
        // By default, a client on this machine gets half of all sessions, and is refused others whatever their keys.
        let settings = vec![("--max-sessions-per-client".to_owned(), "0".to_owned())];
        let options = Options { palisade: context.palisade.clone(), settings, ..Options::default() };
        let cluster = servers::start(Kind::Palisade, &options).await.map_err(text)?;
        let keys = (keys / 20).max(1_000);
        Plan { name: "session-each", cluster: &cluster, keys, share: 1, ..plan }.run().await?
    };

    // The limits are reached after the cases, in a cluster of their own.
    let settings = [("--max-sessions", SESSIONS.to_string()), ("--max-sessions-per-client", "0".to_owned())];
    let settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let options = Options { palisade: context.palisade.clone(), settings, ..Options::default() };
    let cluster = servers::start(Kind::Palisade, &options).await.map_err(text)?;
    let over = Plan { cluster: &cluster, share: 2 * CLAIMS, ..plan };
    let over = over.fill("claims", CLAIMS + 2 * AT_ONCE, Lasts::For(Duration::from_secs(5)));
    let over = over.run(&Taken::new(&context.metrics, None)).await?;
    let over_reason = over.ended.unwrap_or_else(|| "no refusal".to_owned());
    // The session ends.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let few =
        Plan { cluster: &cluster, share: 1, ..plan }.fill("few", 2 * SESSIONS, Lasts::For(Duration::from_secs(60)));
    let few = few.run(&Taken::new(&context.metrics, None)).await?;
    let few_reason = few.ended.unwrap_or_else(|| "no refusal".to_owned());

    let notes = vec![
        Note::new(
            format!("{} locks on one session", CLAIMS + 2 * AT_ONCE),
            format!("{} acquired, then: {over_reason}", over.keys),
        ),
        Note::new(
            format!("{} locks, each on its own session, with `--max-sessions {SESSIONS}`", 2 * SESSIONS),
            format!("{} acquired, then: {few_reason}", few.keys),
        ),
    ];
    let gone = |case: &super::Case| case.gone_ms.is_some();
    let predictions = vec![
        one(
            "a session gets 10,000 locks, and at most those that were on their way",
            format!("{}: {over_reason}", over.keys),
            (CLAIMS..CLAIMS + AT_ONCE).contains(&over.keys),
        ),
        one(
            "a cluster gets as many sessions as `--max-sessions` says, and at most those that were on their way",
            format!("{}: {few_reason}", few.keys),
            (SESSIONS..SESSIONS + 2 * AT_ONCE).contains(&few.keys),
        ),
        one(
            "all locks end after their TTL",
            format!("{} and {}", shared.taken, each.taken),
            gone(&shared) && gone(&each),
        ),
        held(&[&shared, &each]),
        sound(&[&shared, &each]),
        one(
            "no fill ends by a limit of Palisade's own, but only when its time is over",
            [&shared, &each].map(|case| case.ended.clone().unwrap_or_else(|| "complete".to_owned())).join("; "),
            [&shared, &each]
                .iter()
                .all(|case| case.ended.as_ref().is_none_or(|ended| ended.starts_with("the time for it"))),
        ),
    ];
    Ok((Figures { keys, cases: vec![shared, each], notes }, predictions))
}
