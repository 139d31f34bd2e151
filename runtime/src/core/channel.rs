//! The core's channels: its inputs, the side that sends them, and the side that the core receives
//! from.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, TrySendError};
use palisade_client::wire::Failure;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::Message;
use tokio::sync::oneshot;

use super::request::Request;
use super::respond::{ConnectionId, Responder};
use super::view::SharedView;
use crate::limits;
use crate::storage::{SnapshotInfo, StorageError};

/// The requester of a snapshot waits for the result here.
pub type SnapshotReply = oneshot::Sender<Result<SnapshotInfo, Failure>>;

/// An input of the core other than a peer message.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all events are requests: a box would cost each of them an allocation"
)]
pub enum Event {
    /// A client's request.
    Request(Request, Responder),
    /// A client's connection ended.
    Disconnected(ConnectionId),
    /// An operator requests a snapshot.
    TakeSnapshot(SnapshotReply),
    /// A snapshot is durable, or its write failed.
    SnapshotWritten(Result<SnapshotInfo, StorageError>),
    /// The node must stop.
    Stop,
}

/// The sending side of the core's channels, and the core's view.
#[derive(Clone, Debug)]
pub struct Core {
    events: Sender<Event>,
    messages: Sender<Vec<Message<LockTable>>>,
    view: Arc<SharedView>,
}

/// The receiving side of the core's channels.
#[derive(Debug)]
pub struct CoreInbox {
    pub(super) events: Receiver<Event>,
    pub(super) messages: Receiver<Vec<Message<LockTable>>>,
}

impl CoreInbox {
    /// Waits for the next batch of peer messages, at most `patience`: for callers that step the
    /// node by hand.
    pub fn messages_within(&self, patience: std::time::Duration) -> Option<Vec<Message<LockTable>>> {
        self.messages.recv_timeout(patience).ok()
    }
}

#[cfg(test)]
impl CoreInbox {
    /// The next event in the channel.
    pub(crate) fn next_event(&self) -> Option<Event> {
        self.events.recv_timeout(std::time::Duration::from_secs(20)).ok()
    }

    /// Number of events in the channel.
    pub(crate) fn waiting(&self) -> usize {
        self.events.len()
    }

    /// A message in the channel.
    pub(crate) fn next_message(&self) -> Option<Message<LockTable>> {
        self.messages.try_recv().ok()?.pop()
    }
}

/// Why the core did not accept an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// The channel is full.
    Full,
    /// The core has ended, and the process is about to: the node was stopped, or a write failed.
    Ended,
}

impl<T> From<TrySendError<T>> for NotTaken {
    fn from(error: TrySendError<T>) -> NotTaken {
        match error {
            TrySendError::Full(_) => NotTaken::Full,
            TrySendError::Disconnected(_) => NotTaken::Ended,
        }
    }
}

impl Core {
    /// Creates the channels: their sending and their receiving side. The channel of events has no
    /// slots in advance, which would take 20 MiB; [`Core::send`] bounds it.
    pub fn channel() -> (Core, CoreInbox) {
        let (events, event_receiver) = crossbeam_channel::unbounded();
        let (messages, message_receiver) = crossbeam_channel::bounded(limits::CORE_MESSAGES);
        let core = Core { events, messages, view: Arc::new(SharedView::default()) };
        (core, CoreInbox { events: event_receiver, messages: message_receiver })
    }

    /// Sends messages from a peer, in the order in which the peer sent them. They have a channel of
    /// their own: a leader's heartbeat does not wait behind client requests.
    ///
    /// # Errors
    /// If the channel is full, or the core has ended. The messages are dropped, as the network
    /// might have done.
    pub fn receive(&self, messages: Vec<Message<LockTable>>) -> Result<(), NotTaken> {
        Ok(self.messages.try_send(messages)?)
    }

    /// Sends an event. Threads that send at the same moment may exceed the limit by an event each.
    ///
    /// # Errors
    /// If [`limits::CORE_QUEUE`] events wait, or the core has ended. The event is dropped, and the
    /// caller tells the client which. The end of a connection must not be dropped: see
    /// [`Core::deliver`].
    pub fn send(&self, event: Event) -> Result<(), NotTaken> {
        if self.events.len() >= limits::CORE_QUEUE {
            return Err(NotTaken::Full);
        }
        self.events.send(event).map_err(|_| NotTaken::Ended)
    }

    /// Sends an event that must not be lost, however many wait. The end of a connection is such an
    /// event: if it were lost, this node would keep renewing the connection's waiters, and they
    /// would stay in their queues until their waits time out. It follows a request that the core has
    /// accepted, so at most one of these comes for each such request; the others are the node's own,
    /// and few.
    pub fn deliver(&self, event: Event) {
        // If the core has ended, the event has no receiver.
        drop(self.events.send(event));
    }

    /// The node's state as of its last iteration.
    pub fn view(&self) -> &Arc<SharedView> {
        &self.view
    }
}
