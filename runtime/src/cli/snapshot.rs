//! `palisade snapshot save`: saves a node's newest snapshot to a file, and verifies the file.

use std::cmp::Reverse;
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use axum::body::Body;
use clap::{Args, Subcommand};
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::header::RETRY_AFTER;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use palisade::storage::{self, SnapshotInfo};
use palisade_client::Security;
use palisade_client::tls::{Side, explain};
use palisade_client::wire::{Code, Failure};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::Position;
use tokio::time::{Instant, sleep, timeout};

use super::connect::{self, Endpoints};
use super::{block_on, print_error};

/// How long connecting to a node may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to repeat a request that the node refuses because another client's was just before it.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// How long the next piece of an answer may take to arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Save a node's applied state to a file
#[derive(Debug, Args)]
pub(super) struct Snapshot {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make the leader take a snapshot and save it to a file: the leader's has everything that was
    /// acknowledged. Without a leader among the endpoints, use the first endpoint that answers
    Save {
        /// The file to write; an existing file is replaced
        file: PathBuf,
        #[command(flatten)]
        endpoints: Endpoints,
    },
}

/// Why the snapshot could not be saved.
enum SaveError {
    /// The node could not be reached; another endpoint may work.
    Unreachable(String),
    /// The node answered, and its snapshot cannot be saved: no other endpoint is tried.
    Failed(String),
    /// The node does not permit it to this client.
    Denied(String),
}

impl Snapshot {
    pub(super) fn run(self) -> ExitCode {
        let Action::Save { file, endpoints } = self.action;
        let security = endpoints.security();
        let endpoints = match endpoints.parse() {
            Ok(endpoints) => endpoints,
            Err(error) => {
                print_error(&error);
                return ExitCode::from(connect::exit_code(&error));
            }
        };
        let mut unreachable = Vec::new();
        for endpoint in block_on(leader_first(endpoints, &security)) {
            match block_on(save(&endpoint, &security, &file)) {
                Ok(SnapshotInfo { last, bytes, hash, .. }) => {
                    let Position { index, term } = last;
                    outln!(
                        "saved the snapshot of {endpoint} up to entry {index} of term {term}: {bytes} bytes, hash {hash}"
                    );
                    return ExitCode::SUCCESS;
                }
                Err(SaveError::Unreachable(error)) => unreachable.push(format!("{endpoint}: {error}")),
                Err(error @ (SaveError::Failed(_) | SaveError::Denied(_))) => {
                    let code = if matches!(error, SaveError::Denied(_)) { 77 } else { 74 };
                    let (SaveError::Unreachable(why) | SaveError::Failed(why) | SaveError::Denied(why)) = error;
                    print_error(format!("cannot save a snapshot from {endpoint}: {why}"));
                    return ExitCode::from(code);
                }
            }
        }
        print_error(format!("cannot reach any node of --endpoints: {}", unreachable.join("; ")));
        ExitCode::from(69)
    }
}

/// The endpoints, sorted: nodes that claim to lead come first, the latest term before the others.
async fn leader_first(endpoints: Vec<String>, security: &Security) -> Vec<String> {
    let mut asked = tokio::task::JoinSet::new();
    for (order, endpoint) in endpoints.into_iter().enumerate() {
        let security = security.clone();
        asked.spawn(async move {
            let status = security.status(&endpoint, connect::NODE_TIMEOUT).await.ok();
            let leads = status.filter(|status| status.role == "leader").map(|status| status.term);
            (Reverse(leads), order, endpoint)
        });
    }
    let mut asked = asked.join_all().await;
    asked.sort_unstable();
    asked.into_iter().map(|(_, _, endpoint)| endpoint).collect()
}

/// Makes the node take a snapshot, and waits until it is durable.
pub(super) async fn take(endpoint: &str, security: &Security) -> Result<(), String> {
    match ask(endpoint, security, "POST").await {
        Ok(_) => Ok(()),
        Err(SaveError::Unreachable(error) | SaveError::Failed(error) | SaveError::Denied(error)) => {
            Err(format!("{endpoint}: {error}"))
        }
    }
}

