//! Writes long answers, as JSON or for a WebSocket, on threads of their own.
//!
//! A list of a thousand locks is a megabyte or two, and takes milliseconds to write. The threads that serve
//! connections, those of other nodes among them, do not wait for that: behind many lists, a leader's heartbeats would
//! come so late that the followers elect another leader. A few long answers are written at once, and of each client one,
//! so that the lists of a client delay those of another by the time of one.

use std::future::pending;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::available_parallelism;

use axum::http::Uri;
use axum::response::Response;
use palisade_client::wire::{Answer, Failure};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::{App, reply};
use crate::core::claims;

/// Number of holders, waiters and records from which an answer is long: to write it takes longer than to pass it to
/// another thread.
const LONG: usize = 32;

/// Whether an answer is long. The content of a record is written as it is, or almost.
pub(super) fn is_long(answer: &Answer) -> bool {
    !matches!(answer, Answer::Record(_) | Answer::StaleRecord(_)) && claims(answer) >= LONG
}

/// Whose turn it is to have a long answer written.
#[derive(Debug)]
pub(super) struct Turns(Arc<Semaphore>);

impl Turns {
    /// Half of the processors are left to everything else.
    pub(super) fn of_half_the_processors() -> Turns {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Turns(Arc::new(Semaphore::new((processors / 2).max(1))))
    }

    /// Writes a long answer when it is its client's turn, of which there are so many as `of_client` has permits.
    async fn write<T: Send + 'static>(
        &self,
        of_client: Option<&Arc<Semaphore>>,
        write: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        // No semaphore is ever closed.
        let of_client = match of_client {
            Some(turns) => Arc::clone(turns).acquire_owned().await.ok(),
            None => None,
        };
        let turn = Arc::clone(&self.0).acquire_owned().await;
        // A client that does not wait for its answer has its turn all the same until the answer is written.
        let written = spawn_blocking(move || {
            let written = write();
            drop((of_client, turn));
            written
        });
        match written.await {
            Ok(written) => written,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The process ends, and this task with it.
                Err(_) => pending().await,
            },
        }
    }
}

impl App {
    /// An answer or a failure as an HTTP response. `uri` is the request's.
    pub(super) async fn respond(&self, result: Result<Answer, Failure>, uri: &Uri) -> Response {
        match result {
            Ok(answer) if is_long(&answer) => {
                let uri = uri.clone();
                self.write_long(move || reply::response(Ok(answer), &uri)).await
            }
            result => reply::response(result, uri),
        }
    }

    /// Writes a long answer when it is its client's turn.
    pub(super) async fn write_long<T: Send + 'static>(&self, write: impl FnOnce() -> T + Send + 'static) -> T {
        let of_client = self.account.as_ref().map(|account| &account.long_answers);
        self.long_answers.write(of_client, write).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;
    use palisade_client::wire::{LockPage, LockView};

    use super::*;

    fn page(locks: usize) -> Answer {
        let lock = LockView { key: "k".into(), held: false, holder: None, holders: Vec::new(), queue: Vec::new() };
        Answer::Locks(LockPage { locks: vec![lock; locks], next_after: None })
    }

    #[test]
    fn pages_are_long() {
        assert!(!is_long(&page(LONG - 1)));
        assert!(is_long(&page(LONG)));
        assert!(!is_long(&Answer::Released));
    }

    /// Goal: the lists of one client wait for one another, also when it has gone before they are written; another
    /// client's wait for one of them at most.
    #[tokio::test]
    async fn one_long_answer_of_each_client_is_written_at_once() {
        let turns = Turns(Arc::new(Semaphore::new(2)));
        let [flood, polite] = [(); 2].map(|()| Arc::new(Semaphore::new(1)));
        let (write_on, blocked) = mpsc::channel::<()>();
        let endless = turns.write(Some(&flood), move || blocked.recv().is_err());
        assert!(endless.now_or_never().is_none(), "it is being written, and its client has gone");
        let mut next = Box::pin(turns.write(Some(&flood), || "next"));
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!(turns.write(Some(&polite), || "polite").await, "polite");
        assert_eq!(turns.write(None, || "of no client").await, "of no client");
        assert!(next.as_mut().now_or_never().is_none());
        drop(write_on);
        assert_eq!(next.await, "next");
    }

    /// Goal: however many clients there are, no more long answers are written at once than there are turns.
    #[tokio::test]
    async fn long_answers_that_are_written_at_once_are_bounded() {
        let turns = Turns(Arc::new(Semaphore::new(1)));
        let (write_on, blocked) = mpsc::channel::<()>();
        assert!(turns.write(None, move || blocked.recv().is_err()).now_or_never().is_none());
        let mut next = Box::pin(turns.write(None, || "next"));
        assert!(next.as_mut().now_or_never().is_none());
        drop(write_on);
        assert_eq!(next.await, "next");
    }

    /// Goal: a defect in writing an answer ends its request as loudly as elsewhere.
    #[tokio::test]
    #[should_panic(expected = "a defect")]
    async fn a_panic_of_the_writer_is_one_of_the_request() {
        Turns::of_half_the_processors().write(None, || panic!("a defect")).await
    }
}
