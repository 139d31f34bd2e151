use alloc::string::ToString;
use alloc::vec::Vec;

use super::*;
use crate::invariants::states;
use crate::lock::{Claim, LockRequest, Mode, Opening, Outcome, Owner, Principal, Proof, Revision, Rules, Token, Ttl};
use crate::raft::StateMachine;

/// The check of an entry with these events.
fn no_early_expiry(
    before: &LockTable,
    at: Stamp,
    command: Option<&Command>,
    events: &[Event],
    after: &LockTable,
) -> Check {
    let outcome = Outcome { reply: None, events: events.into() };
    super::no_early_expiry(&EntryStep::new(before, at, command, &outcome, after))
}

fn id(number: u64) -> SessionId {
    SessionId { number, proof: Proof::default() }
}

fn opening(ttl: u64) -> Opening {
    Opening { proof: Proof::default(), owner: Owner::from(""), principal: Principal::default(), ttl: Ttl(ttl) }
}

/// Sessions with these deadlines, none of which is opened for a lock.
fn sessions(deadlines: &[u64]) -> LockTable {
    sessions_swept(250, deadlines)
}

/// The same, with this maximum work of a sweep.
fn sessions_swept(sweep: u64, deadlines: &[u64]) -> LockTable {
    let mut table = LockTable::sweeping(sweep);
    for &ttl in deadlines {
        table.apply(Stamp(0), &Command::Open { opening: opening(ttl) });
    }
    table
}

/// Session 1 was opened for `k` and holds it; it waits for `l`, too, if `two`. Session 2 holds
/// `l`.
fn once(two: bool) -> LockTable {
    let mut table = LockTable::default();
    table.apply(Stamp(0), &Command::AcquireOnce { opening: opening(5), request: LockRequest::exclusive("k", true) });
    table.apply(Stamp(0), &Command::Open { opening: opening(5) });
    table.apply(
        Stamp(0),
        &Command::Acquire { session: id(2), sequence: None, request: LockRequest::exclusive("l", true) },
    );
    if two {
        table.apply(
            Stamp(0),
            &Command::Acquire { session: id(1), sequence: None, request: LockRequest::exclusive("l", true) },
        );
    }
    table
}

fn without(table: &LockTable, gone: &[u64]) -> LockTable {
    let mut table = table.clone();
    for &number in gone {
        table.apply(Stamp(0), &Command::Close { session: id(number) });
    }
    table
}

fn expired(number: u64, deadline: u64) -> Event {
    Event::Expired { session: id(number), deadline: Stamp(deadline) }
}

fn closed(number: u64) -> Event {
    Event::Closed { session: id(number) }
}

fn release(number: u64, key: &str) -> Command {
    Command::Release { session: id(number), sequence: None, keys: key.into(), claim: Claim::Held(Token(1)) }
}

#[track_caller]
fn refused(check: Check, words: &str) {
    let violation = check.expect_err("this is no time to end").to_string();
    assert!(violation.starts_with("no early expiry is violated") && violation.contains(words), "{violation}");
}

#[test]
fn a_session_expires_after_its_deadline() {
    let (before, at) = (sessions(&[3, 5, 4]), Stamp(5));
    let after = without(&before, &[1, 3]);
    assert_eq!(no_early_expiry(&before, at, None, &[expired(1, 3), expired(3, 4)], &after), Ok(()));
    let mut really = before.clone();
    let outcome = really.advance(at);
    assert_eq!(no_early_expiry(&before, at, None, &outcome.events, &really), Ok(()));
}

#[test]
fn session_does_not_expire_at_its_deadline_or_before() {
    let before = sessions(&[5]);
    for at in [Stamp(4), Stamp(5)] {
        refused(no_early_expiry(&before, at, None, &[expired(1, 5)], &without(&before, &[1])), "not after");
    }
    refused(no_early_expiry(&before, Stamp(6), None, &[expired(1, 4)], &without(&before, &[1])), "expired at 4");
    refused(no_early_expiry(&before, Stamp(6), None, &[expired(2, 5)], &without(&before, &[1])), "not at None");
}

