//! Values are kept: a claim has the value that its own client gave it last.

use super::{Check, ClaimView, EntryStep, Property, side_by_side};
use crate::lock::{Command, Event, Key, LockTable, Outcome, Reply, Sequence, SessionId, Token, Value};
use crate::require;

const NAME: Property = Property::ValuesAreKept;

/// Compares the values of the claims before and after an entry, at the keys that its command is about and
/// at those that changed.
///
/// A new claim has the value of its acquire. An acquire with a value that keeps a claim, and a
/// proclamation, replace it, unless they were done before. Nothing else changes a value, and a grant has
/// that of the waiter. Every proclamation that was answered as done names a grant of its session, and an
/// event reports each new value of a grant.
pub fn values_are_kept(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, command, outcome, after, .. } = *step;
    let given = command.and_then(|command| given(before, command, outcome));
    let is_about = |key: &Key| given.as_ref().is_some_and(|given| given.keys.iter().any(|of| of == key));
    let locks = side_by_side(before.locks(), after.locks());
    for (key, ..) in locks.filter(|(key, was, is)| is_about(key) || was != is) {
        for claim in ClaimView::all(after, key) {
            let had = ClaimView::of(before, claim.session, key);
            // An entry may end a claim, and begin another one of the same session.
            let had = had.filter(|had| !ends(&outcome.events, key, had.session));
            let (kept, had) = (had.as_ref().and_then(|had| had.token), had.and_then(|had| had.value));
            let expected = match &given {
                Some(given) if given.session == claim.session && is_about(key) => given.value.or(had),
                _ => had,
            };
            let session = claim.session;
            require!(NAME, claim.value == expected, "{key} of {session} has {:?}, not {expected:?}", claim.value)?;
            let is_told = kept.is_none() || claim.value == had || tells(&outcome.events, key, session, kept);
            require!(NAME, is_told, "no event reports the new value of {session} at {key}")?;
        }
    }
    if let (Some(Command::Proclaim { session, key, token, .. }), Some(Reply::Proclaimed)) = (command, &outcome.reply) {
        let is_held = ClaimView::all(after, key).any(|claim| is_grant(&claim, *session, *token));
        require!(NAME, is_held, "session {session} proclaimed a value at {key}, and has no grant {token}")?;
    }
    Ok(())
}

/// Whether the session has lost its claim on the key.
fn ends(events: &[Event], key: &Key, id: SessionId) -> bool {
    events.iter().any(|event| match event {
        Event::Released { key: of, session, .. } | Event::Withdrawn { key: of, session } => (of, *session) == (key, id),
        _ => false,
    })
}

/// Whether an event reports a new value of this grant.
fn tells(events: &[Event], key: &Key, id: SessionId, grant: Option<Token>) -> bool {
    events.iter().any(|event| match event {
        Event::Proclaimed { key: of, session, token, .. } => (of, *session, Some(*token)) == (key, id, grant),
        _ => false,
    })
}

/// The value that a command gives to a claim; `None` as the value keeps the present one.
struct Given<'a> {
    session: SessionId,
    keys: &'a [Key],
    value: Option<&'a Value>,
}

fn given<'a>(before: &'a LockTable, command: &'a Command, outcome: &Outcome) -> Option<Given<'a>> {
    let is_new = |id, sequence: Option<Sequence>| {
        sequence.is_none() || before.session(id).is_some_and(|session| session.last < sequence)
    };
    match (command, outcome.reply.as_ref()?) {
        (Command::Acquire { session, sequence, request }, Reply::Granted { .. } | Reply::Queued { .. })
            if is_new(*session, *sequence) =>
        {
            Some(Given { session: *session, keys: request.keys.as_slice(), value: request.value.as_ref() })
        }
        (Command::AcquireOnce { request, .. }, Reply::Granted { session, .. } | Reply::Queued { session, .. }) => {
            Some(Given { session: *session, keys: request.keys.as_slice(), value: request.value.as_ref() })
        }
        (Command::Proclaim { session, sequence, key, token, value }, _) if is_new(*session, *sequence) => {
            let grant = ClaimView::all(before, key).find(|claim| is_grant(claim, *session, *token));
            let lives = outcome.reply != Some(Reply::NoSession);
            grant.filter(|_| lives).map(|grant| Given { session: *session, keys: grant.keys, value: Some(value) })
        }
        _ => None,
    }
}

