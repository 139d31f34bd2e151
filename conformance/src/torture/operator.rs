//! Operators' requests during faults. Each runs on its own thread, because its answer may take
//! long.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use palisade_client::wire::{MemberChange, MemberView, Op, StatusView, Transfer};
use palisade_client::{Client, Options, Security};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Promoted(u16),
    Removed(u16),
    /// A node whose log was damaged has its vote, in this generation.
    Votes(u16, u16),
    /// A node whose log was damaged has no vote after [`RETURN_BOUND`].
    NotTakenBack(u16),
    /// Not done in time; the outcome of a membership change is then unknown.
    GaveUp,
    Completed,
}

/// How long an operator repeats a request. A change that was made already counts as done, so
/// repeating it is safe.
const RETRY_BOUND: Duration = Duration::from_secs(40);

/// How long a node with a damaged log may take to get its vote back while other faults go on.
const RETURN_BOUND: Duration = Duration::from_secs(120);

/// Requests a membership change until it is made.
pub(super) fn change(
    security: Security,
    endpoints: Vec<String>,
    change: MemberChange,
    done: Done,
    answer: Sender<Done>,
) {
    std::thread::spawn(move || {
        let deadline = Instant::now() + RETRY_BOUND;
        let mut outcome = Done::GaveUp;
        while Instant::now() < deadline {
            if block_on(ask_for(&security, &endpoints, change.clone())) {
                outcome = done;
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let _ = answer.send(outcome);
    });
}

async fn ask_for(security: &Security, endpoints: &[String], change: MemberChange) -> bool {
    let timeout = Duration::from_secs(3);
    let security = security.clone();
    let options = Options { request_timeout: timeout, connect_timeout: timeout, security, ..Options::default() };
    let Ok(client) = Client::connect(endpoints, options).await else { return false };
    let changed = client.change_members(change).await.is_ok();
    client.close().await;
    changed
}

/// Waits until a node whose log was damaged has its vote: in the generation that it had, if nothing
/// acknowledged was lost, or in the next.
pub(super) fn await_vote(security: Security, endpoints: Vec<String>, id: u16, generation: u16, answer: Sender<Done>) {
    std::thread::spawn(move || {
        let ask = |endpoint: &String| block_on(security.status(endpoint, Duration::from_secs(1))).ok();
        // Only a node that has started answers for itself; only the leader knows which nodes vote.
        let votes = |statuses: &[StatusView]| {
            let own = statuses.iter().find(|status| status.node == id)?.generation;
            let leader = statuses.iter().find(|status| status.role == "leader")?;
            let is_own = |member: &&MemberView| (member.id, member.generation, member.voter) == (id, own, true);
            leader.members.iter().find(is_own).map(|member| member.generation)
        };
        let deadline = Instant::now() + RETURN_BOUND;
        let outcome = loop {
            let statuses: Vec<StatusView> = endpoints.iter().filter_map(ask).collect();
            match votes(&statuses) {
                Some(own) if own == generation || own == generation + 1 => break Done::Votes(id, own),
                _ if Instant::now() > deadline => break Done::NotTakenBack(id),
                _ => std::thread::sleep(Duration::from_millis(200)),
            }
        };
        let _ = answer.send(outcome);
    });
}

/// Asks the leader to transfer leadership.
pub(super) fn transfer(security: Security, endpoints: Vec<String>, answer: Sender<Done>) {
    std::thread::spawn(move || {
        let ask = async {
            for endpoint in &endpoints {
                let transfer = Op::Transfer(Transfer { to: None });
                if security.ask(endpoint, transfer, Duration::from_secs(2)).await.is_ok() {
                    return Done::Completed;
                }
            }
            Done::GaveUp
        };
        let _ = answer.send(block_on(ask));
    });
}

/// Asks a node to take a snapshot.
pub(super) fn snapshot(security: Security, endpoint: String, answer: Sender<Done>) {
    std::thread::spawn(move || {
        let taken = block_on(take_snapshot(&security, &endpoint)).is_some();
        let _ = answer.send(if taken { Done::Completed } else { Done::GaveUp });
    });
}

/// Makes a node take a snapshot. Returns the index of the last included entry, and the snapshot's
/// hash.
pub(super) async fn take_snapshot(security: &Security, endpoint: &str) -> Option<(u64, String)> {
    let request =
        format!("POST /v1/snapshot HTTP/1.1\r\nhost: {endpoint}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    let exchange = async {
        let mut stream = security.dial(endpoint).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await.ok()?;
        Some(response)
    };
    let response = time::timeout(Duration::from_secs(5), exchange).await.ok()??;
    let (head, body) = response.split_once("\r\n\r\n")?;
    if !head.starts_with("HTTP/1.1 200") {
        return None;
    }
    let view: serde_json::Value = serde_json::from_str(body).ok()?;
    Some((view["index"].as_u64()?, view["hash"].as_str()?.to_owned()))
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("the system has room for one more event loop").block_on(future)
}
