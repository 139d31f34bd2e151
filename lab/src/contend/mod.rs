//! `palisade-lab contend`: many contenders for one key or several, at an offered rate.
//!
//! | module | contents |
//! |---|---|
//! | [`schedule`] | when attempts are meant to start: from the seed alone |
//! | [`load`] | starts the attempts: the open model and the closed loop |
//! | [`attempt`] | one attempt: acquire, hold, release |
//! | [`order`] | arrival order against grant order |
//! | [`summary`] | latency, throughput, errors |

pub mod attempt;
pub mod load;
pub mod order;
pub mod schedule;
pub mod summary;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde::Serialize;

use self::attempt::{Attempt, Contender, Outcome, Release};
use self::load::{Load, Model, Stop};
use self::schedule::Gaps;
use self::summary::{Latency, Summary};
use crate::dlock::tokens::Tokens;
use crate::dlock::{self, Backend};
use crate::history::{self, Judgement};
use crate::report::table::{Table, ms};

/// Contenders for one key or several: attempts arrive at an offered rate, whether earlier ones have ended or not.
/// Latencies count from the intended start of each attempt. An arrival beyond `--contenders` is not started and has no
/// latency: without such an overflow, no delay is left out
#[derive(Debug, clap::Args)]
pub struct Command {
    /// The lock service
    #[arg(long, value_enum)]
    backend: Backend,
    /// Its servers
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', required = true)]
    endpoints: Vec<String>,
    #[command(flatten)]
    options: dlock::Options,
    /// Attempts in flight at most; arrivals beyond them are counted as overflow and not started
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    contenders: u32,
    /// Number of keys; each attempt takes one at random
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// What the keys' names begin with
    #[arg(long, default_value = "contend")]
    prefix: String,
    /// Attempts a second that arrive [default: 100; with --closed: no limit]
    #[arg(long, value_parser = rate)]
    rate: Option<f64>,
    /// The gaps between arrivals
    #[arg(long, value_enum, default_value = "exponential")]
    gaps: Gaps,
    /// Closed loop: each contender starts an attempt after its last one has ended
    #[arg(long)]
    closed: bool,
    /// How long attempts arrive. Attempts in flight then come to their ends
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// How long each lock is held
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = humantime::parse_duration)]
    work: Duration,
    /// How long an attempt waits for its lock
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// How long a lock lasts
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// Seed of arrivals and keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Serve the metrics at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Record the operations in a new file, in the format of docs/conformance/histories.md, and judge them
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Write the summary as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write all attempts, with the times of their arrival and grant, as CSV
    #[arg(long, value_name = "FILE")]
    attempts: Option<PathBuf>,
}

/// What `--out` contains.
#[derive(Debug, Serialize)]
struct Report<'a> {
    backend: &'a str,
    model: &'a str,
    rate: Option<f64>,
    contenders: u32,
    keys: u64,
    duration_us: u64,
    work_us: u64,
    wait_us: u64,
    ttl_us: u64,
    seed: u64,
    summary: &'a Summary,
    history: Option<&'a Judgement>,
}

/// A rate of the command line.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.001 => Ok(rate),
        _ => Err(format!("{text:?} is not a number of attempts a second from 0.001")),
    }
}

