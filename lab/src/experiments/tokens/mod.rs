//! Experiment `tokens`: where fencing tokens come from, compared.
//!
//! Contenders of this process take and release locks of many keys, one attempt after the other, so that a lock is
//! seldom waited for, and a counter that all grants share is written all the time. The sources of tokens take turns,
//! in one order and in the other. When all locks are released, the counters that stay behind are counted.

mod left;
mod page;

use std::sync::Arc;
use std::time::Duration;

pub use left::Left;
pub use page::page;
use palisade_history::Recorder;
use serde::{Deserialize, Serialize};

use super::{Context, Found, contenders, text};
use crate::contend::attempt::{Attempt, Outcome};
use crate::contend::load::{self, Load, Model, Stop};
use crate::contend::schedule::Gaps;
use crate::contend::summary::{Latency, Summary};
use crate::dlock::tokens::Tokens;
use crate::dlock::{self, Backend, Locks};
use crate::event::micros;
use crate::history::{self, Judgement, by_key};
use crate::report::Prediction;

const CLIENTS: u32 = 16;
const KEYS: u64 = 10_000;
pub(super) const ROUNDS: u64 = 6;
pub(super) const WINDOW: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(10);
pub(super) const SHARDS: u32 = 16;

/// The sources of one backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The machine's load average before the run.
    pub load_average: String,
    /// Number of keys.
    pub keys: u64,
    /// How long each source had its turn in each round.
    pub window_us: u64,
    /// The sources.
    pub cases: Vec<TokensCase>,
}

/// A source of tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokensCase {
    /// Its name.
    pub tokens: String,
    /// Grants a second, by round.
    pub rates: Vec<f64>,
    /// Acquires that were granted.
    pub acquire: Latency,
    /// Attempts and releases that failed, and attempts that waited in vain.
    pub failed: u64,
    /// The first error of those.
    pub error: Option<String>,
    /// Keys whose lock was granted at least once.
    pub locked: u64,
    /// Grants whose token is not above that of each grant that had ended before they were asked for, of any key.
    pub out_of_order: u64,
    /// What is left of the source's counters when all locks are released.
    pub left: Left,
    /// Operations that the checkers of histories judged, key by key.
    pub operations: usize,
    /// Violations that they found.
    pub violations: Vec<String>,
}

impl TokensCase {
    /// Whether its tokens of different keys can be compared.
    fn is_common(&self) -> bool {
        self.tokens.parse().is_ok_and(Tokens::are_common)
    }
}

/// The sources that a backend has, the usual one first.
fn sources(backend: Backend) -> Vec<Tokens> {
    let all = [Tokens::Revision, Tokens::PerKey, Tokens::Sharded(SHARDS), Tokens::Global];
    all.into_iter().filter(|tokens| tokens.fits(backend)).collect()
}

/// A source while it is measured.
struct Source {
    tokens: Tokens,
    locks: Arc<dyn Locks>,
    recorder: Recorder,
    rates: Vec<f64>,
    rounds: Vec<Vec<Attempt>>,
}

impl Source {
    fn new(context: &Context, tokens: Tokens) -> Result<Source, String> {
        let options = dlock::Options { tokens, ..dlock::Options::default() };
        let locks = dlock::connect(context.backend, &context.endpoints, &options).map_err(text)?;
        Ok(Source { tokens, locks, recorder: history::in_memory(), rates: Vec::new(), rounds: Vec::new() })
    }

    /// What the names of its keys begin with.
    fn prefix(&self) -> String {
        format!("tokens-{}", self.tokens.to_string().replace(':', "-"))
    }

    async fn turn(&mut self, context: &Context, round: u64, load: &Load) {
        let (keys, owners) = (self.prefix(), format!("{}-{round}", self.prefix()));
        let contender =
            contenders::contender(context, &self.locks, &self.recorder, (&keys, &owners), (Duration::ZERO, WAIT));
        let attempts = load::run(Arc::new(contender), load, &Stop::default()).await;
        let summary = Summary::of(&attempts, context.backend.name(), &context.endpoints);
        let (backend, rate) = (context.backend, summary.handovers_per_second);
        eprintln!("tokens: {backend}: {}, round {round}: {rate:.0} grants/s", self.tokens);
        self.rates.push(rate);
        self.rounds.push(attempts);
    }

