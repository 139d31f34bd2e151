//! Palisade's wire protocol without its client: the binary frames of a WebSocket to the leader. No request is numbered or
//! repeated, no session is renewed, and no task stands between the load and the connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use palisade_client::Security;
use palisade_client::wire::{Acquire, Answer, Op, OpenSession, Outcome, Release, SessionId};
use palisade_history::Pending;
use parking_lot::Mutex;

use super::super::text;
use super::done::{Done, Pair};
use super::record::{self, Granted, Record};
use super::{TTL, WAIT};
use crate::event::millis;

/// A session for each client, and connections that the clients take in turn.
pub struct Raw {
    leader: String,
    sessions: Vec<SessionId>,
    /// Number of connections.
    pub connections: usize,
    /// How long an acquire waits, in milliseconds.
    wait_ms: u64,
}

impl Raw {
    /// Opens the sessions.
    ///
    /// # Errors
    /// The leader does not answer, or refuses.
    pub async fn open(leader: &str, clients: usize, connections: usize, hot: bool) -> Result<Raw, String> {
        let open = Op::OpenSession(OpenSession { ttl_ms: millis(2 * TTL), owner: "peers".to_owned() });
        let (mut sessions, mut refused) = (Vec::new(), None);
        let answered = |_, outcome| match outcome {
            Outcome::Ok(Answer::Session(lease)) => sessions.push(lease.session),
            other => refused = Some(format!("no session was opened: {other:?}")),
        };
        let ops = std::iter::repeat_n(open, clients);
        Security::plain().ask_all(leader, ops, clients, WAIT, answered).await.map_err(text)?;
        let wait_ms = if hot { millis(WAIT) } else { 0 };
        refused.map_or(Ok(Raw { leader: leader.to_owned(), sessions, connections, wait_ms }), Err)
    }

    /// Makes the pairs of all clients of a connection until the window is over. `keys` has a key for each client.
    pub(super) async fn repeat(
        &self,
        connection: usize,
        keys: &[String],
        over: &AtomicBool,
        pairs: &AtomicU64,
        record: Option<Arc<Record>>,
    ) -> Done {
        let asked = Instant::now();
        let clients = self.sessions.iter().zip(keys).enumerate().skip(connection).step_by(self.connections);
        let clients: Vec<_> =
            clients.map(|(number, (&session, key))| RawClient::new(number, session, key, asked)).collect();
        let at_once = clients.len();
        let (ready, requests) = ((0..at_once).collect(), Vec::new());
        let load = Mutex::new(RawLoad { clients, ready, requests, done: Done::default(), record });
        let ops = std::iter::from_fn(|| load.lock().next(over.load(Ordering::Relaxed), self.wait_ms));
        let answered = |request, outcome| {
            if load.lock().answered(request, outcome) {
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        };
        let asked = Security::plain().ask_all(&self.leader, ops, at_once, WAIT, answered).await;
        let mut done = load.into_inner().done;
        if let Err(error) = asked {
            done.fail(error.to_string());
        }
        done
    }

    /// Closes the sessions, and with them the locks that clients hold at the end.
    pub async fn close(&self) {
        let ops = self.sessions.iter().map(|&session| Op::CloseSession { session });
        drop(Security::plain().ask_all(&self.leader, ops, self.sessions.len(), WAIT, |_, _| ()).await);
    }
}

/// A client of a connection.
struct RawClient {
    number: usize,
    session: SessionId,
    key: String,
    /// When it asked for the lock.
    asked: Instant,
    /// The token of the lock that it holds.
    token: Option<u64>,
    /// Its request in the history.
    pending: Option<Pending>,
    /// Its grant in the history.
    granted: Option<Granted>,
}

impl RawClient {
    fn new(number: usize, session: SessionId, key: &str, asked: Instant) -> RawClient {
        RawClient { number, session, key: key.to_owned(), asked, token: None, pending: None, granted: None }
    }
}

/// The clients of a connection, and what they did.
struct RawLoad {
    clients: Vec<RawClient>,
    /// Clients without a request on its way.
    ready: VecDeque<usize>,
    /// The client of each request, by the request's number.
    requests: Vec<usize>,
    done: Done,
    record: Option<Arc<Record>>,
}

impl RawLoad {
    /// The next request. A client whose lock is released when the window is over asks for nothing more.
    fn next(&mut self, over: bool, wait_ms: u64) -> Option<Op> {
        loop {
            let index = self.ready.pop_front()?;
            let client = &mut self.clients[index];
            let (keys, session, number) = (client.key.as_str().into(), client.session, None);
            let op = match client.token.take() {
                Some(token) => {
                    if let (Some(record), Some(granted)) = (&self.record, client.granted.take()) {
                        client.pending = Some(record.release(granted, client.number, &client.key));
                    }
                    Op::Release { keys, grant: Release { session, token }, number }
                }
                None if over => continue,
                None => {
                    client.asked = Instant::now();
                    client.pending = self.record.as_ref().map(|record| record.acquire(client.number, &client.key));
                    let options = Acquire { session: Some(session), wait_ms, ..Acquire::default() };
                    Op::Acquire { keys, options, number }
                }
            };
            self.requests.push(index);
            return Some(op);
        }
    }

    /// What came of a request; returns whether a pair is complete. A client whose request failed begins its next pair:
    /// [`Security::ask_all`] ends the load of the whole connection when a free slot gets no request.
    fn answered(&mut self, request: u64, outcome: Outcome) -> bool {
        let index = usize::try_from(request).ok().and_then(|request| self.requests.get(request).copied());
        let Some(index) = index else { return false };
        let client = &mut self.clients[index];
        let complete = match outcome {
            Outcome::Ok(Answer::Acquired(acquired)) => {
                client.token = Some(acquired.token);
                if let (Some(record), Some(pending)) = (&self.record, client.pending.take()) {
                    client.granted = Some(record.grant(pending, client.number, acquired.token));
                }
                false
            }
            Outcome::Ok(Answer::Released) => {
                let end = Instant::now();
                record::released(client.pending.take(), &Ok(()));
                self.done.pairs.push(Pair { client: client.number, end, latency: end - client.asked });
                true
            }
            other => {
                // Dropped, the request has an unknown outcome in the history.
                client.pending = None;
                self.done.fail(format!("{other:?}"));
                false
            }
        };
        self.ready.push_back(index);
        complete
    }
}

#[cfg(test)]
mod tests {
    use palisade_client::wire::{Code, Failure};

    use super::*;

    #[test]
    fn client_whose_request_failed_begins_its_next_pair() {
        let session = SessionId::new(1, [7; 10]).unwrap();
        let client = RawClient { token: Some(7), ..RawClient::new(0, session, "a", Instant::now()) };
        let failed = || Outcome::Error(Failure::new(Code::Overloaded, "the log is full"));
        let (ready, requests) = (VecDeque::from([0]), Vec::new());
        let mut load = RawLoad { clients: vec![client], ready, requests, done: Done::default(), record: None };
        assert!(matches!(load.next(false, 0), Some(Op::Release { .. })));
        assert!(!load.answered(0, failed()));
        assert!(matches!(load.next(false, 0), Some(Op::Acquire { .. })));
        assert!(!load.answered(1, failed()));
        assert!(load.next(true, 0).is_none());
        assert_eq!(load.done.errors, 2);
    }
}
