//! No denied grant: the access rules in force permit every grant, every break and every write, what they do
//! not permit changes nothing, and only an administrator changes them.

use alloc::vec::Vec;

use super::{Check, EntryStep, Property};
use crate::lock::{
    Command, Condition, Event, Key, LockRequest, LockTable, Opening, Principal, Reply, Revision, Right, Rights, Rules,
    SessionId, Subject, Transaction, Writer,
};
use crate::require;

const NAME: Property = Property::NoDeniedGrant;

/// Whether a principal has a right to a key: the definition, rule by rule, and not the table's search.
pub fn permitted(rules: Option<&Rules>, principal: &Principal, right: Right, key: &str) -> bool {
    let Some(rules) = rules else { return true };
    let name = principal.as_str();
    if name.is_empty() || name.contains('/') {
        return name.starts_with("admin/");
    }
    let key = if right == Right::Admin { "" } else { key };
    let is_meant = |subject: &Subject| match subject {
        Subject::Everyone => true,
        Subject::Role(role) => {
            rules.roles().iter().any(|listed| listed.role == *role && listed.members.contains(principal))
        }
        Subject::Principal(named) => named == principal,
    };
    let applying =
        || rules.rules().iter().filter(|rule| is_meant(&rule.subject) && key.starts_with(rule.prefix.as_str()));
    let gives =
        |rights: Rights| rights.iter().any(|given| given == right || right == Right::Read && given != Right::Admin);
    let longest = applying().map(|rule| rule.prefix.as_str().len()).max();
    applying().any(|rule| Some(rule.prefix.as_str().len()) == longest && gives(rule.rights))
}

/// Checks an entry by the table before and after it.
pub fn no_denied_grant(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, command, outcome, after, .. } = *step;
    let rules = before.access().rules().map(|rules| &**rules);
    let may = |principal: &Principal, right, key: &str| permitted(rules, principal, right, key);
    for event in &outcome.events {
        match event {
            Event::Granted { key, session, .. } => {
                let principal = principal_of(before, command, *session);
                let permits = principal.is_some_and(|principal| may(principal, Right::Acquire, key.as_str()));
                require!(NAME, permits, "{key} was granted to session {session} of `{}`", name(principal))?;
            }
            Event::Denied { key, session, principal } => {
                let is_its = principal_of(before, None, *session) == Some(principal);
                let denies = is_its && !may(principal, Right::Acquire, key.as_str());
                require!(NAME, denies, "{key} was denied to session {session} of `{principal}`")?;
            }
            Event::Broken { key, .. } => {
                let permits = matches!(command, Some(Command::Break { principal, .. })
                    if may(principal, Right::Break, key.as_str()));
                require!(NAME, permits, "{key} was broken by {command:?}")?;
            }
            Event::Put { key, .. } | Event::Deleted { key, .. } => {
                let permits = writer(before, command).is_some_and(|writer| may(writer, Right::Write, key.as_str()));
                require!(NAME, permits, "{key} was written by {command:?}")?;
            }
            _ => {}
        }
    }
    if let (Some(Command::Transact { transaction, .. }), Some(reply)) = (command, &outcome.reply)
        && *reply != Reply::NoSession
    {
        let permits = may_transact(before, command, transaction);
        let is_new = matches!(reply, Reply::Written { .. }) && before.next_version() < after.next_version();
        require!(NAME, permits || !is_new, "{command:?} was done")?;
        require!(NAME, permits || !tells_of_records(reply), "{command:?} was told {reply:?}")?;
    }
    sessions_keep_their_principal(step)?;
    rules_change_by_an_administrator(step)?;
    denied_changes_nothing(step)
}

fn name(principal: Option<&Principal>) -> &str {
    principal.map_or("no session", Principal::as_str)
}

/// The client that asks for a transaction.
fn writer<'a>(before: &'a LockTable, command: Option<&'a Command>) -> Option<&'a Principal> {
    let Some(Command::Transact { writer, .. }) = command else { return None };
    match writer {
        Writer::Client(principal) => Some(principal),
        Writer::Session { session, .. } => principal_of(before, None, *session),
    }
}

/// Whether the rules permit a transaction: to write what it changes, and to read what it compares.
fn may_transact(before: &LockTable, command: Option<&Command>, transaction: &Transaction) -> bool {
    let rules = before.access().rules().map(|rules| &**rules);
    let principal = writer(before, command);
    let may = |right, key: &Key| principal.is_some_and(|name| permitted(rules, name, right, key.as_str()));
    transaction.changes.iter().all(|change| may(Right::Write, change.record()))
        && transaction.conditions.iter().all(|condition| match condition {
            Condition::Version { record, .. } => may(Right::Read, record),
            Condition::Held { .. } => true,
        })
}

