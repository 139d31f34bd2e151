//! The signals that ask a command to stop.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// SIGINT, SIGTERM, SIGHUP and SIGQUIT, as far as they are not ignored: `nohup`, and a shell's background, mean what
/// they say.
pub(super) struct StopSignals([(Signal, Option<Signals>); 4]);

impl StopSignals {
    pub(super) fn listen() -> std::io::Result<StopSignals> {
        let ignored = ignored_signals();
        let listen = |name: Signal, kind: SignalKind| {
            let heard = ignored & (1 << (name.as_raw() - 1)) == 0;
            heard.then(|| signal(kind)).transpose().map(|signals| (name, signals))
        };
        Ok(StopSignals([
            listen(Signal::INT, SignalKind::interrupt())?,
            listen(Signal::TERM, SignalKind::terminate())?,
            listen(Signal::HUP, SignalKind::hangup())?,
            listen(Signal::QUIT, SignalKind::quit())?,
        ]))
    }

    /// The next one that comes.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (name, signals) in &mut self.0 {
                if let Some(signals) = signals
                    && signals.poll_recv(context).is_ready()
                {
                    return Poll::Ready(*name);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The signals that this process was started to ignore, one bit each.
fn ignored_signals() -> u64 {
    signals_of("self", "SigIgn")
}

/// A set of signals that the system tells about a process, one bit each; none where it tells nothing.
pub(super) fn signals_of(process: &str, set: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
