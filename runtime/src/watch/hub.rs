//! State that the core, the dispatcher and the watchers of a node share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use palisade_spec::lock::{Access, Event, LockTable};
use palisade_spec::raft::{Index, Node};

use super::directory::Directory;
use super::history::{History, Unpublished};
use crate::metrics::Metrics;
use crate::sync::{AtomicUsize, Mutex, Notify};

/// The events of a node, and its watchers.
#[derive(Debug)]
pub struct Hub {
    pub(super) shared: Mutex<Shared>,
    /// Number of watchers: the core wakes the dispatcher only if there is one.
    pub(super) watching: AtomicUsize,
    pub(super) directory: Mutex<Directory>,
    /// Wakes the dispatcher.
    pub(super) news: Notify,
    pub(super) metrics: Arc<Metrics>,
}

/// What the core changes.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) history: History,
    /// The access rules that the node has applied.
    pub(super) access: Access,
    /// Whether the node stops.
    pub(super) closed: bool,
}

impl Hub {
    /// A hub that keeps at most this many bytes of events.
    pub fn new(history_bytes: usize, metrics: &Arc<Metrics>) -> Arc<Hub> {
        let shared = Shared { history: History::new(history_bytes), access: Access::default(), closed: false };
        Arc::new(Hub {
            shared: Mutex::new(shared),
            watching: AtomicUsize::new(0),
            directory: Mutex::default(),
            news: Notify::new(),
            metrics: Arc::clone(metrics),
        })
    }

    /// Ends all watches: the node stops.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.news.notify_one();
        self.directory.lock().wake_all();
    }

    /// The last entry of which watchers were told.
    pub fn reached(&self) -> u64 {
        self.shared.lock().history.reached()
    }
}

/// The core's side of a hub. It collects what an iteration applies, and publishes it at the end.
#[derive(Debug)]
pub struct Feed {
    hub: Arc<Hub>,
    unpublished: Unpublished,
    /// The last entry that was applied.
    applied: u64,
    /// The last entry that was published.
    published: u64,
    /// The history is to begin anew behind this entry.
    begins: Option<u64>,
    /// The revision of the access rules that were published.
    access: u64,
}

impl Feed {
    /// The feed of a hub.
    pub fn new(hub: &Arc<Hub>) -> Feed {
        let unpublished = Unpublished::default();
        Feed { hub: Arc::clone(hub), unpublished, applied: 0, published: 0, begins: None, access: 0 }
    }

    /// An entry was applied, with these events. After a snapshot of a leader, it is not the next one.
    pub(crate) fn applied(&mut self, index: Index, events: Vec<Event>) {
        if index.0 != self.applied + 1 {
            self.unpublished.clear();
            self.begins = Some(index.0 - 1);
        }
        self.applied = index.0;
        self.unpublished.push(index.0, events);
    }

    /// Publishes the events of the entries that were applied since the last call. All of them are durable.
    pub(crate) fn publish(&mut self, node: &Node<LockTable>) {
        self.publish_up_to(node.commit().0, node.machine().access());
    }

    /// Publishes the events of the entries up to this one, which are under these access rules.
    pub(super) fn publish_up_to(&mut self, commit: u64, access: &Access) {
        if commit != self.applied {
            // The last thing that happened is a snapshot: of a leader, or the node's own, with which it starts.
            self.unpublished.clear();
            (self.applied, self.begins) = (commit, Some(commit));
        }
        if self.applied == self.published && self.begins.is_none() {
            return;
        }
        self.published = self.applied;
        let has_news = !self.unpublished.is_empty() || self.begins.is_some() || access.revision().0 != self.access;
        {
            let mut shared = self.hub.shared.lock();
            if let Some(floor) = self.begins.take() {
                shared.history.begin(floor);
            }
            if access.revision().0 != self.access || self.access == 0 {
                shared.access = access.clone();
            }
            shared.history.append(&mut self.unpublished, self.applied);
        }
        self.access = access.revision().0;
        if has_news && self.hub.watching.load(Ordering::SeqCst) > 0 {
            self.hub.news.notify_one();
        }
    }
}