/// Whether a refusal tells something of records, which some clients may not read.
fn tells_of_records(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::NotHeld { .. }
            | Reply::OtherVersion { .. }
            | Reply::Fenced { .. }
            | Reply::RecordTooLarge { .. }
            | Reply::StoreFull { .. }
    )
}

fn opening(command: Option<&Command>) -> Option<&Opening> {
    match command {
        Some(Command::Open { opening } | Command::AcquireOnce { opening, .. }) => Some(opening),
        _ => None,
    }
}

/// The principal of a session that existed, or of the one that the command opens.
fn principal_of<'a>(before: &'a LockTable, command: Option<&'a Command>, id: SessionId) -> Option<&'a Principal> {
    let known = before.session(id).map(|session| &session.principal);
    known.or_else(|| opening(command).map(|opening| &opening.principal))
}

/// A session that the command opens is of the command's principal, and one that it names stays of
/// its own.
fn sessions_keep_their_principal(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, command, outcome, after, .. } = *step;
    let Some(Reply::Opened { session } | Reply::Granted { session, .. } | Reply::Queued { session, .. }) =
        outcome.reply
    else {
        return Ok(());
    };
    let is = after.session(session).map(|session| &session.principal);
    let should_be = principal_of(before, command, session);
    let is_same = is.is_none() || is == should_be;
    require!(NAME, is_same, "session {session} of `{}` is of `{}`", name(should_be), name(is))
}

/// The rules change by a command of an administrator that has read the present ones, as the command
/// says, and by nothing else.
fn rules_change_by_an_administrator(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, command, outcome, after, .. } = *step;
    let (was, is) = (before.access(), after.access());
    let Some(Command::SetAccess { principal, revision, rules }) = command else {
        return require!(NAME, was == is, "{command:?} changed the access rules");
    };
    // Without rules only an administrator's certificate counts, as with rules that permit nothing.
    let none = Rules::new(Vec::new(), Vec::new());
    let old = was.rules().map_or(&none, |rules| &**rules);
    let permits = [Some(old), rules.as_deref()].into_iter().all(|rules| permitted(rules, principal, Right::Admin, ""));
    let is_repeated = was.rules() == rules.as_ref();
    let expected = match (permits, is_repeated, *revision == was.revision()) {
        (false, _, _) => (was.revision(), Reply::Denied),
        (true, true, _) => (was.revision(), Reply::AccessSet { revision: was.revision() }),
        (true, false, false) => (was.revision(), Reply::AccessChanged { revision: was.revision() }),
        (true, false, true) => {
            let next = Revision(was.revision().0 + 1);
            (next, Reply::AccessSet { revision: next })
        }
    };
    let is_set = matches!(expected.1, Reply::AccessSet { .. });
    let is_as_told = (is.revision(), outcome.reply.as_ref()) == (expected.0, Some(&expected.1))
        && is.rules() == if is_set { rules.as_ref() } else { was.rules() };
    require!(NAME, is_as_told, "{command:?} had the reply {:?}, at revision {}", outcome.reply, was.revision())
}

