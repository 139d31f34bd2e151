//! For each property of the lock table, an entry that violates it.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::checker::{Checked, Execution};
use crate::invariants::Property;
use crate::invariants::states::{acquire, acquire_all, granted, id, key, put, table, transact, under, written};
use crate::lock::{
    Claim, Command, Event, Keys, LockRequest, LockTable, Mode, Opening, Outcome, Owner, Prefix, Principal, Proof,
    Reply, Revision, Right, Rights, Rule, Rules, Sequence, Session, SessionId, SharedMap, Subject, Token, Ttl, Waiter,
};
use crate::raft::{Stamp, StateMachine};

const AT: Stamp = Stamp(50);

/// An entry, with the effect that it is said to have.
struct Case {
    before: LockTable,
    asked: Command,
    outcome: Outcome,
    after: LockTable,
}

impl Case {
    /// What the table does.
    fn right(before: &LockTable, asked: Command) -> Case {
        Case::done(before, asked.clone(), &asked)
    }

    /// The command `asked` is said to have the effect of `done`.
    fn done(before: &LockTable, asked: Command, done: &Command) -> Case {
        let mut after = before.clone();
        let outcome = after.apply(AT, done);
        Case { before: before.clone(), asked, outcome, after }
    }

    /// The case with another effect.
    fn but(mut self, change: impl FnOnce(&mut Outcome, &mut LockTable)) -> Case {
        change(&mut self.outcome, &mut self.after);
        self
    }

    /// The property that the checker finds violated; `whole` if it compares the whole tables.
    fn found(&self, whole: bool) -> Option<Property> {
        let Case { before, asked, outcome, after } = self;
        let entry = Execution { before, at: AT, command: Some(asked), outcome, after };
        let judged = LockTable::check_entry(&mut before.observer(), &entry, whole);
        judged.err().map(|violation| violation.property)
    }
}

fn release(session: SessionId, sequence: Option<u64>, claim: Claim) -> Command {
    Command::Release { session, sequence: sequence.and_then(Sequence::new), keys: "k".into(), claim }
}

fn with(session: u64, sequence: u64, change: impl FnOnce(&mut LockRequest)) -> Command {
    let mut request = LockRequest::exclusive("k", true);
    change(&mut request);
    Command::Acquire { session: id(session), sequence: Sequence::new(sequence), request }
}

/// Three sessions: 1 holds k with token 1 as its operation 1, then 2 and 3 wait for it.
fn queued() -> LockTable {
    let mut table = table(3);
    for command in [acquire(1, 1, "k"), acquire(2, 1, "k"), acquire(3, 1, "k")] {
        table.apply(Stamp(0), &command);
    }
    table
}

/// Only ann may do anything, under the rules.
fn denied(mut table: LockTable) -> LockTable {
    let ann = Subject::Principal(Principal::from("ann"));
    let rule = Rule { prefix: Prefix::from(""), subject: ann, rights: Rights::of([Right::Acquire, Right::Admin]) };
    let rules = Some(Arc::new(Rules::new(vec![], vec![rule])));
    let principal = Principal::from("admin/root");
    table.apply(Stamp(0), &Command::SetAccess { principal, revision: Revision(0), rules });
    table
}

fn expiry() -> Case {
    let (before, close) = (queued(), Command::Close { session: id(3) });
    let mut after = before.clone();
    after.apply(AT, &close);
    // The session is said to have expired at half its TTL.
    let asked = Command::KeepAlive { sessions: vec![id(2)] };
    let reply = Some(Reply::KeptAlive { missing: vec![] });
    let kept = after.apply(AT, &asked);
    let withdrawn = Event::Withdrawn { key: key("k"), session: id(3) };
    let expired = Event::Expired { session: id(3), deadline: Stamp(100) };
    let events = [withdrawn, expired].into_iter().chain(kept.events.iter().cloned()).collect();
    Case { before, asked, outcome: Outcome { reply, events }, after }
}

fn broken() -> Case {
    let asked = Command::Break { key: key("k"), token: Token(1), principal: Principal::default() };
    Case::right(&queued(), asked).but(|outcome, _| {
        outcome.events.remove(0);
    })
}

/// Sessions 2, 3 and 4 wait for one another, each at two keys; the entry leaves them so.
fn circle() -> Case {
    let mut before = table(6);
    let both = |session, names: &[&str]| acquire_all(session, names, Mode::EXCLUSIVE);
    for command in [both(1, &["k", "l", "m"]), both(2, &["k", "l"]), both(3, &["k", "m"]), both(4, &["l", "m"])] {
        before.apply(Stamp(0), &command);
    }
    for name in ["k", "m"] {
        before.parts().locks.get_mut(&key(name)).unwrap().queue.change(|queue| queue.swap(0, 1));
    }
    Case::right(&before, nothing())
}