/// Makes the node take a snapshot, and saves it to `file`.
async fn save(endpoint: &str, security: &Security, file: &Path) -> Result<SnapshotInfo, SaveError> {
    ask(endpoint, security, "POST").await?;
    let response = ask(endpoint, security, "GET").await?;
    // Write under another name and rename at the end, so that a file under its final name is always
    // complete.
    let mut aside = file.as_os_str().to_owned();
    aside.push(".tmp");
    let aside = PathBuf::from(aside);
    let saved = async {
        receive(response, &aside).await?;
        let written = File::open(&aside).map_err(|error| cannot("open", &aside, &error))?;
        let read = storage::read_snapshot::<LockTable>(BufReader::new(written), None);
        let (_, info) =
            read.map_err(|flaw| SaveError::Failed(format!("the node's answer is not a valid snapshot: {flaw}")))?;
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

async fn receive(response: Response<Incoming>, path: &Path) -> Result<(), SaveError> {
    // Its sessions can be used by any reader.
    let created = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    let mut file = created.map_err(|error| cannot("write", path, &error))?;
    let mut pieces = Body::new(response.into_body()).into_data_stream();
    loop {
        let piece = timeout(READ_TIMEOUT, pieces.next()).await;
        let piece = piece.map_err(|_| broken_off(format!("no data arrived for {READ_TIMEOUT:?}")))?;
        let Some(piece) = piece else { break };
        let piece = piece.map_err(broken_off)?;
        file.write_all(&piece).map_err(|error| cannot("write", path, &error))?;
    }
    file.sync_all().map_err(|error| cannot("sync", path, &error))
}

/// Sends a request for the node's newest snapshot (GET), or to take one (POST), and again after the
/// pause that the node asks for, if another client has requested a snapshot just now.
async fn ask(endpoint: &str, security: &Security, method: &str) -> Result<Response<Incoming>, SaveError> {
    let begun = Instant::now();
    loop {
        let response = send(endpoint, security, method).await?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let pause = response.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let pause = Duration::from_secs(pause.unwrap_or(1));
        if response.status() != StatusCode::TOO_MANY_REQUESTS || begun.elapsed() + pause > RETRY_FOR {
            return Err(refused(response).await);
        }
        sleep(pause).await;
    }
}

async fn send(endpoint: &str, security: &Security, method: &str) -> Result<Response<Incoming>, SaveError> {
    let unreachable = |error: &dyn std::fmt::Display| SaveError::Unreachable(error.to_string());
    let connected = timeout(CONNECT_TIMEOUT, security.dial(endpoint)).await;
    let late = |_| unreachable(&format!("no connection within {CONNECT_TIMEOUT:?}"));
    let stream = connected.map_err(late)?.map_err(|error| unreachable(&error))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| unreachable(&error))?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri("/v1/snapshot").header("host", endpoint);
    if let Some(token) = security.token().map_err(|error| SaveError::Failed(error.to_string()))? {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Body::empty()).map_err(|error| SaveError::Failed(error.to_string()))?;
    sender.send_request(request).await.map_err(|error| unreachable(&refusal_of(&error)))
}

/// The error for an answer whose status is not 200.
async fn refused(response: Response<Incoming>) -> SaveError {
    let status = response.status();
    let body = match axum::body::to_bytes(Body::new(response.into_body()), 64 * 1024).await {
        Ok(body) => body,
        Err(error) => return broken_off(error),
    };
    match serde_json::from_slice::<Failure>(&body) {
        Ok(Failure { error: Code::Denied | Code::Unauthenticated, message, .. }) => SaveError::Denied(message),
        Ok(failure) => SaveError::Failed(failure.message),
        Err(_) => SaveError::Failed(format!("the node answered with HTTP status {status}")),
    }
}

/// What a node says against this client's certificate comes behind the handshake of TLS.
fn refusal_of(error: &hyper::Error) -> String {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.and_then(|cause| explain(cause, Side::Server)).unwrap_or_else(|| error.to_string())
}

fn broken_off(error: impl std::fmt::Display) -> SaveError {
    SaveError::Failed(format!("the node's answer ended early: {error}"))
}

fn cannot(action: &str, path: &Path, error: &std::io::Error) -> SaveError {
    SaveError::Failed(format!("cannot {action} {}: {error}", path.display()))
}
