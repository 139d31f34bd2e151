//! A lock that is renewed in the background while its job runs.
//!
//! A renewal that is refused marks the lock as lost. A renewal that fails otherwise is tried again:
//! the lock may still last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use palisade_history::{Answer, Call, Client, Recorder, Refusal, Session};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::dlock::Handle;
use crate::metrics::Metrics;

/// What the renewals of one lock have come to.
#[derive(Debug, Default)]
pub struct Progress {
    lost: AtomicBool,
    renewals: AtomicU64,
}

impl Progress {
    /// Whether a renewal was refused.
    #[must_use]
    pub fn lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Renewals that succeeded.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::SeqCst)
    }
}

/// A lock under renewal.
#[derive(Debug)]
pub struct Renewed {
    /// What has come of the renewals.
    pub progress: Arc<Progress>,
    end: oneshot::Sender<()>,
    task: JoinHandle<Handle>,
}

/// The worker that renews a lock, and what records and counts its renewals.
#[derive(Clone)]
pub struct Renewer {
    /// The worker.
    pub client: Client,
    /// The grant's session.
    pub session: Session,
    /// The history.
    pub recorder: Recorder,
    /// The counters.
    pub metrics: Arc<Metrics>,
}

impl Renewed {
    /// Renews the lock once every `period`, if there is one.
    #[must_use]
    pub fn start(handle: Handle, period: Option<Duration>, renewer: Renewer) -> Renewed {
        let progress = Arc::new(Progress::default());
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(keep(handle, period, renewer, progress.clone(), ended));
        Renewed { progress, end, task }
    }

    /// Ends the renewals.
    ///
    /// # Errors
    /// The task has panicked.
    pub async fn finish(self) -> Result<Handle, String> {
        let _ = self.end.send(());
        self.task.await.map_err(|error| format!("the renewals ended early: {error}"))
    }
}

async fn keep(
    mut handle: Handle,
    period: Option<Duration>,
    renewer: Renewer,
    progress: Arc<Progress>,
    mut ended: oneshot::Receiver<()>,
) -> Handle {
    let Some(period) = period else {
        let _ = ended.await;
        return handle;
    };
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = &mut ended => return handle,
            _ = ticks.tick() => {}
        }
        let pending = renewer.recorder.invoke(&renewer.client, Call::KeepAlive { session: renewer.session.clone() });
        match handle.renew().await {
            Ok(true) => {
                pending.ok(Answer::KeptAlive);
                renewer.metrics.renewals.inc();
                progress.renewals.fetch_add(1, Ordering::SeqCst);
            }
            Ok(false) => {
                pending.fail(Refusal::NoSession);
                progress.lost.store(true, Ordering::SeqCst);
                let _ = ended.await;
                return handle;
            }
            Err(error) => pending.info(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::future::BoxFuture;
    use palisade_history::End;

    use super::*;
    use crate::dlock::{Error, Held, Released};

    /// A lock that answers renewals from a list, and then with success.
    #[derive(Debug)]
    struct Scripted(VecDeque<Result<bool, ()>>);

    impl Held for Scripted {
        fn renew(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
            let answer = self.0.pop_front().unwrap_or(Ok(true));
            let answer = answer.map_err(|()| Error::Backend { backend: "test", reason: "no answer".to_owned() });
            Box::pin(async move { answer })
        }

        fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
            Box::pin(async { Ok(Released::Done) })
        }
    }

    /// Renews once in 10 ms for 95 ms. Returns what came of it, and the history's ends.
    async fn renew(answers: &[Result<bool, ()>], period: Option<Duration>) -> (Arc<Progress>, Vec<End>) {
        let now = std::time::Instant::now();
        let handle = Handle {
            key: "k".to_owned(),
            owner: "a".to_owned(),
            fence: 1,
            ttl: Duration::from_secs(1),
            acquired_at: now,
            granted_at: now,
            leased_at: now,
            held: Box::new(Scripted(answers.iter().copied().collect())),
        };
        let recorder = Recorder::in_memory();
        let renewer = Renewer {
            client: Client::from("a"),
            session: Session::from("a/1"),
            recorder: recorder.clone(),
            metrics: Arc::default(),
        };
        let renewed = Renewed::start(handle, period, renewer);
        let progress = renewed.progress.clone();
        tokio::time::sleep(Duration::from_millis(95)).await;
        renewed.finish().await.unwrap();
        let history = recorder.history().unwrap();
        (progress, history.operations.into_iter().filter_map(|operation| Some(operation.end?.1)).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_is_renewed_once_in_each_period() {
        let (progress, ends) = renew(&[], Some(Duration::from_millis(10))).await;
        assert_eq!((progress.renewals(), progress.lost(), ends.len()), (9, false, 9));
        let (progress, ends) = renew(&[], None).await;
        assert_eq!((progress.renewals(), progress.lost(), ends.len()), (0, false, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_renewal_ends_the_renewals() {
        let (progress, ends) = renew(&[Ok(true), Ok(false)], Some(Duration::from_millis(10))).await;
        assert_eq!((progress.renewals(), progress.lost()), (1, true));
        assert_eq!(ends, [End::Ok(Answer::KeptAlive), End::Fail(Refusal::NoSession)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_without_an_answer_is_no_loss() {
        let (progress, ends) = renew(&[Err(()), Ok(true)], Some(Duration::from_millis(10))).await;
        assert_eq!((progress.renewals(), progress.lost()), (8, false));
        assert!(matches!(ends[0], End::Info(_)));
    }
}