/// An entry that leaves the table as it is: an earlier one, which was not compared as a whole, may have spoilt it.
fn nothing() -> Command {
    Command::KeepAlive { sessions: vec![] }
}

fn opening() -> Opening {
    let (proof, owner, principal) = (Proof::default(), Owner::from("a"), Principal::default());
    Opening { proof, owner, principal, ttl: Ttl(100) }
}

/// Sessions 2 and 3 wait for a lock that nothing holds.
fn free() -> LockTable {
    let mut table = queued();
    table.apply(Stamp(0), &Command::Close { session: id(1) });
    let parts = table.parts();
    *parts.contended = SharedMap::new();
    let lock = parts.locks.get_mut(&key("k")).unwrap();
    lock.holders = Vec::new().into();
    let waiter = Waiter::new(id(2), Sequence::new(1), &LockRequest::exclusive("k", true));
    lock.queue.change(|queue| queue.push_front(waiter));
    table
}

/// A record that was written under token 1, which session 1 still has.
fn stored() -> LockTable {
    let mut table = queued();
    written(&mut table, 0, under(&[put("r", "a")], &[("k", 1)]));
    table
}

/// For each property of the lock table an entry that violates it.
fn cases() -> Vec<(Property, Case)> {
    let close = Command::Close { session: id(1) };
    let held = Claim::Held(Token(1));
    let repeated = with(1, 1, |request| request.reentrant = true);
    vec![
        (
            Property::MutualExclusion,
            Case::right(&queued(), acquire(3, 2, "k")).but(|outcome, _| {
                outcome.events = [granted("k", 3, 2, Mode::EXCLUSIVE)].into();
            }),
        ),
        (Property::TokenMonotonicity, {
            let mut case = Case::right(&queued(), close.clone());
            *case.before.parts().next_token = Token(9);
            case
        }),
        (Property::FifoOrder, {
            let mut swapped = queued();
            swapped.parts().locks.get_mut(&key("k")).unwrap().queue.change(|queue| queue.swap(0, 1));
            Case { before: queued(), ..Case::right(&swapped, close.clone()) }
        }),
        (Property::NoNeedlessWait, Case::right(&free(), nothing())),
        (Property::NoDeadlock, circle()),
        (
            Property::HoldsAreCounted,
            Case::done(&queued(), with(1, 2, |request| request.reentrant = true), &with(1, 2, |_| {})),
        ),
        (
            Property::ValuesAreKept,
            Case::done(&queued(), with(1, 2, |request| request.value = Some("a".into())), &with(1, 2, |_| {})),
        ),
        (
            Property::StoreIsFenced,
            Case::done(
                &stored(),
                transact(under(&[put("r", "b")], &[("k", 9)])),
                &transact(under(&[put("r", "b")], &[("k", 1)])),
            ),
        ),
        (
            Property::TransactionsAreWhole,
            Case::done(
                &stored(),
                transact(under(&[put("r", "b"), put("s", "b")], &[("k", 1)])),
                &transact(under(&[put("r", "b")], &[("k", 1)])),
            ),
        ),
        (Property::NoEarlyExpiry, expiry()),
        (Property::ExactlyOnce, Case::done(&queued(), repeated, &with(1, 2, |request| request.reentrant = true))),
        (
            Property::NoForeignChange,
            Case::done(&queued(), Command::Close { session: SessionId { proof: Proof::from(7), ..id(1) } }, &close),
        ),
        (Property::NoDeniedGrant, {
            let mut case = Case::right(&queued(), close);
            let denied = denied(queued()).access().clone();
            *case.before.parts().access = denied.clone();
            *case.after.parts().access = denied;
            case
        }),
        (Property::BreaksAreReported, broken()),
        (
            Property::ChangesHaveEvents,
            Case::right(&queued(), acquire(3, 2, "k")).but(|outcome, _| {
                outcome.events = [Event::Queued {
                    key: key("k"),
                    session: id(3),
                    mode: Mode::EXCLUSIVE,
                    owner: Owner::from("a"),
                    ahead: 1,
                }]
                .into();
            }),
        ),
        (
            Property::TableSoundness,
            Case::right(&queued(), acquire(3, 2, "k")).but(|_, after| {
                *after.parts().deadlines = SharedMap::new();
            }),
        ),
        (
            Property::ReleaseByHolderOnly,
            Case::done(&queued(), release(id(1), None, Claim::Held(Token(9))), &release(id(1), None, held)),
        ),
        (
            Property::RepliesMatchTable,
            Case::right(&queued(), release(id(1), None, held)).but(|outcome, _| outcome.reply = Some(Reply::NotHolder)),
        ),
    ]
}

#[test]
fn entries_that_violate_a_property_are_seen() {
    for (property, case) in cases() {
        assert_eq!(case.found(true), Some(property), "{:?} with {:?}", case.asked, case.outcome);
    }
}

