//! `--metrics` of the programs that take locks, scraped while they run against a real Redis.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_lab::dlock::Backend;
use palisade_lab::generate::fill::{Fill, Lasts};
use palisade_lab::generate::taken::Taken;
use palisade_lab::metrics::Metrics;
use palisade_lab::servers::{self, Cluster, Kind, Options};

use self::support::is_missing;

mod support;

/// A program of the lab that serves its metrics. It ends with this value.
struct Program {
    child: Child,
    metrics: String,
}

impl Program {
    fn start(arguments: &[&str]) -> Program {
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-lab"));
        command.args(arguments).args(["--metrics", &metrics]).stdout(Stdio::null()).stderr(Stdio::null());
        Program { child: command.spawn().unwrap(), metrics }
    }

    /// What it serves; none if it does not answer.
    fn scrape(&self) -> Option<String> {
        let mut stream = TcpStream::connect(&self.metrics).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Scrapes it until each of these counters is above zero, and returns what it served last; an error if it ends before.
    fn until(&mut self, counters: &[&str]) -> Result<String, String> {
        let (begin, mut last) = (Instant::now(), String::new());
        while begin.elapsed() < Duration::from_secs(60) {
            last = self.scrape().unwrap_or(last);
            if counters.iter().all(|name| counter(&last, name) > 0) {
                return Ok(last);
            }
            let ended = self.child.try_wait().unwrap();
            if let Some(status) = ended {
                return Err(format!("it ended before {counters:?} were above zero ({status}):\n{last}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{counters:?} are not above zero after a minute:\n{last}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A counter in Prometheus' form; zero if it is missing.
fn counter(text: &str, name: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap_or(0)
}

/// One Redis; none, and a line that says so, where it is not installed.
async fn redis() -> Option<Cluster> {
    if is_missing("metrics", &[Kind::Redis]) {
        return None;
    }
    Some(servers::start(Kind::Redis, &Options::default()).await.unwrap())
}

const ACQUIRES: [&str; 3] = ["lock_acquire_attempts_total", "lock_acquire_success_total", "lock_acquire_seconds_count"];

async fn scraped(arguments: Vec<String>, counters: Vec<&'static str>) -> String {
    let scrape = move || {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let attempt = || Program::start(&arguments).until(&counters);
        // Another process may have taken the port that was free.
        attempt().or_else(|_| attempt()).or_else(|_| attempt()).unwrap_or_else(|error| panic!("{error}"))
    };
    tokio::task::spawn_blocking(scrape).await.unwrap()
}

fn with_endpoint(program: &str, redis: &Cluster, flags: &[&str]) -> Vec<String> {
    let common = [program, "--backend", "redis", "--endpoints", &redis.endpoints()[0]];
    common.iter().chain(flags).map(|&text| text.to_owned()).collect()
}

#[tokio::test]
async fn worker_counts_its_acquires() {
    let Some(redis) = redis().await else { return };
    let arguments = with_endpoint("worker", &redis, &["--jobs", "100000", "--rate", "50", "--key", "metrics"]);
    let text = scraped(arguments, [&ACQUIRES[..], &["lock_held_seconds_count"]].concat()).await;
    assert_eq!(counter(&text, "release_by_non_owner_total"), 0, "{text}");
}

#[tokio::test]
async fn contenders_that_outlast_their_locks_are_counted() {
    let Some(redis) = redis().await else { return };
    // The lock ends while it is held, so each release finds it lost.
    let flags = ["--rate", "50", "--duration", "5m", "--ttl", "100ms", "--work", "300ms", "--contenders", "5"];
    let arguments = with_endpoint("contend", &redis, &flags);
    scraped(arguments, [&ACQUIRES[..], &["lock_held_seconds_count", "release_by_non_owner_total"]].concat()).await;
}

#[tokio::test]
async fn fill_counts_each_lock_when_it_is_taken() {
    let Some(redis) = redis().await else { return };
    let arguments = with_endpoint("gen", &redis, &["--keys", "100000000", "--rate", "200"]);
    scraped(arguments, ACQUIRES[..2].to_vec()).await;

    // A fill that takes less than a second is counted to its last lock, and keys that are held count as waits in vain.
    let fill = Fill {
        backend: Backend::Redis,
        endpoints: redis.endpoints().to_vec(),
        keys: 2_345,
        prefix: "counted".to_owned(),
        seed: 1,
        step: 1,
        lasts: Lasts::For(Duration::from_secs(600)),
        share: 1,
        rate: None,
        until: None,
    };
    let metrics = Arc::new(Metrics::default());
    let counts = || (metrics.attempts.get(), metrics.acquired.get(), metrics.timeouts.get());
    assert_eq!(fill.run(&Taken::new(&metrics, None)).await.unwrap().keys, 2_345);
    assert_eq!(counts(), (2_345, 2_345, 0));
    assert_eq!(fill.run(&Taken::new(&metrics, None)).await.unwrap().keys, 0);
    assert_eq!(counts(), (4_690, 2_345, 2_345));
}

#[tokio::test]
async fn experiment_counts_releases_by_former_owners() {
    if is_missing("metrics", &[Kind::Redis]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let arguments = ["run", "release", "--backend", "redis", "--rounds", "20", "--out", out];
    let counters = ["release_by_non_owner_total", "lock_held_seconds_count", "lock_renewals_total"];
    scraped(arguments.map(str::to_owned).to_vec(), [&ACQUIRES[..], &counters].concat()).await;
}