fn is_grant(claim: &ClaimView<'_>, session: SessionId, token: Token) -> bool {
    (claim.session, claim.token) == (session, Some(token))
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::{EntryStep, values_are_kept};
    use crate::invariants::states::{acquire, complaint, id, table};
    use crate::lock::{Command, LockRequest, LockTable, Outcome, Reply, Sequence, Token};
    use crate::raft::{Stamp, StateMachine};

    fn campaign(session: u64, sequence: u64, value: Option<&str>) -> Command {
        let request = LockRequest { value: value.map(Into::into), ..LockRequest::exclusive("k", true) };
        Command::Acquire { session: id(session), sequence: Sequence::new(sequence), request }
    }

    fn proclaim(session: u64, sequence: u64, token: u64, value: &str) -> Command {
        let (session, sequence) = (id(session), Sequence::new(sequence));
        Command::Proclaim { session, sequence, key: "k".into(), token: Token(token), value: value.into() }
    }

    /// Session 1 holds k and says a, session 2 waits for it and says b.
    fn election() -> LockTable {
        let mut table = table(3);
        table.apply(Stamp(0), &campaign(1, 1, Some("a")));
        table.apply(Stamp(0), &campaign(2, 1, Some("b")));
        table
    }

    /// The complaint if `asked` were executed as `done`.
    fn judge(asked: &Command, done: &Command) -> String {
        let (before, mut after) = (election(), election());
        let outcome = after.apply(Stamp(50), done);
        complaint(values_are_kept(&EntryStep::new(&before, Stamp(50), Some(asked), &outcome, &after)))
    }

    #[test]
    fn values_of_the_clients_themselves_are_right() {
        for command in [
            campaign(1, 2, Some("c")),
            campaign(1, 2, None),
            campaign(1, 1, Some("c")),
            campaign(2, 2, Some("c")),
            campaign(3, 1, Some("c")),
            proclaim(1, 2, 1, "c"),
            proclaim(1, 1, 1, "c"),
            proclaim(1, 2, 2, "c"),
            proclaim(2, 2, 1, "c"),
            Command::Close { session: id(1) },
        ] {
            assert_eq!(judge(&command, &command), "", "{command:?}");
        }
    }

    #[test]
    fn value_that_is_lost_or_foreign_is_seen() {
        for (asked, done) in [
            (campaign(1, 2, Some("c")), campaign(1, 2, None)),
            (campaign(1, 1, Some("c")), campaign(1, 2, Some("c"))),
            (campaign(2, 2, Some("c")), campaign(2, 2, Some("d"))),
            (campaign(3, 1, Some("c")), campaign(3, 1, None)),
            (proclaim(1, 2, 1, "c"), proclaim(1, 2, 1, "d")),
            (proclaim(1, 2, 1, "c"), campaign(1, 2, None)),
            (proclaim(1, 1, 1, "c"), proclaim(1, 2, 1, "c")),
            (proclaim(2, 2, 1, "c"), proclaim(1, 2, 1, "c")),
            (acquire(3, 1, "l"), campaign(1, 2, Some("c"))),
        ] {
            assert_ne!(judge(&asked, &done), "", "{asked:?} done as {done:?}");
        }
    }

    /// The entry ends a claim that time or the rules end, and begins another one of the same session.
    #[test]
    fn value_of_a_claim_that_ended_is_not_expected() {
        let (before, mut after) = (election(), election());
        let withdraw =
            Command::Release { session: id(2), sequence: None, keys: "k".into(), claim: crate::lock::Claim::Waiting };
        let events = after.apply(Stamp(0), &withdraw).events;
        let asked = campaign(2, 2, None);
        let reply = after.apply(Stamp(0), &asked).reply;
        let judge = |events| {
            let outcome = Outcome { reply: reply.clone(), events };
            complaint(values_are_kept(&EntryStep::new(&before, Stamp(0), Some(&asked), &outcome, &after)))
        };
        assert_eq!(judge(events), "");
        assert!(judge([].into()).ends_with("has None, not Some(Value(\"b\"))"), "{}", judge([].into()));
    }

    #[test]
    fn new_value_without_an_event_is_seen() {
        let (before, mut after) = (election(), election());
        let command = proclaim(1, 2, 1, "c");
        let told = after.apply(Stamp(0), &command);
        let untold = Outcome { events: [].into(), ..told.clone() };
        let judge =
            |outcome| complaint(values_are_kept(&EntryStep::new(&before, Stamp(0), Some(&command), outcome, &after)));
        assert_eq!(judge(&told), "");
        assert!(judge(&untold).starts_with("no event reports the new value"), "{}", judge(&untold));
    }

    #[test]
    fn proclamation_without_a_grant_is_seen() {
        let table = election();
        let outcome = Outcome { reply: Some(Reply::Proclaimed), events: [].into() };
        let judge =
            |command| complaint(values_are_kept(&EntryStep::new(&table, Stamp(0), Some(&command), &outcome, &table)));
        assert_eq!(judge(proclaim(1, 1, 1, "c")), "");
        for command in [proclaim(2, 2, 1, "c"), proclaim(1, 2, 2, "c"), proclaim(3, 1, 1, "c")] {
            assert!(judge(command.clone()).ends_with("has no grant 1") || judge(command).ends_with("has no grant 2"));
        }
    }
}
