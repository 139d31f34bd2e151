//! A node's machine: its power, the messages it has sent, and the callers that wait for its
//! answers.
//!
//! A driver iteration is one call, but it does not happen in one moment: its sync takes time, and
//! the machine may crash between any two effects. So every effect of the driver (a write, a sync, a
//! message, an answer) passes through the host, which records the time that the iteration had taken
//! by then. A [`CrashPoint`] powers the machine off at its n-th effect; later effects are lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::wire::{Answer, Failure};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Message, NodeId, Snapshot, Term};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::call::CallId;

/// A node's answer to a client.
pub(super) type Reply = Result<Answer, Failure>;

/// When a machine crashes by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrashPoint {
    /// Effects until the crash.
    pub(super) left: u32,
    /// Count only disk effects.
    pub(super) of_disk: bool,
}

/// One machine, shared by its process, its disk and its transport.
#[derive(Clone, Debug, Default)]
pub(super) struct Host(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_off: bool,
    crash_point: Option<CrashPoint>,
    /// Duration of the present iteration so far.
    spent: Duration,
    /// Callers that wait for an answer.
    open: Vec<(CallId, oneshot::Receiver<Reply>)>,
    done: Done,
}

/// Effects of a driver iteration.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Duration of the iteration.
    pub(super) spent: Duration,
    /// Sent messages, each with its time since the start of the iteration.
    pub(super) sent: Vec<(Duration, Message<LockTable>)>,
    /// Snapshots to send: receiver and term.
    pub(super) snapshots: Vec<(NodeId, Term)>,
    /// A snapshot to write.
    pub(super) snapshot: Option<Snapshot<LockTable>>,
    /// Answered calls.
    pub(super) answered: Vec<(CallId, Reply)>,
}

impl Host {
    /// Powers the machine on, with a fresh state.
    pub(super) fn power_on(&self) {
        *self.0.lock() = State::default();
    }

    /// Sets a crash point.
    pub(super) fn set_crash_point(&self, crash_point: CrashPoint) {
        self.0.lock().crash_point = Some(crash_point);
    }

    /// Removes the crash point.
    pub(super) fn remove_crash_point(&self) {
        self.0.lock().crash_point = None;
    }

    pub(super) fn is_off(&self) -> bool {
        self.0.lock().is_off
    }

    /// Counts one effect of the process, on its disk or elsewhere.
    ///
    /// # Errors
    /// The machine is off, or this effect was its crash point.
    pub(super) fn tick(&self, is_disk: bool) -> io::Result<()> {
        let mut state = self.0.lock();
        if let Some(crash_point) = &mut state.crash_point
            && (is_disk || !crash_point.of_disk)
        {
            crash_point.left = crash_point.left.saturating_sub(1);
            if crash_point.left == 0 {
                state.crash_point = None;
                // Answers given before the crash have left the machine.
                state.collect_answers();
                state.is_off = true;
            }
        }
        if state.is_off { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    /// Powers the machine off.
    pub(super) fn cut(&self) {
        self.0.lock().is_off = true;
    }

    /// Starts a driver iteration.
    pub(super) fn begin(&self) {
        self.0.lock().spent = Duration::ZERO;
    }

    /// Adds to the duration of the iteration.
    pub(super) fn spend(&self, time: Duration) {
        self.0.lock().spent += time;
    }

    /// Sends a message.
    pub(super) fn send(&self, message: Message<LockTable>) {
        let mut state = self.0.lock();
        let at = state.spent;
        state.done.sent.push((at, message));
    }

    /// Requests a snapshot transfer.
    pub(super) fn send_snapshot(&self, to: NodeId, term: Term) {
        let mut state = self.0.lock();
        if !state.is_off {
            state.done.snapshots.push((to, term));
        }
    }

    /// Requests the writing of a snapshot.
    pub(super) fn write_snapshot(&self, snapshot: Snapshot<LockTable>) {
        self.0.lock().done.snapshot = Some(snapshot);
    }

    /// Registers a caller that waits for an answer.
    pub(super) fn open(&self, call: CallId, reply: oneshot::Receiver<Reply>) {
        self.0.lock().open.push((call, reply));
    }

    /// Whether the caller of `call` waits for an answer.
    pub(super) fn is_open(&self, call: CallId) -> bool {
        self.0.lock().open.iter().any(|(open, _)| *open == call)
    }

    /// Removes callers that have hung up.
    pub(super) fn hang_up(&self, is_over: impl Fn(CallId) -> bool) {
        self.0.lock().open.retain(|(call, _)| !is_over(*call));
    }

    /// Takes the effects since the last call.
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
            // Dropped without an answer: the connection is closed.
            Err(oneshot::error::TryRecvError::Closed) => false,
        });
    }
}