/// An acquire of session 3, after which this session is another one.
fn session(number: u64, change: impl FnOnce(&mut Session)) -> Case {
    Case::right(&queued(), acquire(3, 2, "l"))
        .but(|_, after| change(after.parts().sessions.get_mut(&id(number)).unwrap()))
}

/// The same, after which its claim on k is another one.
fn claim(change: impl FnOnce(&mut Waiter)) -> Case {
    Case::right(&queued(), acquire(3, 2, "l")).but(|_, after| {
        after.parts().locks.get_mut(&key("k")).unwrap().queue.change(|queue| change(&mut queue[1]));
    })
}

#[test]
fn wrong_sessions_and_claims_are_seen() {
    let once = Command::AcquireOnce { opening: opening(), request: LockRequest::exclusive("l", false) };
    let request = LockRequest { mode: Mode::SHARED, ..LockRequest::exclusive("l", true) };
    let shared = Command::Acquire { session: id(3), sequence: Sequence::new(2), request };
    let is_once = Case::right(&table(1), Command::Open { opening: opening() })
        .but(|_, after| after.parts().sessions.get_mut(&id(2)).unwrap().once = true);
    let repeated = with(3, 1, |request| request.mode = Mode::SHARED);
    let ahead = Case::right(&queued(), repeated)
        .but(|outcome, _| outcome.reply = Some(Reply::Queued { session: id(3), ahead: 0 }));
    let cases = [
        (Property::RepliesMatchTable, ahead),
        (Property::MutualExclusion, Case::right(&queued(), once.clone()).but(|outcome, _| outcome.events = [].into())),
        (Property::ExactlyOnce, session(3, |session| session.last = Sequence::new(1))),
        (Property::NoEarlyExpiry, session(3, |session| session.deadline = Stamp(149))),
        (Property::TableSoundness, session(2, |session| session.ttl = Ttl(99))),
        (Property::TableSoundness, is_once),
        (Property::RepliesMatchTable, claim(|waiter| waiter.sequence = Sequence::new(2))),
        (
            Property::RepliesMatchTable,
            Case::right(&queued(), once)
                .but(|outcome, _| outcome.reply = Some(Reply::Queued { session: id(4), ahead: 0 })),
        ),
        (Property::FifoOrder, Case::done(&queued(), acquire(3, 2, "l"), &shared)),
    ];
    for (property, case) in cases {
        assert_eq!(case.found(true), Some(property), "{:?} with {:?}", case.asked, case.outcome);
    }
}

/// The properties of the lock table are those from the first to the last of the cases, in the order of
/// [`Property::ALL`].
#[test]
fn every_property_of_the_lock_table_has_a_case() {
    let position = |of| Property::ALL.iter().position(|property| *property == of).unwrap();
    let all = &Property::ALL[position(Property::MutualExclusion)..=position(Property::RepliesMatchTable)];
    let mut found: Vec<Property> = cases().iter().map(|(property, _)| *property).collect();
    found.sort();
    assert_eq!(found, all);
}

#[test]
fn correct_entries_pass() {
    // The number of an acquire of k, for other keys.
    let others = LockRequest::exclusive(Keys::new(vec![key("k"), key("l")]).unwrap(), true);
    let asked = [
        Command::Acquire { session: id(1), sequence: Sequence::new(1), request: others },
        // The number of an acquire that waits, in another mode.
        with(3, 1, |request| request.mode = Mode::SHARED),
        acquire(1, 1, "k"),
        acquire(3, 2, "k"),
        acquire(3, 2, "l"),
        release(id(1), Some(2), Claim::Held(Token(1))),
        Command::Close { session: id(1) },
        with(1, 2, |request| request.reentrant = true),
        transact(under(&[put("r", "b"), put("s", "b")], &[("k", 1)])),
        Command::Open { opening: opening() },
    ];
    for command in asked {
        assert_eq!(Case::right(&stored(), command.clone()).found(true), None, "{command:?}");
    }
}

/// Of tables that are too large to be compared as a whole, the checker still sees these.
#[test]
fn some_violations_are_seen_in_tables_of_any_size() {
    let seen: Vec<Property> = cases().iter().filter_map(|(_, case)| case.found(false)).collect();
    let expected = [
        Property::MutualExclusion,
        Property::TokenMonotonicity,
        Property::ExactlyOnce,
        Property::NoForeignChange,
        Property::NoDeniedGrant,
        Property::BreaksAreReported,
    ];
    assert_eq!(seen, expected);
}

#[test]
fn size_counts_sessions_locks_and_records() {
    let mut table = queued();
    assert_eq!(table.size(), 3 + 1);
    for record in ["a", "b", "c"] {
        written(&mut table, 0, under(&[put(record, "x")], &[]));
    }
    assert_eq!((table.records().len(), table.size()), (3, 3 + 1 + 3));
}
