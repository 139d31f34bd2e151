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
use crate::core::{Room, StreamReply};
use crate::limits;
use crate::outbox::Outbox;
use crate::sync::Mutex;

/// The watches of one WebSocket.
#[derive(Debug)]
pub(super) struct SocketWatches {
    tasks: Mutex<HashMap<u64, AbortHandle>>,
    outbox: Arc<Outbox<StreamReply>>,
    /// Limits the number of frames that are not written yet.
    frames: Arc<Semaphore>,
    /// Limits the number of listings, and of answers to reads, that are not written yet.
    reads: Arc<Semaphore>,
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
        if tasks.contains_key(&id) {
            let message =
                format!("the id {id} is that of a watch of this connection: use another one, or end the watch");
            return Err(Failure::new(Code::Invalid, message));
        }
        if tasks.len() >= limits::CONNECTION_WATCHES {
            let most = limits::CONNECTION_WATCHES;
            let message =
                format!("the limit of {most} watches on one connection is reached: end some, or open another one");
            return Err(Failure::new(Code::Limit, message));
        }
        let watch = app.begin_watch(watch)?;
        // The task takes its entry away when it ends, and so waits until it is there.
        let task = tokio::spawn(Arc::clone(self).show(id, watch, text));
        tasks.insert(id, task.abort_handle());
        Ok(())
    }

    /// Ends a watch: no frame of it comes after the answer.
    pub(super) fn end(&self, id: u64) {
        if let Some(task) = self.tasks.lock().remove(&id) {
            task.abort();
        }
    }

    /// Ends all watches: the connection has ended.
    pub(super) fn end_all(&self) {
        for (_, task) in self.tasks.lock().drain() {
            task.abort();
        }
    }

    async fn show(self: Arc<SocketWatches>, id: u64, mut watch: ClientWatch, text: bool) {
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
                        self.push_watched(id, Watched::Event(event), text, None).await;
                    }
                }
                Part::Listing(listing) => self.push_watched(id, Watched::Listing(listing), text, read).await,
                Part::Compacted(floor) => self.push_watched(id, Watched::Compacted { floor }, text, None).await,
                Part::End(failure) => {
                    let mut tasks = self.tasks.lock();
                    if tasks.remove(&id).is_some() {
                        self.push(id, Err(failure), text, None);
                    }
                }
            }
        }
    }

    /// Hands a frame over when the frames before it are written.
    async fn push_watched(&self, id: u64, watched: Watched, text: bool, read: Option<OwnedSemaphorePermit>) {
        // The semaphore is never closed.
        let Ok(request) = Arc::clone(&self.frames).acquire_owned().await else { return };
        // Under the lock: a watch that was ended tells nothing more.
        let tasks = self.tasks.lock();
        if tasks.contains_key(&id) {
            self.push(id, Ok(Answer::Watched(watched)), text, Some(Room { request, read, contents: None }));
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