    async fn end(self, context: &Context) -> Result<TokensCase, String> {
        let left = left::left(context, self.tokens, &self.prefix()).await?;
        let history = self.recorder.history().map_err(|error| format!("the history of {}: {error}", self.tokens))?;
        let judged: Vec<_> = by_key(history).values().map(Judgement::without_search).collect();
        let all = || self.rounds.iter().flatten();
        let granted = || all().filter(|attempt| attempt.granted());
        let summary = Summary::of(&self.rounds.concat(), context.backend.name(), &context.endpoints);
        Ok(TokensCase {
            tokens: self.tokens.to_string(),
            acquire: Latency::of(granted().map(Attempt::latency_us)),
            failed: summary.errors() + summary.timeouts,
            error: summary.failures.first().map(|failure| failure.error.clone()),
            locked: granted().map(|attempt| attempt.key).collect::<std::collections::BTreeSet<_>>().len() as u64,
            out_of_order: self.rounds.iter().map(|round| out_of_order(round)).sum(),
            left,
            operations: judged.iter().map(|judgement| judgement.operations).sum(),
            violations: judged.into_iter().flat_map(|judgement| judgement.service).collect(),
            rates: self.rates,
        })
    }
}

/// Counts the grants whose token is not above that of each grant that had ended before they were asked for.
fn out_of_order(round: &[Attempt]) -> u64 {
    let token = |attempt: &&Attempt| match attempt.outcome {
        Outcome::Granted { token } => Some(token),
        _ => None,
    };
    let mut asked: Vec<_> = round.iter().filter_map(|attempt| Some((attempt.arrived_us, token(&attempt)?))).collect();
    let mut ended: Vec<_> = round.iter().filter_map(|attempt| Some((attempt.ended_us, token(&attempt)?))).collect();
    asked.sort_unstable();
    ended.sort_unstable();
    let (mut earlier, mut highest, mut found) = (ended.into_iter().peekable(), 0, 0);
    for (arrived_us, token) in asked {
        while let Some((_, before)) = earlier.next_if(|(ended_us, _)| *ended_us < arrived_us) {
            highest = before.max(highest);
        }
        found += u64::from(token <= highest);
    }
    found
}

/// Runs all sources of one backend.
///
/// # Errors
/// The servers could not be reached before the run, or cannot say what is left. Errors within it are figures.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let load_average = contenders::load_average();
    let (keys, window) = (context.keys.unwrap_or(KEYS), context.duration.unwrap_or(WINDOW));
    let mut sources = sources(context.backend)
        .into_iter()
        .map(|tokens| Source::new(context, tokens))
        .collect::<Result<Vec<_>, _>>()?;
    for source in &sources {
        contenders::uncontended(&source.locks, "first", Duration::ZERO, 20).await?;
        contenders::warm_up(&source.locks, CLIENTS.into()).await;
    }
    for round in 0..context.rounds.unwrap_or(ROUNDS) {
        let load = Load {
            model: Model::Closed { rate: None },
            gaps: Gaps::Even,
            contenders: CLIENTS as usize,
            keys,
            duration: window,
            seed: context.seed.wrapping_add(round),
        };
        for source in &mut sources {
            source.turn(context, round, &load).await;
        }
        // The next round begins with the source that ended this one.
        sources.reverse();
    }
    let mut cases = Vec::new();
    for source in sources {
        cases.push(source.end(context).await?);
    }
    let names: Vec<_> = self::sources(context.backend).iter().map(Tokens::to_string).collect();
    cases.sort_by_key(|case: &TokensCase| names.iter().position(|name| *name == case.tokens));
    let figures = Figures { load_average, keys, window_us: micros(window), cases };
    let predictions = predictions(&figures);
    Ok((figures, predictions))
}

fn predictions(figures: &Figures) -> Vec<Prediction> {
    let mut predictions = Vec::new();
    for case in &figures.cases {
        let of = |what: &str| format!("{}: {what}", case.tokens);
        let grants = usize::try_from(case.acquire.count).unwrap_or(usize::MAX);
        let out_of_order = usize::try_from(case.out_of_order).unwrap_or(usize::MAX);
        predictions.push(Prediction::none(
            of("no violation in the histories, key by key"),
            case.operations,
            case.violations.len(),
        ));
        predictions.push(if case.is_common() {
            Prediction::none(of("no token is out of order among all keys"), grants, out_of_order)
        } else {
            Prediction::some(of("some tokens are out of order among all keys"), grants, out_of_order)
        });
        let (predicted, holds) = match case.tokens.parse() {
            Ok(Tokens::PerKey) => {
                ("one counter is left for each key that was locked", case.left.counters == case.locked)
            }
            Ok(Tokens::Sharded(_)) => ("one counter is left for each shard", case.left.counters == u64::from(SHARDS)),
            Ok(Tokens::Global) => ("one counter is left", case.left.counters == 1),
            _ => ("no counter is left", case.left.counters == 0),
        };
        let seen = format!("{} left, {} keys were locked", case.left.counters, case.locked);
        predictions.push(Prediction { predicted: of(predicted), seen, holds: holds && case.locked > 0 });
    }
    predictions
}

#[cfg(test)]
mod tests;
