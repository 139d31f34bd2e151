//! Loom's locks and atomics under the interface of the server's (src/sync.rs).

use std::task::{Poll, Waker};

pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("no thread panics here and lets the others go on")
    }
}

/// tokio's `Notify`, as far as the server uses it: one task waits, and a call for which no task waits is
/// kept for the next one that does. What a wait that is dropped was woken by, is kept as well.
#[derive(Debug)]
pub(crate) struct Notify(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_notified: bool,
    waiting: Option<Waker>,
}

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify(Mutex::new(State::default()))
    }

    pub(crate) fn notify_one(&self) {
        let waiting = {
            let mut state = self.0.lock();
            state.is_notified = true;
            state.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    pub(crate) async fn notified(&self) {
        std::future::poll_fn(|context| {
            let mut state = self.0.lock();
            if std::mem::take(&mut state.is_notified) {
                return Poll::Ready(());
            }
            state.waiting = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
