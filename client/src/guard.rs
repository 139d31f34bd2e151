//! A held lock, as its holder sees it.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::clock::BootInstant;
use crate::engine::{Command, LONGEST_CLAIM, Write};
use crate::error::{check_length, unexpected};
use crate::lease::LeaseReader;
use crate::wire::{Answer, FRAME_BYTES, Keys, SessionId, Transaction};
use crate::{Error, codec};

/// What a holder's transaction has on the wire beside itself, in bytes, at most: the request's ID, the session and its
/// number, and the condition that a lock, with a key of up to 512 bytes, is held.
const BESIDE_TRANSACTION: usize = 1024;

/// A held lock, or several that were acquired together. The client keeps its session alive in the background until the
/// guard is released, dropped or lost.
///
/// Dropping it releases the lock in the background, without blocking; [`Guard::release`] also reports the outcome.
///
/// A grant may have several guards, see [`Guard::hold_again`]: each has one hold, and the lock is free when the last one
/// is released or dropped.
#[must_use = "the lock is held as long as its guard lives: a guard that is dropped releases it at once"]
pub struct Guard {
    pub(crate) claim: u64,
    pub(crate) keys: Keys,
    pub(crate) token: u64,
    pub(crate) signed: Vec<String>,
    pub(crate) session: SessionId,
    pub(crate) lease: LeaseReader,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    /// This guard has no hold to release: its acquire is pending, or it was released.
    pub(crate) released: bool,
}

impl Guard {
    /// The lock's key; of several locks, the first.
    pub fn key(&self) -> &str {
        self.keys().first().map_or("", String::as_str)
    }

    /// The keys of all its locks.
    pub fn keys(&self) -> &[String] {
        self.keys.as_slice()
    }

    /// The fencing token: greater than that of every earlier grant in the cluster. Hand it to the resource that the
    /// lock protects; the resource refuses a token lower than the highest it has seen. docs/fencing.md says how a resource
    /// treats the tokens of holders that share a lock.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The token with the cluster's signature (docs/fencing.md), if the node that granted the lock signs; of several locks,
    /// that for [`key`](Guard::key). A resource that verifies it believes no token that a client made up.
    pub fn signed_token(&self) -> Option<&str> {
        self.signed.first().map(String::as_str)
    }

    /// The signed token for each of [`keys`](Guard::keys), in their order; empty if the node does not sign.
    pub fn signed_tokens(&self) -> &[String] {
        &self.signed
    }

    /// The credential of the session that holds the lock. Only the guards of this grant use it, and it is a secret: a
    /// process that has it can release the lock.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Whether the lock is certainly still held: the clock is compared now, so the answer is right even after the
    /// process was stopped and all timers are late. So it is after the machine was suspended, where the system has a
    /// clock that counts that: Linux and Android, see [`BootInstant`]. A virtual machine that was paused from outside, and
    /// whose clocks were, cannot know; the token protects from that, see [`Guard::token`].
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the lock is certainly still held if no node can be reached from now on; zero once it is lost. The rest of
    /// the lease after that is the safety margin, see [`margin`](crate::margin).
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// The moment at which [`Guard::remaining`] ends; `None` once the lock is lost. Other processes of the
    /// machine can use it: it is a moment of the machine's clock, not of this process.
    pub fn trusted_until(&self) -> Option<BootInstant> {
        self.lease.trusted_until()
    }

