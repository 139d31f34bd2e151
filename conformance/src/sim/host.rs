//! What a node runs on: its power, what it has sent, who waits for its answers.
//!
//! A round of the driver is one call, but it does not happen in one moment: the sync in its middle takes its time, and
//! the machine may die between any two things that it does. So whatever the driver does to the world (a write, a sync,
//! a message, an answer) comes by here, and is noted with the time that the round had taken by then; and a **fuse** can be
//! set, which cuts the machine off at the n-th of them. From then on nothing that the driver does has any effect.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::wire::{Answer, Failure};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Message, NodeId, Snapshot, Term};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::call::CallId;

/// What a client is told.
pub(super) type Reply = Result<Answer, Failure>;

/// When a machine dies by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrashPoint {
    /// At the n-th thing that it does from now on.
    pub(super) left: u32,
    /// Only what it does to its disk counts.
    pub(super) of_disk: bool,
}

/// One machine, as the process on it, its disk and its network card share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Host(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_off: bool,
    crash_point: Option<CrashPoint>,
    /// How long what is being done has taken so far.
    spent: Duration,
    /// Who waits for an answer.
    open: Vec<(CallId, oneshot::Receiver<Reply>)>,
    done: Done,
}

/// What came of a round.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// How long it took.
    pub(super) spent: Duration,
    /// What was sent, and when in the round.
    pub(super) sent: Vec<(Duration, Message<LockTable>)>,
    /// To whom a snapshot is to be sent.
    pub(super) snapshots: Vec<(NodeId, Term)>,
    /// What is to be written as a snapshot.
    pub(super) snapshot: Option<Snapshot<LockTable>>,
    /// Who was answered what.
    pub(super) answered: Vec<(CallId, Reply)>,
}

impl Host {
    /// Power comes back. Whatever was under way is forgotten.
    pub(super) fn power_on(&self) {
        *self.0.lock() = State::default();
    }

    /// The machine is going to die.
    pub(super) fn set_fuse(&self, crash_point: CrashPoint) {
        self.0.lock().crash_point = Some(crash_point);
    }

    /// It dies by itself no more.
    pub(super) fn remove_fuse(&self) {
        self.0.lock().crash_point = None;
    }

    pub(super) fn is_off(&self) -> bool {
        self.0.lock().is_off
    }

    /// The process is about to do one thing, to its disk or elsewhere.
    ///
    /// # Errors
    /// If the machine is dead, or dies of it.
    pub(super) fn tick(&self, is_disk: bool) -> io::Result<()> {
        let mut state = self.0.lock();
        if let Some(crash_point) = &mut state.crash_point
            && (is_disk || !crash_point.of_disk)
        {
            crash_point.left = crash_point.left.saturating_sub(1);
            if crash_point.left == 0 {
                state.crash_point = None;
                // What was answered before has left.
                state.collect_answers();
                state.is_off = true;
            }
        }
        if state.is_off { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    /// The machine is off.
    pub(super) fn cut(&self) {
        self.0.lock().is_off = true;
    }

    /// A round begins.
    pub(super) fn begin(&self) {
        self.0.lock().spent = Duration::ZERO;
    }

    /// Something takes its time.
    pub(super) fn spend(&self, time: Duration) {
        self.0.lock().spent += time;
    }

    /// A message leaves.
    pub(super) fn send(&self, message: Message<LockTable>) {
        let mut state = self.0.lock();
        let at = state.spent;
        state.done.sent.push((at, message));
    }

    /// A snapshot is to be sent.
    pub(super) fn send_snapshot(&self, to: NodeId, term: Term) {
        let mut state = self.0.lock();
        if !state.is_off {
            state.done.snapshots.push((to, term));
        }
    }

    /// A snapshot is to be written.
    pub(super) fn write_snapshot(&self, snapshot: Snapshot<LockTable>) {
        self.0.lock().done.snapshot = Some(snapshot);
    }

    /// Somebody asks, and will be answered here.
    pub(super) fn open(&self, call: CallId, reply: oneshot::Receiver<Reply>) {
        self.0.lock().open.push((call, reply));
    }

    /// Whether somebody waits for an answer.
    pub(super) fn is_open(&self, call: CallId) -> bool {
        self.0.lock().open.iter().any(|(open, _)| *open == call)
    }

    /// Nobody waits for these answers any more.
    pub(super) fn hang_up(&self, is_over: impl Fn(CallId) -> bool) {
        self.0.lock().open.retain(|(call, _)| !is_over(*call));
    }

    /// What came of what was done since this was last asked.
    pub(super) fn take(&self) -> Done {
        let mut state = self.0.lock();
        if !state.is_off {
            state.collect_answers();
        }
        state.done.spent = std::mem::take(&mut state.spent);
        std::mem::take(&mut state.done)
    }
}

impl State {
    fn collect_answers(&mut self) {
        let State { open, done, .. } = self;
        open.retain_mut(|(call, reply)| match reply.try_recv() {
            Ok(reply) => {
                done.answered.push((*call, reply));
                false
            }
            Err(oneshot::error::TryRecvError::Empty) => true,
            // Dropped without an answer: its connection is gone.
            Err(oneshot::error::TryRecvError::Closed) => false,
        });
    }
}
