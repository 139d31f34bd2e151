//! No foreign change: a request without the proof of a session changes nothing.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::{Check, EntryStep, Property};
use crate::lock::{Command, SessionId, Writer};
use crate::raft::StateMachine;
use crate::require;

/// Compares the table before and after a command: it may change nothing in the name of a session that
/// does not exist, whatever number it names. What may change is the work of time
/// ([`EntryStep::found`]: due holders of the keys end) and, of a keepalive of several sessions, the
/// deadlines of those that exist.
///
/// A stranger knows all numbers, keys and tokens, and no proof. So this says that a session is
/// changed only by its own client, by its deadline, by its turn in a queue, and by an operator who
/// breaks its grant: a break is no request of a client, and names no session.
pub fn no_foreign_change(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, at, command, after, .. } = *step;
    let Some(command) = command else { return Ok(()) };
    let exists = |id: &SessionId| before.session(*id).is_some();
    let expected = match command {
        Command::Close { session }
        | Command::Acquire { session, .. }
        | Command::Release { session, .. }
        | Command::Proclaim { session, .. }
        | Command::Transact { writer: Writer::Session { session, .. }, .. } => {
            if exists(session) {
                return Ok(());
            }
            Cow::Borrowed(step.found())
        }
        Command::KeepAlive { sessions } => {
            if sessions.iter().all(exists) {
                return Ok(());
            }
            let mut renewed = before.clone();
            let sessions: Vec<SessionId> = sessions.iter().copied().filter(exists).collect();
            renewed.apply(at, &Command::KeepAlive { sessions });
            Cow::Owned(renewed)
        }
        Command::Open { .. }
        | Command::AcquireOnce { .. }
        | Command::Break { .. }
        | Command::SetAccess { .. }
        | Command::Transact { writer: Writer::Client(_), .. } => return Ok(()),
    };
    require!(Property::NoForeignChange, *expected == *after, "{command:?} of no session changed the table")
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::{EntryStep, no_foreign_change};
    use crate::invariants::states::{acquire, acquire_all, complaint, id, opened, put, table, under};
    use crate::lock::{Claim, Command, LockRequest, LockTable, Mode, Proof, Sequence, SessionId, Token, Writer};
    use crate::raft::{Stamp, StateMachine};

    /// The number of a session that exists, with another proof.
    fn forged(number: u64) -> SessionId {
        SessionId { proof: Proof::from(1), ..id(number) }
    }

    /// Session 1 holds k with token 1, session 2 waits for it.
    fn victims() -> LockTable {
        let mut table = table(2);
        table.apply(Stamp(0), &acquire(1, 1, "k"));
        table.apply(Stamp(0), &acquire(2, 1, "k"));
        table
    }

    /// All that a stranger can ask for in the name of session 1, as session 1 and as itself.
    fn commands(session: SessionId) -> [Command; 8] {
        let sequence = Sequence::new(u64::MAX);
        let release = |claim| Command::Release { session, sequence, keys: "k".into(), claim };
        [
            Command::Close { session },
            Command::KeepAlive { sessions: [id(2), session].into() },
            Command::Acquire { session, sequence: None, request: LockRequest::exclusive("l", false) },
            Command::Proclaim { session, sequence, key: "k".into(), token: Token(1), value: "v".into() },
            Command::Transact {
                writer: Writer::Session { session, sequence },
                transaction: under(&[put("r", "x")], &[("k", 1)]),
            },
            release(Claim::Held(Token(1))),
            release(Claim::Waiting),
            release(Claim::Either),
        ]
    }

    /// The detail of the violation if `asked` were executed as `done`.
    fn judge(asked: &Command, done: &Command, at: u64) -> String {
        let (before, mut after) = (victims(), victims());
        let outcome = after.apply(Stamp(at), done);
        complaint(no_foreign_change(&EntryStep::new(&before, Stamp(at), Some(asked), &outcome, &after)))
    }

    #[test]
    fn change_in_the_name_of_another_session_is_seen() {
        for (asked, done) in commands(forged(1)).iter().zip(&commands(id(1))) {
            assert_eq!(judge(asked, asked, 50), "");
            assert!(judge(asked, done, 50).ends_with("of no session changed the table"), "{asked:?}");
        }
    }

    #[test]
    fn session_may_change_what_is_its_own() {
        for own in &commands(id(1)) {
            assert_eq!(judge(own, own, 50), "");
        }
    }

    /// A command that names a key ends the key's holder if that is due, also if a stranger sends it. A close
    /// or a keepalive names no key.
    #[test]
    fn time_passes_at_a_foreign_request_too() {
        for asked in &commands(forged(1)) {
            assert_eq!(judge(asked, asked, 101), "");
        }
        let asked = Command::Release { session: forged(1), sequence: None, keys: "k".into(), claim: Claim::Either };
        assert!(judge(&asked, &Command::Close { session: id(1) }, 100).ends_with("changed the table"));
        assert_eq!(judge(&asked, &Command::Close { session: id(1) }, 101), "");
        assert!(judge(&Command::Close { session: forged(1) }, &asked, 101).ends_with("changed the table"));
    }

    /// Session 1 holds k and l by two claims, session 2 holds m, and both are due. Ending session 1 costs three.
    #[test]
    fn due_holder_of_two_keys_is_the_work_of_one() {
        let asked = match acquire_all(1, &["k", "l", "m"], Mode::EXCLUSIVE) {
            Command::Acquire { request, .. } => Command::Acquire { session: forged(1), sequence: None, request },
            _ => unreachable!(),
        };
        for (sweep, left) in [(3, 1), (4, 0)] {
            let mut before = opened(LockTable::sweeping(sweep), 2);
            for (session, name) in [(1, "k"), (1, "l"), (2, "m")] {
                before.apply(Stamp(0), &acquire(session, 0, name));
            }
            let mut after = before.clone();
            let outcome = after.apply(Stamp(101), &asked);
            assert_eq!(after.sessions().len(), left, "a sweep of {sweep}");
            let step = EntryStep::new(&before, Stamp(101), Some(&asked), &outcome, &after);
            assert_eq!(complaint(no_foreign_change(&step)), "");
        }
    }
}
