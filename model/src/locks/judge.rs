//! Checks of every entry that a lock table applies.

use palisade_spec::require;
use std::borrow::Cow;
use std::collections::BTreeMap;

use palisade_spec::invariants::{
    Check, Holders, Property, breaks_are_reported, changes_are_told, exactly_once, fifo_order, holds_are_counted,
    keys_asked_for, mutual_exclusion, no_deadlock, no_denied_grant, no_early_expiry, no_foreign_change,
    no_needless_wait, store_is_fenced, table_is_sound, time_passed, token_monotonicity, transactions_are_whole,
    values_are_kept,
};
use palisade_spec::lock::{
    Command, Event, Key, LockTable, Outcome, Owner, Principal, Reply, Session, SessionId, Token, Ttl, Writer,
};
use palisade_spec::raft::{Payload, Stamp, StateMachine};

use super::answers::reply_matches_table;
use super::entry_step::{Standing, Step};

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
    let found = match command {
        Some(command) if time_may_change(before, at, command) => Cow::Owned(time_passed(before, at, command)),
        _ => Cow::Borrowed(before),
    };
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
    holds_are_counted(before, at, command, outcome, after)?;
    values_are_kept(before, command, outcome, after)?;
    store_is_fenced(before, at, command, after)?;
    transactions_are_whole(before, at, command, outcome, after)?;
    changes_are_told(before, &outcome.events, after)?;
    deadlines_follow_signs_of_life(step)?;
    // An unchanged table was checked when it came about.
    if before != after {
        table_is_sound(after)?;
        no_needless_wait(after)?;
        no_deadlock(after)?;
    }
    session_attributes_are_constant(step)?;
    claims_are_as_asked(step)?;
    reply_matches_table(step)
}

/// Whether time can change what a command finds at its keys: a holder may be due; a waiter may be due or
/// denied, and it may be its turn.
fn time_may_change(before: &LockTable, at: Stamp, command: &Command) -> bool {
    let is_due = |id: SessionId| before.session(id).is_some_and(|session| session.deadline < at);
    let mut locks = keys_asked_for(command).iter().filter_map(|key| before.lock(key));
    locks.any(|lock| !lock.queue.is_empty() || lock.holders.iter().any(|holder| is_due(holder.session)))
}

/// Checks that the events suffice to reconstruct the holders.
fn events_match_holders(step: &Step<'_>) -> Check {
    let mut reported = holders(step.before);
    mutual_exclusion(&mut reported, &step.outcome.events)?;
    let events_match = holders(step.after) == reported;
    require!(Property::MutualExclusion, events_match, "the events leave the holders {reported:?}")
}

/// The holders of each held key, in the order of their grants.
fn holders(table: &LockTable) -> Holders {
    let mut holders = Holders::new();
    for (key, lock) in table.locks().iter() {
        for holder in lock.holders.iter() {
            holders.entry(key.clone()).or_default().push((holder.session, holder.token, holder.mode));
        }
    }
    holders
}

/// Checks that a release or a break drops only the claim that it names: if the session has no such claim
/// on exactly these keys, all claims on all keys stay, with their holds. Otherwise the other claims stay,
/// as the order of the queues demands.
fn release_drops_only_its_claim(step: &Step<'_>) -> Check {
    let meant = match step.command {
        Some(Command::Release { session, keys, claim, .. }) => Step::has_claim(step.found, *session, keys, *claim),
        Some(Command::Break { key, token, .. }) => {
            Standing::all(step.found, key).iter().any(|(_, claim)| claim.token == Some(*token))
        }
        _ => return Ok(()),
    };
    let (was, is) = (lines(step.found), lines(step.after));
    require!(
        Property::ReleaseByHolderOnly,
        meant || was == is,
        "{:?} means no claim, and made {was:?} into {is:?}",
        step.command
    )
}

/// A claim: its session, its token if it holds the lock, and its holds.
type Shown = (SessionId, Option<Token>, u32);

/// The claims on each key, in order.
fn lines(table: &LockTable) -> Vec<(&Key, Vec<Shown>)> {
    let claims = |key| Standing::all(table, key).into_iter().map(|(id, claim)| (id, claim.token, claim.holds));
    table.locks().keys().map(|key| (key, claims(key).collect())).collect()
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

/// Checks that a claim, held or waiting, keeps its mode, its keys, and the number of the last request for
/// it, which identifies repetitions; a new claim has those of its request. A refused acquire changes no
/// claim. A claim that ends as time passes, before the command is executed, is none that is kept.
fn claims_are_as_asked(step: &Step<'_>) -> Check {
    let request = match step.command {
        Some(Command::Acquire { request, .. } | Command::AcquireOnce { request, .. }) => Some(request),
        _ => None,
    };
    for key in step.after.locks().keys() {
        let found: BTreeMap<_, _> = Standing::all(step.found, key).into_iter().collect();
        for (id, claim) in Standing::all(step.after, key) {
            let known = found.get(&id);
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
            let asked = request.map(|request| (&request.mode, &request.keys));
            let asked = known.map(|known| (&known.mode, &known.keys)).or(asked);
            let is_as_asked = asked == Some((&claim.mode, &claim.keys));
            require!(Property::RepliesMatchTable, is_as_asked, "{id} asked for {asked:?} at {key}, and has {claim:?}")?;
        }
    }
    Ok(())
}

/// Whether the reply says that an acquire does not fit the rules, or the claims that there are.
fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome.reply, Some(Reply::Denied | Reply::OtherSize { .. } | Reply::OtherClaim { .. }))
}