impl Command {
    /// Makes the attempts and prints the summary. The exit code is 1 if a server could not be reached or answered
    /// with an error, or if the history shows a violation.
    ///
    /// # Errors
    /// A flag does not fit, or an address or file is not usable.
    pub async fn run(self) -> Result<ExitCode, String> {
        if self.history.is_some() && self.keys > 1 && !comparable(self.backend, self.options.tokens) {
            return Err(format!(
                "the checkers compare tokens of all keys, and {}'s tokens of different keys cannot be compared; add \
                 --tokens global or leave out --history",
                self.backend
            ));
        }
        let metrics = crate::metrics::serve(self.metrics.as_deref()).await?;
        let recorder = self.history.as_deref().map_or_else(|| Ok(history::discard()), history::record_to)?;
        let locks = dlock::connect(self.backend, &self.endpoints, &self.options).map_err(|error| error.to_string())?;
        let contender = Arc::new(Contender {
            locks,
            metrics,
            recorder: recorder.clone(),
            numbers: numbers(self.backend),
            keys: self.prefix.clone(),
            owners: format!("contender-{}", std::process::id()),
            ttl: self.ttl,
            wait: self.wait,
            work: self.work,
        });
        let stop = Stop::default();
        let interrupted = stop.clone();
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                eprintln!("contend: no further arrivals; waiting for the attempts in flight");
                interrupted.stop();
            }
        });
        let load = self.load();
        let attempts = load::run(contender, &load, &stop).await;
        recorder.finish().map_err(|error| format!("cannot write the history: {error}"))?;
        let judgement = match &self.history {
            Some(path) => Some(Judgement::of(&history::merge(&[path.as_path()])?)),
            None => None,
        };
        let summary = Summary::of(&attempts, self.backend.name(), &self.endpoints);
        print!("{}", self.text(&summary, judgement.as_ref()));
        self.write(&attempts, &summary, judgement.as_ref())?;
        let violated = judgement.is_some_and(|judgement| !judgement.service.is_empty());
        Ok(if summary.errors() > 0 || violated { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn load(&self) -> Load {
        let model = match self.closed {
            true => Model::Closed { rate: self.rate },
            false => Model::Open { rate: self.rate.unwrap_or(100.0) },
        };
        let contenders = self.contenders as usize;
        Load { model, gaps: self.gaps, contenders, keys: self.keys, duration: self.duration, seed: self.seed }
    }

    fn text(&self, summary: &Summary, judgement: Option<&Judgement>) -> String {
        let model = match self.load().model {
            Model::Open { rate } => format!("open model, {rate} arrivals a second"),
            Model::Closed { rate: Some(rate) } => format!("closed loop, {rate} attempts a second at most"),
            Model::Closed { rate: None } => "closed loop, no limit of the rate".to_owned(),
        };
        let (backend, contenders, keys) = (self.backend, self.contenders, self.keys);
        let mut text = format!("{backend}: {model}, {contenders} contenders, {keys} keys\n{}", describe(summary));
        if let Some(judgement) = judgement {
            let violations = judgement.service.len();
            text += &format!("history: {} operations, {violations} violations\n", judgement.operations);
            judgement.service.iter().for_each(|violation| text += &format!("  {violation}\n"));
        }
        text
    }

    fn write(&self, attempts: &[Attempt], summary: &Summary, history: Option<&Judgement>) -> Result<(), String> {
        let put = |path: &Path, text: String| {
            std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        if let Some(path) = &self.out {
            let micros = crate::event::micros;
            let report = Report {
                backend: self.backend.name(),
                model: if self.closed { "closed" } else { "open" },
                rate: match self.load().model {
                    Model::Open { rate } => Some(rate),
                    Model::Closed { rate } => rate,
                },
                contenders: self.contenders,
                keys: self.keys,
                duration_us: micros(self.duration),
                work_us: micros(self.work),
                wait_us: micros(self.wait),
                ttl_us: micros(self.ttl),
                seed: self.seed,
                summary,
                history,
            };
            put(path, serde_json::to_string_pretty(&report).map_err(|error| error.to_string())? + "\n")?;
        }
        match &self.attempts {
            Some(path) => put(path, csv(attempts)),
            None => Ok(()),
        }
    }
}

/// Whether the checkers of histories can compare the tokens of different keys. Those of Redlock are [`numbers`].
fn comparable(backend: Backend, tokens: Tokens) -> bool {
    match tokens {
        Tokens::Default => backend != Backend::Redis,
        _ => backend == Backend::Redlock || tokens.are_common(),
    }
}

/// Redlock has no tokens that order its grants. In histories, its grants have the numbers of their order at the client.
#[must_use]
pub fn numbers(backend: Backend) -> Option<AtomicU64> {
    (!backend.fences()).then(|| AtomicU64::new(1))
}

/// A summary as lines of text.
#[must_use]
pub fn describe(summary: &Summary) -> String {
    let Summary { arrivals, granted, timeouts, failed, overflow, .. } = summary;
    let mut text = format!(
        "{arrivals} arrivals: {granted} granted, {timeouts} timeouts, {failed} failed, {overflow} not started \
         (overflow)\n"
    );
    let latency = |name: &str, latency: &Latency| {
        let Latency { p50_us, p99_us, p999_us, max_us, .. } = *latency;
        format!("{name}: p50 {} p99 {} p999 {} max {} ms\n", ms(p50_us), ms(p99_us), ms(p999_us), ms(max_us))
    };
    text += &latency("latency from the intended start to the grant", &summary.latency);
    text += &latency("the same, with timeouts and errors", &summary.ended);
    text += &latency("of it, the load generator's delay", &summary.lag);
    text += &format!(
        "{:.1} hand-overs a second in {} ms, until the last attempt had ended\n",
        summary.handovers_per_second,
        ms(summary.elapsed_us)
    );
    let order = &summary.order;
    text += &format!(
        "order: {} overtakings, {} attempts overtaken, one of them {} times; the longest wait took {} grants\n",
        order.overtakings, order.overtaken, order.most_overtaken, order.longest_wait_grants
    );
    text += &format!(
        "releases: {} found the lock lost, {} failed\nerrors: {}\n",
        summary.not_owner,
        summary.failed_releases,
        summary.errors()
    );
    for failure in &summary.failures {
        let server = failure.server.as_deref().unwrap_or("no single server named");
        text += &format!("  {} × {} ({server}): {}\n", failure.count, failure.backend, failure.error);
    }
    text
}

/// All attempts as CSV.
#[must_use]
pub fn csv(attempts: &[Attempt]) -> String {
    let mut table = Table::of(
        "number | key | intended_us | arrived_us | ended_us | finished_us | outcome | token | release | error",
    );
    for attempt in attempts {
        let (outcome, token, error) = match &attempt.outcome {
            Outcome::Granted { token } => ("granted", token.to_string(), ""),
            Outcome::Timeout => ("timeout", String::new(), ""),
            Outcome::Failed { error } => ("failed", String::new(), error.as_str()),
            Outcome::Overflow => ("overflow", String::new(), ""),
        };
        let (release, error) = match &attempt.release {
            Release::None => ("none", error),
            Release::Done => ("done", error),
            Release::NotOwner => ("not_owner", error),
            Release::Failed { error } => ("failed", error.as_str()),
        };
        table.row([
            attempt.number.to_string(),
            attempt.key.to_string(),
            attempt.intended_us.to_string(),
            attempt.arrived_us.to_string(),
            attempt.ended_us.to_string(),
            attempt.finished_us.to_string(),
            outcome.to_owned(),
            token,
            release.to_owned(),
            error.to_owned(),
        ]);
    }
    table.csv()
}
