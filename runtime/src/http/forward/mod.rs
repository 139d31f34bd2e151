//! A follower forwards what only the leader can answer, and passes the answer on, so that a client needs the
//! address of one node only (decision 0034).
//!
//! The request goes to the leader over the port for nodes, with what this node knows of its client
//! ([`origin`]). The handlers that it meets there do not forward ([`mod@accept`]), so no request goes in a circle.
//! A request that the leader has not begun to execute is sent to the next leader; of one that may have been
//! executed the client learns that the outcome is unknown, as at a leader that loses its leadership.

mod accept;
mod lines;
mod members;
mod origin;
mod tunnel;

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use palisade_client::wire::{Code, Failure};
use palisade_spec::raft::NodeId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

pub use self::accept::accept;
pub(super) use self::lines::Lines;
pub(super) use self::members::Said;
pub use self::origin::Origin;

use super::listen::stopped;
use super::{App, Caller, body, not_taken, reply};
use crate::accounts::AccountName;
use crate::core::NotTaken;
use crate::limits;

/// A client that would rather be redirected sends `X-Forward: never`.
const X_FORWARD: HeaderName = HeaderName::from_static("x-forward");
/// How long a leader that takes no request is tried, and the next one is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// How long answers are still carried when a leader was replaced, or the node that forwards was removed: what is under
/// way has an outcome, unless the leader hangs.
const FAREWELL: Duration = Duration::from_millis(500);

/// Why a request was not answered.
#[derive(Debug)]
enum Failed {
    /// The leader has not begun to execute it.
    NotSent(String),
    /// Its client has its part of the connections to the leader.
    Limited(Failure),
    /// It may have been executed.
    Unknown(String),
}

/// Answers a request at the leader, wherever that is.
pub(super) async fn to_leader(Caller(app): Caller, request: Request, next: Next) -> Response {
    if asks_this_node(request.method(), request.headers(), request.uri().query()) {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let uri = parts.uri.clone();
    let is_upgrade = is_websocket(&parts);
    // A body that comes slowly must not take a connection to the leader.
    let body = if is_upgrade { Ok(Vec::new()) } else { body::whole(body, limit(&uri)).await };
    let body = match body {
        Ok(body) => Bytes::from(body),
        Err(failure) => {
            if let Err((failure, seconds)) = app.within_rate(false) {
                return reply::too_soon(failure, seconds, &uri);
            }
            app.metrics.frames_rejected.inc();
            return reply::response(Err(failure), &uri);
        }
    };
    let client = tunnel::Client::of(&mut parts);
    let (deadline, mut stop) = (Instant::now() + PATIENCE, app.stop.clone());
    loop {
        let leader = app.other_leader();
        let attempt = match leader {
            None => {
                client.return_to(&mut parts);
                Ok(next.clone().run(Request::from_parts(parts.clone(), Body::from(body.clone()))).await)
            }
            Some(leader) => tokio::select! {
                opened = tunnel::open(&app, leader, &parts, &client), if is_upgrade => opened,
                answered = lines::send(&app, leader, &parts, body.clone()), if !is_upgrade => answered,
                // The leader withdraws a wait that ends here.
                () = stopped(&mut stop) => return reply::response(Err(not_taken(NotTaken::Ended)), &uri),
            },
        };
        let why = match attempt {
            // That node has lost its leadership, and has done nothing.
            Ok(response) if response.status() == StatusCode::TEMPORARY_REDIRECT => "it does not lead".to_owned(),
            Ok(response) => {
                if leader.is_some() {
                    app.metrics.forwarded.inc();
                    return app.while_unread(response, &uri);
                }
                return response;
            }
            Err(Failed::NotSent(why)) => why,
            Err(Failed::Limited(failure)) => return reply::response(Err(failure), &uri),
            Err(Failed::Unknown(why)) => {
                let message = format!(
                    "the request was forwarded to {}, and its outcome is unknown: {why}; it may have been executed, or \
                     may still be: repeat it",
                    name(leader)
                );
                return reply::response(Err(Failure::new(Code::LeadershipLost, message)), &uri);
            }
        };
        debug!(leader = name(leader), why, "the leader does not take a request");
        if Instant::now() >= deadline {
            let message = format!(
                "{} leads as far as this node knows, and does not take the request: {why}; try again",
                name(leader)
            );
            return reply::response(Err(Failure::new(Code::NoLeader, message)), &uri);
        }
        sleep(PAUSE).await;
    }
}

/// The paths of WebSockets.
const SOCKETS: [&str; 2] = ["/v1/ws", "/v1/hold"];

/// Whether it is a request for a WebSocket. Others may offer another protocol (`Upgrade: h2c`), which no node speaks:
/// the offer is ignored.
fn is_websocket(parts: &Parts) -> bool {
    let is_asked = parts.headers.get(UPGRADE).is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"websocket"));
    is_asked && parts.method == Method::GET && SOCKETS.contains(&parts.uri.path())
}

/// Bytes of a body, at most: those of the largest request with this path.
fn limit(uri: &Uri) -> usize {
    if uri.path().starts_with("/v1/kv") { limits::TRANSACTION_JSON_BYTES } else { limits::REQUEST_BYTES }
}

