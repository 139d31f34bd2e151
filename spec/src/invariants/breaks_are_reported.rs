//! Breaks are reported: an observer learns of every grant that an operator breaks, and of no other
//! break.

use super::{Check, EntryStep, Property, permitted};
use crate::lock::{Command, Event, Key, Reply, Right};
use crate::require;

/// Compares the reply and the events of an entry with the grant that its command breaks.
///
/// A command breaks a grant if the key is held with the token that it names, by a holder that is due
/// or not, and if the rules in force permit it for every key of the grant. Then the first events name each key of the grant, the
/// holder and the token, the releases of that grant follow, and the reply names the holder and its
/// client. In all other cases there is neither such an event nor such a reply.
pub fn breaks_are_reported(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, command, outcome, .. } = *step;
    let broken = match command {
        Some(Command::Break { key, token, principal }) => {
            let rules = before.access().rules().map(|rules| &**rules);
            let holder = before.lock(key).and_then(|lock| lock.holder_with(*token));
            let grant = holder.map(|holder| (holder.all_keys(key), holder.session, *token));
            let may_break = |key: &Key| permitted(rules, principal, Right::Break, key.as_str());
            grant.filter(|(keys, ..)| keys.iter().all(may_break))
        }
        _ => None,
    };
    let reported = outcome.events.iter().filter(|event| matches!(event, Event::Broken { .. })).count();
    let replies = matches!(outcome.reply, Some(Reply::Broken { .. }));
    let is_told = match broken {
        None => reported == 0 && !replies,
        Some((keys, session, token)) => {
            let principal = before.session(session).map(|session| session.principal.clone()).unwrap_or_default();
            let broken = keys.iter().map(|key| Event::Broken { key: key.clone(), session, token });
            let mut released = keys.iter().map(|key| Event::Released { key: key.clone(), session, token });
            reported == keys.len()
                && outcome.events.iter().take(reported).cloned().eq(broken)
                && released.all(|event| outcome.events.contains(&event))
                && outcome.reply == Some(Reply::Broken { session, principal })
        }
    };
    require!(
        Property::BreaksAreReported,
        is_told,
        "{command:?} had the reply {:?} and the events {:?}",
        outcome.reply,
        outcome.events
    )
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::sync::Arc;
    use alloc::vec;

    use super::{EntryStep, breaks_are_reported};
    use crate::invariants::states::{acquire, complaint, id, key, table};
    use crate::lock::{Command, Event, LockTable, Outcome, Principal, Reply, Revision, Rules, Token};
    use crate::raft::{Stamp, StateMachine};

    /// Session 1 holds k with token 1 and l with token 2, session 2 waits for k.
    fn held() -> LockTable {
        let mut table = table(2);
        for command in [acquire(1, 0, "k"), acquire(1, 0, "l"), acquire(2, 0, "k")] {
            table.apply(Stamp(0), &command);
        }
        table
    }

    fn breaks(name: &str, token: u64) -> Command {
        Command::Break { key: key(name), token: Token(token), principal: Principal::default() }
    }

    /// The complaint if the command, or time alone, has this effect on the table.
    fn judge_in(before: &LockTable, command: Option<&Command>, outcome: &Outcome) -> String {
        complaint(breaks_are_reported(&EntryStep::new(before, Stamp(0), command, outcome, before)))
    }

    /// The complaint if the command has this effect.
    fn judge(command: &Command, outcome: &Outcome) -> String {
        judge_in(&held(), Some(command), outcome)
    }

    fn outcome(command: &Command) -> Outcome {
        held().apply(Stamp(0), command)
    }

    #[test]
    fn what_the_table_reports_is_right() {
        for at in [0, 101] {
            for command in [breaks("k", 1), breaks("l", 2), breaks("k", 2), breaks("l", 1), breaks("m", 1)] {
                let outcome = held().apply(Stamp(at), &command);
                assert_eq!(judge(&command, &outcome), "", "{command:?}");
            }
        }
        assert_eq!(judge(&Command::Close { session: id(1) }, &outcome(&Command::Close { session: id(1) })), "");
        assert_eq!(judge_in(&held(), None, &held().advance(Stamp(101))), "");
    }

    #[test]
    fn break_that_is_not_reported_or_reported_twice_is_seen() {
        let command = breaks("k", 1);
        let right = outcome(&command);
        assert!(matches!(right.events[0], Event::Broken { .. }));
        let (mut missing, mut twice, mut late) = (right.clone(), right.clone(), right.clone());
        missing.events.remove(0);
        twice.events.push(right.events[0].clone());
        late.events.swap(0, 1);
        let mut kept = right.clone();
        kept.events.retain(|event| !matches!(event, Event::Released { .. }));
        for wrong in [missing, twice, late, kept] {
            assert!(judge(&command, &wrong).contains("had the reply Some(Broken"), "{wrong:?}");
        }
    }

    #[test]
    fn break_with_another_key_holder_or_token_is_seen() {
        let command = breaks("k", 1);
        let right = outcome(&command);
        let event = |name, session, token| Event::Broken { key: key(name), session: id(session), token: Token(token) };
        assert_eq!(right.events[0], event("k", 1, 1));
        for wrong in [event("l", 1, 1), event("k", 2, 1), event("k", 1, 2)] {
            let mut events = right.events.clone();
            events[0] = wrong;
            let wrong = Outcome { events, ..right.clone() };
            assert!(judge(&command, &wrong).contains("had the reply"), "{wrong:?}");
        }
        for reply in [
            Reply::NotHolder,
            Reply::Broken { session: id(2), principal: Principal::default() },
            Reply::Broken { session: id(1), principal: Principal::from("ann") },
        ] {
            let wrong = Outcome { reply: Some(reply), ..right.clone() };
            assert!(judge(&command, &wrong).contains("had the reply"), "{wrong:?}");
        }
    }

    #[test]
    fn break_of_a_lock_that_is_not_held_so_is_seen() {
        let right = outcome(&breaks("k", 1));
        for command in [breaks("k", 2), breaks("l", 1), breaks("m", 1), Command::Close { session: id(1) }] {
            assert!(judge(&command, &right).contains("had the reply"), "{command:?}");
            // The event alone, and the reply alone.
            let event = Outcome { reply: Some(Reply::NotHolder), ..right.clone() };
            let reply = Outcome { events: vec![], ..right.clone() };
            assert!(judge(&command, &event).contains("had the reply"), "{command:?}");
            assert!(judge(&command, &reply).contains("had the reply"), "{command:?}");
        }
    }

    #[test]
    fn break_that_the_rules_deny_is_none() {
        let command = breaks("k", 1);
        let right = outcome(&command);
        let mut denying = held();
        let (principal, rules) = (Principal::from("admin/eve"), Some(Arc::new(Rules::new(vec![], vec![]))));
        denying.apply(Stamp(0), &Command::SetAccess { principal, revision: Revision(0), rules });
        let denied = denying.clone().apply(Stamp(0), &command);
        assert_eq!(denied.reply, Some(Reply::Denied));
        assert_eq!(judge_in(&denying, Some(&command), &denied), "");
        assert!(judge_in(&denying, Some(&command), &right).contains("had the reply"));
        assert!(judge(&command, &denied).contains("had the reply Some(Denied)"));
    }
}
