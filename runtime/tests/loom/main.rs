//! The server's shared structures, under every interleaving that their locks allow.
//!
//! The structures under test are the source files of the server itself, built here on loom's locks and
//! atomics instead of parking_lot's and std's ([`sync`]). Loom runs each test again and again, each time
//! with another order of what the threads do; a thread that sleeps and is never woken is a deadlock,
//! which loom reports. Two threads meet in every order there is; three, in every order with a bounded
//! number of preemptions ([`explore`]).
//!
//! Of what else threads share, nothing is an algorithm of ours: the status view and a link's state
//! are plain values behind a lock, written and read as a whole; the core's inbox is crossbeam's
//! channel; numbers are single atomics.

/// Loom's locks and atomics under the interface of the server's (src/sync.rs).
mod sync;

#[allow(dead_code, unreachable_pub, reason = "the server's file, of which the tests use a part")]
#[path = "../../src/limits.rs"]
mod limits;

/// What the server's files count; nothing is tested of it here.
mod metrics {
    #[derive(Debug, Default)]
    pub(crate) struct Metrics {
        pub(crate) watchers: Gauge,
    }

    #[derive(Debug, Default)]
    pub(crate) struct Gauge;

    impl Gauge {
        #[expect(clippy::unused_self, reason = "the interface of the server's")]
        pub(crate) fn inc(&self) {}

        #[expect(clippy::unused_self, reason = "the interface of the server's")]
        pub(crate) fn dec(&self) {}
    }
}

mod outbox;
mod resumes;
mod watches;

use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::Condvar;

/// Runs a test of three threads. A thread is interrupted at most so many times where it would have gone on:
/// all orders of three threads take minutes, and the faults that these structures could have need one or two.
fn explore(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(scenario);
}

/// Wakes a thread that sleeps in [`block_on`].
struct Bell {
    rung: sync::Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    fn new() -> std::sync::Arc<Bell> {
        std::sync::Arc::new(Bell { rung: sync::Mutex::new(false), ringing: Condvar::new() })
    }

    fn wait(&self) {
        let mut rung = self.rung.lock();
        while !*rung {
            rung = self.ringing.wait(rung).expect("no thread panics here and lets the others go on");
        }
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Bell>) {
        *self.rung.lock() = true;
        self.ringing.notify_one();
    }
}

/// The smallest executor there is: it polls when it is woken, and never otherwise.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let bell = Bell::new();
    let waker = Waker::from(std::sync::Arc::clone(&bell));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => bell.wait(),
        }
    }
}
