//! A lock that its owner may acquire again, in front of any backend.
//!
//! The first acquire of an owner takes the lock at the backend. Each further one of the **same owner's name** adds to a count and
//! returns a handle with the same fencing token; each release subtracts from it, and the last one releases the lock at the
//! backend. Two tasks that use one owner's name do not exclude one another: that is what reentrant means.
//!
//! **Renewing.** All handles of an owner share one lease.
//!
//! - [`Handle::renew`] of any of them renews it for all.
//! - A lease that is lost takes **all counts** with it: from then on each of the handles says false to a renewal and `NotOwner` to a
//!   release, also those whose owner has not noticed yet.
//! - An acquire that adds to a count renews the lease first, with one request: what it returns is held for a whole TTL. If that
//!   renewal finds the lease lost, the acquire queues at the backend like any other, and gets a lock, a count and a
//!   fencing token of its own; the old handles stay lost.
//! - A handle that is dropped keeps its count. Then no release is the last one, and the lock ends with its TTL, as if
//!   its process had been killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::cleanup::Patience;
use super::{Error, Handle, Held, Locks, Released, Request};

type Owners = Mutex<HashMap<(String, String), Arc<Entry>>>;
/// One at a time acquires, renews or releases: the others wait, within the deadlines of that request.
type Entry = tokio::sync::Mutex<State>;

/// Locks of another backend, reentrant.
#[derive(Debug)]
pub struct Reentrant {
    inner: Arc<dyn Locks>,
    owners: Arc<Owners>,
}

/// An owner's lock on a key.
#[derive(Debug, Default)]
struct State {
    /// `None` before the first grant, and once the lock was released.
    handle: Option<Handle>,
    count: usize,
    /// The lock was lost or released; it is not acquired again with this entry.
    over: bool,
}

impl Reentrant {
    /// Makes another backend's locks reentrant.
    #[must_use]
    pub fn new(inner: Arc<dyn Locks>) -> Reentrant {
        Reentrant { inner, owners: Arc::default() }
    }

    /// How often the owner has acquired the lock and not released it yet.
    pub async fn count(&self, key: &str, owner: &str) -> usize {
        let entry = self.owners.lock().get(&(key.to_owned(), owner.to_owned())).cloned();
        match entry {
            Some(entry) => entry.lock().await.count,
            None => 0,
        }
    }

    async fn wait(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let name = (key.to_owned(), request.owner.clone());
        loop {
            let entry = Arc::clone(self.owners.lock().entry(name.clone()).or_default());
            // Another acquire of the owner may wait for the lock meanwhile.
            let Ok(mut state) = timeout(patience.left(), entry.lock()).await else {
                self.discard(&name, &entry);
                return Err(patience.timeout(key));
            };
            if state.over {
                forget(&self.owners, &name, &entry);
                continue;
            }
            if let Some(handle) = &mut state.handle {
                // The owner has it already: if the lease is not lost.
                if !handle.renew().await? {
                    state.over = true;
                    forget(&self.owners, &name, &entry);
                    continue;
                }
            } else {
                let request = Request { wait: patience.left(), ..request.clone() };
                match self.inner.acquire(key, &request).await {
                    Ok(handle) => state.handle = Some(handle),
                    Err(error) => {
                        drop(state);
                        self.discard(&name, &entry);
                        return Err(error);
                    }
                }
            }
            state.count += 1;
            let Some(first) = &state.handle else { continue };
            let (fence, ttl, acquired_at, leased_at) = (first.fence, first.ttl, first.acquired_at, first.leased_at);
            let (drift, signed) = (first.held.drift(ttl), first.signed_token().map(str::to_owned));
            let (owners, entry) = (Arc::clone(&self.owners), Arc::clone(&entry));
            let held = Box::new(Counted { owners, entry, name: name.clone(), drift, signed, released: false });
            let (key, owner) = name;
            let granted_at = Instant::now();
            return Ok(Handle { key, owner, fence, ttl, acquired_at, granted_at, leased_at, held });
        }
    }

    /// Removes an entry that no acquire has filled. An acquire that waits for it meanwhile keeps it.
    fn discard(&self, name: &(String, String), entry: &Arc<Entry>) {
        let mut owners = self.owners.lock();
        // The map, and the acquire that failed.
        if Arc::strong_count(entry) <= 2 && owners.get(name).is_some_and(|current| Arc::ptr_eq(current, entry)) {
            owners.remove(name);
        }
    }
}

/// Removes an entry that is over, unless a new one has taken its place.
fn forget(owners: &Owners, name: &(String, String), entry: &Arc<Entry>) {
    let mut owners = owners.lock();
    if owners.get(name).is_some_and(|current| Arc::ptr_eq(current, entry)) {
        owners.remove(name);
    }
}

impl Locks for Reentrant {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        Box::pin(self.wait(key, request))
    }
}

/// One of an owner's counts.
#[derive(Debug)]
struct Counted {
    owners: Arc<Owners>,
    entry: Arc<Entry>,
    name: (String, String),
    drift: Duration,
    signed: Option<String>,
    released: bool,
}

impl Held for Counted {
    fn renew(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let mut state = self.entry.lock().await;
            if state.over || self.released {
                return Ok(false);
            }
            let Some(handle) = &mut state.handle else { return Ok(false) };
            let renewed = handle.renew().await?;
            if !renewed {
                state.over = true;
                forget(&self.owners, &self.name, &self.entry);
            }
            Ok(renewed)
        })
    }

    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        Box::pin(async move {
            let mut state = self.entry.lock().await;
            if self.released {
                return Ok(Released::NotOwner);
            }
            self.released = true;
            state.count -= 1;
            if state.over {
                return Ok(Released::NotOwner);
            }
            if state.count > 0 {
                return Ok(Released::Done);
            }
            state.over = true;
            forget(&self.owners, &self.name, &self.entry);
            match state.handle.take() {
                Some(handle) => handle.release().await,
                None => Ok(Released::NotOwner),
            }
        })
    }

    fn signed_token(&self) -> Option<&str> {
        self.signed.as_deref()
    }

    fn drift(&self, _ttl: Duration) -> Duration {
        self.drift
    }
}
