//! `palisade snapshot save`: a node's state in a file, checked to the last byte.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use axum::body::Body;
use clap::{Args, Subcommand};
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use palisade::storage::{self, SnapshotInfo};
use palisade_client::wire::Failure;
use palisade_spec::lock::LockTable;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::connect::{self, Endpoints};
use super::{block_on, complain};

/// How long a node may take to be reached.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it may take until the next piece of an answer is there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Save what a node has applied
#[derive(Debug, Args)]
pub(super) struct Snapshot {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Have a node take a snapshot, and save it: the leader, which has everything that was acknowledged; without one the first
    /// endpoint that answers
    Save {
        /// The file to write; replaced if it is there
        file: PathBuf,
        #[command(flatten)]
        endpoints: Endpoints,
    },
}

/// Why there is no file.
enum Trouble {
    /// The node could not be reached; another one may do.
    Unreachable(String),
    /// The node answered, and that was that.
    Failed(String),
}

impl Snapshot {
    pub(super) fn run(self) -> ExitCode {
        let Action::Save { file, endpoints } = self.action;
        let endpoints = match endpoints.parse() {
            Ok(endpoints) => endpoints,
            Err(error) => {
                complain(&error);
                return ExitCode::from(connect::exit_code(&error));
            }
        };
        let mut unreachable = Vec::new();
        for endpoint in block_on(leader_first(endpoints)) {
            match block_on(save(&endpoint, &file)) {
                Ok(SnapshotInfo { last, bytes, hash, .. }) => {
                    say!("entry {} of term {}, {bytes} bytes, {hash}, from {endpoint}", last.index, last.term);
                    return ExitCode::SUCCESS;
                }
                Err(Trouble::Unreachable(trouble)) => unreachable.push(format!("{endpoint}: {trouble}")),
                Err(Trouble::Failed(trouble)) => {
                    complain(format!("no snapshot from {endpoint}: {trouble}"));
                    return ExitCode::from(74);
                }
            }
        }
        complain(format!("no node can be reached: {}", unreachable.join("; ")));
        ExitCode::from(69)
    }
}

/// The endpoints, those first that say they lead, the one of the latest term before the others.
async fn leader_first(endpoints: Vec<String>) -> Vec<String> {
    let mut asked = tokio::task::JoinSet::new();
    for (place, endpoint) in endpoints.into_iter().enumerate() {
        asked.spawn(async move {
            let status = palisade_client::status(&endpoint, connect::NODE_TIMEOUT).await.ok();
            let leads = status.filter(|status| status.role == "leader").map(|status| status.term);
            (Reverse(leads), place, endpoint)
        });
    }
    let mut asked = asked.join_all().await;
    asked.sort_unstable();
    asked.into_iter().map(|(_, _, endpoint)| endpoint).collect()
}

/// Has the node take a snapshot, and waits until it is durable.
pub(super) async fn take(endpoint: &str) -> Result<(), String> {
    match ask(endpoint, "POST").await {
        Ok(_) => Ok(()),
        Err(Trouble::Unreachable(trouble) | Trouble::Failed(trouble)) => Err(format!("{endpoint}: {trouble}")),
    }
}

/// Has the node take a snapshot, and saves it.
async fn save(endpoint: &str, file: &Path) -> Result<SnapshotInfo, Trouble> {
    ask(endpoint, "POST").await?;
    let response = ask(endpoint, "GET").await?;
    // Written aside: whoever finds a file under its name finds a whole one.
    let mut aside = file.as_os_str().to_owned();
    aside.push(".tmp");
    let aside = PathBuf::from(aside);
    let saved = async {
        receive(response, &aside).await?;
        let written = File::open(&aside).map_err(|error| cannot("open", &aside, &error))?;
        let read = storage::read_snapshot::<LockTable>(BufReader::new(written), None);
        let (_, info) = read.map_err(|flaw| Trouble::Failed(format!("what arrived is no snapshot: {flaw}")))?;
        fs::rename(&aside, file).map_err(|error| cannot("write", file, &error))?;
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| cannot("sync", directory, &error))?;
        Ok(info)
    };
    let saved = saved.await;
    if saved.is_err() {
        let _ = fs::remove_file(&aside);
    }
    saved
}

async fn receive(response: Response<Incoming>, path: &Path) -> Result<(), Trouble> {
    let mut file = File::create(path).map_err(|error| cannot("write", path, &error))?;
    let mut pieces = Body::new(response.into_body()).into_data_stream();
    loop {
        let piece = timeout(PATIENCE, pieces.next()).await.map_err(|_| broken_off("nothing came for a minute"))?;
        let Some(piece) = piece else { break };
        let piece = piece.map_err(broken_off)?;
        file.write_all(&piece).map_err(|error| cannot("write", path, &error))?;
    }
    file.sync_all().map_err(|error| cannot("sync", path, &error))
}

/// Asks the node for its snapshot, or to take one. Anything but success is a refusal.
async fn ask(endpoint: &str, method: &str) -> Result<Response<Incoming>, Trouble> {
    let unreachable = |error: &dyn std::fmt::Display| Trouble::Unreachable(error.to_string());
    let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(endpoint)).await;
    let stream = connected.map_err(|error| unreachable(&error))?.map_err(|error| unreachable(&error))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| unreachable(&error))?;
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri("/v1/snapshot").header("host", endpoint).body(Body::empty());
    let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
    if response.status() == StatusCode::OK {
        return Ok(response);
    }
    let status = response.status();
    let body = axum::body::to_bytes(Body::new(response.into_body()), 64 * 1024).await.map_err(broken_off)?;
    let failure = serde_json::from_slice::<Failure>(&body).ok();
    Err(Trouble::Failed(failure.map_or_else(|| format!("it answered {status}"), |failure| failure.message)))
}

fn broken_off(error: impl std::fmt::Display) -> Trouble {
    Trouble::Failed(format!("the answer is broken off: {error}"))
}

fn cannot(action: &str, path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::Failed(format!("cannot {action} {}: {error}", path.display()))
}
