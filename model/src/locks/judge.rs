//! What must be true of every entry that a lock table applies.

use std::collections::BTreeMap;

use palisade_spec::invariants::{
    Check, Holders, Violation, exactly_once, fifo_order, mutual_exclusion, no_early_expiry, table_is_sound,
    token_monotonicity,
};
use palisade_spec::lock::{Claim, Command, Event, LockTable, Outcome, Reply, Token};
use palisade_spec::raft::{Payload, Stamp, StateMachine};

/// Lets `table` do what an entry says.
pub fn execute(table: &mut LockTable, at: Stamp, payload: &Payload<Command>) -> Outcome {
    match payload {
        Payload::Noop => table.advance(at),
        Payload::Command(command) => table.apply(at, command),
    }
}

/// Judges one entry by the table before and after it. `greatest` is the greatest token that was ever granted before.
pub fn judge(
    before: &LockTable,
    at: Stamp,
    payload: &Payload<Command>,
    outcome: &Outcome,
    after: &LockTable,
    greatest: &mut Token,
) -> Check {
    let mut holders: Holders = before
        .locks()
        .iter()
        .map(|(key, lock)| (key.clone(), (lock.holder.session, lock.holder.token)))
        .collect::<BTreeMap<_, _>>();
    mutual_exclusion(&mut holders, &outcome.events)?;
    let told_all = after.locks().iter().map(|(key, lock)| (key, (lock.holder.session, lock.holder.token)));
    if !told_all.eq(holders.iter().map(|(key, &holder)| (key, holder))) {
        let detail = format!("the events leave the holders {holders:?}");
        return Err(Violation { property: "mutual exclusion", detail });
    }
    token_monotonicity(greatest, &outcome.events)?;
    let command = match payload {
        Payload::Command(command) => Some(command),
        Payload::Noop => None,
    };
    fifo_order(before, command, &outcome.events, after)?;
    no_early_expiry(before, at, command, &outcome.events, after)?;
    table_is_sound(after)?;
    signs_of_life_count(at, payload, outcome, after)?;
    if let Some(command) = command {
        exactly_once(before, at, command, after)?;
        number_is_remembered(command, after)?;
        release_is_ones_own(before, at, command, outcome, after)?;
        answer_is_true(before, command, outcome, after)?;
    }
    Ok(())
}

/// Who was granted a lock, or kept alive, has a full time-to-live from now on.
fn signs_of_life_count(at: Stamp, payload: &Payload<Command>, outcome: &Outcome, after: &LockTable) -> Check {
    let granted = outcome.events.iter().filter_map(|event| match event {
        Event::Granted { session, .. } => Some(*session),
        _ => None,
    });
    let kept = match (payload, &outcome.reply) {
        (Payload::Command(Command::KeepAlive { sessions }), Some(Reply::KeptAlive { missing })) => {
            sessions.iter().copied().filter(|session| !missing.contains(session)).collect()
        }
        _ => Vec::new(),
    };
    for id in granted.chain(kept) {
        let Some(session) = after.session(id) else { continue };
        if session.deadline != at.plus(session.ttl.0) {
            let detail = format!("session {id} gave a sign of life at {at}, and lives until {}", session.deadline);
            return Err(Violation { property: "no early expiry", detail });
        }
    }
    Ok(())
}

/// After an operation its session knows its number, or a greater one: else nobody could tell a repetition.
fn number_is_remembered(command: &Command, after: &LockTable) -> Check {
    let (Command::Acquire { session, sequence, .. } | Command::Release { session, sequence, .. }) = command else {
        return Ok(());
    };
    if after.session(*session).is_none_or(|session| session.last >= *sequence) {
        return Ok(());
    }
    let detail = format!("session {session} has forgotten its operation {sequence:?}");
    Err(Violation { property: "exactly once", detail })
}

/// A release drops no other claim than the one that it means.
fn release_is_ones_own(
    before: &LockTable,
    at: Stamp,
    command: &Command,
    outcome: &Outcome,
    after: &LockTable,
) -> Check {
    let Command::Release { session, key, claim, .. } = command else { return Ok(()) };
    let mut waited = before.clone();
    waited.advance(at);
    let Some(was) = waited.lock(key) else { return Ok(()) };
    let holder = was.holder.clone();
    let freed = after.lock(key).is_none_or(|lock| lock.holder.token != holder.token);
    let meant = holder.session == *session
        && match claim {
            Claim::Held(token) => *token == holder.token,
            Claim::Waiting => false,
            Claim::Either => true,
        };
    let waits = |table: &LockTable| table.lock(key).is_some_and(|lock| lock.place_of(*session).is_some());
    if matches!(claim, Claim::Held(_)) && waits(&waited) && !waits(after) {
        let detail = format!("{command:?} gave up the place in the queue: {outcome:?}");
        return Err(Violation { property: "release is one's own", detail });
    }
    if freed && !meant {
        let detail = format!("{command:?} freed the grant {} of {}: {outcome:?}", holder.token, holder.session);
        return Err(Violation { property: "release is one's own", detail });
    }
    Ok(())
}

/// What an acquire is told is what the table has.
fn answer_is_true(before: &LockTable, command: &Command, outcome: &Outcome, after: &LockTable) -> Check {
    let Command::Acquire { session: asks, sequence, key, .. } = command else { return Ok(()) };
    let claims = || after.session(*asks).is_some_and(|session| session.claims_key(key));
    let is_its_last = || before.session(*asks).is_some_and(|session| session.last == *sequence);
    let lock = after.lock(key);
    let (says, is) = match &outcome.reply {
        Some(Reply::Granted { session, token }) => {
            let holder = lock.map(|lock| &lock.holder);
            let own = holder.is_some_and(|holder| {
                (holder.session, holder.token) == (*session, *token)
                    && (sequence.is_none() || holder.sequence == *sequence)
            });
            ("granted", own && session == asks)
        }
        Some(Reply::Queued { session, ahead }) => {
            let waiter = usize::try_from(*ahead).ok().and_then(|place| lock?.queue.get(place));
            let own = waiter.is_some_and(|waiter| {
                waiter.session == *session && (sequence.is_none() || waiter.sequence == *sequence)
            });
            ("queued", own && session == asks)
        }
        Some(Reply::Held { holder, token, .. }) => {
            let is_held = lock.is_some_and(|lock| (lock.holder.session, lock.holder.token) == (*holder, *token));
            ("held by another", is_held && holder != asks && !claims())
        }
        // If it did nothing else since, whatever claim it has is that of this very acquire.
        Some(Reply::Gone) => ("gone", !(is_its_last() && claims())),
        Some(Reply::NoSession) => ("without a session", after.session(*asks).is_none()),
        _ => return Ok(()),
    };
    if is {
        return Ok(());
    }
    let detail = format!("{command:?} was told that it is {says}: {:?}", outcome.reply);
    Err(Violation { property: "answers are true", detail })
}
