//! What a puppet did since its last pull, and where it is to stand still.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::protocol::{Answer, Effect, Stop, WritePoint};
use crate::sync::Mutex;

/// The deeds of one step. Those of the thread that steps count; what goes on beside it, such as a segment that is
/// prepared, does not.
#[derive(Debug)]
pub(super) struct EffectLog {
    owner: ThreadId,
    inner: Mutex<Inner>,
    /// Whether nobody pulls any more.
    cut: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    effects: Vec<Effect>,
    stop: Option<Stop>,
}

impl EffectLog {
    /// Of the thread that calls this.
    pub(super) fn new() -> EffectLog {
        EffectLog { owner: thread::current().id(), inner: Mutex::default(), cut: AtomicBool::new(false) }
    }

    /// A step begins.
    pub(super) fn begin(&self, stop: Option<Stop>) {
        *self.inner.lock() = Inner { effects: Vec::new(), stop };
    }

    /// What was done since.
    pub(super) fn effects(&self) -> Vec<Effect> {
        self.inner.lock().effects.clone()
    }

    /// Whether what is done by the thread that calls this counts.
    pub(super) fn counts(&self) -> bool {
        thread::current().id() == self.owner
    }

    pub(super) fn note(&self, effect: Effect) {
        if self.counts() {
            self.inner.lock().effects.push(effect);
        }
    }

    /// A message is about to be handed over.
    pub(super) fn sends(&self, effect: Effect) {
        let is_send = |effect: &&Effect| matches!(effect, Effect::Send(_) | Effect::SendSnapshot(_));
        let nth = self.inner.lock().effects.iter().filter(is_send).count();
        self.stand_at(Stop::Send(nth));
        self.note(effect);
    }

    /// A snapshot is about to get its name.
    pub(super) fn names(&self) {
        self.stand_at(Stop::Name);
    }

    /// A frame is about to be written: whether, and where, the puppet is to stand still in it.
    pub(super) fn point_in_next_write(&self) -> Option<WritePoint> {
        let inner = self.inner.lock();
        let next = inner.effects.iter().filter(|effect| **effect == Effect::Write).count();
        match inner.stop {
            Some(Stop::Write { nth, at }) if nth == next && self.counts() => Some(at),
            _ => None,
        }
    }

    /// Whether the puppet is to stand still at this place of the frame that was written last.
    pub(super) fn point_in_last_write(&self) -> Option<WritePoint> {
        let inner = self.inner.lock();
        let written = inner.effects.iter().filter(|effect| **effect == Effect::Write).count();
        match inner.stop {
            Some(Stop::Write { nth, at }) if nth + 1 == written && self.counts() => Some(at),
            _ => None,
        }
    }

    /// Whether a frame was written that is not synced.
    pub(super) fn has_unsynced(&self) -> bool {
        let inner = self.inner.lock();
        let last = inner.effects.iter().rev().find(|effect| matches!(effect, Effect::Write | Effect::Sync));
        last == Some(&Effect::Write)
    }

    /// Nobody pulls any more.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    fn stand_at(&self, here: Stop) {
        if self.counts() && self.inner.lock().stop == Some(here) {
            self.stand();
        }
    }

    /// Says that the puppet stands still, and does.
    pub(super) fn stand(&self) -> ! {
        let answer = Answer::Halted { effects: self.effects() };
        let line = serde_json::to_string(&answer).expect("effects are plain values");
        let mut out = std::io::stdout().lock();
        // If nobody listens, nobody pulls either.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        drop(out);
        while !self.cut.load(Ordering::Relaxed) {
            thread::park_timeout(Duration::from_millis(50));
        }
        // Whoever was to kill it is gone. It must not go on, and not stay.
        std::process::abort()
    }
}
