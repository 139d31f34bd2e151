//! `palisade-lab run`: the experiments by name, on the servers that each of them needs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    Context, Found, Name, clocks, contenders, contention, estimate, failover, fairness, fenced_stores, findings, pause,
    peers, prediction, redlock, release, renew, servers_of, ten_million, tokens, ttl, work,
};
use crate::dlock::Backend;
use crate::metrics::Metrics;
use crate::report::setup::Setup;
use crate::report::{Page, Prediction, Results, Run as OneRun};
use crate::resource::rule::Fence;
use crate::servers::{self, Cluster, Kind, Signing};
use crate::{open_files, signals};

/// Run experiments on real servers; write figures, plots and pages. A flag that a named experiment does not take is
/// refused, with those that it takes
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
    /// Whether the resource checks fencing tokens; by default, one case after the other
    #[arg(long, value_enum)]
    fence: Option<Fences>,
    /// Palisade signs its grants, and the resource requires the signatures
    #[arg(long)]
    signed: bool,
    /// How often each case is run (work: jobs of each worker); by default, what the page states
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Numbers of contenders; by default, what the page states
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    contenders: Vec<u32>,
    /// How long attempts arrive; ten million: how long a fill may take; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    duration: Option<Duration>,
    /// How long a lock lasts; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    ttl: Option<Duration>,
    /// How long a lock is held; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = work_time)]
    work: Option<Duration>,
    /// How long worker a is paused; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = pause_time)]
    pause: Option<Duration>,
    /// Attempts a second that arrive; by default, what the page states
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Number of keys; by default, what the page states
    #[arg(long, value_parser = clap::value_parser!(u64).range(1_000..))]
    keys: Option<u64>,
    /// How long each measurement takes; by default, what the page states
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    window: Option<Duration>,
    /// Seed of everything random [default: 1]
    #[arg(long)]
    seed: Option<u64>,
    /// Serve the metrics at this address: what workers and clients do, except in `prediction` and `peers`
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
}

/// A TTL of the command line.
fn ttl(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(ttl) if ttl < Duration::from_millis(200) => {
            Err("workers need 200ms at least to start within a TTL".to_owned())
        }
        Ok(ttl) => at_most(ttl, 40, "workers wait for a lock for 60s, and a killed holder's must end before"),
        Err(error) => Err(error.to_string()),
    }
}

/// A pause of the command line.
fn pause_time(text: &str) -> Result<Duration, String> {
    at_most(time(text)?, 60, "an experiment gives up a worker that prints nothing for 90s")
}

/// A work of the command line.
fn work_time(text: &str) -> Result<Duration, String> {
    at_most(time(text)?, 20, "workers wait for a lock for 60s, while two others work")
}

/// A time of the command line that is not zero.
fn some_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("nothing is measured in no time".to_owned()),
        time => Ok(time),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

fn at_most(time: Duration, seconds: u64, reason: &str) -> Result<Duration, String> {
    if time > Duration::from_secs(seconds) { Err(format!("at most {seconds}s: {reason}")) } else { Ok(time) }
}

impl Run {
    /// Runs the experiments, also after one that failed. The exit code is 1 if one failed, or a prediction did.
    ///
    /// # Errors
    /// A flag does not fit, or the address of the metrics is not usable.
    pub async fn run(mut self) -> Result<ExitCode, String> {
        let names = if self.all { Name::value_variants().to_vec() } else { self.names.clone() };
        self.check(&names)?;
        self.counted = crate::metrics::serve(self.metrics.as_deref()).await?;
        if self.signed && (names != [Name::Pause] || self.backend != [Backend::Palisade]) {
            return Err("--signed is for `run pause --backend palisade`: no other lock service signs grants".to_owned());
        }
        if !self.render {
            eprintln!("run: {}", self.forecast(&names));
            let noise = estimate::noise(&contenders::load_average());
            for warning in noise.into_iter().chain(open_files::warning()) {
                eprintln!("run: {warning}");
            }
        }
        // An interrupted run drops what it has started, which ends servers, resources and workers.
        tokio::select! {
            code = self.experiments(&names) => Ok(code),
            () = signals::shutdown()? => Err("interrupted; what had been started is ended".to_owned()),
        }
    }