/// A leader, or this node, in a sentence.
fn name(leader: Option<NodeId>) -> String {
    leader.map_or_else(|| "this node".to_owned(), |leader| format!("node {leader}"))
}

/// Whether the client asks for the answer of this node, whatever it is.
fn asks_this_node(method: &Method, headers: &HeaderMap, query: Option<&str>) -> bool {
    let never = headers.get(X_FORWARD).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"never"));
    let stale = || query.is_some_and(|query| query.split('&').any(|part| part == "consistency=stale"));
    never || (method == Method::GET && stale())
}

impl App {
    /// The refusal of a request for a client that has its part of the connections between nodes for such requests.
    fn has_its_part(&self, client: &AccountName) -> Failure {
        self.report_limit("forwarded", None, client);
        let message = format!(
            "{client} has its part of the requests that one node forwards to another; wait for some of the answers, or ask \
             the leader"
        );
        Failure::new(Code::Overloaded, message)
    }

    /// The leader, if it is another node.
    fn other_leader(&self) -> Option<NodeId> {
        self.core.view().leader().filter(|&leader| leader != self.peers.roster().node)
    }

    /// Resolves when this node no longer follows this leader, and the leader has had time to answer.
    fn no_longer_follows(&self, leader: NodeId) -> impl Future<Output = ()> + Send + 'static {
        is_replaced(self.core.view().watch_leader(), leader)
    }
}

/// Resolves when this leader has not been known for [`FAREWELL`], or the node has ended. A follower that misses some
/// heartbeats knows no leader for a moment, and follows the same one again.
async fn is_replaced(mut leaders: watch::Receiver<Option<NodeId>>, leader: NodeId) {
    while leaders.wait_for(|known| *known != Some(leader)).await.is_ok() {
        let is_back = timeout(FAREWELL, leaders.wait_for(|known| *known == Some(leader)));
        if !is_back.await.is_ok_and(|known| known.is_ok()) {
            return;
        }
    }
}

/// The headers of the client's connection, or for the node that it has reached.
const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
    "expect",
    "authorization",
];

/// The head of this client's request as the leader gets it.
fn head(parts: &Parts, client: &Origin) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.uri.path_and_query().map_or_else(Default::default, |path| path.clone().into());
    *request.headers_mut() = parts.headers.clone();
    OF_THE_CONNECTION.iter().for_each(|name| drop(request.headers_mut().remove(*name)));
    if !is_websocket(parts) {
        request.headers_mut().remove(UPGRADE);
    }
    client.write(request.headers_mut());
    request
}

/// The answer without what is of the connection to the leader.
fn answer(mut response: Response) -> Response {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        ["keep-alive", "transfer-encoding"].iter().for_each(|name| drop(response.headers_mut().remove(*name)));
        response.headers_mut().remove(CONNECTION);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_may_ask_the_node_itself() {
        let asks = |value: Option<&str>, query| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(X_FORWARD, value.parse().unwrap());
            }
            asks_this_node(&Method::GET, &headers, query)
        };
        assert!(asks(Some("never"), None) && asks(Some("Never"), Some("limit=3")));
        assert!(asks(None, Some("limit=3&consistency=stale")));
        assert!(!asks(None, None) && !asks(Some("always"), Some("consistency=linearizable")));
        assert!(!asks(None, Some("prefix=consistency=stale")));
        assert!(!asks_this_node(&Method::POST, &HeaderMap::new(), Some("consistency=stale")));
    }

    /// Goal: what a follower has forwarded outlives a moment in which the follower knows no leader. It ends a while after
    /// another node leads.
    #[tokio::test]
    async fn leader_that_is_back_was_not_replaced() {
        let (leaders, known) = watch::channel(Some(NodeId(1)));
        let replaced = tokio::spawn(is_replaced(known, NodeId(1)));
        for _ in 0..2 {
            leaders.send_replace(None);
            sleep(FAREWELL / 10).await;
            leaders.send_replace(Some(NodeId(1)));
            sleep(FAREWELL * 2).await;
            assert!(!replaced.is_finished());
        }
        let begun = Instant::now();
        leaders.send_replace(Some(NodeId(2)));
        timeout(Duration::from_secs(60), replaced).await.expect("it ends").unwrap();
        assert!(begun.elapsed() >= FAREWELL, "answers are carried for a while");
    }

    #[test]
    fn offer_of_another_protocol_is_no_websocket() {
        let is = |method: &str, path: &str, upgrade: &str| {
            let request = Request::builder().method(method).uri(path).header(UPGRADE, upgrade).body(Body::empty());
            is_websocket(&request.unwrap().into_parts().0)
        };
        assert!(is("GET", "/v1/ws", "WebSocket") && is("GET", "/v1/hold?x=1", "websocket"));
        assert!(!is("PUT", "/v1/kv/k", "h2c") && !is("GET", "/v1/ws", "h2c"));
        assert!(!is("POST", "/v1/ws", "websocket") && !is("GET", "/v1/locks/k", "websocket"));
    }
}
