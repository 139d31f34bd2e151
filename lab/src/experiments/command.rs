//! `palisade-lab run`: the experiments by name, on the servers that each of them needs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    Context, Found, clocks, contention, failover, fairness, fenced_stores, findings, pause, peers, prediction, redlock,
    release, renew, servers_of, ten_million, tokens, ttl, work,
};
use crate::dlock::Backend;
use crate::metrics::Metrics;
use crate::report::setup::Setup;
use crate::report::{Page, Prediction, Results, Run as OneRun};
use crate::resource::rule::Fence;
use crate::servers::{self, Cluster, Kind, Signing};

/// An experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// A pause longer than the TTL, between acquire and write
    Pause,
    /// Releases of a lock that is no longer the releaser's
    Release,
    /// A holder that is killed: how long the lock stays blocked
    Ttl,
    /// Renewing narrows the window and does not close it
    Renew,
    /// Jobs that take longer than the TTL of their lock, and jobs that do not
    Work,
    /// Latency and throughput against contention
    Contention,
    /// Arrival order against grant order
    Fairness,
    /// The sources of fencing tokens: a counter by key, sharded or common, and the store's own number
    Tokens,
    /// The fence in a PostgreSQL row and in an object store
    FencedStores,
    /// Redlock under partition, pause, and crash without sync
    Redlock,
    /// The gallery's traces beside real runs, step by step
    Prediction,
    /// Ten million short-lived locks: memory, disk and expiry
    TenMillion,
    /// Pairs of acquire and release a second: Palisade beside etcd, ZooKeeper and Redis
    Peers,
    /// The leader is killed under load
    Failover,
    /// The wall clocks of servers are set
    Clocks,
}

/// Run experiments on real servers; write figures, plots and pages
#[derive(Debug, clap::Args)]
pub struct Run {
    /// The experiments
    #[arg(value_enum, required_unless_present = "all")]
    names: Vec<Name>,
    /// All experiments
    #[arg(long)]
    all: bool,
    /// The lock services; by default, all
    #[arg(long, value_enum)]
    backend: Vec<Backend>,
    /// Whether the resource checks fencing tokens
    #[arg(long, value_enum, default_value = "both")]
    fence: Fences,
    /// Pause: Palisade signs its grants, and the resource requires the signatures
    #[arg(long)]
    signed: bool,
    /// How often each case is run (work: jobs of each worker); by default, what the page states
    #[arg(long)]
    rounds: Option<u64>,
    /// Contention: numbers of contenders; by default, what the page states
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    contenders: Vec<u32>,
    /// Contention, fairness, tokens: how long attempts arrive; ten million: how long a fill may take; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Pause, fenced stores, renew, ttl: how long a lock lasts; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    ttl: Option<Duration>,
    /// Contention, fairness, work: how long a lock is held; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    work: Option<Duration>,
    /// Pause, fenced stores: how long worker a is paused; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pause: Option<Duration>,
    /// Contention, fairness: attempts a second that arrive; by default, what the page states
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Ten million, tokens: number of keys; by default, what the page states
    #[arg(long, value_parser = clap::value_parser!(u64).range(1_000..))]
    keys: Option<u64>,
    /// Peers: how long each measurement takes; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    window: Option<Duration>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Serve the metrics at this address: what workers and clients do, except in `redlock`, `prediction`, `release`,
    /// `ten-million` and `peers`
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    #[arg(skip)]
    counted: Arc<Metrics>,
    /// The Palisade program; by default `palisade` beside this program
    #[arg(long, value_name = "FILE")]
    palisade: Option<PathBuf>,
    /// Directory of the pages
    #[arg(long, value_name = "DIR", default_value = "docs/lab")]
    out: PathBuf,
    /// Render the pages again from the results of earlier runs
    #[arg(long)]
    render: bool,
}

/// Values of `run --fence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fences {
    /// The resource refuses stale tokens
    On,
    /// The resource accepts stale tokens
    Off,
    /// One case after the other
    Both,
}