    /// Runs the experiments, also after one that failed.
    async fn experiments(&self, names: &[Name]) -> ExitCode {
        let mut failed = Vec::new();
        for name in names {
            failed.extend(match name {
                Name::Pause => self.one(*name, pause::run, pause::page).await,
                Name::Release => self.one(*name, release::run, release::page).await,
                Name::Ttl => self.one(*name, ttl::run, ttl::page).await,
                Name::Renew => self.one(*name, renew::run, renew::page).await,
                Name::Work => self.one(*name, work::run, work::page).await,
                Name::Contention => self.one(*name, contention::run, contention::page).await,
                Name::Fairness => self.one(*name, fairness::run, fairness::page).await,
                Name::Tokens => self.one(*name, tokens::run, tokens::page).await,
                Name::FencedStores => self.one(*name, fenced_stores::run, fenced_stores::page).await,
                Name::Redlock => self.one(*name, redlock::run, redlock::page).await,
                Name::Prediction => self.one(*name, prediction::run, prediction::page).await,
                Name::TenMillion => self.one(*name, ten_million::run, ten_million::page::page).await,
                Name::Peers => outcome("peers", self.peers().await),
                Name::Failover => self.one(*name, failover::run, failover::page).await,
                Name::Clocks => self.one(*name, clocks::run, clocks::page).await,
            });
        }
        for what in &failed {
            eprintln!("palisade-lab: {what}");
        }
        if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Runs one experiment on all backends, also after one that failed; returns what failed.
    async fn one<T: Serialize + DeserializeOwned>(
        &self,
        name: Name,
        run: impl AsyncFn(&Context) -> Result<Found<T>, String>,
        page: impl Fn(&Results<T>) -> Page,
    ) -> Vec<String> {
        if self.render {
            return outcome(&name.text(), self.rendered(&name.text(), page));
        }
        let mut failed = Vec::new();
        for (backend, signed) in self.targets(name) {
            let label = format!("{backend}{}", if signed { "-signed" } else { "" });
            let done = self.on(name, (backend, signed, &label), &run, &page).await;
            failed.extend(outcome(&format!("{} on {label}", name.text()), done));
        }
        failed
    }

    /// Refuses what a named experiment does not take. `--all` leaves it out where it does not fit.
    fn check(&self, names: &[Name]) -> Result<(), String> {
        if self.all {
            return Ok(());
        }
        for name in names {
            let (text, backends) = (name.text(), name.backends());
            if let Some((flag, _)) = self.given().into_iter().find(|(flag, _)| !name.takes(flag)) {
                let takes: String = name.flags().iter().map(|flag| format!(" --{flag}")).collect();
                let takes = if takes.is_empty() { " no flag of its own" } else { &takes };
                return Err(format!("{text} does not take --{flag}; beside --backend it takes{takes}"));
            }
            if let Some(backend) = self.backend.iter().find(|backend| !backends.contains(backend)) {
                let backends: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
                return Err(format!("{text} does not run on {backend}; it runs on {}", backends.join(", ")));
            }
        }
        Ok(())
    }

    /// The flags that were given, of those that not all experiments take, with their values.
    fn given(&self) -> Vec<(&'static str, String)> {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let time =
            |time: Option<Duration>| time.map(|time| humantime::format_duration(time).to_string().replace(' ', ""));
        let contenders: Vec<_> = self.contenders.iter().map(u32::to_string).collect();
        let fence = self.fence.and_then(|fence| fence.to_possible_value());
        let flags = [
            ("seed", number(self.seed)),
            ("fence", fence.map(|fence| fence.get_name().to_owned())),
            ("signed", self.signed.then(String::new)),
            ("rounds", number(self.rounds)),
            ("contenders", Some(contenders.join(",")).filter(|list| !list.is_empty())),
            ("keys", number(self.keys)),
            ("rate", number(self.rate.map(u64::from))),
            ("duration", time(self.duration)),
            ("ttl", time(self.ttl)),
            ("work", time(self.work)),
            ("pause", time(self.pause)),
            ("window", time(self.window)),
            ("metrics", self.metrics.clone()),
        ];
        flags.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect()
    }

    /// How long the experiments take, all together and one by one.
    fn forecast(&self, names: &[Name]) -> String {
        let (mut all, mut parts) = (Duration::ZERO, Vec::new());
        for &name in names {
            let asked = self.asked(name);
            let time = match name {
                Name::Peers => estimate::time(name, Backend::Palisade, &asked),
                _ => self.targets(name).iter().map(|(backend, _)| estimate::time(name, *backend, &asked)).sum(),
            };
            all += time;
            parts.push(format!("{} {}", name.text(), estimate::words(time)));
        }
        format!("takes about {} on a quiet machine: {}", estimate::words(all), parts.join(", "))
    }

    /// What the experiment is asked for, of what changes its time.
    fn asked(&self, name: Name) -> estimate::Asked {
        let given: Vec<_> = self.given().into_iter().map(|(flag, _)| flag).filter(|flag| name.takes(flag)).collect();
        let has = |flag| given.contains(&flag);
        estimate::Asked {
            rounds: self.rounds.filter(|_| has("rounds")),
            contenders: if has("contenders") { self.contenders.len() } else { 0 },
            keys: self.keys.filter(|_| has("keys")),
            duration: self.duration.filter(|_| has("duration")),
            ttl: self.ttl.filter(|_| has("ttl")),
            work: self.work.filter(|_| has("work")),
            pause: self.pause.filter(|_| has("pause")),
            window: self.window.filter(|_| has("window")),
            fences: if has("fence") { 1 } else { 2 },
            peers: self.backend.len(),
        }
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// The lock services of an experiment, and whether they sign their grants.
    fn targets(&self, name: Name) -> Vec<(Backend, bool)> {
        let mut backends = name.backends();
        backends.retain(|backend| self.backend.is_empty() || self.backend.contains(backend));
        // `--all` also runs `pause --signed`, on the only lock service that signs grants.
        let also_signed = self.all && name == Name::Pause && backends.contains(&Backend::Palisade);
        let targets = backends.into_iter().map(|backend| (backend, self.signed));
        targets.chain(also_signed.then_some((Backend::Palisade, true))).collect()
    }

    /// Runs one experiment on one backend; returns whether all predictions held.
    async fn on<T: Serialize + DeserializeOwned>(
        &self,
        experiment: Name,
        (backend, signed, label): (Backend, bool, &str),
        run: impl AsyncFn(&Context) -> Result<Found<T>, String>,
        page: impl Fn(&Results<T>) -> Page,
    ) -> Result<bool, String> {
        let name = &*experiment.text();
        let mut results = Results::load(&self.out, name)?;
        eprintln!("{name}: starting {label}");
        let signing = signed.then(Signing::create).transpose()?.map(Arc::new);
        let options =
            servers::Options { sign_grants: signing.as_deref().map(Signing::directory), ..self.servers(experiment) };
        let cluster = servers::start(Kind::of(backend), &options).await.map_err(|error| error.to_string())?;
        let cluster = Arc::new(cluster);
        let mut context = Context { signing, ..self.context(backend, &cluster) };
        let leader_only = experiment.is_at_the_leader(backend);
        if leader_only {
            let leader = cluster.leader().await.map_err(|error| error.to_string())?;
            context.endpoints = vec![context.endpoints.swap_remove(leader)];
        }
        let setup = Setup::of(&self.command(experiment, backend, signed), servers_of(&cluster), cluster.dir());
        let setup = Setup { leader_only, ..setup };
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
                Some(Fences::On) => vec![Fence::On],
                Some(Fences::Off) => vec![Fence::Off],
                None => vec![Fence::Off, Fence::On],
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
            seed: self.seed(),
            metrics: self.counted.clone(),
        }
    }

    /// How an experiment's servers are started.
    fn servers(&self, name: Name) -> servers::Options {
        let palisade = self.palisade.clone();
        let (replicas, fake_clock) = (usize::from(name == Name::Failover), name == Name::Clocks);
        servers::Options { palisade, replicas, fake_clock, ..servers::Options::default() }
    }

    /// The command of one experiment on one backend: with those of the flags that it takes, and the seed if it takes one.
    fn command(&self, name: Name, backend: Backend, signed: bool) -> String {
        let mut command = format!("palisade-lab run {} --backend {backend}", name.text());
        if name.takes("seed") {
            command.push_str(&format!(" --seed {}", self.seed()));
        }
        if signed {
            command.push_str(" --signed");
        }
        for (flag, value) in self.given() {
            // They are printed above, and the metrics do not change what is measured.
            if name.takes(flag) && !["seed", "signed", "metrics"].contains(&flag) {
                command.push_str(&format!(" --{flag} {value}"));
            }
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
        assert_eq!(signed(&run("--all"), Name::Pause), [(Backend::Palisade, true)]);
        assert_eq!(run("--all").targets(Name::Pause).len(), Backend::ALL.len() + 1);
        assert_eq!(signed(&run("--all"), Name::Ttl), []);
        assert_eq!(signed(&run("--all --backend redis"), Name::Pause), []);
        assert_eq!(signed(&run("pause"), Name::Pause), []);
        assert_eq!(run("pause --backend palisade --signed").targets(Name::Pause), [(Backend::Palisade, true)]);
    }

    #[test]
    fn command_has_the_flags_that_the_experiment_takes() {
        let flags = "--seed 7 --fence on --rounds 2 --ttl 3s --pause 7s500ms --work 4ms --rate 9 --contenders 3,4";
        let run = run(&format!("--all {flags} --keys 5000 --duration 1m --window 2s --metrics x:1"));
        let command = |name| run.command(name, Backend::Redis, false);
        assert_eq!(
            command(Name::FencedStores),
            "palisade-lab run fenced-stores --backend redis --seed 7 --fence on --rounds 2 --ttl 3s --pause 7s500ms"
        );
        assert_eq!(
            command(Name::Contention),
            "palisade-lab run contention --backend redis --seed 7 --contenders 3,4 --rate 9 --duration 1m --work 4ms"
        );
        assert_eq!(command(Name::Prediction), "palisade-lab run prediction --backend redis");
    }

    #[test]
    fn flag_that_a_named_experiment_does_not_take_is_refused() {
        let refused = |arguments: &str| {
            let run = run(arguments);
            run.check(&run.names).err()
        };
        assert_eq!(refused("work fairness --work 4ms --metrics x:1"), None);
        assert_eq!(refused("--all --work 4ms --window 1s"), None, "ignored where it does not fit");
        // Each flag, by an experiment that does not take it.
        for flag in ["contenders 3", "rate 9", "ttl 3s", "pause 3s", "keys 5000", "duration 1s", "window 1s", "seed 3"]
        {
            let error = refused(&format!("release --{flag}")).unwrap_or_else(|| panic!("release takes {flag}"));
            let name = flag.split(' ').next().unwrap();
            let expected = format!("release does not take --{name}; beside --backend it takes --rounds --metrics");
            assert_eq!(error, expected);
        }
        for arguments in ["ttl --fence on", "prediction --rounds 2", "release --work 1s", "peers --metrics x:1"] {
            assert!(refused(arguments).is_some(), "{arguments}");
        }
        // The first one takes it, the second does not.
        assert!(refused("pause ttl --signed").is_some_and(|error| error.starts_with("ttl does not take --signed;")));
        let error = refused("redlock --backend redlock --backend redis");
        assert_eq!(error.as_deref(), Some("redlock does not run on redis; it runs on redlock"));
        assert!(run("--all --backend redis").targets(Name::Redlock).is_empty());
    }

    #[test]
    fn run_says_how_long_it_takes() {
        let text = |arguments: &str| {
            let run = run(arguments);
            run.forecast(&run.names)
        };
        // Five rounds of a TTL of 1 s, and the start of a Redis.
        assert_eq!(text("release --backend palisade"), "takes about 10 s on a quiet machine: release 10 s");
        let both = text("release fairness --backend palisade");
        assert!(both.starts_with("takes about 21 s on a quiet machine: release 10 s, fairness 11 s"), "{both}");
    }

    #[test]
    fn failure_is_no_success() {
        assert_eq!(outcome("x", Ok(true)), Vec::<String>::new());
        assert_eq!(outcome("x", Ok(false)), ["x: not as predicted"]);
        assert_eq!(outcome("x", Err("y".to_owned())), ["x failed: y"]);
    }
}