#[test]
fn due_sessions_end_in_order_and_at_least_one() {
    let (before, at) = (sessions_swept(1, &[5, 3, 3]), Stamp(9));
    let judge = |order: &[usize]| {
        let ends: Vec<Event> =
            order.iter().map(|&which| [expired(1, 5), expired(2, 3), expired(3, 3)][which].clone()).collect();
        let gone: Vec<u64> = order.iter().map(|&which| which as u64 + 1).collect();
        no_early_expiry(&before, at, None, &ends, &without(&before, &gone))
    };
    for order in [&[1][..], &[1, 2], &[1, 2, 0]] {
        assert_eq!(judge(order), Ok(()));
    }
    refused(judge(&[]), "no session expired");
    assert_eq!(no_early_expiry(&before, Stamp(3), None, &[], &before), Ok(()));
    for order in [&[2][..], &[0, 1, 2]] {
        refused(judge(order), "no session expired");
    }
    for order in [&[1, 0][..], &[1, 0, 2]] {
        refused(judge(order), "not its turn");
    }
    refused(judge(&[1, 2, 2]), "not its turn");
}

#[test]
fn sweep_ends_as_many_as_it_has_room_for() {
    let at = Stamp(9);
    for (sweep, ended, is_full) in [(1, 1, true), (2, 1, false), (2, 2, true), (3, 2, false), (4, 3, true)] {
        let before = sessions_swept(sweep, &[3, 4, 5]);
        let ends: Vec<Event> = (1..=ended).map(|number| expired(number, number + 2)).collect();
        let gone: Vec<u64> = (1..=ended).collect();
        let check = no_early_expiry(&before, at, None, &ends, &without(&before, &gone));
        if is_full { assert_eq!(check, Ok(())) } else { refused(check, "had room for more") }
    }
    // A holder counts together with its claim and the waiter for it.
    let queued = |sweep| {
        let mut before = sessions_swept(sweep, &[3, 9, 5]);
        for number in [1, 2] {
            before.apply(Stamp(0), &states::acquire_all(number, &["k"], Mode::EXCLUSIVE));
        }
        before
    };
    let judge = |before: &LockTable, at| {
        let mut after = before.clone();
        after.apply(at, &Command::Close { session: id(1) });
        no_early_expiry(before, at, None, &[expired(1, 3)], &after)
    };
    refused(judge(&queued(4), Stamp(6)), "had room for more");
    assert_eq!(judge(&queued(3), Stamp(6)), Ok(()));
    assert_eq!(judge(&queued(4), Stamp(4)), Ok(()));
}

/// Session 2 holds k, for which session 3 waits; session 1 is due earlier, and no session waits for it.
#[test]
fn holder_that_others_wait_for_ends_first() {
    let mut before = sessions_swept(1, &[3, 5, 9]);
    for number in [2, 3] {
        before.apply(Stamp(0), &states::acquire_all(number, &["k"], Mode::EXCLUSIVE));
    }
    let mut after = before.clone();
    let events = after.advance(Stamp(8)).events;
    assert!(events.contains(&expired(2, 5)) && !events.contains(&expired(1, 3)), "{events:?}");
    assert_eq!(no_early_expiry(&before, Stamp(8), None, &events, &after), Ok(()));
    let first = without(&before, &[1]);
    refused(no_early_expiry(&before, Stamp(8), None, &[expired(1, 3)], &first), "no session expired");
    // A holder for which no session waits is not preferred.
    let mut alone = sessions_swept(1, &[3, 5]);
    alone.apply(Stamp(0), &states::acquire_all(2, &["k"], Mode::EXCLUSIVE));
    assert_eq!(no_early_expiry(&alone, Stamp(8), None, &[expired(1, 3)], &without(&alone, &[1])), Ok(()));
}

