//! The watches of a WebSocket. Each is a task that takes one part of its watch after the other, and hands it to
//! the connection's outbox when the frames before it were written: a client that does not read gets no
//! further ones, and its watches fall behind.

use std::collections::HashMap;
use std::sync::Arc;

use palisade_client::wire::{Answer, Code, Failure, Outcome, Response, Watch, Watched};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use super::App;
use super::watch::{ClientWatch, Part};
use crate::budget::Share;
use crate::core::{Room, StreamReply};
use crate::limits;
use crate::outbox::Outbox;
use crate::sync::Mutex;

/// The watches of one WebSocket.
#[derive(Debug)]
pub(super) struct SocketWatches {
    tasks: Mutex<Tasks>,
    outbox: Arc<Outbox<StreamReply>>,
    /// Limits the number of frames that are not written yet.
    frames: Arc<Semaphore>,
    /// Limits the number of listings, and of answers to reads, that are not written yet.
    reads: Arc<Semaphore>,
}

/// The tasks of the watches that have not ended.
#[derive(Debug, Default)]
struct Tasks {
    /// By the ids of their requests.
    by_id: HashMap<u64, (Generation, AbortHandle)>,
    last: Generation,
}

/// A number that no other watch of the connection has: a later one may have the id of one that has ended, whose task
/// runs on for a moment if it is on another thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Generation(u64);

/// A watch as its frames name it.
#[derive(Clone, Copy, Debug)]
struct Watcher {
    id: u64,
    generation: Generation,
    /// Whether its frames go as text.
    text: bool,
}

impl Tasks {
    /// Enters a watch with the task that this starts.
    fn enter(&mut self, id: u64, text: bool, start: impl FnOnce(Watcher) -> AbortHandle) -> Watcher {
        self.last = Generation(self.last.0 + 1);
        let watcher = Watcher { id, generation: self.last, text };
        self.by_id.insert(id, (watcher.generation, start(watcher)));
        watcher
    }

    /// Whether this watch has not ended.
    fn has(&self, watcher: Watcher) -> bool {
        self.by_id.get(&watcher.id).is_some_and(|(generation, _)| *generation == watcher.generation)
    }
}

impl SocketWatches {
    pub(super) fn new(outbox: Arc<Outbox<StreamReply>>, reads: Arc<Semaphore>) -> Arc<SocketWatches> {
        let frames = Arc::new(Semaphore::new(limits::WATCH_FRAMES));
        Arc::new(SocketWatches { tasks: Mutex::default(), outbox, frames, reads })
    }

    /// Begins a watch, with the id of its request.
    pub(super) fn begin(self: &Arc<SocketWatches>, app: &App, id: u64, watch: Watch, text: bool) {
        if let Err(failure) = self.try_begin(app, id, watch, text) {
            self.push(id, Err(failure), text, None);
        }
    }

    fn try_begin(self: &Arc<SocketWatches>, app: &App, id: u64, watch: Watch, text: bool) -> Result<(), Failure> {
        let mut tasks = self.tasks.lock();
        if tasks.by_id.contains_key(&id) {
            let message =
                format!("the id {id} is that of a watch of this connection: use another one, or end the watch");
            return Err(Failure::new(Code::Invalid, message));
        }
        if tasks.by_id.len() >= limits::CONNECTION_WATCHES {
            let most = limits::CONNECTION_WATCHES;
            let message =
                format!("the limit of {most} watches on one connection is reached: end some, or open another one");
            return Err(Failure::new(Code::Limit, message));
        }
        let watch = app.begin_watch(watch)?;
        // The task takes its entry away when it ends, and so waits until it is there.
        tasks.enter(id, text, |watcher| tokio::spawn(Arc::clone(self).show(watcher, watch)).abort_handle());
        Ok(())
    }

    /// Ends a watch: no frame of it comes after the answer.
    pub(super) fn end(&self, id: u64) {
        if let Some((_, task)) = self.tasks.lock().by_id.remove(&id) {
            task.abort();
        }
    }

