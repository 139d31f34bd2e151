//! The resource and the workers of an experiment, as processes of their own: only a process can be
//! stopped or killed. All of them end with the values that stand for them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::{Context, path_text};
use crate::event::{Event, Line};
use crate::metrics::Metrics;
use crate::resource::Listening;
use crate::resource::client::Client;
use crate::resource::rule::Fence;

/// How long a process may take to do what is expected of it.
const PATIENCE: Duration = Duration::from_secs(90);

/// A resource.
#[derive(Debug)]
pub struct Resource {
    child: Child,
    /// `http://HOST:PORT`.
    pub url: String,
    /// Its history.
    pub history: PathBuf,
    /// A client of it.
    pub client: Client,
}

/// What a resource has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// `resource_writes_total`
    pub writes: u64,
    /// `resource_stale_token_rejections_total`
    pub stale_rejections: u64,
    /// `resource_stale_writes_accepted_total`
    pub stale_accepted: u64,
    /// `resource_untrusted_token_rejections_total`
    #[serde(default, skip_serializing_if = "is_zero")]
    pub untrusted: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Resource {
    /// Starts a resource with its log in a directory.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start(directory: &Path, fence: Fence) -> Result<Resource, String> {
        Resource::start_with(directory, fence, &[]).await
    }

    /// Starts a resource with its log in a directory, and with more flags.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_with(directory: &Path, fence: Fence, flags: &[&str]) -> Result<Resource, String> {
        let history = directory.join("resource.jsonl");
        let data = directory.join("data");
        let fence = fence.name();
        let mut command = program()?;
        command.args(["resource", "--addr", "127.0.0.1:0", "--fence", fence, "--data", path_text(&data)?]);
        command.args(["--history", path_text(&history)?]).args(flags);
        let (child, mut lines) = spawn(command, Stdio::null())?;
        let line = next(&mut lines, "the resource").await?.ok_or("the resource has ended before it listened")?;
        let Listening { listening } =
            serde_json::from_str(&line).map_err(|error| format!("the resource printed {line}: {error}"))?;
        let url = format!("http://{listening}");
        let client = Client::new(&url, "experiment")?;
        Ok(Resource { child, url, history, client })
    }

    /// What it has counted.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn counts(&self) -> Result<Counts, String> {
        Ok(Counts {
            writes: self.client.counter("resource_writes_total").await?,
            stale_rejections: self.client.counter("resource_stale_token_rejections_total").await?,
            stale_accepted: self.client.counter("resource_stale_writes_accepted_total").await?,
            untrusted: self.client.counter("resource_untrusted_token_rejections_total").await?,
        })
    }

    /// Ends it, and returns its history's file. The history needs no orderly end.
    ///
    /// # Errors
    /// It cannot be ended.
    pub async fn end(mut self) -> Result<PathBuf, String> {
        self.child.kill().await.map_err(|error| format!("the resource cannot be ended: {error}"))?;
        Ok(self.history)
    }
}

/// A worker.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    owner: String,
    metrics: Arc<Metrics>,
    /// What it has printed so far.
    pub seen: Vec<Line>,
}

impl Worker {
    /// Starts a worker with more flags.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(context: &Context, owner: &str, flags: &[impl AsRef<OsStr>]) -> Result<Worker, String> {
        Worker::start_as("worker", context, owner, flags)
    }

    /// Starts a worker that is another of this program's commands, with more flags.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_as(name: &str, context: &Context, owner: &str, flags: &[impl AsRef<OsStr>]) -> Result<Worker, String> {
        let mut command = program()?;
        command.args([name, "--backend", context.backend.name(), "--endpoints", &context.endpoints.join(",")]);
        command.args(["--owner", owner]).args(flags);
        let (child, lines) = spawn(command, Stdio::null())?;
        Ok(Worker { child, lines, owner: owner.to_owned(), metrics: context.metrics.clone(), seen: Vec::new() })
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// The worker has ended, or printed nothing for too long, before the event.
    pub async fn wait_for(&mut self, what: &str, wanted: impl Fn(&Event) -> bool) -> Result<Line, String> {
        loop {
            let Some(line) = self.next().await? else {
                return Err(format!("worker {} has ended before it {what}: {:?}", self.owner, self.seen));
            };
            if wanted(&line.event) {
                return Ok(line);
            }
        }
    }

    /// Waits for the worker's end.
    ///
    /// # Errors
    /// It failed, or printed nothing for too long.
    pub async fn finish(mut self) -> Result<Vec<Line>, String> {
        while self.next().await?.is_some() {}
        let status = self.child.wait().await.map_err(|error| format!("worker {}: {error}", self.owner))?;
        match status.success() {
            true => Ok(self.seen),
            false => Err(format!("worker {} ended with {status}: {:?}", self.owner, self.seen)),
        }
    }

    /// Kills the worker by SIGKILL.
    ///
    /// # Errors
    /// It has ended before.
    pub async fn kill(mut self) -> Result<(), String> {
        self.child.kill().await.map_err(|error| format!("worker {} cannot be killed: {error}", self.owner))
    }

    async fn next(&mut self) -> Result<Option<Line>, String> {
        let Some(text) = next(&mut self.lines, &self.owner).await? else { return Ok(None) };
        let line: Line =
            serde_json::from_str(&text).map_err(|error| format!("worker {} printed {text}: {error}", self.owner))?;
        self.metrics.count(&line.event);
        self.seen.push(line.clone());
        Ok(Some(line))
    }
}

pub(super) fn program() -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program's file is unknown: {error}"))?;
    // `setpriv` becomes the program. The system ends it with this process, also if that is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    Ok(command)
}

pub(super) fn spawn(mut command: Command, input: Stdio) -> Result<(Child, Lines<BufReader<ChildStdout>>), String> {
    command.stdin(input).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    let output = child.stdout.take().ok_or("the process has no standard output")?;
    Ok((child, BufReader::new(output).lines()))
}

pub(super) async fn next(lines: &mut Lines<BufReader<ChildStdout>>, who: &str) -> Result<Option<String>, String> {
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let line = line.map_err(|_| format!("{who} has printed nothing for {PATIENCE:?}"))?;
    line.map_err(|error| format!("{who}: {error}"))
}