/// An operator breaks the grant of session 1, which is due, or not, and may have another claim.
#[test]
fn broken_session_ends_with_its_only_claim() {
    let break_first = |token| Command::Break { key: "k".into(), token: Token(token), principal: "eve".into() };
    for (at, keys, two) in [(2, &["k"][..], false), (2, &["k"], true), (2, &["k", "m"], false), (5, &["k"], false)] {
        let mut before = sessions(&[3, 9, 9]);
        before.apply(Stamp(0), &states::acquire_all(1, keys, Mode::EXCLUSIVE));
        before.apply(Stamp(0), &states::acquire_all(2, &["l"], Mode::EXCLUSIVE));
        if two {
            before.apply(Stamp(0), &states::acquire_all(1, &["l"], Mode::EXCLUSIVE));
        }
        let mut after = before.clone();
        let outcome = after.apply(Stamp(at), &break_first(1));
        let judge = |command: &Command| no_early_expiry(&before, Stamp(at), Some(command), &outcome.events, &after);
        assert_eq!(judge(&break_first(1)), Ok(()), "{outcome:?}");
        let ends = after.session(id(1)).is_none();
        assert_eq!(ends, !two);
        match at {
            2 if ends => refused(judge(&break_first(2)), "not by its own command"),
            5 => refused(judge(&break_first(2)), "not its turn"),
            _ => {}
        }
        if two {
            let gone = without(&before, &[1]);
            let judged = no_early_expiry(&before, Stamp(at), Some(&break_first(1)), &[closed(1)], &gone);
            refused(judged, "not by its own command");
        }
    }
}

/// Session 2 was opened for k, waits for it, and is denied it when session 1 goes.
#[test]
fn session_for_one_lock_ends_when_it_is_denied_that_lock() {
    let mut before = sessions(&[9]);
    before.apply(Stamp(0), &states::acquire_all(1, &["k"], Mode::EXCLUSIVE));
    let request = LockRequest::exclusive("k", true);
    before.apply(Stamp(0), &Command::AcquireOnce { opening: opening(9), request });
    let rules = Some(alloc::sync::Arc::new(Rules::new(Vec::new(), Vec::new())));
    let set = Command::SetAccess { principal: Principal::from("admin/eve"), revision: Revision(0), rules };
    before.apply(Stamp(0), &set);
    let (mut after, gives_up) = (before.clone(), release(1, "k"));
    let events = after.apply(Stamp(2), &gives_up).events;
    let judge = |events: &[Event]| no_early_expiry(&before, Stamp(2), Some(&gives_up), events, &after);
    assert!(after.session(id(2)).is_none(), "{events:?}");
    assert_eq!(judge(&events), Ok(()));
    let untold = |is_told: fn(&Event) -> bool| -> Vec<Event> {
        events.iter().filter(|event| !is_told(event)).cloned().collect()
    };
    refused(judge(&untold(|event| matches!(event, Event::Denied { .. }))), "not by its own command");
    refused(judge(&untold(|event| matches!(event, Event::Withdrawn { .. }))), "not by its own command");
}

/// The fate of a due session when `really` is applied and the check is given `asked`.
#[test]
fn command_ends_only_sessions_that_block_it() {
    let mut before = sessions(&[3, 3, 9, 9]);
    let acquire = |number, name| Command::Acquire {
        session: id(number),
        sequence: None,
        request: LockRequest::exclusive(name, true),
    };
    before.apply(Stamp(0), &acquire(1, "k"));
    before.apply(Stamp(0), &acquire(2, "l"));
    let (mut after, asked) = (before.clone(), acquire(3, "k"));
    let outcome = after.apply(Stamp(5), &asked);
    let judge = |asked: &Command| no_early_expiry(&before, Stamp(5), Some(asked), &outcome.events, &after);
    assert_eq!(judge(&asked), Ok(()));
    refused(judge(&acquire(3, "m")), "not its turn");
    refused(judge(&Command::Close { session: id(2) }), "not its turn");
    // A session that blocks the command must end; other sessions may stay.
    refused(no_early_expiry(&before, Stamp(5), Some(&asked), &[], &before), "holds what was asked for");
    assert_eq!(no_early_expiry(&before, Stamp(5), Some(&acquire(3, "m")), &[], &before), Ok(()));
    // At its deadline no session is due.
    assert_eq!(no_early_expiry(&before, Stamp(3), Some(&asked), &[], &before), Ok(()));
}

