//! Exactly once: a repeated operation changes nothing.

use super::{Check, EntryStep, Property};
use crate::lock::{Command, Writer};
use crate::require;

/// Compares the table before and after a command: if the session has seen the operation's number, or a
/// greater one, the command may have no effect but the passing of time. Time ends the holder of the key
/// if it is due, as closing its session would.
pub fn exactly_once(step: &EntryStep<'_>) -> Check {
    let Some(command) = step.command else { return Ok(()) };
    let (session, sequence) = match command {
        Command::Acquire { session, sequence, .. }
        | Command::Release { session, sequence, .. }
        | Command::Proclaim { session, sequence, .. }
        | Command::Transact { writer: Writer::Session { session, sequence }, .. } => (*session, *sequence),
        Command::Open { .. }
        | Command::Close { .. }
        | Command::KeepAlive { .. }
        | Command::AcquireOnce { .. }
        | Command::Break { .. }
        | Command::SetAccess { .. }
        | Command::Transact { writer: Writer::Client(_), .. } => return Ok(()),
    };
    require!(
        Property::ExactlyOnce,
        !step.is_repeated(session, sequence) || step.found() == step.after,
        "operation {sequence:?} of session {session} was done again"
    )
}

#[cfg(test)]
mod tests {
    use super::{EntryStep, exactly_once};
    use crate::invariants::states::{acquire, complaint, id, put, table, under};
    use crate::lock::{Command, LockTable, Sequence, Token, Writer};
    use crate::raft::{Stamp, StateMachine};

    /// The detail of the violation if `asked` were executed as `done`.
    fn judge(before: &LockTable, asked: &Command, done: &Command) -> alloc::string::String {
        let mut after = before.clone();
        let outcome = after.apply(Stamp(50), done);
        complaint(exactly_once(&EntryStep::new(before, Stamp(50), Some(asked), &outcome, &after)))
    }

    #[test]
    fn operation_that_is_done_again_is_seen() {
        let mut before = table(2);
        before.apply(Stamp(0), &acquire(1, 5, "k"));
        let new = acquire(1, 6, "l");
        for sequence in [4, 5] {
            let repeated = acquire(1, sequence, "l");
            assert_eq!(judge(&before, &repeated, &repeated), "");
            assert!(judge(&before, &repeated, &new).ends_with("of session 1.0 was done again"));
            let release = Command::Release {
                session: id(1),
                sequence: crate::lock::Sequence::new(sequence),
                keys: "k".into(),
                claim: crate::lock::Claim::Held(Token(1)),
            };
            assert!(judge(&before, &release, &new).ends_with("of session 1.0 was done again"));
        }
    }

    #[test]
    fn transaction_that_is_done_again_is_seen() {
        let write = |sequence| {
            let writer = Writer::Session { session: id(1), sequence: Sequence::new(sequence) };
            Command::Transact { writer, transaction: under(&[put("r", "x")], &[]) }
        };
        let mut before = table(1);
        before.apply(Stamp(0), &write(5));
        assert_eq!(judge(&before, &write(5), &write(5)), "");
        assert!(judge(&before, &write(5), &write(6)).ends_with("of session 1.0 was done again"));
        assert_eq!(judge(&before, &write(6), &write(6)), "");
    }

    #[test]
    fn operation_that_is_new_may_change_the_table() {
        let mut before = table(2);
        before.apply(Stamp(0), &acquire(1, 5, "k"));
        for new in [acquire(1, 6, "l"), acquire(1, 0, "l"), acquire(2, 1, "l"), Command::Close { session: id(1) }] {
            assert_eq!(judge(&before, &new, &new), "");
        }
    }

    /// The holder of k is due, and a waiter repeats its acquire.
    #[test]
    fn time_passes_at_a_repetition_too() {
        let mut before = table(2);
        before.apply(Stamp(0), &acquire(1, 1, "k"));
        before.apply(Stamp(0), &acquire(2, 1, "k"));
        before.apply(Stamp(50), &Command::KeepAlive { sessions: [id(2)].into() });
        let repeated = acquire(2, 1, "k");
        let mut after = before.clone();
        let outcome = after.apply(Stamp(101), &repeated);
        assert_eq!(after.lock(&"k".into()).unwrap().holders[0].session, id(2));
        let judge = |at, after: &LockTable| {
            complaint(exactly_once(&EntryStep::new(&before, Stamp(at), Some(&repeated), &outcome, after)))
        };
        assert_eq!(judge(101, &after), "");
        assert!(judge(100, &after).ends_with("was done again"));
        assert!(judge(101, &before).ends_with("was done again"));
        // At its deadline a session is not due yet, so nothing may end it.
        let mut ended = before.clone();
        ended.apply(Stamp(100), &Command::Close { session: id(1) });
        assert!(judge(100, &ended).ends_with("was done again"));
    }

    /// A session that does not exist has no window.
    #[test]
    fn operation_without_session_is_not_checked() {
        let before = table(2);
        assert_eq!(judge(&before, &acquire(3, 1, "k"), &acquire(1, 1, "k")), "");
        assert_eq!(judge(&before, &acquire(3, 0, "k"), &acquire(1, 1, "k")), "");
    }
}