/// A TTL of the command line.
fn ttl(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(ttl) if ttl >= Duration::from_millis(200) => Ok(ttl),
        Ok(_) => Err("workers need 200ms at least to start within a TTL".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Run {
    /// Runs the experiments, also after one that failed. The exit code is 1 if one failed, or a prediction did.
    ///
    /// # Errors
    /// A flag does not fit, or the address of the metrics is not usable.
    pub async fn run(mut self) -> Result<ExitCode, String> {
        self.counted = crate::metrics::serve(self.metrics.as_deref()).await?;
        let names = if self.all { Name::value_variants() } else { &self.names };
        if self.signed && (names != [Name::Pause] || self.backend != [Backend::Palisade]) {
            return Err("--signed is for `run pause --backend palisade`: no other lock service signs grants".to_owned());
        }
        let mut failed = Vec::new();
        for name in names {
            failed.extend(match name {
                Name::Pause => self.one("pause", pause::run, pause::page).await,
                Name::Release => self.one("release", release::run, release::page).await,
                Name::Ttl => self.one("ttl", ttl::run, ttl::page).await,
                Name::Renew => self.one("renew", renew::run, renew::page).await,
                Name::Work => self.one("work", work::run, work::page).await,
                Name::Contention => self.one("contention", contention::run, contention::page).await,
                Name::Fairness => self.one("fairness", fairness::run, fairness::page).await,
                Name::Tokens => self.one("tokens", tokens::run, tokens::page).await,
                Name::FencedStores => self.one("fenced-stores", fenced_stores::run, fenced_stores::page).await,
                Name::Redlock => self.one("redlock", redlock::run, redlock::page).await,
                Name::Prediction => self.one("prediction", prediction::run, prediction::page).await,
                Name::TenMillion => self.one("ten-million", ten_million::run, ten_million::page::page).await,
                Name::Peers => outcome("peers", self.peers().await),
                Name::Failover => self.one("failover", failover::run, failover::page).await,
                Name::Clocks => self.one("clocks", clocks::run, clocks::page).await,
            });
        }
        for what in &failed {
            eprintln!("palisade-lab: {what}");
        }
        Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Runs one experiment on all backends, also after one that failed; returns what failed.
    async fn one<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        run: impl AsyncFn(&Context) -> Result<Found<T>, String>,
        page: impl Fn(&Results<T>) -> Page,
    ) -> Vec<String> {
        if self.render {
            return outcome(name, self.rendered(name, page));
        }
        let mut failed = Vec::new();
        for (backend, signed) in self.targets(name) {
            let label = format!("{backend}{}", if signed { "-signed" } else { "" });
            let done = self.on(name, (backend, signed, &label), &run, &page).await;
            failed.extend(outcome(&format!("{name} on {label}"), done));
        }
        failed
    }

    /// The lock services of an experiment, and whether they sign their grants.
    fn targets(&self, name: &str) -> Vec<(Backend, bool)> {
        let backends = if self.backend.is_empty() { backends(name) } else { self.backend.clone() };
        // `--all` also runs `pause --signed`, on the only lock service that signs grants.
        let also_signed = self.all && name == "pause" && backends.contains(&Backend::Palisade);
        let targets = backends.into_iter().map(|backend| (backend, self.signed));
        targets.chain(also_signed.then_some((Backend::Palisade, true))).collect()
    }

    /// Runs one experiment on one backend; returns whether all predictions held.
    async fn on<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        (backend, signed, label): (Backend, bool, &str),
        run: impl AsyncFn(&Context) -> Result<Found<T>, String>,
        page: impl Fn(&Results<T>) -> Page,
    ) -> Result<bool, String> {
        let mut results = Results::load(&self.out, name)?;
        eprintln!("{name}: starting {label}");
        let signing = signed.then(Signing::create).transpose()?.map(Arc::new);
        let options =
            servers::Options { sign_grants: signing.as_deref().map(Signing::directory), ..self.servers(name) };
        let cluster = servers::start(Kind::of(backend), &options).await.map_err(|error| error.to_string())?;
        let cluster = Arc::new(cluster);
        let context = Context { signing, ..self.context(backend, &cluster) };
        let setup = Setup::of(&self.command(name, backend, signed), servers_of(&cluster), cluster.dir());
        let (figures, predictions) = run(&context).await?;
        let as_predicted = report_predictions(name, label, &predictions);
        results.put(OneRun { backend: label.to_owned(), setup, figures, predictions });
        results.save(&self.out, name, &page(&results))?;
        findings::write(&self.out)?;
        eprintln!("{name}: wrote {}", self.out.join(format!("{name}.md")).display());
        Ok(as_predicted)
    }

    /// Renders a page again from its results, if there are any; returns whether all predictions held.
    fn rendered<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        page: impl Fn(&Results<T>) -> Page,
    ) -> Result<bool, String> {
        let results = Results::load(&self.out, name)?;
        if results.runs.is_empty() {
            eprintln!("{name}: there are no results in {} yet", self.out.display());
            return Ok(true);
        }
        results.save(&self.out, name, &page(&results))?;
        findings::write(&self.out)?;
        Ok(results.runs.iter().all(|run| run.predictions.iter().all(|prediction| prediction.holds)))
    }

    /// Runs `peers`, which measures all systems in turns. It replaces all earlier results: ratios are of the same run.
    async fn peers(&self) -> Result<bool, String> {
        if self.render {
            return self.rendered("peers", peers::page::page);
        }
        let (rounds, window) = (self.rounds.unwrap_or(peers::ROUNDS), self.window.unwrap_or(peers::WINDOW));
        let backends: String = self.backend.iter().map(|backend| format!(" --backend {backend}")).collect();
        let window_text = humantime::format_duration(window).to_string().replace(' ', "");
        let command = format!("palisade-lab run peers{backends} --rounds {rounds} --window {window_text}");
        let kinds = self.backend.iter().copied().map(Kind::of).collect();
        let plan = peers::Plan { command, rounds, window, kinds, palisade: self.palisade.clone() };
        let save = |runs: Vec<OneRun<peers::Figures>>| {
            let mut results = Results { runs: Vec::new() };
            runs.into_iter().for_each(|run| results.put(run));
            results.save(&self.out, "peers", &peers::page::page(&results))
        };
        let runs = peers::run(&plan, save).await?;
        let mut as_predicted = true;
        for run in &runs {
            as_predicted &= report_predictions("peers", &run.backend, &run.predictions);
        }
        eprintln!("peers: wrote {}", self.out.join("peers.md").display());
        Ok(as_predicted)
    }

    fn context(&self, backend: Backend, cluster: &Arc<Cluster>) -> Context {
        Context {
            backend,
            endpoints: cluster.endpoints().to_vec(),
            cluster: cluster.clone(),
            signing: None,
            fences: match self.fence {
                Fences::On => vec![Fence::On],
                Fences::Off => vec![Fence::Off],
                Fences::Both => vec![Fence::Off, Fence::On],
            },
            rounds: self.rounds,
            contenders: self.contenders.clone(),
            keys: self.keys,
            palisade: self.palisade.clone(),
            duration: self.duration,
            ttl: self.ttl,
            work: self.work,
            pause: self.pause,
            rate: self.rate,
            seed: self.seed,
            metrics: self.counted.clone(),
        }
    }

    /// How an experiment's servers are started.
    fn servers(&self, name: &str) -> servers::Options {
        let palisade = self.palisade.clone();
        let (replicas, fake_clock) = (usize::from(name == "failover"), name == "clocks");
        servers::Options { palisade, replicas, fake_clock, ..servers::Options::default() }
    }

    fn command(&self, name: &str, backend: Backend, signed: bool) -> String {
        let mut command = format!("palisade-lab run {name} --backend {backend} --seed {}", self.seed);
        if let Some(fence) = self.fence.to_possible_value().filter(|_| self.fence != Fences::Both) {
            command.push_str(&format!(" --fence {}", fence.get_name()));
        }
        if signed {
            command.push_str(" --signed");
        }
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let time =
            |time: Option<Duration>| time.map(|time| humantime::format_duration(time).to_string().replace(' ', ""));
        let contenders: Vec<_> = self.contenders.iter().map(u32::to_string).collect();
        let flags = [
            ("rounds", number(self.rounds)),
            ("contenders", Some(contenders.join(",")).filter(|list| !list.is_empty())),
            ("keys", number(self.keys)),
            ("rate", number(self.rate.map(u64::from))),
            ("duration", time(self.duration)),
            ("ttl", time(self.ttl)),
            ("work", time(self.work)),
            ("pause", time(self.pause)),
        ];
        for (flag, value) in flags {
            command.extend(value.map(|value| format!(" --{flag} {value}")));
        }
        command
    }
}

