//! The effects of a stepped node since its last request, and the point at which it halts.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;

use super::protocol::{Answer, Effect, Stop, WritePoint};

/// The effects of one step. Only effects of the stepping thread are recorded, not those of
/// background threads, such as the preallocation of a segment.
#[derive(Debug)]
pub(super) struct EffectLog {
    owner: ThreadId,
    inner: Mutex<Inner>,
    /// Whether standard input has ended.
    input_ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    effects: Vec<Effect>,
    stop: Option<Stop>,
}

impl EffectLog {
    /// Records the effects of the calling thread.
    pub(super) fn new() -> EffectLog {
        EffectLog { owner: thread::current().id(), inner: Mutex::default(), input_ended: AtomicBool::new(false) }
    }

    /// Begins a step, which halts at `stop`.
    pub(super) fn begin(&self, stop: Option<Stop>) {
        *self.inner.lock() = Inner { effects: Vec::new(), stop };
    }

    /// The effects since the step began.
    pub(super) fn effects(&self) -> Vec<Effect> {
        self.inner.lock().effects.clone()
    }

    /// Whether the effects of the calling thread are recorded.
    pub(super) fn is_recorded(&self) -> bool {
        thread::current().id() == self.owner
    }

    pub(super) fn record(&self, effect: Effect) {
        if self.is_recorded() {
            self.inner.lock().effects.push(effect);
        }
    }

    /// Records that a message is about to be handed to the connections; halts before it if that is
    /// the requested point.
    pub(super) fn before_send(&self, effect: Effect) {
        let is_send = |effect: &&Effect| matches!(effect, Effect::Send(_) | Effect::SendSnapshot(_));
        let nth = self.inner.lock().effects.iter().filter(is_send).count();
        self.halt_at(Stop::Send(nth));
        self.record(effect);
    }

    /// Halts before a snapshot is renamed to its final name, if that is the requested point.
    pub(super) fn before_rename(&self) {
        self.halt_at(Stop::Name);
    }

    /// The point of the next frame at which to halt, if the request names one.
    pub(super) fn point_in_next_write(&self) -> Option<WritePoint> {
        let inner = self.inner.lock();
        let next = inner.effects.iter().filter(|effect| **effect == Effect::Write).count();
        match inner.stop {
            Some(Stop::Write { nth, at }) if nth == next && self.is_recorded() => Some(at),
            _ => None,
        }
    }

    /// The point of the frame that was written last at which to halt, if the request names one.
    pub(super) fn point_in_last_write(&self) -> Option<WritePoint> {
        let inner = self.inner.lock();
        let written = inner.effects.iter().filter(|effect| **effect == Effect::Write).count();
        match inner.stop {
            Some(Stop::Write { nth, at }) if nth + 1 == written && self.is_recorded() => Some(at),
            _ => None,
        }
    }

    /// Whether the last frame written is not synced yet.
    pub(super) fn has_unsynced(&self) -> bool {
        let inner = self.inner.lock();
        let last = inner.effects.iter().rev().find(|effect| matches!(effect, Effect::Write | Effect::Sync));
        last == Some(&Effect::Write)
    }

    /// Notes the end of standard input: a halted node then aborts.
    pub(super) fn input_ended(&self) {
        self.input_ended.store(true, Ordering::Relaxed);
    }

    fn halt_at(&self, here: Stop) {
        if self.is_recorded() && self.inner.lock().stop == Some(here) {
            self.halt();
        }
    }

    /// Answers [`Answer::Halted`], and blocks until the process is killed or standard input ends.
    pub(super) fn halt(&self) -> ! {
        let answer = Answer::Halted { effects: self.effects() };
        let line = serde_json::to_string(&answer).expect("effects are plain values");
        let mut out = std::io::stdout().lock();
        // If standard output is closed, the parent has ended, and so will standard input.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        drop(out);
        while !self.input_ended.load(Ordering::Relaxed) {
            thread::park_timeout(Duration::from_millis(50));
        }
        // The process that was to kill this one has ended. Abort: the step must not continue.
        std::process::abort()
    }
}
