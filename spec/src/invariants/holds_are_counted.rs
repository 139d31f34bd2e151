//! Holds are counted: a grant has one hold, and one more for each reentrant acquire that was not released.

use super::{Check, EntryStep, Property, keys_asked_for, side_by_side};
use crate::lock::{Command, Holder, Key, Reply};
use crate::require;

const NAME: Property = Property::HoldsAreCounted;

/// Compares the holds of the grants before and after an entry, at the keys that its command is about and
/// at those that changed. What counts as before is the table as the command finds it: time may grant the
/// session a lock before its command is executed.
///
/// A new grant has one hold. A reentrant acquire that is new, and was answered with a grant that the
/// session had when the command came, adds one. A release that is new, and was answered with the number of
/// holds left, takes one, and leaves that number; one that was answered as the end of the claim took the
/// last. Nothing else changes a number of holds.
pub fn holds_are_counted(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, command, outcome, after, .. } = step;
    let asked = command.map_or(&[][..], keys_asked_for);
    let is_about = |key: &Key| asked.contains(key);
    let locks = side_by_side(before.locks(), after.locks());
    let changed = locks.filter(|(key, was, is)| is_about(key) || was != is);
    for (key, _, lock) in changed {
        for Holder { session, token, holds, .. } in lock.into_iter().flat_map(|lock| lock.holders.iter()) {
            let had = step.found().lock(key).and_then(|lock| lock.holder_with(*token)).map_or(0, |holder| holder.holds);
            let expected = match (command, &outcome.reply) {
                _ if had == 0 => 1,
                (
                    Some(Command::Acquire { session: asking, sequence, request }),
                    Some(Reply::Granted { session: granted, token: with }),
                ) if asking == session && granted == session && with == token && request.reentrant => {
                    had.saturating_add(u32::from(is_about(key) && !step.is_repeated(*asking, *sequence)))
                }
                (
                    Some(Command::Release { session: releasing, sequence, .. }),
                    Some(Reply::StillHeld { holds: left }),
                ) if releasing == session && is_about(key) => {
                    let taken = u32::from(!step.is_repeated(*releasing, *sequence));
                    require!(NAME, left + taken == had, "{left} holds of {had} are said to be left")?;
                    *left
                }
                _ => had,
            };
            require!(NAME, *holds == expected, "session {session} has {holds} holds of {key}, not {expected}")?;
        }
    }
    if let (Some(Command::Release { session, keys, .. }), Some(Reply::Released)) = (command, &outcome.reply) {
        let held =
            step.found().lock(keys.first()).and_then(|lock| lock.holder(*session)).map_or(1, |holder| holder.holds);
        require!(NAME, held == 1, "session {session} released {keys} at once, and had {held} holds")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::{EntryStep, holds_are_counted};
    use crate::invariants::states::{complaint, id, key, table};
    use crate::lock::{Claim, Command, LockRequest, LockTable, Mode, Outcome, Reply, Sequence, SessionId, Token};
    use crate::raft::{Stamp, StateMachine};

    fn acquire(sequence: u64, reentrant: bool) -> Command {
        let request = LockRequest { reentrant, ..LockRequest::exclusive("k", true) };
        Command::Acquire { session: id(1), sequence: Sequence::new(sequence), request }
    }

    fn release(sequence: u64) -> Command {
        let sequence = Sequence::new(sequence);
        Command::Release { session: id(1), sequence, keys: "k".into(), claim: Claim::Held(Token(1)) }
    }

    /// Session 1 holds k twice.
    fn held() -> LockTable {
        let mut table = table(2);
        for sequence in [1, 2] {
            table.apply(Stamp(0), &acquire(sequence, true));
        }
        table
    }

    /// The complaint if the command leaves this number of holds, or no holder.
    fn judge(command: &Command, holds: Option<u32>, reply: Reply) -> String {
        let (before, mut after) = (held(), held());
        match holds {
            Some(holds) => after.parts().locks.get_mut(&key("k")).unwrap().holders.at(0).holds = holds,
            None => drop(after.apply(Stamp(0), &Command::Close { session: id(1) })),
        }
        let outcome = Outcome { reply: Some(reply), events: [].into() };
        complaint(holds_are_counted(&EntryStep::new(&before, Stamp(0), Some(command), &outcome, &after)))
    }

    #[test]
    fn hold_that_is_lost_or_made_up_is_seen() {
        let granted = || Reply::Granted { session: id(1), token: Token(1) };
        for (command, holds) in [(acquire(3, true), 3), (acquire(3, false), 2), (acquire(2, true), 2)] {
            for counted in 1..=4 {
                let complaint = judge(&command, Some(counted), granted());
                assert_eq!(complaint.is_empty(), counted == holds, "{command:?}, {counted}: {complaint}");
            }
        }
    }

    /// What the command does to a table, judged.
    fn right(before: &LockTable, at: Stamp, command: &Command) -> String {
        let mut after = before.clone();
        let outcome = after.apply(at, command);
        complaint(holds_are_counted(&EntryStep::new(before, at, Some(command), &outcome, &after)))
    }

    #[test]
    fn hold_that_no_command_was_about_stays() {
        let keeps = Command::KeepAlive { sessions: [id(1)].into() };
        for holds in 1..=4 {
            assert_eq!(judge(&keeps, Some(holds), Reply::KeptAlive { missing: [].into() }).is_empty(), holds == 2);
        }
    }

    /// Session 1 holds k until it is due; session 2 waits, and asks again when its turn has come.
    #[test]
    fn lock_that_time_grants_is_held_twice_by_a_reentrant_acquire() {
        let again = |session: SessionId, sequence| {
            let request = LockRequest { reentrant: true, ..LockRequest::exclusive("k", true) };
            Command::Acquire { session, sequence: Sequence::new(sequence), request }
        };
        let mut before = table(2);
        for command in [again(id(1), 1), again(id(2), 1)] {
            before.apply(Stamp(0), &command);
        }
        let (due, asks) = (Stamp(101), again(id(2), 2));
        before.apply(Stamp(50), &Command::KeepAlive { sessions: [id(2)].into() });
        let mut after = before.clone();
        after.apply(due, &asks);
        let holds = after.lock(&key("k")).and_then(|lock| lock.holder(id(2))).map(|holder| holder.holds);
        assert_eq!((holds, right(&before, due, &asks)), (Some(2), String::new()));
    }

    /// Sessions 1 and 2 share k and hold it twice and three times.
    #[test]
    fn release_takes_no_hold_of_another_session() {
        let mut before = table(2);
        for (session, times) in [(1, 2), (2, 3)] {
            for sequence in 1..=times {
                let request = LockRequest { reentrant: true, mode: Mode::SHARED, ..LockRequest::exclusive("k", true) };
                let sequence = Sequence::new(sequence);
                before.apply(Stamp(0), &Command::Acquire { session: id(session), sequence, request });
            }
        }
        assert_eq!(right(&before, Stamp(0), &release(3)), "");
    }

    #[test]
    fn release_takes_one_hold() {
        // The second one was done before: it takes none.
        for (release, left) in [(release(3), 1), (release(2), 2)] {
            for (holds, said) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
                let complaint = judge(&release, Some(holds), Reply::StillHeld { holds: said });
                let is_right = (holds, said) == (left, left);
                assert_eq!(complaint.is_empty(), is_right, "{holds} are left, {said} are said to be: {complaint}");
            }
        }
        assert!(judge(&release(3), None, Reply::Released).ends_with("released k at once, and had 2 holds"));
    }
}
