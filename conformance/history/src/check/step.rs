//! A step of a history: something that happens at one moment, and what the history shows of its
//! outcome. [`Steps`](super::steps) derives the steps of one key from its operations, and
//! [`FencedLock`](super::fenced_lock::FencedLock) says which of them fit.

use crate::Mode;
use crate::operation::OperationIndex;

/// A session, or an acquire with an unknown session, by its index; at most 128 for one key.
pub(super) type Party = u8;

/// A set of parties, acquires or steps.
pub(super) type Set = u128;

pub(super) fn bit(index: u8) -> Set {
    1 << index
}

/// A step: something that happens at one moment.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Its index among all steps, at most 128.
    pub(super) index: u8,
    pub(super) act: Act,
}

/// The kinds of steps.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// An acquire arrives. `acquire` is its index among the acquires; it waits where the queue has fewer
    /// waiters than `max_queue`. `is_own`: it named no session, so it makes the claim of its answer itself.
    Acquire { party: Party, acquire: u8, mode: Mode, max_queue: u32, adds: Adds, is_own: bool },
    /// An acquire is answered with its grant.
    Granted { acquire: u8 },
    /// An acquire's wait ends without a grant.
    GiveUp { acquire: u8 },
    /// An acquire is refused because its session is gone.
    RefuseGone { party: Party, acquire: u8 },
    /// An acquire whose client no longer waits may lose its queue position.
    Abandon { acquire: u8 },
    /// An acquire is denied by the access rules: when it arrives, or when its turn comes.
    Deny { acquire: u8 },
    /// A holder gives a hold back.
    Release { party: Option<Party>, token: u64, operation: OperationIndex },
    /// A later sending of this release or withdrawal is answered with the holds that are left; `token` is that of the
    /// release.
    Holds { party: Option<Party>, token: Option<u64>, holds: u32, operation: OperationIndex },
    /// An operator breaks a grant. `holder` is the session that the answer names.
    Break { token: u64, holder: Option<Shown> },
    /// A session whose grant was broken ends, if it has no claim left.
    EndBroken { party: Party },
    /// A session gives up its wait, or gives a hold back.
    Withdraw { party: Party, operation: OperationIndex },
    /// A session is closed.
    Close { party: Party },
    /// A client asks whether a session lives.
    Look { party: Party },
    /// A session's deadline passes.
    Due { party: Party },
    /// A due session is swept.
    Sweep { party: Party },
    /// A client reads the lock.
    Read,
    /// A stale read shows that these acquires had been granted.
    Seen { acquires: Set },
    /// An impossible step.
    Never,
}

impl Act {
    /// Whether the step never changes the state. Such steps are tried first.
    pub(super) fn is_read_only(&self) -> bool {
        matches!(
            self,
            Act::Look { .. }
                | Act::Read
                | Act::Granted { .. }
                | Act::Seen { .. }
                | Act::RefuseGone { .. }
                | Act::Holds { .. }
        )
    }
}

/// When an acquire of what its session holds already adds a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adds {
    /// Never: it is not reentrant.
    Nothing,
    /// The first time, if the session did not hold it by this acquire: it has a number.
    Once,
    /// Each time that it arrives.
    Each,
}

/// What the history shows of a step's outcome.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Seen {
    /// Nothing, not even whether it happened.
    Unknown,
    /// The step was done.
    Done,
    /// This many sessions are ahead of the acquire.
    Queued(u64),
    /// The acquire does not wait, and the first holder has this token; `None`: others wait.
    Held(Option<u64>),
    /// The session does not hold the lock.
    NotHolder,
    /// The claim has this many holds left; with none it is gone.
    Left(u32),
    /// The step was done, if there was something to do.
    DoneIfHeld,
    /// Whether the session lives.
    Lives(bool),
    /// The lock's holders, each with its token, and its queue.
    Lock(Vec<(Shown, u64, Mode)>, Vec<Shown>),
}

/// A session that a read showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shown {
    /// The party with this session name.
    pub(super) party: Option<Party>,
    /// Whether it may be the session of an acquire with an unknown session.
    pub(super) may_be_nameless: bool,
}
