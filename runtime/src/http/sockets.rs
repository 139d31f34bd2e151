//! The open WebSockets, so that each can be told of a broken grant. Nothing is looked up here for a
//! request: a socket enters when it opens and leaves when it ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use palisade_client::wire::{Answer, Broken, Outcome, Response, UNASKED};
use palisade_spec::lock::{Access, Principal, Right};

use crate::core::{ConnectionId, StreamReply};
use crate::outbox::Outbox;
use crate::sync::Mutex;

/// An open WebSocket.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) outbox: Arc<Outbox<StreamReply>>,
    /// Its client.
    pub(super) principal: Principal,
    /// Whether the last request came as text: so go frames that answer no request.
    pub(super) text: AtomicBool,
}

/// All open WebSockets of this node.
#[derive(Debug, Default)]
pub(super) struct Sockets(Mutex<HashMap<ConnectionId, Arc<Socket>>>);

/// A WebSocket that is told of broken grants until this is dropped.
#[derive(Debug)]
pub(super) struct Entry {
    sockets: Arc<Sockets>,
    id: ConnectionId,
}

impl Sockets {
    pub(super) fn enter(self: &Arc<Sockets>, id: ConnectionId, socket: Arc<Socket>) -> Entry {
        self.0.lock().insert(id, socket);
        Entry { sockets: Arc::clone(self), id }
    }

    /// Tells of a broken grant every WebSocket whose client may read the lock, or has held it, behind the
    /// answers that it has not read yet. One that has no room for a frame learns of the loss from its
    /// next keepalive.
    pub(super) fn notify(&self, broken: &Broken, access: &Access) {
        let news = Broken { principal: String::new(), ..broken.clone() };
        let may_know = |principal: &Principal| {
            principal.as_str() == broken.principal || access.permits(principal, Right::Read, &broken.key)
        };
        for socket in self.0.lock().values().filter(|socket| may_know(&socket.principal)) {
            let response = Response { id: UNASKED, result: Outcome::Ok(Answer::Lost(news.clone())) };
            let _ = socket.outbox.push(StreamReply { response, text: socket.text.load(Ordering::Relaxed), room: None });
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.sockets.0.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use palisade_client::wire;
    use palisade_spec::lock::{Command, LockTable, Prefix, Revision, Rights, Rule, Rules, Subject};
    use palisade_spec::raft::{Stamp, StateMachine};

    use super::*;

    /// Goal: with access control, clients that may read the lock are told of a break, and so is its holder; no
    /// client is told which client that was.
    #[test]
    fn break_is_reported_to_readers_and_to_the_holder() {
        let broken = Broken { key: "k/1".into(), token: 7, session: 3, principal: "holder".into() };
        let notified = |access: &Access| {
            let sockets = Arc::new(Sockets::default());
            let names = ["reader", "holder", "other", "admin/eve", ""];
            let (entries, outboxes): (Vec<Entry>, Vec<_>) = (0..)
                .zip(names)
                .map(|(id, name)| {
                    let outbox = Arc::new(Outbox::new(10));
                    let (principal, text) = (Principal::from(name), AtomicBool::new(false));
                    let socket = Socket { outbox: Arc::clone(&outbox), principal, text };
                    (sockets.enter(ConnectionId(id), Arc::new(socket)), outbox)
                })
                .unzip();
            sockets.notify(&broken, access);
            drop(entries);
            let frames = |outbox: &Arc<Outbox<StreamReply>>| {
                let mut frames = Vec::new();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                outbox.close();
                runtime.block_on(async { while outbox.take(&mut frames).await {} });
                frames
            };
            let all: Vec<_> = outboxes.iter().map(frames).collect();
            for frame in all.iter().flatten() {
                let Outcome::Ok(Answer::Lost(news)) = &frame.response.result else { panic!("{frame:?}") };
                assert_eq!(*news, wire::Broken { principal: String::new(), ..broken.clone() });
            }
            all.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(notified(&Access::default()), [1; 5], "without access control every connection is told");
        let (prefix, subject) = (Prefix::from("k/"), Subject::Principal(Principal::from("reader")));
        let rules = Rules::new(vec![], vec![Rule { prefix, subject, rights: Rights::of([Right::Read]) }]);
        let (principal, revision) = (Principal::from("admin/eve"), Revision(0));
        let mut table = LockTable::default();
        table.apply(Stamp(0), &Command::SetAccess { principal, revision, rules: Some(Arc::new(rules)) });
        assert_eq!(notified(table.access()), [1, 1, 0, 1, 0]);
    }
}