/// What failed, in words.
fn outcome(what: &str, done: Result<bool, String>) -> Vec<String> {
    match done {
        Ok(true) => Vec::new(),
        Ok(false) => vec![format!("{what}: not as predicted")],
        Err(error) => vec![format!("{what} failed: {error}")],
    }
}

/// The lock services of an experiment, if the command line names none.
fn backends(name: &str) -> Vec<Backend> {
    let fits = |backend: &Backend| match name {
        "prediction" => matches!(backend, Backend::Redis | Backend::Redlock | Backend::Palisade),
        // Both kinds of locks of etcd use its leases.
        "ten-million" => *backend != Backend::EtcdLock,
        // Redlock's numbers are no fencing tokens; etcd's lock service has those of etcd.
        "tokens" => !matches!(backend, Backend::Redlock | Backend::EtcdLock),
        "redlock" => *backend == Backend::Redlock,
        "failover" => *backend != Backend::Redlock,
        // Both kinds of locks of etcd use the same servers.
        "clocks" => *backend != Backend::EtcdLock,
        _ => true,
    };
    Backend::ALL.into_iter().filter(fits).collect()
}

/// Says what was predicted and seen; returns whether all predictions held.
fn report_predictions(name: &str, backend: &str, predictions: &[Prediction]) -> bool {
    for Prediction { predicted, seen, holds } in predictions {
        let word = if *holds { "as predicted:" } else { "NOT AS PREDICTED:" };
        eprintln!("{name}: {backend}: {word} {predicted}: {seen}");
    }
    predictions.iter().all(|prediction| prediction.holds)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        run: Run,
    }

    fn run(arguments: &str) -> Run {
        Cli::parse_from(std::iter::once("run").chain(arguments.split(' '))).run
    }

    #[test]
    fn all_runs_the_signed_pause_too() {
        let signed = |run: &Run, name| run.targets(name).into_iter().filter(|target| target.1).collect::<Vec<_>>();
        assert_eq!(signed(&run("--all"), "pause"), [(Backend::Palisade, true)]);
        assert_eq!(run("--all").targets("pause").len(), Backend::ALL.len() + 1);
        assert_eq!(signed(&run("--all"), "ttl"), []);
        assert_eq!(signed(&run("--all --backend redis"), "pause"), []);
        assert_eq!(signed(&run("pause"), "pause"), []);
        assert_eq!(run("pause --backend palisade --signed").targets("pause"), [(Backend::Palisade, true)]);
    }

    #[test]
    fn command_has_the_flags_that_were_given() {
        let run = run("pause --seed 7 --ttl 3s --pause 7s500ms --work 4ms --rate 9 --contenders 3,4 --metrics x:1");
        let expected = "palisade-lab run pause --backend redis --seed 7 --contenders 3,4 --rate 9 --ttl 3s --work 4ms \
                        --pause 7s500ms";
        assert_eq!(run.command("pause", Backend::Redis, false), expected);
    }

    #[test]
    fn failure_is_no_success() {
        assert_eq!(outcome("x", Ok(true)), Vec::<String>::new());
        assert_eq!(outcome("x", Ok(false)), ["x: not as predicted"]);
        assert_eq!(outcome("x", Err("y".to_owned())), ["x failed: y"]);
    }
}
