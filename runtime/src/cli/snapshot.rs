//! `palisade snapshot save`: saves a node's newest snapshot to a file, and verifies the file.

use std::cmp::Reverse;
use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Seek, Write};
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
use tempfile::NamedTempFile;
use tokio::time::{Instant, sleep, timeout};

use super::connect::{self, Endpoints};
use super::nodes::{self, NodeAnswer};
use super::{block_on, print_error};

/// How long connecting to a node may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a leader may take to have a read confirmed. One that was replaced notices it within a few election timeouts,
/// and does not answer before.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to repeat a request that the node refuses because another client's was just before it.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// How long a node may take to write a snapshot. It sends nothing before the snapshot is durable, and
/// the largest one has 16 GiB.
const TAKE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// How long the next piece of an answer may take to arrive, and the answer to a request that makes the
/// node write nothing. A node that has not answered a request for its status gets no more time to take a
/// snapshot.
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
    /// acknowledged. Any node names the leader. If no leader answers, use the first endpoint that
    /// answers, and warn that its snapshot may lack the latest changes
    Save {
        /// The file to write; an existing file is replaced
        file: PathBuf,
        #[command(flatten)]
        endpoints: Endpoints,
    },
}

/// A node whose snapshot may be saved.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    endpoint: String,
    leads: bool,
    /// How long it may take to write a snapshot.
    patience: Duration,
}

