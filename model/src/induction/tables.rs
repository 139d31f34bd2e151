//! The lock table: every entry applied to a sound table leaves it sound and has the right effect.
//!
//! The state is the table alone. The invariants are those of [`table_is_sound`], which a table by
//! itself must satisfy, and five more that a single state can show:
//!
//! - no session has a number that is still to be assigned,
//! - no deadline lies further ahead than its session's time-to-live,
//! - the number of a claim is no later than its session's last one,
//! - a session that was opened for one lock has a claim,
//! - an idle table knows its next deadline.
//!
//! The other properties are of single steps ([`check_lock_entry`]): exclusion, order, tokens, expiry,
//! exactly-once, answers. They are checked at every step, from every such table.
//!
//! One assumption about clients: they use each number for one operation only.
//!
//! All entries are applied at one moment. That covers every moment: a table knows deadlines only,
//! and only their order among themselves and relative to the present matters. Deadlines are: two
//! that have passed, the present, and one time-to-live ahead.

use std::sync::Arc;

use palisade_spec::checker::{Checked, Execution, check_lock_entry, execute};
use palisade_spec::invariants::{self, Violation, table_is_sound};
use palisade_spec::lock::{
    Claim, Command, Event, Key, LockRequest, LockTable, Mode, Opening, Owner, Principal, Proof, Reply, Sequence,
    SessionId, Token, Ttl, Waiter,
};
use palisade_spec::raft::{Payload, Stamp, StateMachine};
use palisade_spec::require;
use serde_json::{Value, json};
use stateright::Property;

use super::logs::grown;
use super::{Case, Induction, Latest, State, properties};

/// The present, and the moment at which the last entry was applied.
const NOW: Stamp = Stamp(3);
/// The time-to-live of every session.
const TTL: u64 = 1;
/// The possible deadlines of a session.
const DEADLINES: [u64; 4] = [1, 2, NOW.0, NOW.0 + TTL];
/// The next token.
const NEXT_TOKEN: u64 = 3;
/// The only value of claims that have one.
const VALUE: &str = "v";

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of sessions.
    pub sessions: u64,
    /// Number of keys.
    pub keys: usize,
    /// Maximum of the sessions' last numbers and of the claims' numbers; each may also be absent.
    pub numbers: u64,
    /// Number of sessions and claims that a sweep ends.
    pub sweep: u64,
    /// Whether there are claims in all modes, with one hold or two, with a value or without. Otherwise all
    /// claims are exclusive, with one hold and no value.
    pub mixed: bool,
}

/// Every table within the bounds.
pub struct Tables {
    bounds: Bounds,
    keys: Vec<Key>,
    kinds: Vec<Kind>,
    entries: Vec<Payload<Command>>,
}

/// What distinguishes claims, besides their sessions and numbers.
#[derive(Clone, Copy, Debug)]
struct Kind {
    mode: Mode,
    /// The number of holds; a waiter has one.
    holds: u32,
    /// Whether the claim has the value.
    value: bool,
}

/// A table without the parts that can be derived.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StartState {
    sessions: Vec<Option<Lease>>,
    lines: Vec<Line>,
}

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    deadline: u64,
    last: u64,
    once: bool,
}

/// The holders of a lock and its waiters, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Line {
    /// The first holder's token; the others have the next ones.
    token: u64,
    /// As many of the first claims hold the lock as it has room for.
    claims: Vec<Stand>,
}

/// A claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stand {
    /// Its index among the sessions.
    session: usize,
    number: u64,
    /// Its index among the kinds.
    kind: usize,
}

fn id(index: usize) -> SessionId {
    SessionId { number: index as u64 + 1, proof: Proof::default() }
}

