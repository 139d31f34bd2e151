//! Requests to Palisade's leader, and the sessions that they open and keep alive.
//!
//! A request follows the leader, and is repeated until its deadline if no leader answers.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::Error;
use super::super::cleanup::Background;
use super::super::http::{Answer, Http};
use super::NAME;

/// The pause before a request that no leader answered is repeated.
const RETRY: Duration = Duration::from_millis(25);

/// The cluster's nodes, and which of them leads.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    http: Http,
    endpoints: Arc<[String]>,
    /// Where requests are sent first.
    leader: tokio::sync::watch::Sender<String>,
    /// The server that has last answered as the leader.
    found: tokio::sync::watch::Sender<String>,
    timeout: Duration,
}

/// A session, which one acquire uses at a time.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) ttl_ms: u64,
    /// The sending of the last request that set the session to a whole TTL.
    pub(super) leased_at: Instant,
    /// Every request was answered at the first attempt: no repetition is on its way that could acquire the lock later.
    pub(super) clean: bool,
}

/// What the leader answered, and how many attempts that took.
pub(super) struct Exchange {
    pub(super) answer: Answer,
    pub(super) attempts: u32,
}

impl Cluster {
    pub(super) fn new(endpoints: &[String], timeout: Duration) -> Cluster {
        let leader = tokio::sync::watch::Sender::new(endpoints[0].clone());
        let found = tokio::sync::watch::Sender::new(String::new());
        Cluster { http: Http::new(), endpoints: endpoints.into(), leader, found, timeout }
    }

    pub(super) fn error(&self, reason: impl Display) -> Error {
        Error::Backend { backend: NAME, reason: format!("{}: {reason}", self.endpoints.join(",")) }
    }

    /// Another server than the one that failed, unless another request has found one already.
    fn leave(&self, failed: &str) {
        self.leader.send_if_modified(|leader| {
            let same = leader == failed;
            if same {
                let index = self.endpoints.iter().position(|endpoint| endpoint == failed).map_or(0, |index| index + 1);
                leader.clone_from(&self.endpoints[index % self.endpoints.len()]);
            }
            same
        });
    }

