//! A lock that is renewed in the background while its job runs.
//!
//! A renewal that is refused marks the lock as lost. A renewal that fails otherwise is tried again:
//! the lock may still last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use palisade_conformance::history::{Answer, Call, Client, Recorder, Refusal, Session};
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

/// Who renews, for the history.
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
