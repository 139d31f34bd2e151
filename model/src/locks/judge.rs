//! Checks of every entry that a lock table applies.

use palisade_spec::require;
use std::borrow::Cow;
use std::collections::BTreeMap;

use palisade_spec::invariants::{
    Check, Holders, Property, breaks_are_reported, exactly_once, fifo_order, key_asked_for, mutual_exclusion,
    no_denied_grant, no_early_expiry, no_foreign_change, table_is_sound, token_monotonicity,
};
use palisade_spec::lock::{
    Command, Event, Key, Lock, LockTable, Outcome, Owner, Principal, Reply, Sequence, Session, SessionId, Token, Ttl,
};
use palisade_spec::raft::{Payload, Stamp, StateMachine};

use super::answers::reply_matches_table;
use super::entry_step::Step;

/// Checks one entry by the table before and after it. `greatest` is the greatest token that was
/// ever granted before.
pub fn judge(
    before: &LockTable,
    at: Stamp,
    payload: &Payload<Command>,
    outcome: &Outcome,
    after: &LockTable,
    greatest: &mut Token,
) -> Check {
    let command = match payload {
        Payload::Command(command) => Some(command),
        Payload::Noop | Payload::Members(_) => None,
    };
    let mut found = Cow::Borrowed(before);
    let holder = command.and_then(key_asked_for).and_then(|key| before.lock(key)).map(|lock| lock.holder.session);
    if let Some(session) = holder.filter(|id| before.session(*id).is_some_and(|holder| holder.deadline < at)) {
        found.to_mut().apply(at, &Command::Close { session });
    }
    let step = &Step { before, at, command, outcome, after, found: &found };
    events_match_holders(step)?;
    token_monotonicity(greatest, &outcome.events)?;
    release_drops_only_its_claim(step)?;
    no_denied_grant(before, at, command, outcome, after)?;
    breaks_are_reported(before, command, outcome)?;
    if let Some(command) = command {
        exactly_once(before, at, command, after)?;
        no_foreign_change(before, at, command, after)?;
    }
    sequences_are_recorded(step)?;
    fifo_order(before, at, command, &outcome.events, after)?;
    no_early_expiry(before, at, command, &outcome.events, after)?;
    deadlines_follow_signs_of_life(step)?;
    table_is_sound(after)?;
    session_attributes_are_constant(step)?;
    claims_keep_their_sequence(step)?;
    reply_matches_table(step)
}

/// Checks that the events suffice to reconstruct the holders.
fn events_match_holders(step: &Step<'_>) -> Check {
    let holder =
        |(key, lock): (&Key, &palisade_spec::lock::Lock)| (key.clone(), (lock.holder.session, lock.holder.token));
    let mut holders: Holders = step.before.locks().iter().map(holder).collect();
    mutual_exclusion(&mut holders, &step.outcome.events)?;
    let events_match = step.after.locks().iter().map(holder).collect::<BTreeMap<_, _>>() == holders;
    require!(Property::MutualExclusion, events_match, "the events leave the holders {holders:?}")
}

/// Checks that a release or a break drops only the claim that it names.
fn release_drops_only_its_claim(step: &Step<'_>) -> Check {
    let (key, meant) = match step.command {
        Some(Command::Release { session, key, claim, .. }) => (key, Step::has_claim(step.found, *session, key, *claim)),
        Some(Command::Break { key, token, .. }) => {
            (key, step.found.lock(key).is_some_and(|lock| lock.holder.token == *token))
        }
        _ => return Ok(()),
    };
    let line = |table: &LockTable| {
        let queue = |lock: &Lock| lock.queue.iter().map(|waiter| waiter.session).collect();
        table.lock(key).map(|lock| (lock.holder.token, queue(lock))).unwrap_or_default()
    };
    let (was, is): ((Token, Vec<SessionId>), _) = (line(step.found), line(step.after));
    require!(
        Property::ReleaseByHolderOnly,
        meant || was == is,
        "{:?} means no claim, and made {was:?} into {is:?}",
        step.command
    )
}

