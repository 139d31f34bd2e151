//! The queue between the core thread and the tasks that write to sockets.
//!
//! The core must never wait for a slow reader, and a task should wake once for many answers and
//! write them together. An [`Outbox`] is a bounded queue with one consumer: [`push`](Outbox::push)
//! never blocks, [`take`](Outbox::take) waits for an item and takes all items. `tests/loom`
//! searches for a thread interleaving that breaks it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

/// Items for which there is room without an allocation: a burst takes more, and gives it back.
pub(crate) const ROOM_KEPT: usize = 256;

/// A bounded queue from many threads to one task.
#[derive(Debug)]
pub struct Outbox<T> {
    capacity: usize,
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    items: VecDeque<T>,
    consumer: Option<Waker>,
    closed: bool,
}

/// Why [`Outbox::push`] rejected an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The outbox is at its capacity; its consumer is too slow.
    Full,
    /// The outbox was closed.
    Closed,
}

impl<T> Outbox<T> {
    /// An empty outbox for at most `capacity` items.
    pub fn new(capacity: usize) -> Outbox<T> {
        Outbox { capacity, inner: Mutex::new(Inner { items: VecDeque::new(), consumer: None, closed: false }) }
    }

    /// Appends an item, and wakes the consumer if it waits.
    ///
    /// # Errors
    /// If the outbox is full or closed; the item is dropped.
    pub fn push(&self, item: T) -> Result<(), Rejected> {
        let consumer = {
            let mut inner = self.inner.lock();
            if inner.closed {
                return Err(Rejected::Closed);
            }
            if inner.items.len() >= self.capacity {
                return Err(Rejected::Full);
            }
            inner.items.push_back(item);
            inner.consumer.take()
        };
        if let Some(consumer) = consumer {
            consumer.wake();
        }
        Ok(())
    }

    /// Rejects further items. The consumer still receives the queued items, then the end.
    pub fn close(&self) {
        let consumer = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            inner.consumer.take()
        };
        if let Some(consumer) = consumer {
            consumer.wake();
        }
    }

    /// Whether the outbox was closed.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }

    /// Drops the queued items.
    pub fn clear(&self) {
        self.inner.lock().items.clear();
    }

    /// Waits for an item, and appends all queued items to `into`. Returns `false` if the outbox is
    /// closed and empty.
    pub async fn take(&self, into: &mut Vec<T>) -> bool {
        poll_fn(|context| self.poll_take(context, into)).await
    }

    fn poll_take(&self, context: &mut Context<'_>, into: &mut Vec<T>) -> Poll<bool> {
        let mut inner = self.inner.lock();
        if !inner.items.is_empty() {
            into.extend(inner.items.drain(..));
            inner.items.shrink_to(ROOM_KEPT);
            return Poll::Ready(true);
        }
        if inner.closed {
            return Poll::Ready(false);
        }
        inner.consumer = Some(context.waker().clone());
        Poll::Pending
    }
}