/// Why the snapshot could not be saved.
#[derive(Debug)]
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
            Err(error) => return connect::fail(&error),
        };
        let mut unreachable = Vec::new();
        for Candidate { endpoint, leads, patience } in block_on(candidates(endpoints, &security)) {
            match block_on(save(&endpoint, &security, patience, &file)) {
                Ok(SnapshotInfo { last, bytes, hash, .. }) => {
                    let Position { index, term } = last;
                    outln!(
                        "saved the snapshot of {endpoint} up to entry {index} of term {term}: {bytes} bytes, hash {hash}"
                    );
                    if !leads {
                        print_error(format!(
                            "warning: no leader's snapshot could be saved, and {endpoint} does not lead: its snapshot may \
                             lack the changes that were acknowledged last"
                        ));
                    }
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

/// The nodes to ask for a snapshot, the best one first.
async fn candidates(endpoints: Vec<String>, security: &Security) -> Vec<Candidate> {
    let mut answers = nodes::ask_cluster(endpoints.clone(), security).await;
    if !answers.iter().any(leads) {
        // Perhaps not every node knows the leader's address.
        let leaders = answers.iter().filter_map(|answer| answer.status.as_ref()?.leader.as_ref()?.client_addr.clone());
        let asked = |leader: &String| answers.iter().any(|answer| answer.endpoint.as_ref() == Some(leader));
        let mut leaders: Vec<String> = leaders.filter(|leader| !asked(leader)).collect();
        leaders.sort_unstable();
        leaders.dedup();
        answers.extend(nodes::ask(leaders, security).await);
    }
    let mut candidates = leader_first(&endpoints, answers);
    let is_replaced = match candidates.first() {
        Some(first) if first.leads => !leads_still(&first.endpoint, security).await,
        _ => false,
    };
    if is_replaced {
        candidates[0].leads = false;
        candidates.retain(|candidate| endpoints.contains(&candidate.endpoint));
    }
    candidates
}

/// Whether this node answers a read that a majority must confirm: a leader that was replaced says in its status that it
/// leads, until it notices. A client that may not read locks believes the status.
async fn leads_still(endpoint: &str, security: &Security) -> bool {
    let asked = timeout(CONFIRM_TIMEOUT, send(endpoint, security, "GET", "/v1/locks?limit=1")).await;
    let status = asked.ok().and_then(Result::ok).map(|response| response.status());
    status.is_some_and(|status| [StatusCode::OK, StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status))
}

/// Of these nodes, the leader of the latest term that any of them knows, whether it is an endpoint or not; then the
/// endpoints that answered, the latest term before the others, then the other endpoints.
fn leader_first(endpoints: &[String], mut answers: Vec<NodeAnswer>) -> Vec<Candidate> {
    let term = |answer: &NodeAnswer| answer.status.as_ref().map(|status| status.term);
    let latest = answers.iter().filter_map(term).max();
    let leads = |answer: &NodeAnswer| leads(answer) && term(answer) == latest;
    answers.sort_by_key(|answer| (!leads(answer), Reverse(term(answer))));
    let candidates = answers.into_iter().filter_map(|answer| {
        let leads = leads(&answer);
        let patience = if answer.status.is_some() { TAKE_TIMEOUT } else { READ_TIMEOUT };
        let endpoint = answer.endpoint.filter(|endpoint| leads || endpoints.contains(endpoint))?;
        Some(Candidate { endpoint, leads, patience })
    });
    candidates.collect()
}

fn leads(answer: &NodeAnswer) -> bool {
    answer.status.as_ref().is_some_and(|status| status.role == "leader")
}

/// Makes the node take a snapshot, and waits until it is durable.
pub(super) async fn take(endpoint: &str, security: &Security) -> Result<(), String> {
    match ask(endpoint, security, "POST", TAKE_TIMEOUT).await {
        Ok(_) => Ok(()),
        Err(SaveError::Unreachable(error) | SaveError::Failed(error) | SaveError::Denied(error)) => {
            Err(format!("{endpoint}: {error}"))
        }
    }
}

/// Makes the node take a snapshot, and saves it to `file`.
async fn save(endpoint: &str, security: &Security, patience: Duration, file: &Path) -> Result<SnapshotInfo, SaveError> {
    ask(endpoint, security, "POST", patience).await?;
    let response = ask(endpoint, security, "GET", READ_TIMEOUT).await?;
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Write under another name and rename at the end, so that a file under its final name is always
    // complete. The name is random, and the file a new one that only its owner can read: the snapshot has
    // all keys, the contents of the records, the values of the claims, and the proofs of the sessions.
    let mut prefix = OsString::from(file.file_name().unwrap_or_default());
    prefix.push(".");
    let created = tempfile::Builder::new().prefix(&prefix).suffix(".tmp").tempfile_in(directory);
    let mut aside = created.map_err(|error| cannot("create a file in", directory, &error))?;
    receive(response, &mut aside).await?;
    aside.rewind().map_err(|error| cannot("read", aside.path(), &error))?;
    let (_, info) = storage::read_snapshot::<LockTable>(BufReader::new(aside.as_file()), None)
        .map_err(|flaw| SaveError::Failed(format!("the node's answer is not a valid snapshot: {flaw}")))?;
    aside.persist(file).map_err(|error| cannot("write", file, &error.error))?;
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| cannot("sync", directory, &error))?;
    Ok(info)
}

async fn receive(response: Response<Incoming>, file: &mut NamedTempFile) -> Result<(), SaveError> {
    let mut pieces = Body::new(response.into_body()).into_data_stream();
    loop {
        let piece = timeout(READ_TIMEOUT, pieces.next()).await;
        let piece = piece.map_err(|_| broken_off(format!("no data arrived for {READ_TIMEOUT:?}")))?;
        let Some(piece) = piece else { break };
        let piece = piece.map_err(broken_off)?;
        file.write_all(&piece).map_err(|error| cannot("write", file.path(), &error))?;
    }
    file.as_file().sync_all().map_err(|error| cannot("sync", file.path(), &error))
}

/// Sends a request for the node's newest snapshot (GET), or to take one (POST), and again after the
/// pause that the node asks for, if another client has requested a snapshot just now. Each answer must
/// begin within `patience`.
async fn ask(
    endpoint: &str,
    security: &Security,
    method: &str,
    patience: Duration,
) -> Result<Response<Incoming>, SaveError> {
    let begun = Instant::now();
    loop {
        let sent = timeout(patience, send(endpoint, security, method, "/v1/snapshot")).await;
        let response = sent.map_err(|_| SaveError::Unreachable(format!("no answer within {patience:?}")))??;
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

/// Sends a request to this node, which does not forward it to another one.
async fn send(endpoint: &str, security: &Security, method: &str, path: &str) -> Result<Response<Incoming>, SaveError> {
    let unreachable = |error: &dyn std::fmt::Display| SaveError::Unreachable(error.to_string());
    let connected = timeout(CONNECT_TIMEOUT, security.dial(endpoint)).await;
    let late = |_| unreachable(&format!("no connection within {CONNECT_TIMEOUT:?}"));
    let stream = connected.map_err(late)?.map_err(|error| unreachable(&error))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| unreachable(&error))?;
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path);
    let mut request = request.header("host", endpoint).header("x-forward", "never");
    if let Some(token) = security.token().map_err(|error| SaveError::Failed(error.to_string()))? {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Body::empty()).map_err(|error| SaveError::Failed(error.to_string()))?;
    sender.send_request(request).await.map_err(|error| unreachable(&refusal_of(&error)))
}

/// The error for an answer whose status is not 200.
async fn refused(response: Response<Incoming>) -> SaveError {
    let status = response.status();
    let body = match timeout(READ_TIMEOUT, axum::body::to_bytes(Body::new(response.into_body()), 64 * 1024)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => return broken_off(error),
        Err(late) => return broken_off(late),
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use palisade_client::wire::StatusView;
    use serde_json::json;

    use super::*;

    fn answer(endpoint: &str, role: Option<&str>, term: u64) -> NodeAnswer {
        let status = role.map(|role| {
            let status = json!({
                "node": 1, "cluster": "c", "role": role, "term": term, "leader": null, "commit": 1, "applied": 1,
                "cluster_time_ms": 1, "sessions": 0, "locks": 0, "members": [], "snapshot": null,
            });
            serde_json::from_value::<StatusView>(status).unwrap()
        });
        NodeAnswer { endpoint: Some(endpoint.into()), node: None, status, error: None }
    }

    /// Goal: the latest leader's snapshot has everything that was acknowledged, whether it is an endpoint or
    /// another node names it; a leader that others have replaced has not. A node that answers nothing delays no other one,
    /// and gets little time.
    #[test]
    fn leader_is_asked_first_and_a_silent_node_last() {
        let endpoints = ["silent:1", "follower:2", "old:3"].map(str::to_owned);
        let answers = vec![
            answer("silent:1", None, 0),
            answer("follower:2", Some("follower"), 9),
            answer("old:3", Some("leader"), 8),
            answer("member:4", Some("follower"), 9),
            answer("leader:5", Some("leader"), 9),
        ];
        let candidate = |endpoint: &str, leads, patience| Candidate { endpoint: endpoint.into(), leads, patience };
        let expected = [
            candidate("leader:5", true, TAKE_TIMEOUT),
            candidate("follower:2", false, TAKE_TIMEOUT),
            candidate("old:3", false, TAKE_TIMEOUT),
            candidate("silent:1", false, READ_TIMEOUT),
        ];
        assert_eq!(leader_first(&endpoints, answers), expected);
    }

    /// A node that gives one answer, with this status; its thread returns the head of the request.
    fn answering(status: &'static str) -> (String, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let node = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut head, mut byte) = (Vec::<u8>::new(), [0_u8]);
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
            String::from_utf8(head).unwrap()
        });
        (endpoint, node)
    }

    /// Goal: a leader that was replaced and has not noticed it does not count as the leader. Where the client may not
    /// ask, the node's status counts.
    #[test]
    fn leader_answers_a_read_itself() {
        for (status, leads) in [
            ("200 OK", true),
            ("401 Unauthorized", true),
            ("403 Forbidden", true),
            ("307 Temporary Redirect", false),
            ("503 Service Unavailable", false),
        ] {
            let (endpoint, node) = answering(status);
            assert_eq!(block_on(leads_still(&endpoint, &Security::plain())), leads, "{status}");
            let head = node.join().unwrap().to_ascii_lowercase();
            assert!(head.starts_with("get /v1/locks?") && head.contains("\r\nx-forward: never\r\n"), "{head}");
        }
    }

    /// Goal: a node that accepts the connection and answers nothing does not keep the command for ever.
    #[test]
    fn node_that_does_not_answer_is_left() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = silent.local_addr().unwrap().to_string();
        let security = Security::plain();
        let asked = block_on(async {
            let asked = ask(&endpoint, &security, "POST", Duration::from_millis(50));
            timeout(Duration::from_secs(30), asked).await.expect("it ends by itself")
        });
        assert!(matches!(&asked, Err(SaveError::Unreachable(why)) if why == "no answer within 50ms"), "{asked:?}");
    }
}