/// Sessions 1, 2 and 3 hold k, l and m and are due; session 4 asks for all three. A sweep that ends one of them costs
/// two: the session and its claim.
#[test]
fn command_ends_as_many_due_holders_as_a_sweep() {
    let asked = states::acquire_all(4, &["k", "l", "m"], Mode::EXCLUSIVE);
    for (sweep, ended) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
        let mut before = sessions_swept(sweep, &[3, 3, 3, 9]);
        for (number, key) in [(1, "k"), (2, "l"), (3, "m")] {
            before.apply(Stamp(0), &states::acquire_all(number, &[key], Mode::EXCLUSIVE));
        }
        let judge = |gone: &[u64]| {
            let events: Vec<Event> = gone.iter().map(|&number| expired(number, 3)).collect();
            no_early_expiry(&before, Stamp(5), Some(&asked), &events, &without(&before, gone))
        };
        let all = [1, 2, 3];
        assert_eq!(judge(&all[..ended]), Ok(()), "{ended} with a sweep of {sweep}");
        let mut really = before.clone();
        let outcome = really.apply(Stamp(5), &asked);
        assert_eq!(no_early_expiry(&before, Stamp(5), Some(&asked), &outcome.events, &really), Ok(()));
        assert_eq!(outcome.events.iter().filter(|event| matches!(event, Event::Expired { .. })).count(), ended);
        for other in (0..=3).filter(|&other| other != ended) {
            let words = if other < ended { "holds what was asked for" } else { "due holders of" };
            refused(judge(&all[..other]), words);
        }
    }
}

/// Session 1 holds both keys that are asked for: it is one due holder.
#[test]
fn due_holder_of_two_keys_ends_once() {
    let both = |number| states::acquire_all(number, &["k", "l"], Mode::EXCLUSIVE);
    let mut before = sessions_swept(1, &[3, 9]);
    before.apply(Stamp(0), &both(1));
    let mut after = before.clone();
    let outcome = after.apply(Stamp(5), &both(2));
    assert_eq!(no_early_expiry(&before, Stamp(5), Some(&both(2)), &outcome.events, &after), Ok(()));
}

#[test]
fn waiter_that_gives_up_is_not_said_to_be_due() {
    let acquire = |number| states::acquire_all(number, &["k"], Mode::EXCLUSIVE);
    let mut before = sessions(&[9, 9]);
    before.apply(Stamp(0), &acquire(1));
    before.apply(Stamp(0), &acquire(2));
    let gives_up = Command::Release { session: id(2), sequence: None, keys: "k".into(), claim: Claim::Waiting };
    let mut after = before.clone();
    let events = after.apply(Stamp(5), &gives_up).events;
    assert!(matches!(events[..], [Event::Withdrawn { .. }]), "{events:?}");
    assert_eq!(no_early_expiry(&before, Stamp(5), Some(&gives_up), &events, &after), Ok(()));
}

#[test]
fn due_session_cannot_act_or_gain() {
    let before = sessions(&[5, 9]);
    let does = |command: &Command| {
        let mut after = before.clone();
        after.apply(Stamp(0), command);
        let keepalive = Command::KeepAlive { sessions: [].into() };
        no_early_expiry(&before, Stamp(6), Some(&keepalive), &[], &after)
    };
    let acquire = |sequence| Command::Acquire { session: id(1), sequence, request: LockRequest::exclusive("k", true) };
    refused(does(&acquire(None)), "after its deadline");
    let release = Command::Release {
        session: id(1),
        sequence: crate::lock::Sequence::new(1),
        keys: "k".into(),
        claim: Claim::Either,
    };
    refused(does(&release), "after its deadline");
    refused(no_early_expiry(&before, Stamp(6), None, &[expired(2, 9)], &sessions(&[7])), "not after");
    let granted = states::granted("k", 1, 1, Mode::EXCLUSIVE);
    assert_eq!(no_early_expiry(&before, Stamp(5), Some(&release), core::slice::from_ref(&granted), &before), Ok(()));
    refused(no_early_expiry(&before, Stamp(6), Some(&release), &[granted], &before), "was granted k");
    // At its deadline, a session may still be granted what it asks for.
    let mut after = before.clone();
    let outcome = after.apply(Stamp(5), &acquire(None));
    assert_eq!(no_early_expiry(&before, Stamp(5), Some(&acquire(None)), &outcome.events, &after), Ok(()));
    let later = sessions(&[6, 9]);
    refused(no_early_expiry(&before, Stamp(6), Some(&release), &[], &later), "after its deadline");
}