/// A command that is denied is one that the rules do not permit, and it has no effect but the passing
/// of time.
fn denied_changes_nothing(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, command, outcome, after, .. } = *step;
    if outcome.reply != Some(Reply::Denied) {
        return Ok(());
    }
    let rules = before.access().rules().map(|rules| &**rules);
    let may_acquire = |principal: &Principal, request: &LockRequest| {
        request.keys.iter().all(|key| permitted(rules, principal, Right::Acquire, key.as_str()))
    };
    let denies = match command {
        Some(Command::Acquire { session, request, .. }) => {
            let principal = before.session(*session).map(|session| &session.principal);
            principal.is_some_and(|principal| !may_acquire(principal, request))
        }
        Some(Command::AcquireOnce { opening, request }) => !may_acquire(&opening.principal, request),
        Some(Command::Break { principal, key, token }) => {
            let grant = before.lock(key).and_then(|lock| lock.holder_with(*token));
            let keys = grant.map_or(core::slice::from_ref(key), |holder| holder.all_keys(key));
            !keys.iter().all(|key| permitted(rules, principal, Right::Break, key.as_str()))
        }
        Some(Command::SetAccess { .. }) => true,
        Some(Command::Transact { transaction, .. }) => !may_transact(before, command, transaction),
        _ => false,
    };
    require!(NAME, denies, "{command:?} was denied")?;
    let waited = step.found();
    let is_same = waited.locks() == after.locks()
        && waited.records() == after.records()
        && waited.sessions().len() == after.sessions().len();
    require!(NAME, is_same, "{command:?} was denied and changed the table")
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::sync::Arc;
    use alloc::vec;

    use super::*;
    use crate::invariants::states::{acquire, complaint, id, key, put, under};
    use crate::lock::{Claim, Outcome, Owner, Prefix, Proof, Rule, Sequence, Token, Ttl};
    use crate::raft::{Stamp, StateMachine};

    fn opening(principal: &str) -> Opening {
        let (proof, owner, principal) = (Proof::default(), Owner::from("a"), Principal::from(principal));
        Opening { proof, owner, principal, ttl: Ttl(100) }
    }

    /// All clients may do this, and ann may administer.
    fn rules(rights: &[Right]) -> Arc<Rules> {
        let rule = |subject, rights: &[Right]| Rule {
            prefix: Prefix::from(""),
            subject,
            rights: Rights::of(rights.iter().copied()),
        };
        let ann = Subject::Principal(Principal::from("ann"));
        Arc::new(Rules::new(vec![], vec![rule(Subject::Everyone, rights), rule(ann, &[Right::Admin])]))
    }

    fn set(principal: &str, revision: u64, rights: &[Right]) -> Command {
        let (principal, rules) = (Principal::from(principal), Some(rules(rights)));
        Command::SetAccess { principal, revision: Revision(revision), rules }
    }

    fn break_first(principal: &str) -> Command {
        Command::Break { key: key("k"), token: Token(1), principal: Principal::from(principal) }
    }

    /// Sessions 1 to 3 are bob's; 1 holds k and 2 waits for it. Then all clients may do only this.
    fn table(rights: &[Right]) -> LockTable {
        let mut table = LockTable::default();
        for _ in 0..3 {
            table.apply(Stamp(0), &Command::Open { opening: opening("bob") });
        }
        table.apply(Stamp(0), &acquire(1, 0, "k"));
        table.apply(Stamp(0), &acquire(2, 0, "k"));
        table.apply(Stamp(0), &set("admin/eve", 0, rights));
        table
    }

    /// The complaint if, in a table with the first rights, the command `asked` has the effect that `done`
    /// has with the second rights.
    fn judge(before: &[Right], asked: &Command, instead: &[Right], done: &Command) -> String {
        let (before, mut after) = (table(before), table(instead));
        let outcome = after.apply(Stamp(50), done);
        *after.parts().access = before.access().clone();
        complaint(no_denied_grant(&EntryStep::new(&before, Stamp(50), Some(asked), &outcome, &after)))
    }

    #[test]
    fn what_the_table_does_is_permitted() {
        let commands = [
            acquire(3, 0, "l"),
            Command::AcquireOnce { opening: opening("bob"), request: LockRequest::exclusive("l", false) },
            Command::Close { session: id(1) },
            break_first("bob"),
            set("ann", 1, &[]),
            set("ann", 0, &[]),
            set("bob", 1, &[]),
        ];
        for rights in [&[][..], &[Right::Read], &[Right::Acquire], &[Right::Break], &[Right::Acquire, Right::Break]] {
            for command in &commands {
                let (before, mut after) = (table(rights), table(rights));
                let outcome = after.apply(Stamp(50), command);
                assert_eq!(
                    complaint(no_denied_grant(&EntryStep::new(&before, Stamp(50), Some(command), &outcome, &after))),
                    ""
                );
            }
        }
    }

    #[test]
    fn grant_or_break_that_the_rules_do_not_permit_is_seen() {
        let once = Command::AcquireOnce { opening: opening("bob"), request: LockRequest::exclusive("l", false) };
        let all = [Right::Acquire, Right::Break];
        for command in [acquire(3, 0, "l"), once, Command::Close { session: id(1) }] {
            assert_eq!(judge(&all, &command, &all, &command), "");
            assert!(judge(&[Right::Break], &command, &all, &command).contains("was granted to session"), "{command:?}");
        }
        assert!(judge(&[Right::Read], &break_first("bob"), &all, &break_first("bob")).starts_with("k was broken by"));
    }

    /// A put of r, which compares the version of s.
    fn write(writer: Writer) -> Command {
        let compared = Condition::Version { record: key("s"), version: None };
        let transaction = Transaction { conditions: vec![compared], ..under(&[put("r", "x")], &[]) };
        Command::Transact { writer, transaction }
    }

    #[test]
    fn transaction_that_the_rules_do_not_permit_is_seen() {
        let all = [Right::Write];
        let of_session = Writer::Session { session: id(1), sequence: None };
        for command in [write(Writer::Client("bob".into())), write(of_session)] {
            assert_eq!(judge(&all, &command, &all, &command), "");
            let seen = judge(&[Right::Read, Right::Acquire], &command, &all, &command);
            assert!(seen.starts_with("r was written by"), "{seen}");
            assert_eq!(judge(&[Right::Acquire], &command, &[Right::Acquire], &command), "");
            assert!(judge(&all, &command, &[], &command).ends_with("was denied"), "{command:?}");
            for reply in [
                Reply::Fenced { record: key("r"), fence: Token(1) },
                Reply::OtherVersion { record: key("s"), version: None },
            ] {
                let (table, outcome) = (table(&[]), Outcome { reply: Some(reply), events: vec![] });
                let judged =
                    complaint(no_denied_grant(&EntryStep::new(&table, Stamp(50), Some(&command), &outcome, &table)));
                assert!(judged.contains("was told"), "{judged}");
            }
        }
        // A client that may write r may not compare the version of s.
        let only_r = |table: &mut LockTable| {
            let rule =
                Rule { prefix: Prefix::from("r"), subject: Subject::Everyone, rights: Rights::of([Right::Write]) };
            let rules = Some(Arc::new(Rules::new(vec![], vec![rule])));
            let (principal, revision) = (Principal::from("admin/eve"), table.access().revision());
            table.apply(Stamp(0), &Command::SetAccess { principal, revision, rules });
        };
        let (mut before, mut after) = (table(&all), table(&all));
        only_r(&mut before);
        let command = write(Writer::Client("bob".into()));
        let outcome = after.apply(Stamp(50), &command);
        *after.parts().access = before.access().clone();
        let judged = complaint(no_denied_grant(&EntryStep::new(&before, Stamp(50), Some(&command), &outcome, &after)));
        assert!(judged.ends_with("was done"), "{judged}");
    }

    #[test]
    fn denial_of_what_the_rules_permit_is_seen() {
        let all = [Right::Acquire, Right::Break];
        for command in [acquire(3, 0, "l"), break_first("bob")] {
            assert!(judge(&all, &command, &[], &command).ends_with("was denied"), "{command:?}");
        }
        let passed_over = judge(&all, &Command::Close { session: id(1) }, &[], &Command::Close { session: id(1) });
        assert!(passed_over.starts_with("k was denied to session 2.0"), "{passed_over}");
    }

    #[test]
    fn denied_command_that_changes_anything_is_seen() {
        let gives_up = Command::Release { session: id(2), sequence: None, keys: "k".into(), claim: Claim::Waiting };
        for change in [gives_up, Command::Close { session: id(3) }, write(Writer::Client("bob".into()))] {
            let rights = [Right::Write];
            let (before, mut after) = (table(&rights), table(&rights));
            after.apply(Stamp(50), &change);
            let outcome = Outcome { reply: Some(Reply::Denied), events: vec![] };
            let judged =
                no_denied_grant(&EntryStep::new(&before, Stamp(50), Some(&break_first("bob")), &outcome, &after));
            assert!(complaint(judged).ends_with("was denied and changed the table"), "{change:?}");
        }
    }

    /// A session repeats a transaction that is denied by now: it is told again that it was done.
    #[test]
    fn repeat_of_a_transaction_that_was_permitted_is_no_violation() {
        let mut before = table(&[Right::Write]);
        let again = write(Writer::Session { session: id(1), sequence: Sequence::new(9) });
        before.apply(Stamp(0), &again);
        let denied = set("admin/eve", before.access().revision().0, &[]);
        before.apply(Stamp(0), &denied);
        let mut after = before.clone();
        let outcome = after.apply(Stamp(50), &again);
        assert!(matches!(outcome.reply, Some(Reply::Written { .. })), "{outcome:?}");
        assert_eq!(complaint(no_denied_grant(&EntryStep::new(&before, Stamp(50), Some(&again), &outcome, &after))), "");
    }

    #[test]
    fn rules_that_change_without_an_administrator_are_seen() {
        let change = set("ann", 1, &[Right::Read]);
        for asked in [set("bob", 1, &[Right::Read]), set("ann", 0, &[Right::Read]), set("ann", 1, &[Right::Break])] {
            let (before, mut after) = (table(&[]), table(&[]));
            let outcome = after.apply(Stamp(50), &change);
            let judged =
                complaint(no_denied_grant(&EntryStep::new(&before, Stamp(50), Some(&asked), &outcome, &after)));
            assert!(judged.contains("had the reply"), "{judged}");
            let judged = complaint(no_denied_grant(&EntryStep::new(
                &before,
                Stamp(50),
                Some(&acquire(3, 0, "k")),
                &outcome,
                &after,
            )));
            assert!(judged.ends_with("changed the access rules"), "{judged}");
        }
    }

    #[test]
    fn session_of_another_principal_than_its_opener_is_seen() {
        let (asked, done) = (Command::Open { opening: opening("bob") }, Command::Open { opening: opening("ann") });
        assert!(judge(&[], &asked, &[], &done).starts_with("session 4.0 of `bob` is of `ann`"));
        assert_eq!(judge(&[], &asked, &[], &asked), "");
    }
}