fn number(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

/// The kinds of claims.
fn kinds(bounds: &Bounds) -> Vec<Kind> {
    if !bounds.mixed {
        return vec![Kind { mode: Mode::EXCLUSIVE, holds: 1, value: false }];
    }
    let semaphore = |permits| Mode::semaphore(permits, 2).expect("a semaphore of two permits");
    let mut kinds = Vec::new();
    for mode in [Mode::EXCLUSIVE, Mode::SHARED, semaphore(1), semaphore(2)] {
        for holds in [1, 2] {
            kinds.extend([false, true].map(|value| Kind { mode, holds, value }));
        }
    }
    kinds
}

impl Tables {
    /// The case within these bounds.
    pub fn new(bounds: Bounds) -> Tables {
        let keys: Vec<Key> = ["k", "l", "m"][..bounds.keys].iter().map(|&key| Key::from(key)).collect();
        let kinds = kinds(&bounds);
        let entries = entries(&bounds, &keys, &kinds);
        Tables { bounds, keys, kinds, entries }
    }

    fn leases(&self) -> Vec<Option<Lease>> {
        let mut leases = vec![None];
        for deadline in DEADLINES {
            for last in 0..=self.bounds.numbers {
                leases.extend([false, true].map(|once| Some(Lease { deadline, last, once })));
            }
        }
        leases
    }

    /// Every queue that these sessions can form at a key.
    fn lines(&self, sessions: &[Option<Lease>]) -> Vec<Line> {
        let lines = grown(|claims: &[Stand]| {
            let mut next = Vec::new();
            for (session, lease) in sessions.iter().enumerate() {
                let Some(lease) = lease else { continue };
                if claims.iter().any(|claim| claim.session == session) {
                    continue;
                }
                for number in 0..=lease.last {
                    let stands = (0..self.kinds.len()).map(|kind| Stand { session, number, kind });
                    next.extend(stands.filter(|stand| self.may_stand(claims, *stand)));
                }
            }
            next
        });
        let tokens = |claims: &[Stand]| match self.holders(claims) as u64 {
            0 => 0..1,
            holders => 1..NEXT_TOKEN + 1 - holders,
        };
        lines.iter().flat_map(|claims| tokens(claims).map(|token| Line { token, claims: claims.clone() })).collect()
    }

    /// The number of the first claims for which a lock has room: the next one waits, and the others behind it.
    fn holders(&self, claims: &[Stand]) -> usize {
        let mut taken = 0;
        let has_room = |claim: &&Stand| {
            let mode = self.kinds[claim.kind].mode;
            taken += u64::from(mode.permits());
            taken <= u64::from(mode.of())
        };
        claims.iter().take_while(has_room).count()
    }

    /// Whether a claim can stand behind these: all claims on a lock are of one size, and only a holder has a
    /// second hold.
    fn may_stand(&self, claims: &[Stand], stand: Stand) -> bool {
        let Kind { mode, holds, .. } = self.kinds[stand.kind];
        let fits = claims.first().is_none_or(|first| self.kinds[first.kind].mode.of() == mode.of());
        fits && (holds == 1 || self.holders(&[claims, &[stand]].concat()) > claims.len())
    }

    fn table(&self, initial: &StartState) -> LockTable {
        let claims = |index: usize| -> Vec<&Key> {
            let stands = |line: &Line| line.claims.iter().any(|claim| claim.session == index);
            self.keys.iter().zip(&initial.lines).filter(|(_, line)| stands(line)).map(|(key, _)| key).collect()
        };
        let living = || initial.sessions.iter().enumerate().filter_map(|(index, lease)| Some((index, (*lease)?)));
        let sessions: Vec<Value> = living()
            .map(|(index, lease)| {
                let Lease { deadline, last, once } = lease;
                let claims = claims(index);
                json!([id(index), {
                    "owner": "", "ttl": TTL, "deadline": deadline, "last": number(last), "once": once, "claims": claims,
                }])
            })
            .collect();
        let mut deadlines: Vec<(u64, SessionId)> = living().map(|(index, lease)| (lease.deadline, id(index))).collect();
        deadlines.sort_unstable();
        let deadlines: Vec<Value> = deadlines.into_iter().map(|entry| json!([entry, null])).collect();
        let locks: Vec<Value> = (self.keys.iter().zip(&initial.lines))
            .filter(|(_, line)| !line.claims.is_empty())
            .map(|(key, line)| {
                let (holders, waiters) = line.claims.split_at(self.holders(&line.claims));
                let waiter = |claim: &Stand| {
                    let Kind { mode, value, .. } = self.kinds[claim.kind];
                    json!({
                        "session": id(claim.session), "sequence": number(claim.number), "mode": mode,
                        "details": { "several": null, "value": value.then_some(VALUE) },
                    })
                };
                let holder = |(claim, token): (&Stand, u64)| {
                    let mut holder = waiter(claim);
                    holder["token"] = token.into();
                    holder["holds"] = self.kinds[claim.kind].holds.into();
                    holder
                };
                let holders: Vec<Value> = holders.iter().zip(line.token..).map(holder).collect();
                let queue: Vec<Value> = waiters.iter().map(waiter).collect();
                json!([key, { "holders": holders, "queue": queue }])
            })
            .collect();
        let table = json!({
            "sweep": self.bounds.sweep, "next_session": self.bounds.sessions + 1, "next_token": NEXT_TOKEN,
            "sessions": sessions, "deadlines": deadlines, "contended": [], "locks": locks,
        });
        serde_json::from_value(table).expect("a table")
    }

    /// The table of a start state.
    fn cached(&self, initial: &StartState) -> Arc<LockTable> {
        thread_local! {
            static TABLE: Latest<(u64, StartState), Arc<LockTable>> = const { Latest::new() };
        }
        TABLE.with(|latest| latest.get((self.bounds.sweep, initial.clone()), || Arc::new(self.table(initial))))
    }
}

/// Whether the locks were granted with different tokens, as two claims must be.
fn tokens_differ(lines: &[Line]) -> bool {
    let tokens: Vec<u64> = lines.iter().filter(|line| !line.claims.is_empty()).map(|line| line.token).collect();
    (1..tokens.len()).all(|index| !tokens[..index].contains(&tokens[index]))
}

/// Every entry that can be applied.
fn entries(bounds: &Bounds, keys: &[Key], kinds: &[Kind]) -> Vec<Payload<Command>> {
    // One more than exist: a session that never existed or has ended.
    let sessions: Vec<SessionId> = (0..=usize::try_from(bounds.sessions).expect("few sessions")).map(id).collect();
    // The number of a session that may exist, from a client that does not know its secret.
    let forged = SessionId { proof: Proof::from(1), ..id(0) };
    let numbers: Vec<Option<Sequence>> = (0..=bounds.numbers + u64::from(bounds.numbers > 0))
        .map(|sequence| number(sequence).and_then(Sequence::new))
        .collect();
    let mut commands = vec![Command::Open { opening: opening() }, Command::KeepAlive { sessions: sessions.clone() }];
    for session in sessions.iter().copied().chain([forged]) {
        commands.extend([Command::Close { session }, Command::KeepAlive { sessions: vec![session] }]);
    }
    for key in keys {
        let key = || key.clone();
        let mut requests = Vec::new();
        for &Kind { mode, holds, value } in kinds {
            requests.extend([false, true].map(|wait| LockRequest {
                mode,
                // Such an acquire makes the second hold.
                reentrant: holds > 1,
                value: value.then(|| VALUE.into()),
                ..LockRequest::exclusive(key(), wait)
            }));
        }
        let requests = || requests.iter().cloned();
        commands.extend(requests().map(|request| Command::AcquireOnce { opening: opening(), request }));
        commands.extend((1..=NEXT_TOKEN).map(|token| Command::Break {
            key: key(),
            token: Token(token),
            principal: Principal::default(),
        }));
        let (gone, known) = sessions.split_last().expect("there is one that never was");
        for session in [*gone, forged] {
            commands.extend(requests().map(|request| Command::Acquire { session, sequence: None, request }));
            commands.push(Command::Release { session, sequence: None, keys: key().into(), claim: Claim::Either });
        }
        for (&session, &sequence) in
            known.iter().flat_map(|session| numbers.iter().map(move |number| (session, number)))
        {
            commands.extend(requests().map(|request| Command::Acquire { session, sequence, request }));
            let held = (1..=NEXT_TOKEN).map(|token| Claim::Held(Token(token)));
            let claims = held.chain([Claim::Waiting, Claim::Either]);
            commands.extend(claims.map(|claim| Command::Release { session, sequence, keys: key().into(), claim }));
        }
        if bounds.mixed {
            for session in sessions.iter().copied().chain([forged]) {
                commands.extend((1..=NEXT_TOKEN).map(|token| Command::Proclaim {
                    session,
                    sequence: None,
                    key: key(),
                    token: Token(token),
                    value: VALUE.into(),
                }));
            }
        }
    }
    commands.into_iter().map(Payload::Command).chain([Payload::Noop]).collect()
}

/// Invariants of a table besides its soundness.
fn is_well_formed(table: &LockTable) -> Result<(), Violation> {
    table_is_sound(table)?;
    let property = invariants::Property::TableSoundness;
    for (id, session) in table.sessions().iter() {
        let deadline = session.deadline;
        require!(
            property,
            deadline <= NOW.plus(session.ttl.0),
            "session {id} lives until {deadline}, longer than its time-to-live"
        )?;
        require!(
            property,
            !session.once || !session.claims().is_empty(),
            "session {id} lives on without the lock it was opened for"
        )?;
    }
    for (key, lock) in table.locks().iter() {
        let waiters = lock.queue.iter().map(|waiter| (waiter.session, waiter.sequence));
        let holders = lock.holders.iter().map(|holder| (holder.session, holder.sequence));
        for (id, number) in holders.chain(waiters) {
            require!(
                property,
                number <= table.session(id).and_then(|session| session.last),
                "the claim of {id} on {key} has number {number:?}, which {id} has not reached"
            )?;
        }
    }
    Ok(())
}

/// Whether the entry's number, if the session waits under it, is that of a request to wait. A
/// client numbers each operation anew, so no other operation has that number.
fn is_one_operation(table: &LockTable, entry: &Payload<Command>) -> bool {
    let Payload::Command(Command::Acquire { session, sequence: Some(number), request }) = entry else {
        return true;
    };
    let waits_under_it = |waiter: &Waiter| waiter.session == *session && waiter.sequence == Some(*number);
    let waits = |key: &Key| table.lock(key).is_some_and(|lock| lock.queue.iter().any(waits_under_it));
    request.waits() || !request.keys.iter().any(waits)
}

/// Whether new sessions have the next numbers, and leave later numbers unassigned.
fn numbers_are_new(before: &LockTable, after: &LockTable) -> Result<(), Violation> {
    let new = |before: &LockTable, after: &LockTable| -> Vec<u64> {
        after.sessions().keys().filter(|id| before.session(**id).is_none()).map(|id| id.number).collect()
    };
    let mut numbers = new(before, after);
    if !numbers.is_empty() {
        let mut later = after.clone();
        later.apply(NOW, &Command::Open { opening: opening() });
        let next = new(after, &later);
        // A session with an existing one's number replaces it.
        numbers.push(next.first().copied().unwrap_or(0));
    }
    let greatest = before.sessions().keys().map(|id| id.number).max().unwrap_or(0);
    let is_new = numbers.is_sorted_by(|a, b| a < b) && numbers.iter().all(|&number| number > greatest);
    require!(invariants::Property::TableSoundness, is_new, "sessions {numbers:?} were opened beside session {greatest}")
}

fn opening() -> Opening {
    Opening { proof: Proof::default(), owner: Owner::from(""), principal: Principal::default(), ttl: Ttl(TTL) }
}

impl Case for Tables {
    type StartState = StartState;
    type Step = u16;

    fn start_states(&self) -> Vec<StartState> {
        let mut all: Vec<Vec<Option<Lease>>> = vec![Vec::new()];
        for _ in 0..self.bounds.sessions {
            let leases = self.leases();
            all = all.iter().flat_map(|known| leases.iter().map(|lease| [&known[..], &[*lease]].concat())).collect();
        }
        let mut start_states = Vec::new();
        for sessions in all {
            let lines = self.lines(&sessions);
            let mut lined: Vec<Vec<Line>> = vec![Vec::new()];
            for _ in 0..self.bounds.keys {
                let longer = |known: &Vec<Line>| {
                    let known = known.clone();
                    lines.iter().map(move |line| [&known[..], std::slice::from_ref(line)].concat()).collect::<Vec<_>>()
                };
                lined = lined.iter().flat_map(longer).collect();
            }
            let has_reason = |lines: &[Line], index: usize| {
                sessions[index].is_none_or(|lease| !lease.once)
                    || lines.iter().any(|line| line.claims.iter().any(|claim| claim.session == index))
            };
            lined.retain(|lines| tokens_differ(lines) && (0..sessions.len()).all(|index| has_reason(lines, index)));
            start_states.extend(lined.into_iter().map(|lines| StartState { sessions: sessions.clone(), lines }));
        }
        start_states
    }

    fn steps(&self, initial: &StartState, steps: &mut Vec<u16>) {
        let table = self.cached(initial);
        let possible = (0..self.entries.len()).filter(|&entry| is_one_operation(&table, &self.entries[entry]));
        steps.extend(possible.map(|entry| u16::try_from(entry).expect("some hundred entries")));
    }

    fn take(&self, initial: &StartState, step: &u16) -> Result<Option<&'static str>, Violation> {
        let before = self.cached(initial);
        let entry = &self.entries[usize::from(*step)];
        let mut after = (*before).clone();
        let outcome = execute(&mut after, NOW, entry);
        let mut greatest = Token(NEXT_TOKEN - 1);
        let execution = Execution::<LockTable>::new(&before, NOW, entry, &outcome, &after);
        // An unchanged table is the one from which the step begins.
        let check_state = |after: &LockTable| if *after == *before { Ok(()) } else { after.check_state() };
        check_lock_entry(&execution, &mut greatest, true, check_state)?;
        is_well_formed(&after)?;
        numbers_are_new(&before, &after)?;
        let ended = outcome.events.iter().filter(|event| matches!(event, Event::Expired { .. })).count();
        let granted = outcome.events.iter().any(|event| matches!(event, Event::Granted { .. }));
        let proclaimed = outcome.events.iter().any(|event| matches!(event, Event::Proclaimed { .. }));
        Ok(match entry {
            Payload::Noop if ended > 1 => Some("a sweep ends two sessions"),
            Payload::Noop if ended > 0 && granted => Some("a sweep ends a holder, and a waiter is granted the lock"),
            _ if !self.bounds.mixed => None,
            _ if matches!(outcome.reply, Some(Reply::StillHeld { .. })) => Some("a release leaves a hold"),
            _ if proclaimed => Some("a holder proclaims a value"),
            _ => None,
        })
    }

    fn properties(&self) -> Vec<Property<Induction<Tables>>> {
        let mut all: Vec<Property<Induction<Tables>>> = properties![
            always: MutualExclusion, TokenMonotonicity, FifoOrder, NoEarlyExpiry, ExactlyOnce,
                NoForeignChange, NoDeniedGrant, BreaksAreReported, NoNeedlessWait, NoDeadlock, HoldsAreCounted, ValuesAreKept,
                ChangesHaveEvents,
                ReleaseByHolderOnly, RepliesMatchTable, TableSoundness, Assertions;
            sometimes: "a sweep ends two sessions", "a sweep ends a holder, and a waiter is granted the lock"
        ];
        if self.bounds.mixed {
            let mixed: Vec<Property<Induction<Tables>>> =
                properties![always: ; sometimes: "a release leaves a hold", "a holder proclaims a value"];
            all.extend(mixed);
        }
        all
    }

    fn picture(&self, initial: &StartState) -> String {
        let table = serde_json::to_string(&*self.cached(initial)).expect("a table can be written");
        format!("at {NOW}, a table {table}")
    }

    fn sentence(&self, step: &u16) -> String {
        format!("{:?} is applied", self.entries[usize::from(*step)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_state_is_a_sound_table_with_its_own_sessions_and_claims() {
        let plain = Bounds { sessions: 2, keys: 1, numbers: 1, sweep: 1, mixed: false };
        let (two_keys, mixed) = (Bounds { numbers: 0, keys: 2, ..plain }, Bounds { numbers: 0, mixed: true, ..plain });
        for bounds in [plain, two_keys, mixed] {
            let tables = Tables::new(bounds);
            let start_states = tables.start_states();
            assert!(start_states.len() > 1000);
            for initial in &start_states {
                let table = tables.table(initial);
                assert_eq!(is_well_formed(&table).and_then(|()| table.check_state()), Ok(()), "{initial:?}");
                for (index, lease) in initial.sessions.iter().enumerate() {
                    let found = table.session(id(index)).map(|session| (session.deadline.0, session.once));
                    assert_eq!(found, lease.map(|lease| (lease.deadline, lease.once)));
                }
                let lock = table.lock(&tables.keys[0]);
                let line = lock.map_or(0, |lock| lock.holders.len() + lock.queue.len());
                assert_eq!(line, initial.lines[0].claims.len());
                assert_eq!(
                    table.next_deadline().map(|deadline| deadline.0),
                    initial.sessions.iter().flatten().map(|lease| lease.deadline).min()
                );
            }
        }
    }
}
