//! Deadlines for servers, and what is undone when a waiting acquire is dropped.

use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use rand::Rng;
use tokio::runtime;

use super::{Error, Request};

/// Runs a request to a server with a deadline. `server` is the server's address, or all of them.
pub(super) async fn within<T, E: std::fmt::Display>(
    limit: Duration,
    backend: &'static str,
    server: &str,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Error::Backend { backend, reason: format!("{server}: {error}") }),
        Err(_) => Err(Error::Backend { backend, reason: format!("{server} did not answer within {limit:?}") }),
    }
}

/// Runs a future in the background when it is dropped while it is armed: the acquire that created it was cancelled, or
/// failed, and what the servers may have of it must go.
pub(super) struct Undo(Option<Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>>);

impl Undo {
    pub(super) fn new(undo: impl FnOnce() -> BoxFuture<'static, ()> + Send + 'static) -> Undo {
        Undo(Some(Box::new(undo)))
    }

    /// There is nothing to undo any more.
    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // Without a runtime the process is at its end, and what is left ends with its TTL.
        if let (Some(undo), Ok(runtime)) = (self.0.take(), runtime::Handle::try_current()) {
            runtime.spawn(undo());
        }
    }
}

/// A background task that ends with its owner.
pub(super) struct Background(tokio::task::JoinHandle<()>);

impl Background {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Background {
        Background(tokio::spawn(task))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The time that an acquire may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    began: Instant,
    wait: Duration,
}

impl Patience {
    pub(super) fn new(request: &Request) -> Patience {
        Patience { began: Instant::now(), wait: request.wait }
    }

    /// What is left of it.
    pub(super) fn left(self) -> Duration {
        self.wait.saturating_sub(self.began.elapsed())
    }

    /// The error of a wait that has ended.
    pub(super) fn timeout(self, key: &str) -> Error {
        Error::Timeout { key: key.to_owned(), waited: self.began.elapsed() }
    }
}

/// Random pauses that double up to a limit, so that waiters do not attempt in step.
#[derive(Debug)]
pub(super) struct Backoff {
    ceiling: Duration,
    limit: Duration,
}

impl Backoff {
    /// Pauses of 1 ms at most in the beginning, and of `limit` at most in the end.
    pub(super) fn new(limit: Duration) -> Backoff {
        let limit = limit.max(Duration::from_millis(1));
        Backoff { ceiling: Duration::from_millis(1), limit }
    }

    /// A pause between half of the ceiling and the ceiling, which doubles.
    pub(super) fn pause(&mut self) -> Duration {
        let ceiling = self.ceiling.min(self.limit);
        self.ceiling = ceiling.saturating_mul(2);
        rand::rng().random_range(ceiling / 2..=ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let mut backoff = Backoff::new(Duration::from_millis(10));
        for ceiling in [1, 2, 4, 8, 10, 10] {
            let ceiling = Duration::from_millis(ceiling);
            let pause = backoff.pause();
            assert!((ceiling / 2..=ceiling).contains(&pause), "{pause:?} is not below {ceiling:?}");
        }
    }

    #[tokio::test]
    async fn a_dropped_undo_runs_and_a_disarmed_one_does_not() {
        let (sender, mut ran) = tokio::sync::mpsc::unbounded_channel();
        for name in ["dropped", "disarmed"] {
            let sender = sender.clone();
            let undo = Undo::new(move || Box::pin(async move { sender.send(name).unwrap() }));
            if name == "disarmed" {
                undo.disarm();
            }
        }
        drop(sender);
        assert_eq!(ran.recv().await, Some("dropped"));
        assert_eq!(ran.recv().await, None);
    }

    #[tokio::test]
    async fn a_late_answer_names_backend_and_server() {
        let never = std::future::pending::<Result<(), String>>();
        let error = within(Duration::from_millis(5), "redis", "127.0.0.1:1", never).await.unwrap_err();
        assert_eq!(error.to_string(), "redis: 127.0.0.1:1 did not answer within 5ms");
    }
}
