//! The hand-over between the core thread and the tasks that write to sockets.
//!
//! The core must never wait for a slow reader, and a task should wake once for many answers and write them at once.
//! An [`Outbox`] is a bounded queue with one taker: [`push`](Outbox::push) never blocks, [`take`](Outbox::take) waits
//! for something and takes all there is. `tests/loom.rs` looks for an order of events that breaks it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use super::sync::Mutex;

/// A bounded queue from many threads to one task.
#[derive(Debug)]
pub struct Outbox<T> {
    capacity: usize,
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    items: VecDeque<T>,
    taker: Option<Waker>,
    closed: bool,
}

/// Why an item was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The outbox holds as many items as it may; its taker is too slow.
    Full,
    /// The outbox was closed.
    Closed,
}

impl<T> Outbox<T> {
    /// An empty outbox for at most `capacity` items.
    pub fn new(capacity: usize) -> Outbox<T> {
        Outbox { capacity, inner: Mutex::new(Inner { items: VecDeque::new(), taker: None, closed: false }) }
    }

    /// Puts an item in, and wakes the taker if it waits.
    ///
    /// # Errors
    /// If the outbox is full or closed; the item is dropped then.
    pub fn push(&self, item: T) -> Result<(), Rejected> {
        let taker = {
            let mut inner = self.inner.lock();
            if inner.closed {
                return Err(Rejected::Closed);
            }
            if inner.items.len() >= self.capacity {
                return Err(Rejected::Full);
            }
            inner.items.push_back(item);
            inner.taker.take()
        };
        if let Some(taker) = taker {
            taker.wake();
        }
        Ok(())
    }

    /// Takes nothing more in. The taker still gets what is there, then the end.
    pub fn close(&self) {
        let taker = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            inner.taker.take()
        };
        if let Some(taker) = taker {
            taker.wake();
        }
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }

    /// Throws away what is there.
    pub fn clear(&self) {
        self.inner.lock().items.clear();
    }

    /// Waits until there is something, and appends all of it to `into`. `false` at the end: closed, and nothing left.
    pub async fn take(&self, into: &mut Vec<T>) -> bool {
        poll_fn(|context| self.poll_take(context, into)).await
    }

    fn poll_take(&self, context: &mut Context<'_>, into: &mut Vec<T>) -> Poll<bool> {
        let mut inner = self.inner.lock();
        if !inner.items.is_empty() {
            into.extend(inner.items.drain(..));
            return Poll::Ready(true);
        }
        if inner.closed {
            return Poll::Ready(false);
        }
        inner.taker = Some(context.waker().clone());
        Poll::Pending
    }
}