    /// Ends all watches: the connection has ended.
    pub(super) fn end_all(&self) {
        for (_, (_, task)) in self.tasks.lock().by_id.drain() {
            task.abort();
        }
    }

    async fn show(self: Arc<SocketWatches>, watcher: Watcher, mut watch: ClientWatch) {
        loop {
            // Before the listing is made. The semaphore is never closed.
            let read = if watch.is_listing() { Arc::clone(&self.reads).acquire_owned().await.ok() } else { None };
            let Some(part) = watch.next().await else { return };
            match part {
                // Pings say that the connection lives.
                Part::Quiet(_) => {}
                Part::Events(events) => {
                    // While they wait for their turn, they keep nothing of the history in memory.
                    let events: Vec<_> = events.into_iter().map(|shown| shown.event()).collect();
                    for event in events {
                        self.push_watched(watcher, Watched::Event(event), None, None).await;
                    }
                }
                Part::Listing(listing, unread) => {
                    self.push_watched(watcher, Watched::Listing(listing), read, unread).await;
                }
                Part::Compacted(floor) => self.push_watched(watcher, Watched::Compacted { floor }, None, None).await,
                Part::End(failure) => self.push_end(watcher, failure),
            }
        }
    }

    /// Ends a watch with the reason, unless its client has ended it.
    fn push_end(&self, watcher: Watcher, failure: Failure) {
        let mut tasks = self.tasks.lock();
        if tasks.has(watcher) {
            tasks.by_id.remove(&watcher.id);
            self.push(watcher.id, Err(failure), watcher.text, None);
        }
    }

    /// Hands a frame over when the frames before it are written.
    async fn push_watched(
        &self,
        watcher: Watcher,
        watched: Watched,
        read: Option<OwnedSemaphorePermit>,
        unread: Option<Box<Share>>,
    ) {
        // The semaphore is never closed.
        let Ok(request) = Arc::clone(&self.frames).acquire_owned().await else { return };
        // Under the lock: a watch that was ended tells nothing more.
        let tasks = self.tasks.lock();
        if tasks.has(watcher) {
            let room = Room { request, read, unread, contents: None };
            self.push(watcher.id, Ok(Answer::Watched(watched)), watcher.text, Some(room));
        }
    }

    fn push(&self, id: u64, result: Result<Answer, Failure>, text: bool, room: Option<Room>) {
        let result = match result {
            Ok(answer) => Outcome::Ok(answer),
            Err(failure) => Outcome::Error(failure),
        };
        // A connection that has no room for it, or has ended, ends its watches by itself.
        let _ = self.outbox.push(StreamReply { response: Response { id, result }, text, room });
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// Goal: a watch whose task runs on after its end shows nothing in the next watch with its id, and does not end it.
    #[tokio::test]
    async fn ended_watch_shows_nothing_in_the_next_one_with_its_id() {
        let outbox = Arc::new(Outbox::new(10));
        let watches = SocketWatches::new(Arc::clone(&outbox), Arc::new(Semaphore::new(1)));
        let begin = || watches.tasks.lock().enter(7, true, |_| tokio::spawn(pending::<()>()).abort_handle());
        let compacted = |floor| Watched::Compacted { floor };
        let ended = begin();
        watches.end(7);
        let next = begin();
        watches.push_watched(ended, compacted(1), None, None).await;
        watches.push_end(ended, Failure::new(Code::TooSlow, "it is too slow"));
        watches.push_watched(next, compacted(2), None, None).await;
        watches.push_end(next, Failure::new(Code::TooSlow, "it is too slow"));
        let mut frames = Vec::new();
        outbox.take(&mut frames).await;
        let results: Vec<_> = frames.into_iter().map(|frame| (frame.response.id, frame.response.result)).collect();
        let end = Outcome::Error(Failure::new(Code::TooSlow, "it is too slow"));
        assert_eq!(results, [(7, Outcome::Ok(Answer::Watched(compacted(2)))), (7, end)]);
    }
}
