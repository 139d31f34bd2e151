//! The core: the one thread that owns the node.
//!
//! It waits for inputs, takes as many as there are, steps the node through all of them, writes and syncs once, and
//! lets everything go that stood behind the write (group commit). Nothing else touches the node. Inputs come through
//! one bounded channel; answers leave through [`Outbox`](crate::outbox::Outbox)es and one-shot channels, never
//! blocking the core.
//!
//! What the core decides by itself (how many inputs make a round, in which order their kinds are stepped, when timers
//! fire) the protocol leaves open: any order of inputs is safe. What it owes the protocol is in
//! [`palisade_spec::raft::interface`], and is kept in [`driver`], which knows of no thread and no channel.

mod admission;
mod driver;
mod freshness;
mod observer;
mod pending_requests;
mod read;
pub mod request;
mod respond;
mod snapshot_scheduler;
mod thread;
mod timers;
mod transport;
mod view;
mod waits;

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Message, Snapshot};

pub use driver::{Batch, Driver, DriverParts};
pub use observer::Observer;
pub use request::{Acquirer, Query, Request};
pub use respond::{ConnectionId, Responder, Room, StreamReply};
pub use snapshot_scheduler::{SnapshotPolicy, SnapshotReply, SnapshotWriter};
pub use timers::Timing;
pub use transport::Transport;
pub use view::{SharedView, View};

use crate::limits;
use crate::metrics::Metrics;
use crate::storage::{SnapshotInfo, Snapshots, StorageError};

/// What can reach the core beside messages.
#[derive(Debug)]
pub enum Event {
    /// A client asks for something.
    Request(Request, Responder),
    /// A client's connection is gone.
    Disconnected(ConnectionId),
    /// Somebody wants a snapshot to be taken.
    TakeSnapshot(SnapshotReply),
    /// A snapshot is durable, or could not be written.
    SnapshotWritten(Result<SnapshotInfo, StorageError>),
    /// The node is to stop.
    Stop,
}

/// The way in to the core.
#[derive(Clone, Debug)]
pub struct Core {
    events: Sender<Event>,
    messages: Sender<Vec<Message<LockTable>>>,
    view: Arc<SharedView>,
}

/// Where the core finds what comes.
#[derive(Debug)]
pub struct CoreInbox {
    events: Receiver<Event>,
    messages: Receiver<Vec<Message<LockTable>>>,
}

impl CoreInbox {
    /// What a peer said next, if it says something soon enough: for who steps the node by hand.
    pub(crate) fn messages_within(&self, patience: std::time::Duration) -> Option<Vec<Message<LockTable>>> {
        self.messages.recv_timeout(patience).ok()
    }
}

#[cfg(test)]
impl CoreInbox {
    /// What the core would find next.
    pub(crate) fn next_event(&self) -> Option<Event> {
        self.events.recv_timeout(std::time::Duration::from_secs(20)).ok()
    }

    /// A message that stands before the core.
    pub(crate) fn next_message(&self) -> Option<Message<LockTable>> {
        self.messages.try_recv().ok()?.pop()
    }
}

/// Why the core took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// It has more to do than it may have waiting.
    Full,
    /// It has ended, and the process is about to: the node was stopped, or a write has failed.
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
    /// The way in, and where the core will find what comes.
    pub fn channel() -> (Core, CoreInbox) {
        let (events, asked) = crossbeam_channel::bounded(limits::CORE_QUEUE);
        let (messages, said) = crossbeam_channel::bounded(limits::CORE_MESSAGES);
        let core = Core { events, messages, view: Arc::new(SharedView::default()) };
        (core, CoreInbox { events: asked, messages: said })
    }

    /// Hands in messages from a peer, in the order in which it sent them. They have a door of their own: however many
    /// clients there are, a leader's heartbeat does not stand in line behind them.
    ///
    /// # Errors
    /// If too many wait already, or nobody is there. They are dropped, as the network might have done.
    pub fn receive(&self, messages: Vec<Message<LockTable>>) -> Result<(), NotTaken> {
        Ok(self.messages.try_send(messages)?)
    }

    /// Hands an event in, without waiting.
    ///
    /// # Errors
    /// If too many wait already, or nobody is there. The event is dropped, and a client that asks is told which. That a
    /// connection is gone must not be dropped: see [`Core::deliver`].
    pub fn send(&self, event: Event) -> Result<(), NotTaken> {
        Ok(self.events.try_send(event)?)
    }

    /// Hands in an event that must not be lost, and returns at once: if there is no room, somebody waits for it aside.
    /// A connection's end is such an event. Without it, whoever waited there would stand in the queue until its wait is
    /// over, renewed by this node.
    pub fn deliver(&self, event: Event) {
        let Err(TrySendError::Full(event)) = self.events.try_send(event) else { return };
        let events = self.events.clone();
        // Rare, and over when the core has caught up. If the core has ended, there is nobody to tell.
        let wait = move || drop(events.send(event));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(wait)),
            Err(_) => wait(),
        }
    }

    /// The node as of its last round.
    pub fn view(&self) -> &Arc<SharedView> {
        &self.view
    }

    /// Starts a thread that writes this core's snapshots.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_snapshot_writer(
        &self,
        snapshots: &Arc<Snapshots>,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<Sender<Snapshot<LockTable>>> {
        snapshot_scheduler::start_writer(self.clone(), Arc::clone(snapshots), Arc::clone(metrics))
    }
}

/// Starts the core's thread. It ends with [`Event::Stop`], or with the error of a write that failed; then the process
/// must end too, for nobody knows what the disk holds.
///
/// # Errors
/// If the thread cannot be started.
pub fn start<T>(inbox: CoreInbox, parts: DriverParts<T>) -> std::io::Result<JoinHandle<Result<(), StorageError>>>
where
    T: Transport + Send + 'static,
{
    std::thread::Builder::new().name("core".into()).spawn(move || thread::run(&inbox, parts))
}
