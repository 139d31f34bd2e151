//! Exactly once: a repeated operation changes nothing.

use super::{Check, require};
use crate::lock::{Command, LockTable};
use crate::raft::{Stamp, StateMachine};

/// Compares a table before and after `command` was applied at `at`: if the session has seen the operation's number,
/// or a greater one, only time may have passed.
pub fn exactly_once(before: &LockTable, at: Stamp, command: &Command, after: &LockTable) -> Check {
    let (session, sequence) = match command {
        Command::Acquire { session, sequence, .. } | Command::Release { session, sequence, .. } => {
            (*session, *sequence)
        }
        Command::Open { .. } | Command::Close { .. } | Command::KeepAlive { .. } | Command::AcquireOnce { .. } => {
            return Ok(());
        }
    };
    let repeated = sequence.is_some() && before.session(session).is_some_and(|session| session.last >= sequence);
    if repeated {
        let mut waited = before.clone();
        waited.advance(at);
        require!("exactly once", &waited == after, "operation {sequence:?} of session {session} was done again");
    }
    Ok(())
}
