//! The open WebSockets, so that each can be told of a broken grant. Nothing is looked up here for a
//! request: a socket enters when it opens and leaves when it ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use palisade_client::wire::{Answer, Broken, Outcome, Response, UNASKED};

use crate::core::{ConnectionId, StreamReply};
use crate::outbox::Outbox;
use crate::sync::Mutex;

/// An open WebSocket.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) outbox: Arc<Outbox<StreamReply>>,
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

    /// Tells every WebSocket of a broken grant, behind the answers that it has not read yet. One that
    /// has no room for a frame learns of the loss from its next keepalive.
    pub(super) fn tell(&self, broken: &Broken) {
        for socket in self.0.lock().values() {
            let response = Response { id: UNASKED, result: Outcome::Ok(Answer::Lost(broken.clone())) };
            let _ = socket.outbox.push(StreamReply { response, text: socket.text.load(Ordering::Relaxed), room: None });
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.sockets.0.lock().remove(&self.id);
    }
}
