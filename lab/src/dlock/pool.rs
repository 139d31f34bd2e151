//! Connections, each of an acquire's own or shared by all (`--connections`).
//!
//! An acquire takes a connection and the handle that it returns keeps it, so that a lock's renewals and its release go
//! the way of its acquire. With [`Connections::Own`] no other acquire uses it meanwhile; when the handle is gone, the
//! connection serves the next acquire. With [`Connections::Shared`] the acquires take a fixed number of connections in
//! turn. A connection that failed is not used again.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::{Connections, Error};

type Dial<C> = Box<dyn Fn() -> BoxFuture<'static, Result<C, Error>> + Send + Sync>;

/// The connections to a server, or to a cluster.
pub(super) struct Pool<C> {
    dial: Dial<C>,
    idle: Mutex<Vec<C>>,
    shared: Vec<Shared<C>>,
    turn: AtomicUsize,
}

/// A shared connection, and how often it was made anew.
struct Shared<C>(tokio::sync::Mutex<(Option<C>, u64)>);

/// A connection that is in use.
pub(super) struct Pooled<C: Clone + Send + 'static> {
    connection: C,
    pool: Arc<Pool<C>>,
    /// Which of the shared connections it is, and the count of that slot when it was taken.
    slot: Option<(usize, u64)>,
    broken: bool,
}

impl<C: Clone + Send + 'static> Pool<C> {
    pub(super) fn new(
        connections: Connections,
        dial: impl Fn() -> BoxFuture<'static, Result<C, Error>> + Send + Sync + 'static,
    ) -> Arc<Pool<C>> {
        let count = if let Connections::Shared(count) = connections { count } else { 0 };
        let shared = (0..count).map(|_| Shared(tokio::sync::Mutex::new((None, 0)))).collect();
        Arc::new(Pool { dial: Box::new(dial), idle: Mutex::default(), shared, turn: AtomicUsize::new(0) })
    }

    /// Takes a connection, or makes one.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Pooled<C>, Error> {
        let pool = Arc::clone(self);
        if self.shared.is_empty() {
            let idle = self.idle.lock().pop();
            let connection = match idle {
                Some(connection) => connection,
                None => (self.dial)().await?,
            };
            return Ok(Pooled { connection, pool, slot: None, broken: false });
        }
        let index = self.turn.fetch_add(1, Ordering::Relaxed) % self.shared.len();
        // The dial has a deadline, and so has the wait for the connection that another acquire dials.
        let mut slot = self.shared[index].0.lock().await;
        let connection = match &slot.0 {
            Some(connection) => connection.clone(),
            None => {
                let connection = (self.dial)().await?;
                *slot = (Some(connection.clone()), slot.1 + 1);
                connection
            }
        };
        Ok(Pooled { connection, pool, slot: Some((index, slot.1)), broken: false })
    }
}

impl<C: Clone + Send + 'static> Pooled<C> {
    /// Notes that the connection failed.
    pub(super) fn broke(&mut self) {
        self.broken = true;
    }
}

impl<C: Clone + Send + 'static> Drop for Pooled<C> {
    fn drop(&mut self) {
        match self.slot {
            None if !self.broken => self.pool.idle.lock().push(self.connection.clone()),
            // If the slot is locked, another acquire replaces the connection just now.
            Some((index, count)) if self.broken => {
                if let Ok(mut slot) = self.pool.shared[index].0.try_lock()
                    && slot.1 == count
                {
                    slot.0 = None;
                }
            }
            _ => {}
        }
    }
}

impl<C: Clone + Send + 'static> Deref for Pooled<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.connection
    }
}

impl<C: Clone + Send + 'static> DerefMut for Pooled<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.connection
    }
}

impl<C> fmt::Debug for Pool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("idle", &self.idle.lock().len()).field("shared", &self.shared.len()).finish()
    }
}

impl<C: Clone + Send + 'static> fmt::Debug for Pooled<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").field("slot", &self.slot).field("broken", &self.broken).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(connections: Connections) -> Arc<Pool<usize>> {
        let next = AtomicUsize::new(0);
        Pool::new(connections, move || {
            let number = next.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { Ok(number) })
        })
    }

    #[tokio::test]
    async fn own_connections_are_exclusive_and_used_again() {
        let pool = numbered(Connections::Own);
        let (first, second) = (pool.take().await.unwrap(), pool.take().await.unwrap());
        assert_eq!((*first, *second), (0, 1));
        drop(first);
        assert_eq!(*pool.take().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn shared_connections_take_turns() {
        let pool = numbered(Connections::Shared(2));
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(*pool.take().await.unwrap());
        }
        assert_eq!(taken, [0, 1, 0, 1]);
    }

    #[tokio::test]
    async fn a_broken_connection_is_not_used_again() {
        for connections in [Connections::Own, Connections::Shared(1)] {
            let pool = numbered(connections);
            let (mut first, mut also) = (pool.take().await.unwrap(), pool.take().await.unwrap());
            first.broke();
            also.broke();
            drop(first);
            let fresh = *pool.take().await.unwrap();
            assert!(fresh > 0, "{connections}");
            // The second report is about the connection that was replaced already.
            drop(also);
            if connections == Connections::Shared(1) {
                assert_eq!(*pool.take().await.unwrap(), fresh);
            }
        }
    }
}
