//! The core: the one thread that owns the node.
//!
//! It waits for inputs, takes as many as there are, steps the node through all of them, writes and syncs once, and
//! lets everything go that stood behind the write (group commit). Nothing else touches the node. Inputs come through
//! one bounded channel; answers leave through [`Outbox`](crate::handover::Outbox)es and one-shot channels, never
//! blocking the core.
//!
//! What the core decides by itself (how many inputs make a round, in which order their kinds are stepped, when timers
//! fire) the protocol leaves open: any order of inputs is safe. What it owes the protocol is in
//! [`palisade_spec::raft::interface`], and is kept in [`round`].

pub mod ask;
mod bounds;
mod contact;
mod desk;
mod read;
mod respond;
mod round;
mod snapshots;
mod timers;
mod view;
mod waits;

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Config, Durable, Message, NodeId};

pub use ask::{Ask, Asker, Query};
pub use respond::{ConnectionId, Responder, Room, StreamReply};
pub use snapshots::{SnapshotPolicy, SnapshotReply};
pub use timers::Timing;
pub use view::{SharedView, View};

use crate::limits;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::storage::{SnapshotInfo, StorageError, Wal};

/// What can reach the core.
#[derive(Debug)]
pub enum Event {
    /// A client asks for something.
    Ask(Ask, Responder),
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
pub struct Doors {
    events: Receiver<Event>,
    messages: Receiver<Vec<Message<LockTable>>>,
}

#[cfg(test)]
impl Doors {
    /// What the core would find next.
    pub(crate) fn next_event(&self) -> Option<Event> {
        self.events.recv_timeout(std::time::Duration::from_secs(20)).ok()
    }

    /// A message that stands before the core.
    pub(crate) fn next_message(&self) -> Option<Message<LockTable>> {
        self.messages.try_recv().ok()?.pop()
    }
}

/// Everything the core needs to begin.
pub struct CoreParts {
    /// The node's configuration.
    pub config: Config,
    /// What its disk holds.
    pub durable: Durable<LockTable>,
    /// Its write-ahead log, after recovery.
    pub wal: Wal<LockTable>,
    /// How many bytes of it the newest snapshot does not include.
    pub log_bytes: u64,
    /// The cluster's other founders, if this node is one.
    pub founders: Vec<NodeId>,
    /// How it times elections.
    pub timing: Timing,
    /// When it takes snapshots.
    pub snapshots: SnapshotPolicy,
    /// The way to its peers.
    pub peers: Arc<Peers>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// How many sessions there may be at once.
    pub max_sessions: usize,
}

/// The core has more to do than it may have waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overloaded;

impl Core {
    /// The way in, and where the core will find what comes.
    pub fn channel() -> (Core, Doors) {
        let (events, asked) = crossbeam_channel::bounded(limits::CORE_QUEUE);
        let (messages, said) = crossbeam_channel::bounded(limits::CORE_MESSAGES);
        let core = Core { events, messages, view: Arc::new(SharedView::default()) };
        (core, Doors { events: asked, messages: said })
    }

    /// Hands in messages from a peer, in the order in which it sent them. They have a door of their own: however many
    /// clients there are, a leader's heartbeat does not stand in line behind them.
    ///
    /// # Errors
    /// If too many wait already. They are dropped, as the network might have done.
    pub fn receive(&self, messages: Vec<Message<LockTable>>) -> Result<(), Overloaded> {
        self.messages.try_send(messages).map_err(|_| Overloaded)
    }

    /// Hands an event in, without waiting.
    ///
    /// # Errors
    /// If too many wait already. The event is dropped, and a client that asks is told. That a connection is gone must
    /// not be dropped: see [`Core::deliver`].
    pub fn send(&self, event: Event) -> Result<(), Overloaded> {
        match self.events.try_send(event) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Overloaded),
        }
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
    pub fn view(&self) -> &SharedView {
        &self.view
    }
}

/// Starts the core's thread. It ends with [`Event::Stop`], or with the error of a write that failed; then the process
/// must end too, for nobody knows what the disk holds.
///
/// # Errors
/// If the thread, or the one that writes its snapshots, cannot be started.
pub fn start(core: &Core, doors: Doors, parts: CoreParts) -> std::io::Result<JoinHandle<Result<(), StorageError>>> {
    let view = Arc::clone(&core.view);
    let snapshots = Arc::clone(parts.wal.snapshots());
    let writer = snapshots::start_writer(core.clone(), snapshots, Arc::clone(&parts.metrics))?;
    std::thread::Builder::new().name("core".into()).spawn(move || round::run(&doors, &view, parts, writer))
}
