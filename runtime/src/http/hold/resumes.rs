//! The sessions that are being resumed, so that the end of a wait closes no session with which its client has just gone
//! on over another connection.
//!
//! A resume says so here before it sends its first request. A wait that has ended sends its close here, while no
//! resume can begin. So either the close finds the resume, and is not sent; or the core has the close before the first
//! request of the resume, which is told that the session was closed. `tests/loom` runs both in every order.

use std::collections::HashMap;
use std::sync::Arc;

use palisade_spec::lock::SessionId;

use crate::sync::Mutex;

/// How many resumes of each session are under way. A session is known by its proof, too: a client that presents
/// another secret, or has another name, keeps nothing open.
#[derive(Debug)]
pub(crate) struct Resumes {
    under_way: Mutex<HashMap<SessionId, usize>>,
}

/// A resume that is under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Resuming {
    resumes: Arc<Resumes>,
    session: SessionId,
}

impl Resumes {
    pub(crate) fn new() -> Arc<Resumes> {
        Arc::new(Resumes { under_way: Mutex::new(HashMap::new()) })
    }

    /// A resume of this session begins: nothing that it sends has been sent before.
    pub(crate) fn begin(self: &Arc<Resumes>, session: SessionId) -> Resuming {
        *self.under_way.lock().entry(session).or_default() += 1;
        Resuming { resumes: Arc::clone(self), session }
    }

    /// Calls `close`, which does not wait, unless a resume of the session is under way.
    pub(crate) fn unless_under_way<T>(&self, session: SessionId, close: impl FnOnce() -> T) -> Option<T> {
        let under_way = self.under_way.lock();
        (!under_way.contains_key(&session)).then(close)
    }
}

impl Drop for Resuming {
    fn drop(&mut self) {
        let mut under_way = self.resumes.under_way.lock();
        if let Some(count) = under_way.get_mut(&self.session) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.session);
            }
        }
    }
}
