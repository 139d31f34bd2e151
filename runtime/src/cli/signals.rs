//! The signals that request a stop, and the signal sets of `/proc`.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use super::print_error;

/// Signals that end a process by default and are handled here. Left alone: SIGPIPE, the signals of
/// program errors (such as SIGABRT and SIGSEGV), and the real-time signals.
const STOP: [Signal; 14] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::POWER,
    Signal::STKFLT,
];

/// The signals of [`STOP`]. A signal that this process was started to ignore stays ignored: `nohup`
/// and a shell's background jobs rely on that.
pub(super) struct StopSignals(Vec<(Signal, Signals)>);

impl StopSignals {
    pub(super) fn listen() -> std::io::Result<StopSignals> {
        let ignored = ignored_signals();
        let handled = STOP.into_iter().filter(|name| ignored & (1 << (name.as_raw() - 1)) == 0);
        let listen = |name: Signal| Ok((name, signal(SignalKind::from_raw(name.as_raw()))?));
        Ok(StopSignals(handled.map(listen).collect::<std::io::Result<_>>()?))
    }

    /// The same for a command that ends without: reports why, and returns its exit code.
    pub(super) fn listen_or_report() -> Result<StopSignals, u8> {
        StopSignals::listen().map_err(|error| {
            print_error(format!("cannot listen for signals: {error}"));
            71
        })
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (name, signals) in &mut self.0 {
                if signals.poll_recv(context).is_ready() {
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

/// A signal set from `/proc/PROCESS/status`, one bit for each signal; empty where the system has no
/// such file.
pub(super) fn signals_of(process: &str, set: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