    /// Asks the leader, again until it answers. The leader may take `wait` longer than a usual request. A waiting request is
    /// sent again when another request was answered by another leader, and not before: a leader withdraws the wait of a
    /// connection that is closed, and an election makes servers answer that they know no leader.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: impl Fn() -> Option<Value>,
        wait: Duration,
    ) -> Result<Exchange, Error> {
        let (mut attempts, mut trouble) = (0, String::new());
        let repeated = async {
            loop {
                attempts += 1;
                let mut found = self.found.subscribe();
                let server = self.leader.borrow().clone();
                let body = body();
                let sent = self.http.send(&method, &server, path, body.as_ref());
                let answer = tokio::select! {
                    answer = sent => answer,
                    () = another(&mut found, &server), if !wait.is_zero() => Err("another node leads".to_owned()),
                };
                match answer {
                    Ok(Answer { status: 307, location: Some(location), .. }) => {
                        trouble = format!("{server} names {location} as the leader");
                        self.leader.send_if_modified(|leader| {
                            let stale = *leader == server && *leader != location;
                            if stale {
                                leader.clone_from(&location);
                            }
                            stale
                        });
                        if attempts <= 2 {
                            continue;
                        }
                    }
                    Ok(answer) if answer.status != 503 => {
                        self.found.send_if_modified(|found| std::mem::replace(found, server.clone()) != server);
                        return answer;
                    }
                    Ok(answer) => {
                        trouble = format!("{server} answered: {}", answer.sentence());
                        self.leave(&server);
                    }
                    Err(error) => {
                        trouble = format!("{server}: {error}");
                        self.leave(&server);
                    }
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        let limit = self.timeout + wait;
        match tokio::time::timeout(limit, repeated).await {
            Ok(answer) => Ok(Exchange { answer, attempts }),
            Err(_) => {
                // The guard of `borrow` must be gone before `leave` writes.
                let silent = self.leader.borrow().clone();
                self.leave(&silent);
                Err(self.error(format!("no leader answered within {limit:?}; {trouble}")))
            }
        }
    }

    pub(super) async fn open(&self, owner: &str, ttl_ms: u64) -> Result<Session, Error> {
        let leased_at = Instant::now();
        let body = || Some(json!({ "ttl_ms": ttl_ms, "owner": owner }));
        // A repetition may open a second session, which ends with its TTL.
        let Exchange { answer, .. } = self.ask(Method::POST, "/v1/sessions", body, Duration::ZERO).await?;
        let id = answer.body["session"].as_str().map(str::to_owned);
        let id = id.ok_or_else(|| self.error(format!("no session was opened: {}", answer.sentence())))?;
        Ok(Session { id, owner: owner.to_owned(), ttl_ms, leased_at, clean: true })
    }

    /// Keeps a session alive; false if it has ended.
    pub(super) async fn keep_alive(&self, id: &str) -> Result<bool, Error> {
        let path = format!("/v1/sessions/{id}/keepalive");
        let Exchange { answer, .. } = self.ask(Method::POST, &path, || None, Duration::ZERO).await?;
        match (answer.status, answer.code()) {
            (200, _) => Ok(true),
            (_, "no_session") => Ok(false),
            _ => Err(self.error(answer.sentence())),
        }
    }

    /// Closes a session: what it holds is released, and it leaves its queue.
    pub(super) async fn close(&self, id: &str) {
        let _ = self.ask(Method::DELETE, &format!("/v1/sessions/{id}"), || None, Duration::ZERO).await;
    }

    /// Keeps a waiter's session alive, three times in its TTL.
    pub(super) fn keep(&self, session: &Session, leased_at: Arc<Mutex<Instant>>) -> Background {
        let (cluster, id) = (self.clone(), session.id.clone());
        let pause = Duration::from_millis(session.ttl_ms) / 3;
        // A session that was used before has less than its TTL left.
        let first = pause.saturating_sub(session.leased_at.elapsed());
        Background::spawn(async move {
            tokio::time::sleep(first).await;
            loop {
                let sent = Instant::now();
                match cluster.keep_alive(&id).await {
                    Ok(true) => *leased_at.lock() = sent,
                    Ok(false) => return,
                    Err(_) => {}
                }
                tokio::time::sleep(pause).await;
            }
        })
    }
}

/// Waits until another server than this one is found to lead.
async fn another(found: &mut tokio::sync::watch::Receiver<String>, server: &str) {
    loop {
        // The sender lives as long as the cluster that waits here.
        if found.changed().await.is_err() {
            return std::future::pending().await;
        }
        if *found.borrow_and_update() != server {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::header::LOCATION;
    use axum::http::{HeaderMap, StatusCode};
    use axum::response::IntoResponse;
    use axum::routing::post;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// A server that answers `/wait` never, and `/ask` first so many times that it knows no leader. Returns its address,
    /// and the number of waiting requests that it was sent.
    async fn server(refusals: usize) -> (String, Arc<AtomicUsize>) {
        let (sent, asked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let count = sent.clone();
        let wait = post(move || {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>()
        });
        let ask = post(move || {
            let refused = asked.fetch_add(1, Ordering::Relaxed) < refusals;
            async move { if refused { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK } }
        });
        (serve(Router::new().route("/wait", wait).route("/ask", ask)).await, sent)
    }

    /// Its address.
    async fn serve(router: Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        address
    }

    /// A cluster whose first server has a waiting request.
    async fn waiting_at(first: &(String, Arc<AtomicUsize>), second: &str) -> Cluster {
        let cluster = Cluster::new(&[first.0.clone(), second.to_owned()], LONG);
        let waiter = cluster.clone();
        tokio::spawn(async move { waiter.ask(Method::POST, "/wait", || None, LONG).await });
        while first.1.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        cluster
    }

    async fn ask(cluster: &Cluster) {
        let exchange = cluster.ask(Method::POST, "/ask", || None, Duration::ZERO).await.unwrap();
        assert_eq!(exchange.answer.status, 200);
    }

    /// A follower names the leader only if it is told not to forward.
    #[tokio::test]
    async fn requests_go_to_the_leader_itself() {
        let leader = server(0).await.0;
        let location = format!("http://{leader}/ask");
        let named = post(move |headers: HeaderMap| async move {
            match headers.get("x-forward").is_some_and(|how| how == "never") {
                true => (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, location)]).into_response(),
                false => StatusCode::IM_A_TEAPOT.into_response(),
            }
        });
        let follower = serve(Router::new().route("/ask", named)).await;
        let cluster = Cluster::new(&[follower], LONG);
        for attempts in [2, 1] {
            let exchange = cluster.ask(Method::POST, "/ask", || None, Duration::ZERO).await.unwrap();
            assert_eq!((exchange.answer.status, exchange.attempts), (200, attempts));
        }
    }

    #[tokio::test]
    async fn server_without_a_leader_interrupts_no_wait() {
        let (first, second) = (server(1).await, server(1).await);
        let cluster = waiting_at(&first, &second.0).await;
        // Both servers refuse once; then the first one answers.
        ask(&cluster).await;
        tokio::time::sleep(RETRY * 4).await;
        assert_eq!((first.1.load(Ordering::Relaxed), second.1.load(Ordering::Relaxed)), (1, 0));
    }

    #[tokio::test]
    async fn wait_follows_a_leader_that_answered() {
        let (first, second) = (server(1).await, server(0).await);
        let cluster = waiting_at(&first, &second.0).await;
        ask(&cluster).await;
        let begun = Instant::now();
        while second.1.load(Ordering::Relaxed) == 0 {
            assert!(begun.elapsed() < LONG, "the waiting request stays at the server that refused");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
