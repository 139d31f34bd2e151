//! A queue with a limit, in front of any backend.
//!
//! Of the acquires of one key in this process only the first in the queue waits at the backend; the others wait here, first
//! come, first served, and beyond the limit an acquire fails at once ([`Error::QueueFull`]). So a thousand tasks make one waiter
//! at the server, and a service that cannot keep up says so instead of letting its callers wait in vain. Callers of other
//! processes have queues of their own: between processes the backend's order holds.
//!
//! Dropping a waiting acquire takes it out of the queue, wherever it stands.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::cleanup::Patience;
use super::{Error, Handle, Locks, Request};

/// Locks of another backend, with a queue of limited length for each key.
#[derive(Debug)]
pub struct Bounded {
    inner: Arc<dyn Locks>,
    limit: usize,
    queues: Mutex<HashMap<String, Queue>>,
}

/// The acquires of a key that have not been granted yet.
#[derive(Debug)]
struct Queue {
    waiting: usize,
    /// The acquire that has its permit waits at the backend. Acquires get the permit in order of arrival.
    front: Arc<Semaphore>,
}

/// A slot in a queue, which is given up when it is dropped.
struct QueueSlot<'a> {
    bounded: &'a Bounded,
    key: &'a str,
    front: Arc<Semaphore>,
}

impl Bounded {
    /// At most `limit` acquires of a key wait at the same time, the first of them at the backend; at least one.
    #[must_use]
    pub fn new(inner: Arc<dyn Locks>, limit: usize) -> Bounded {
        Bounded { inner, limit: limit.max(1), queues: Mutex::default() }
    }

    /// The number of acquires that wait for the key.
    #[must_use]
    pub fn waiting(&self, key: &str) -> usize {
        self.queues.lock().get(key).map_or(0, |queue| queue.waiting)
    }

    fn enter<'a>(&'a self, key: &'a str) -> Result<QueueSlot<'a>, Error> {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get_mut(key) {
            if queue.waiting >= self.limit {
                return Err(Error::QueueFull { key: key.to_owned(), limit: self.limit });
            }
            queue.waiting += 1;
            return Ok(QueueSlot { bounded: self, key, front: Arc::clone(&queue.front) });
        }
        let front = Arc::new(Semaphore::new(1));
        queues.insert(key.to_owned(), Queue { waiting: 1, front: Arc::clone(&front) });
        Ok(QueueSlot { bounded: self, key, front })
    }

    async fn wait(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let slot = self.enter(key)?;
        let turn = if request.wait.is_zero() {
            slot.front.try_acquire().ok()
        } else {
            // The semaphore is never closed.
            tokio::time::timeout(patience.left(), slot.front.acquire()).await.ok().and_then(Result::ok)
        };
        let Some(_turn) = turn else { return Err(patience.timeout(key)) };
        let request = Request { wait: patience.left(), ..request.clone() };
        match self.inner.acquire(key, &request).await {
            Err(Error::Timeout { .. }) => Err(patience.timeout(key)),
            other => other,
        }
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        let mut queues = self.bounded.queues.lock();
        if let Some(queue) = queues.get_mut(self.key) {
            queue.waiting -= 1;
            if queue.waiting == 0 {
                queues.remove(self.key);
            }
        }
    }
}

impl Locks for Bounded {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        Box::pin(self.wait(key, request))
    }
}