/// Checks that a session records its greatest sequence number, without which the table could not
/// recognise a repetition.
fn sequences_are_recorded(step: &Step<'_>) -> Check {
    let done = match step.command {
        Some(Command::Acquire { session, sequence, .. } | Command::Release { session, sequence, .. }) => {
            Some((*session, *sequence))
        }
        _ => None,
    };
    for (&id, session) in step.after.sessions().iter() {
        let known = step.before.session(id).and_then(|session| session.last);
        let last =
            done.filter(|(does, _)| *does == id && step.lives(id)).map_or(known, |(_, sequence)| known.max(sequence));
        require!(
            Property::ExactlyOnce,
            session.last == last,
            "session {id} did operation {last:?}, and knows of {:?}",
            session.last
        )?;
    }
    Ok(())
}

/// Checks that a deadline moves only for signs of life of its own session (a grant, an acquire of
/// what it holds, a keepalive), and then to a full TTL from now.
fn deadlines_follow_signs_of_life(step: &Step<'_>) -> Check {
    let Step { at, command, outcome, .. } = step;
    let is_granted =
        |id| outcome.events.iter().any(|event| matches!(event, Event::Granted { session, .. } if *session == id));
    let asks = |id| match command {
        Some(Command::KeepAlive { sessions }) => sessions.contains(&id),
        Some(Command::Acquire { session, sequence, .. }) => {
            let is_granted_now = matches!(outcome.reply, Some(Reply::Granted { .. }));
            *session == id && is_granted_now && !step.is_repeated(id, *sequence)
        }
        _ => false,
    };
    for (&id, session) in step.after.sessions().iter() {
        let anew = at.plus(session.ttl.0);
        let deadline = match step.before.session(id) {
            Some(known) if !step.lives(id) || (!is_granted(id) && !asks(id)) => known.deadline,
            _ => anew,
        };
        require!(
            Property::NoEarlyExpiry,
            session.deadline == deadline,
            "session {id} should live until {deadline}, not until {}",
            session.deadline
        )?;
    }
    Ok(())
}

/// Checks that a session keeps the attributes it was opened with, that a session opened for a lock
/// ends with its last claim, and that the table knows the next deadline.
fn session_attributes_are_constant(step: &Step<'_>) -> Check {
    for (&id, session) in step.after.sessions().iter() {
        let is_same = step.before.session(id).is_none_or(|known| attributes(known) == attributes(session));
        require!(Property::TableSoundness, is_same, "session {id} has become {session:?}")?;
        let has_reason = !session.once || !session.claims().is_empty();
        require!(Property::TableSoundness, has_reason, "session {id} lives on without the lock it was opened for")?;
    }
    let first = step.after.sessions().values().map(|session| session.deadline).min();
    require!(
        Property::TableSoundness,
        step.after.next_deadline() == first,
        "the next deadline is {first:?}, not {:?}",
        step.after.next_deadline()
    )
}

fn attributes(session: &Session) -> (&Owner, &Principal, Ttl, bool) {
    (&session.owner, &session.principal, session.ttl, session.once)
}

/// Checks that a claim, held or waiting, keeps the number of the last request for it, which
/// identifies repetitions. A denied acquire changes no claim.
fn claims_keep_their_sequence(step: &Step<'_>) -> Check {
    for key in step.after.locks().keys() {
        let before = numbers(step.before, key);
        for (id, number) in numbers(step.after, key) {
            let known = before.get(&id).copied().flatten();
            let given = match step.command {
                Some(Command::Acquire { session, sequence, key: asked, .. })
                    if (*session, asked) == (id, key)
                        && step.lives(id)
                        && !step.is_repeated(id, *sequence)
                        && step.outcome.reply != Some(Reply::Denied) =>
                {
                    sequence.or(known)
                }
                _ => known,
            };
            require!(
                Property::RepliesMatchTable,
                number == given,
                "the claim of {id} on {key} is that of operation {given:?}, not {number:?}"
            )?;
        }
    }
    Ok(())
}

/// The sequence numbers of the operations to which the claims on a key belong.
fn numbers(table: &LockTable, key: &Key) -> BTreeMap<SessionId, Option<Sequence>> {
    let Some(lock) = table.lock(key) else { return BTreeMap::new() };
    let waiters = lock.queue.iter().map(|waiter| (waiter.session, waiter.sequence));
    waiters.chain([(lock.holder.session, lock.holder.sequence)]).collect()
}
