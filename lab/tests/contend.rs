//! `palisade-lab contend` against a real Redis.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use palisade_lab::servers::{self, Kind, Options};
use rustix::process::{Pid, Signal, kill_process};

use self::support::is_missing;

mod support;

fn contend(endpoint: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-lab"));
    command.args(["contend", "--backend", "redis", "--endpoints", endpoint]).args(flags);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process that is sent SIGINT when this is dropped.
struct Interrupted(Pid);

impl Drop for Interrupted {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::INT);
    }
}

async fn finish(child: std::process::Child) -> Output {
    tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[tokio::test]
async fn a_run_is_counted_and_its_history_judged() {
    if is_missing("contend", &[Kind::Redis]) {
        return;
    }
    let redis = servers::start(Kind::Redis, &Options::default()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let (history, out, attempts) = (file("history"), file("out.json"), file("attempts.csv"));
    let mut run = contend(&redis.endpoints()[0], &["--rate", "200", "--duration", "1s", "--keys", "3"]);
    // No attempt fails on a machine that other programs keep busy for seconds.
    run.args(["--tokens", "global", "--contenders", "500", "--wait", "1m", "--request-timeout", "30s", "--ttl", "5m"]);
    run.arg("--history").arg(&history).arg("--out").arg(&out).arg("--attempts").arg(&attempts);
    let output = finish(run.spawn().unwrap()).await;
    assert!(output.status.success(), "{output:?}");
    let report = json(&out);
    let (summary, arrivals) = (&report["summary"], report["summary"]["arrivals"].as_u64().unwrap());
    assert!(arrivals > 150, "{report}");
    assert_eq!((&summary["granted"], &summary["failed"]), (&arrivals.into(), &0.into()), "{report}");
    // An acquire and a release for each arrival.
    assert_eq!(report["history"]["operations"].as_u64(), Some(2 * arrivals));
    assert_eq!(report["history"]["service"], serde_json::json!([]));
    assert_eq!(std::fs::read_to_string(&attempts).unwrap().lines().count() as u64, arrivals + 1);
    // Without a common counter, the tokens of several keys cannot be compared.
    let mut run = contend(&redis.endpoints()[0], &["--keys", "3"]);
    let output = finish(run.arg("--history").arg(file("another")).spawn().unwrap()).await;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("add --tokens global"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_killed_is_an_error_with_its_address() {
    if is_missing("contend", &[Kind::Redis]) {
        return;
    }
    let redis = servers::start(Kind::Redis, &Options::default()).await.unwrap();
    let endpoint = redis.endpoints()[0].clone();
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out.json");
    let mut run = contend(&endpoint, &["--rate", "100", "--duration", "10m", "--tokens", "global"]);
    let run = run.arg("--out").arg(&out).spawn().unwrap();
    // If the test fails, the run ends with it.
    let process = Interrupted(Pid::from_child(&run));
    // 50 contenders at most have not heard of their grants yet.
    let begin = Instant::now();
    loop {
        // Before the first grant there is no counter.
        let granted = redis.redis(0, &["GET", "fences"]).await.ok().and_then(|count| count.parse().ok()).unwrap_or(0);
        if granted >= 100 {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no 100 grants within a minute");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    redis.kill(0).await.unwrap();
    // Some 200 arrivals.
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(process);
    let output = finish(run).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let summary = &json(&out)["summary"];
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert!(count("granted") > 10 && count("failed") > 10, "{summary}");
    // Arrivals go on, and none is missing.
    assert_eq!(count("arrivals"), count("granted") + count("timeouts") + count("failed") + count("overflow"));
    let failure = &summary["failures"][0];
    assert_eq!((failure["backend"].as_str(), failure["server"].as_str()), (Some("redis"), Some(endpoint.as_str())));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains(&format!("({endpoint}): redis: ")), "{text}");
}
