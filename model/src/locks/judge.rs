//! Checks of every entry that a lock table applies.

use std::borrow::Cow;

use palisade_spec::invariants::{
    Check, Holders, Property, breaks_are_reported, changes_are_told, exactly_once, fifo_order, holds_are_counted,
    mutual_exclusion, no_denied_grant, no_early_expiry, no_foreign_change, side_by_side, store_is_fenced, time_passed,
    token_monotonicity, transactions_are_whole, values_are_kept,
};
use palisade_spec::lock::{
    Command, Event, Key, LockTable, Mode, Outcome, Owner, Principal, Reply, Session, SessionId, Token, Ttl, Writer,
};
use palisade_spec::raft::{Payload, Stamp, StateMachine};
use palisade_spec::require;

use super::answers::reply_matches_table;
use super::entry_step::{Standing, Step};

/// Checks one entry by the table before and after it. `greatest` is the greatest token that was
/// ever granted before; `check_table` checks the table after it, if it has changed.
pub fn judge(
    before: &LockTable,
    at: Stamp,
    payload: &Payload<Command>,
    outcome: &Outcome,
    after: &LockTable,
    greatest: &mut Token,
    check_table: impl FnOnce(&LockTable) -> Check,
) -> Check {
    let command = match payload {
        Payload::Command(command) => Some(command),
        Payload::Noop | Payload::Members(_) => None,
    };
    let found = command.map_or(Cow::Borrowed(before), |command| time_passed(before, at, command));
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
    holds_are_counted(before, &found, command, outcome, after)?;
    values_are_kept(before, command, outcome, after)?;
    store_is_fenced(before, at, command, after)?;
    transactions_are_whole(before, at, command, outcome, after)?;
    changes_are_told(before, &outcome.events, after)?;
    deadlines_follow_signs_of_life(step)?;
    // An unchanged table was checked when it came about.
    if before != after {
        check_table(after)?;
    }
    session_attributes_are_constant(step)?;
    claims_are_as_asked(step)?;
    reply_matches_table(step)
}

/// Checks that the events suffice to reconstruct the holders.
fn events_match_holders(step: &Step<'_>) -> Check {
    let is_about_holders = |event: &Event| matches!(event, Event::Granted { .. } | Event::Released { .. });
    if !step.outcome.events.iter().any(is_about_holders) {
        let is_same = holders(step.before).eq(holders(step.after));
        return require!(Property::MutualExclusion, is_same, "the holders changed, and no event reports it");
    }
    let mut reported = Holders::new();
    for (key, grant) in holders(step.before) {
        reported.entry(key.clone()).or_default().push(grant);
    }
    mutual_exclusion(&mut reported, &step.outcome.events)?;
    let is = reported.iter().flat_map(|(key, grants)| grants.iter().map(move |grant| (key, *grant)));
    let events_match = holders(step.after).eq(is);
    require!(Property::MutualExclusion, events_match, "the events leave the holders {reported:?}")
}

/// The holders of all keys, in the order of their grants.
fn holders(table: &LockTable) -> impl Iterator<Item = (&Key, (SessionId, Token, Mode))> {
    table.locks().iter().flat_map(|(key, lock)| {
        lock.holders.iter().map(move |holder| (key, (holder.session, holder.token, holder.mode)))
    })
}

/// Checks that a release or a break drops only the claim that it names: if the session has no such claim
/// on exactly these keys, all claims on all keys stay as they are. Otherwise the other claims stay,
/// as the order of the queues demands.
fn release_drops_only_its_claim(step: &Step<'_>) -> Check {
    let meant = match step.command {
        Some(Command::Release { session, keys, claim, .. }) => Step::has_claim(step.found, *session, keys, *claim),
        Some(Command::Break { key, token, .. }) => {
            Standing::all(step.found, key).any(|claim| claim.token == Some(*token))
        }
        _ => return Ok(()),
    };
    require!(
        Property::ReleaseByHolderOnly,
        meant || step.found.locks() == step.after.locks(),
        "{:?} means no claim, and made {:?} into {:?}",
        step.command,
        step.found.locks(),
        step.after.locks()
    )
}

/// The sessions after the entry, each with what it was before, if it existed.
fn remaining<'a>(step: &Step<'a>) -> impl Iterator<Item = (SessionId, Option<&'a Session>, &'a Session)> {
    let sessions = side_by_side(step.before.sessions(), step.after.sessions());
    sessions.filter_map(|(&id, was, is)| Some((id, was, is?)))
}

/// Checks that a session records its greatest sequence number, without which the table could not
/// recognise a repetition.
fn sequences_are_recorded(step: &Step<'_>) -> Check {
    let done = match step.command {
        Some(
            Command::Acquire { session, sequence, .. }
            | Command::Release { session, sequence, .. }
            | Command::Proclaim { session, sequence, .. }
            | Command::Transact { writer: Writer::Session { session, sequence }, .. },
        ) => Some((*session, *sequence)),
        _ => None,
    };
    for (id, known, session) in remaining(step) {
        let known = known.and_then(|known| known.last);
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
    for (id, known, session) in remaining(step) {
        let anew = at.plus(session.ttl.0);
        let deadline = match known {
            Some(known) if !is_granted(id) && !asks(id) || !step.lives(id) => known.deadline,
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
    for (id, known, session) in remaining(step) {
        let is_same = known.is_none_or(|known| attributes(known) == attributes(session));
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

/// Checks that a claim, held or waiting, keeps its mode, its keys, and the number of the last request for
/// it, which identifies repetitions; a new claim has those of its request. A refused acquire changes no
/// claim. A claim that ends as time passes, before the command is executed, is none that is kept.
fn claims_are_as_asked(step: &Step<'_>) -> Check {
    let request = match step.command {
        Some(Command::Acquire { request, .. } | Command::AcquireOnce { request, .. }) => Some(request),
        _ => None,
    };
    for key in step.after.locks().keys() {
        for claim in Standing::all(step.after, key) {
            let id = claim.session;
            let known = Standing::of(step.found, id, key);
            let number = known.and_then(|known| known.sequence);
            let given = match step.command {
                Some(Command::Acquire { session, sequence, request })
                    if *session == id
                        && request.keys.iter().any(|asked| asked == key)
                        && step.lives(id)
                        && !step.is_repeated(id, *sequence)
                        && !is_refused(step.outcome) =>
                {
                    sequence.or(number)
                }
                _ => number,
            };
            require!(
                Property::RepliesMatchTable,
                claim.sequence == given,
                "the claim of {id} on {key} is that of operation {given:?}, not {:?}",
                claim.sequence
            )?;
            let asked = request.map(|request| (request.mode, request.keys.as_slice()));
            let asked = known.map(|known| (known.mode, known.keys)).or(asked);
            let is_as_asked = asked == Some((claim.mode, claim.keys));
            require!(Property::RepliesMatchTable, is_as_asked, "{id} asked for {asked:?} at {key}, and has {claim:?}")?;
        }
    }
    Ok(())
}

/// Whether the reply says that an acquire does not fit the rules, or the claims that there are.
fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome.reply, Some(Reply::Denied | Reply::OtherSize { .. } | Reply::OtherClaim { .. }))
}