    /// Resolves when the lock can no longer be trusted: a safety margin (see [`margin`](crate::margin)) before the lease
    /// could end, or as soon as the server says that the session is gone. Meant for `tokio::select!` beside the work.
    ///
    /// If the machine is suspended, and the lock lost when it resumes, this resolves at most 200 ms after the resume.
    ///
    /// The future borrows nothing. When all guards of the grant are released or dropped before, it never resolves.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.lease.lost()
    }

    /// Holds the lock once more: for code that is called under the lock, and takes it as well. The new guard has the same
    /// session, token and lease, and its own hold, which the cluster counts
    /// ([`HolderView::holds`](crate::wire::HolderView::holds)); guards are released in any order, and the lock is free when
    /// none is left. One keep-alive serves them all, and what loses the lock, such as a break, takes it from all.
    ///
    /// Only a guard can hold again: [`Client::lock`](crate::Client::lock) always asks with another session, and so waits
    /// for this one. The new guard shares the lock as this one does, and the value stays.
    ///
    /// If the future is dropped half-way, a hold that it led to is given back in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is no longer held by this guard, or cannot be trusted any more.
    /// [`Error::Unreachable`] if no leader answered in time: the client gives back a hold that the cluster counts later.
    /// [`Error::Refused`]; [`Error::Closed`], also after [`Client::close`](crate::Client::close).
    pub async fn hold_again(&self) -> Result<Guard, Error> {
        let (reply, answer) = oneshot::channel();
        let guard = Guard {
            claim: self.claim,
            keys: self.keys.clone(),
            token: self.token,
            signed: self.signed.clone(),
            session: self.session,
            lease: self.lease.clone(),
            commands: self.commands.clone(),
            released: true,
        };
        self.commands.send(Command::Hold { guard, reply }).map_err(|_| Error::Closed)?;
        self.outcome(answer).await
    }

    /// Replaces the value of the lock ([`LockOptions::value`](crate::LockOptions::value)), which other clients read: in an
    /// election, what the leader says. It takes effect once, or not at all, and never after a later one of this guard.
    ///
    /// After an error, or if the future is dropped half-way, the value is the old one or this one. Of several guards of a
    /// grant, each may replace it: the values come one after the other.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is no longer held by this guard, or cannot be trusted any more.
    /// [`Error::Unreachable`] if no leader answered in time, whether or not the value was sent; [`Error::Refused`] for a
    /// value that is too long, and as everywhere; [`Error::Closed`].
    pub async fn proclaim(&mut self, value: impl Into<String>) -> Result<(), Error> {
        match self.write(Write::Value(value.into())).await? {
            Answer::Proclaimed => Ok(()),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Changes records, all or none, and returns the version that they have then: only if this guard holds its lock at that
    /// very moment, and once, however often the request has to be sent. So no record is changed by a holder that has lost
    /// its lock, whatever clocks do.
    ///
    /// A transaction has one condition more than it says, that the lock is held: so at most 31 of its own conditions and
    /// changes. If the future is dropped half-way, the changes may be made, or not, and never after later ones of this
    /// guard.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is no longer held by this guard, or cannot be trusted any more: nothing was changed,
    /// unless an attempt whose answer was lost has done it before. [`Error::Refused`] with [`Code::Gone`](crate::wire::Code)
    /// if such an attempt was decided, and no record shows its result: all were deleted, by it or since.
    /// [`Error::UnknownOutcome`] if it was sent, and no node answered in time; [`Error::Unreachable`] if it was not sent in
    /// time: nothing was changed. [`Error::Refused`] and the others as those of
    /// [`Client::transact`](crate::Client::transact).
    pub async fn transact(&mut self, transaction: Transaction) -> Result<u64, Error> {
        match self.write(Write::Records(transaction)).await? {
            Answer::Written { version } => Ok(version),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    async fn write(&mut self, what: Write) -> Result<Answer, Error> {
        match &what {
            Write::Value(value) => check_length(value.len(), LONGEST_CLAIM)?,
            Write::Records(transaction) => {
                check_length(codec::encoded_length(transaction) + BESIDE_TRANSACTION, FRAME_BYTES)?;
            }
        }
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Write { claim: self.claim, what, reply }).map_err(|_| Error::Closed)?;
        self.outcome(answer).await
    }

    /// What the background task answers: it drops a reply whose lock is lost.
    async fn outcome<T>(&self, answer: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
        let dropped = |_| Err(if self.commands.is_closed() { Error::Closed } else { Error::Lost });
        answer.await.unwrap_or_else(dropped)
    }

    /// Releases the lock, exactly once, and reports whether it was still held. Of several guards of a grant, it gives back
    /// the hold of this one, and the last one releases the lock.
    ///
    /// Dropping the future half-way releases all the same, in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the session had ended or no longer held the lock: work under it may have been done
    /// beside another holder. [`Error::Unreachable`] if no leader answered in time; the release goes on in the background
    /// until the session must have expired. [`Error::Refused`] and [`Error::Closed`] as everywhere.
    pub async fn release(mut self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.released = true;
        self.commands.send(Command::Release { claim: self.claim, reply: Some(reply) }).map_err(|_| Error::Closed)?;
        self.outcome(answer).await
    }
}

impl Guard {
    /// Leaves the lock to the program that is given the session's credential: nothing releases it any more when this
    /// guard is gone. The client renews the session as long as its background task runs; after that, the other program
    /// renews it ([`Client::renew_session`](crate::Client::renew_session)), or it expires.
    ///
    /// Call it on the only guard of a grant. Other guards still use the session, so the lock has two users: each of them
    /// gives back its own hold, and the lock stays held by the hold of this one.
    pub fn into_session(mut self) -> SessionId {
        self.released = true;
        self.session
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            // If the background task is gone, the session expires.
            let _ = self.commands.send(Command::Release { claim: self.claim, reply: None });
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Guard { keys, token, session, .. } = self;
        f.debug_struct("Guard")
            .field("keys", keys)
            .field("token", token)
            .field("session", session)
            .field("remaining", &self.remaining())
            .finish()
    }
}