/// Session 1 holds k, and session 2, which was opened for k, waits for it.
#[test]
fn once_session_ends_when_it_is_passed_over() {
    for once in [true, false] {
        let mut before = LockTable::sweeping(1);
        before
            .apply(Stamp(0), &Command::AcquireOnce { opening: opening(3), request: LockRequest::exclusive("k", true) });
        if once {
            before.apply(
                Stamp(0),
                &Command::AcquireOnce { opening: opening(5), request: LockRequest::exclusive("k", true) },
            );
        } else {
            before.apply(Stamp(0), &Command::Open { opening: opening(5) });
            let asks = Command::Acquire { session: id(2), sequence: None, request: LockRequest::exclusive("k", true) };
            before.apply(Stamp(0), &asks);
        }
        before.apply(Stamp(0), &Command::Open { opening: opening(4) });
        let mut after = before.clone();
        let mut events = after.advance(Stamp(9)).events;
        assert_eq!((events.contains(&expired(2, 5)), events.contains(&expired(3, 4))), (once, false));
        assert_eq!(no_early_expiry(&before, Stamp(9), None, &events, &after), Ok(()));
        if once {
            events.retain(|event| !matches!(event, Event::Withdrawn { .. }));
            refused(no_early_expiry(&before, Stamp(9), None, &events, &after), "not its turn");
        }
    }
}

#[test]
fn a_deadline_does_not_move_back() {
    refused(no_early_expiry(&sessions(&[5]), Stamp(0), None, &[], &sessions(&[4])), "moved back");
    assert_eq!(no_early_expiry(&sessions(&[5]), Stamp(0), None, &[], &sessions(&[6])), Ok(()));
}

#[test]
fn session_does_not_end_without_a_cause() {
    let before = sessions(&[5, 5]);
    let (after, close) = (without(&before, &[1]), Command::Close { session: id(1) });
    let judge =
        |at, command: &Command, events: &[Event]| no_early_expiry(&before, Stamp(at), Some(command), events, &after);
    assert_eq!(judge(0, &close, &[closed(1)]), Ok(()));
    refused(judge(0, &close, &[]), "closed 0 times");
    refused(judge(0, &close, &[closed(1), closed(1)]), "closed 2 times");
    refused(judge(0, &Command::Close { session: id(2) }, &[closed(1)]), "not by its own command");
    refused(judge(0, &Command::KeepAlive { sessions: [id(1)].into() }, &[closed(1)]), "not by its own command");
    refused(no_early_expiry(&before, Stamp(0), None, &[closed(1)], &after), "not by its own command");
    // When it is due it expires, whatever the command.
    let judge = |events: &[Event]| no_early_expiry(&before, Stamp(6), Some(&close), events, &after);
    assert_eq!(judge(&[expired(1, 5)]), Ok(()));
    refused(judge(&[closed(1)]), "it was due");
    refused(judge(&[expired(1, 5), closed(1)]), "closed 1 times");
}

#[test]
fn session_that_is_reported_as_ended_has_ended() {
    let before = sessions(&[5]);
    for event in [closed(1), closed(2), expired(1, 5)] {
        refused(no_early_expiry(&before, Stamp(6), None, &[event], &before), "and did not");
    }
}

#[test]
fn a_session_for_one_lock_ends_with_its_last_claim() {
    let judge = |before: &LockTable, command: &Command, number| {
        no_early_expiry(before, Stamp(0), Some(command), &[closed(number)], &without(before, &[number]))
    };
    assert_eq!(judge(&once(false), &release(1, "k"), 1), Ok(()));
    refused(judge(&once(false), &release(2, "k"), 1), "not by its own command");
    refused(judge(&once(false), &release(1, "l"), 1), "not by its own command");
    refused(judge(&once(false), &release(2, "l"), 2), "not by its own command");
    refused(judge(&once(true), &release(1, "k"), 1), "not by its own command");
    let mut waits = once(true);
    waits.apply(Stamp(0), &release(1, "k"));
    let asks = |wait| Command::Acquire { session: id(1), sequence: None, request: LockRequest::exclusive("l", wait) };
    assert_eq!(judge(&waits, &asks(false), 1), Ok(()));
    refused(judge(&waits, &asks(true), 1), "not by its own command");
}
