//! Maps each held session to the connection of this node that holds it, so that a `resume` interrupts the older
//! connection, and a broken grant is told to its holder at once. A connection enters when its session is known to be
//! its client's, and leaves when it ends.

use std::collections::HashMap;
use std::sync::Arc;

use palisade_client::wire::Broken;
use palisade_spec::lock::SessionId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::resumes::{Resumes, Resuming};
use crate::limits;
use crate::sync::Mutex;

/// What a connection is told of its session. When another connection takes the session over, the channel ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// An operator has broken the grant with this token.
    Broken(u64),
    /// The node stops.
    Stopping,
}

/// The connections of this node, by the public numbers of their sessions.
#[derive(Debug)]
pub(in crate::http) struct Holds {
    connections: Mutex<Connections>,
    resumes: Arc<Resumes>,
    /// Notified when the last connection leaves.
    empty: Notify,
    /// Limits the waits whose connection was lost.
    deserted: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Connections {
    by_session: HashMap<u64, Connection>,
    last: u64,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    /// Few signals can wait in it: one for each break of a grant of this one session.
    signals: UnboundedSender<Signal>,
}

/// The session of one connection, until this is dropped or another connection takes the session over.
#[derive(Debug)]
pub(super) struct Entry {
    holds: Arc<Holds>,
    session: u64,
    connection: u64,
}

impl Default for Holds {
    fn default() -> Holds {
        let deserted = Arc::new(Semaphore::new(limits::DESERTED_WAITS));
        Holds { connections: Mutex::default(), resumes: Resumes::new(), empty: Notify::new(), deserted }
    }
}

impl Holds {
    /// A connection takes over the session of this public number: its client has presented the credential.
    pub(super) fn enter(self: &Arc<Holds>, session: u64) -> (Entry, UnboundedReceiver<Signal>) {
        let (signals, receiver) = unbounded_channel();
        let mut connections = self.connections.lock();
        connections.last += 1;
        let number = connections.last;
        connections.by_session.insert(session, Connection { number, signals });
        (Entry { holds: Arc::clone(self), session, connection: number }, receiver)
    }

    /// A connection begins to resume this session, and has sent nothing in its name. It enters before it drops this.
    pub(super) fn resume(&self, session: SessionId) -> Resuming {
        self.resumes.begin(session)
    }

    /// Tells the holder of a broken grant.
    pub(in crate::http) fn notify(&self, broken: &Broken) {
        if let Some(connection) = self.connections.lock().by_session.get(&broken.session) {
            let _ = connection.signals.send(Signal::Broken(broken.token));
        }
    }

    /// Tells all connections that the node stops, and waits until they have told their clients.
    pub(in crate::http) async fn stop(&self) {
        for connection in self.connections.lock().by_session.values() {
            let _ = connection.signals.send(Signal::Stopping);
        }
        loop {
            let left = self.empty.notified();
            if self.connections.lock().by_session.is_empty() {
                return;
            }
            left.await;
        }
    }

    /// Room for a wait whose connection was lost, if there is any.
    pub(super) fn room_for_deserted(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.deserted).try_acquire_owned().ok()
    }
}

impl Entry {
    /// Calls `close`, which sends the close of the session without waiting, unless the client has gone on with the
    /// session over another connection, or is about to. A later resume sends its requests after that.
    pub(super) fn close_unless_resumed<T>(&self, session: SessionId, close: impl FnOnce() -> T) -> Option<T> {
        let resumes = &self.holds.resumes;
        resumes.unless_under_way(session, || self.is_latest().then(close)).flatten()
    }

    /// Whether no other connection has taken the session over.
    fn is_latest(&self) -> bool {
        let connections = self.holds.connections.lock();
        connections.by_session.get(&self.session).is_some_and(|latest| latest.number == self.connection)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut connections = self.holds.connections.lock();
        let own = connections.by_session.get(&self.session).is_some_and(|entry| entry.number == self.connection);
        if own {
            connections.by_session.remove(&self.session);
        }
        if connections.by_session.is_empty() {
            self.holds.empty.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    /// Goal: the newer connection of a session ends the older one, whose end changes nothing for the newer one.
    #[test]
    fn newer_connection_takes_the_session_over() {
        let holds = Arc::new(Holds::default());
        let (older, mut older_signals) = holds.enter(7);
        let (other, mut other_signals) = holds.enter(8);
        let (newer, mut newer_signals) = holds.enter(7);
        assert_eq!(older_signals.try_recv(), Err(TryRecvError::Disconnected));
        drop(older);
        let broken = Broken { key: "k".into(), token: 17, session: 7, principal: String::new() };
        holds.notify(&broken);
        assert_eq!(newer_signals.try_recv(), Ok(Signal::Broken(17)));
        assert_eq!(other_signals.try_recv(), Err(TryRecvError::Empty), "the grant is not that of this session");
        drop((newer, other));
        assert!(holds.connections.lock().by_session.is_empty());
    }

    /// Goal: the end of a wait closes its session only if no other connection goes on with it: neither one that
    /// resumes, nor one that has resumed. A resume that begins later finds the close sent before.
    #[test]
    fn wait_that_ends_closes_no_session_that_is_resumed() {
        let holds = Arc::new(Holds::default());
        let session = SessionId { number: 7, proof: 1_u128.into() };
        let (waiter, _signals) = holds.enter(7);
        let close = |entry: &Entry| entry.close_unless_resumed(session, || ()).is_some();
        assert!(close(&waiter), "no client resumes it");

        let resumes = [holds.resume(session), holds.resume(session)];
        assert!(!close(&waiter), "two resumes are under way");
        let [first, second] = resumes;
        drop(first);
        assert!(!close(&waiter), "one resume is under way");
        drop(second);
        assert!(close(&waiter), "both have ended without going on");

        let resume = holds.resume(session);
        let (resumed, _signals) = holds.enter(7);
        drop(resume);
        assert!(!close(&waiter), "another connection has the session");
        assert!(close(&resumed), "the session is its own");
        let stranger = holds.resume(SessionId { proof: 2_u128.into(), ..session });
        assert!(close(&resumed), "another credential keeps no session open");
        drop((stranger, waiter, resumed));
    }

    /// Goal: a node that stops waits until every connection has left.
    #[test]
    fn stop_waits_for_all_connections() {
        let holds = Arc::new(Holds::default());
        let (first, mut signals) = holds.enter(1);
        let (second, _) = holds.enter(2);
        let mut stop = pin!(holds.stop());
        let mut poll = || stop.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll(), Poll::Pending);
        assert_eq!(signals.try_recv(), Ok(Signal::Stopping));
        drop(first);
        assert_eq!(poll(), Poll::Pending);
        drop(second);
        assert_eq!(poll(), Poll::Ready(()));
    }
}
