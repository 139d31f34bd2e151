//! FIFO order: a lock goes to the live waiters that have waited longest; a queue keeps its order, no
//! session overtakes a waiter, and no waiter disappears without a cause.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Check, EntryStep, Property, permitted, side_by_side};
use crate::lock::{Command, Event, Key, LockTable, Mode, Right, Session, SessionId, Token};
use crate::require;

const NAME: Property = Property::FifoOrder;

/// The claims on a key in the order in which they came to hold it or to wait for it.
struct Line<'a> {
    holders: Vec<(SessionId, Token, Mode, &'a [Key])>,
    waiters: Vec<(SessionId, Mode, &'a [Key])>,
}

/// Compares the table before and after an entry, and its events.
///
/// Each key has a line: the holders, then the waiters. Holders that remain keep their grants, and waiters
/// that remain keep their order, before all new ones. A new session is in the line because of this very
/// command. A session holds the lock only if no waiter that stood before it still waits. A session that
/// left either gave up its claim by this command, or its session ended, or its turn came while it was
/// due or denied; and the events report it. If this command then asks for other keys, the session comes anew.
pub fn fifo_order(step: &EntryStep<'_>) -> Check {
    for (key, was, is) in side_by_side(step.before.locks(), step.after.locks()) {
        if was != is {
            step.line_is_in_order(key)?;
        }
    }
    step.withdrawn_once()
}

impl EntryStep<'_> {
    fn line_is_in_order(&self, key: &Key) -> Check {
        let (mut old, new) = (line(self.before, key), line(self.after, key));
        old.waiters.retain(|(session, ..)| !self.comes_anew(*session, key));
        let was_there = |session: SessionId| old.sessions().any(|other| other == session);

        for held in &old.holders {
            let now = new.holders.iter().find(|(session, ..)| *session == held.0);
            let is_same = now.is_none_or(|now| now == held) && !new.waits(held.0);
            require!(NAME, is_same, "the holder {} of {key} stays, and not with its grant", held.0)?;
        }
        let stay = || old.waiters.iter().map(|(session, ..)| *session).filter(|session| new.waits(*session));
        let now = || new.waiters.iter().map(|(session, ..)| *session);
        let in_order = stay().eq(now().take(stay().count()));
        require!(NAME, in_order, "the queue of {key} was {:?} and became {:?}", old.order(), new.order())?;
        for (session, mode, keys) in new.claims() {
            let is_kept = old.claims().all(|(known, was, of)| known != session || (was, of) == (mode, keys));
            require!(NAME, is_kept, "session {session} has another claim on {key} than before")?;
            let asked =
                was_there(session) || has_asked(self.before, self.command, session, (mode, keys), new.holds(session));
            require!(NAME, asked, "session {session} stands at {key} and has not asked for it")?;
        }
        no_waiter_is_overtaken(key, &old, &new)?;
        for session in old.sessions().filter(|session| !new.holds(*session) && !new.waits(*session)) {
            let ended = self.after.session(session).is_none();
            let keys = old.claims().find(|(claiming, ..)| *claiming == session).map(|(.., keys)| keys);
            let gave_up = ended
                || self.was_passed_over(session, key)
                || keys.is_some_and(|keys| gave_up(self.before, self.command, keys, session));
            require!(NAME, gave_up, "session {session} left the line at {key} without a cause")?;
            let told = self.outcome.events.iter().any(|event| leaves(event, key, session));
            require!(NAME, told, "no event reports that session {session} left the line at {key}")?;
        }
        Ok(())
    }

    /// Whether the rules denied the session what it waited for, and then this very command asked for another
    /// claim on the key.
    fn comes_anew(&self, session: SessionId, key: &Key) -> bool {
        let is_told = |event: &Event| matches!(event, Event::Withdrawn { key: left, session: it } if (left, *it) == (key, session));
        if !self.outcome.events.iter().any(is_told) || !self.was_passed_over(session, key) {
            return false;
        }
        let now = line(self.after, key);
        now.claims().any(|(claiming, mode, keys)| {
            claiming == session && has_asked(self.before, self.command, session, (mode, keys), now.holds(session))
        })
    }

    /// Whether the turn of a waiter came at one of its keys, and it was due, or the rules in force deny it
    /// what it waited for.
    fn was_passed_over(&self, session: SessionId, key: &Key) -> bool {
        let is_due = self.before.session(session).is_some_and(|session| session.deadline < self.at);
        let mut queue = self.before.lock(key).into_iter().flat_map(|lock| lock.queue.iter());
        let Some(waiter) = queue.find(|waiter| waiter.session == session) else { return false };
        let keys = waiter.all_keys(key);
        (is_due || self.is_denied(keys, session)) && keys.iter().any(|key| self.turn_came(key, session))
    }

    /// Whether no waiter before this one waits any longer, and the holders of the key leave room for it:
    /// the holders that remain, and the waiters before it that were granted.
    fn turn_came(&self, key: &Key, session: SessionId) -> bool {
        let (old, new) = (line(self.before, key), line(self.after, key));
        let Some(position) = old.waiters.iter().position(|(waiter, ..)| *waiter == session) else { return false };
        let before_it = &old.waiters[..position];
        let still_waits = before_it.iter().any(|(other, ..)| new.waits(*other));
        let came_before = |holder: SessionId| old.holds(holder) || before_it.iter().any(|(other, ..)| *other == holder);
        let held = new.holders.iter().filter(|(holder, ..)| came_before(*holder));
        let permits: u64 = held.map(|(_, _, mode, _)| u64::from(mode.permits())).sum();
        let mode = old.waiters[position].1;
        !still_waits && permits + u64::from(mode.permits()) <= u64::from(mode.of())
    }

    /// Whether the events report that the rules in force denied the session one of these keys, and they
    /// do.
    fn is_denied(&self, keys: &[Key], id: SessionId) -> bool {
        let rules = self.before.access().rules().map(|rules| &**rules);
        let denies = |session: &Session, key: &Key| !permitted(rules, &session.principal, Right::Acquire, key.as_str());
        let is_told = |event: &Event| match event {
            Event::Denied { key, session, .. } => {
                *session == id
                    && keys.contains(key)
                    && self.before.session(id).is_some_and(|session| denies(session, key))
            }
            _ => false,
        };
        self.outcome.events.iter().any(is_told)
    }

    /// A session that is reported as withdrawn had a queue position, has none unless it comes anew, and is
    /// reported once.
    fn withdrawn_once(&self) -> Check {
        let mut told = BTreeSet::new();
        for event in &self.outcome.events {
            let Event::Withdrawn { key, session } = event else { continue };
            let waited = self.before.lock(key).is_some_and(|lock| lock.queue_position(*session).is_some());
            require!(NAME, waited, "session {session} lost a queue position at {key} that it never had")?;
            let is_there = line(self.after, key).sessions().any(|other| other == *session);
            let is_gone = !is_there || self.comes_anew(*session, key);
            require!(NAME, is_gone, "session {session} lost its queue position at {key} and is there")?;
            require!(NAME, told.insert((key, session)), "session {session} lost its queue position at {key} twice")?;
        }
        Ok(())
    }
}

/// A new holder leaves no waiter behind that came before it.
fn no_waiter_is_overtaken(key: &Key, old: &Line<'_>, new: &Line<'_>) -> Check {
    let Some(ahead) = old.waiters.iter().position(|(session, ..)| new.waits(*session)) else { return Ok(()) };
    for (session, ..) in new.holders.iter().filter(|(session, ..)| !old.holds(*session)) {
        let position = old.waiters.iter().position(|(waiter, ..)| waiter == session);
        let waits = &old.waiters[ahead].0;
        require!(
            NAME,
            position.is_some_and(|position| position < ahead),
            "session {session} was granted {key} while {waits} waited before it"
        )?;
    }
    Ok(())
}

impl Line<'_> {
    fn holds(&self, id: SessionId) -> bool {
        self.holders.iter().any(|(session, ..)| *session == id)
    }

    fn waits(&self, id: SessionId) -> bool {
        self.waiters.iter().any(|(session, ..)| *session == id)
    }

    fn sessions(&self) -> impl Iterator<Item = SessionId> {
        let holders = self.holders.iter().map(|(session, ..)| *session);
        holders.chain(self.waiters.iter().map(|(session, ..)| *session))
    }

    fn claims(&self) -> impl Iterator<Item = (SessionId, Mode, &[Key])> {
        let holders = self.holders.iter().map(|(session, _, mode, keys)| (*session, *mode, *keys));
        holders.chain(self.waiters.iter().map(|(session, mode, keys)| (*session, *mode, *keys)))
    }

    fn order(&self) -> Vec<SessionId> {
        self.waiters.iter().map(|(session, ..)| *session).collect()
    }
}

fn line<'a>(table: &'a LockTable, key: &'a Key) -> Line<'a> {
    let Some(lock) = table.lock(key) else { return Line { holders: Vec::new(), waiters: Vec::new() } };
    let holders = lock.holders.iter().map(|holder| (holder.session, holder.token, holder.mode, holder.all_keys(key)));
    let waiters = lock.queue.iter().map(|waiter| (waiter.session, waiter.mode, waiter.all_keys(key)));
    Line { holders: holders.collect(), waiters: waiters.collect() }
}

/// Whether the command asks for this claim of the session: as a holder, or as a waiter if it waits.
fn has_asked(
    before: &LockTable,
    command: Option<&Command>,
    id: SessionId,
    (mode, keys): (Mode, &[Key]),
    holds: bool,
) -> bool {
    let (is_it, request) = match command {
        Some(Command::Acquire { session, request, .. }) => (*session == id, request),
        Some(Command::AcquireOnce { request, .. }) => (before.session(id).is_none(), request),
        _ => return false,
    };
    is_it && (request.mode, request.keys.as_slice()) == (mode, keys) && (request.waits() || holds)
}

/// Whether the session's own command gives up its claim on these keys, or its queue positions; or the
/// command breaks its grant.
fn gave_up(before: &LockTable, command: Option<&Command>, claimed: &[Key], id: SessionId) -> bool {
    match command {
        Some(Command::Break { key: broken, token, .. }) => {
            let held = before.lock(broken).and_then(|lock| lock.holder_with(*token));
            held.is_some_and(|held| held.session == id && held.all_keys(broken) == claimed)
        }
        Some(Command::Release { session, keys, .. }) => *session == id && keys.as_slice() == claimed,
        Some(Command::Acquire { session, request, .. }) => {
            *session == id && request.keys.as_slice() == claimed && !request.waits()
        }
        _ => false,
    }
}

/// Whether the event reports that the session has no claim on the key any more.
fn leaves(event: &Event, key: &Key, id: SessionId) -> bool {
    match event {
        Event::Released { key: left, session, .. } | Event::Withdrawn { key: left, session } => {
            (left, *session) == (key, id)
        }
        Event::Granted { .. }
        | Event::Proclaimed { .. }
        | Event::Broken { .. }
        | Event::Expired { .. }
        | Event::Closed { .. }
        | Event::Denied { .. }
        | Event::Put { .. }
        | Event::Deleted { .. }
        | Event::Queued { .. }
        | Event::Overdue { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::sync::Arc;
    use alloc::vec;

    use super::*;
    use crate::invariants::states;
    use crate::lock::{
        Claim, Keys, LockRequest, Opening, Outcome, Owner, Prefix, Principal, Proof, Revision, Rights, Rule, Rules,
        Subject, Token, Ttl,
    };
    use crate::raft::{Stamp, StateMachine};

    /// The check of an entry with these events.
    fn fifo_order(
        before: &LockTable,
        at: Stamp,
        command: Option<&Command>,
        events: &[Event],
        after: &LockTable,
    ) -> Check {
        let outcome = Outcome { reply: None, events: events.into() };
        super::fifo_order(&EntryStep::new(before, at, command, &outcome, after))
    }

    fn id(number: u64) -> SessionId {
        SessionId { number, proof: Proof::default() }
    }

    fn key() -> Key {
        Key::from("k")
    }

    fn acquire(number: u64, wait: bool) -> Command {
        Command::Acquire { session: id(number), sequence: None, request: LockRequest::exclusive(key(), wait) }
    }

    fn release(number: u64) -> Command {
        Command::Release { session: id(number), sequence: None, keys: key().into(), claim: Claim::Either }
    }

    fn break_first() -> Command {
        Command::Break { key: key(), token: Token(1), principal: Principal::default() }
    }

    fn opening() -> Opening {
        Opening { proof: Proof::default(), owner: Owner::from(""), principal: Principal::default(), ttl: Ttl(10) }
    }

    fn opened(sessions: u64) -> LockTable {
        let mut table = LockTable::default();
        for _ in 0..sessions {
            table.apply(Stamp(0), &Command::Open { opening: opening() });
        }
        table
    }

    /// Five sessions, of which the named ones acquired the lock in this order.
    fn in_line(sessions: &[u64]) -> LockTable {
        let mut table = opened(5);
        for &number in sessions {
            table.apply(Stamp(0), &acquire(number, true));
        }
        table
    }

    /// Applies `done`, and checks its effect against the command `told` and these events, or its
    /// own.
    fn judged(before: &LockTable, done: &Command, told: Option<&Command>, events: Option<&[Event]>) -> Check {
        let mut after = before.clone();
        let outcome = after.apply(Stamp(0), done);
        fifo_order(before, Stamp(0), told, events.unwrap_or(&outcome.events), &after)
    }

    #[track_caller]
    fn refused(check: Check, words: &str) {
        let violation = check.expect_err("this is no order").to_string();
        assert!(violation.starts_with("FIFO order is violated") && violation.contains(words), "{violation}");
    }

    #[test]
    fn what_the_table_does_is_in_order() {
        let before = in_line(&[1, 2, 3]);
        let once = Command::AcquireOnce { opening: opening(), request: LockRequest::exclusive(key(), true) };
        let close = Command::Close { session: id(1) };
        let asked = [acquire(4, true), acquire(4, false), acquire(2, false), release(1), release(3), once, close];
        for command in asked.into_iter().chain([break_first()]) {
            assert_eq!(judged(&before, &command, Some(&command), None), Ok(()), "{command:?}");
        }
        assert_eq!(judged(&in_line(&[1]), &acquire(2, true), Some(&acquire(2, true)), None), Ok(()));
        let free = in_line(&[]);
        assert_eq!(judged(&free, &acquire(4, false), Some(&acquire(4, false)), None), Ok(()));
        assert_eq!(fifo_order(&before, Stamp(0), None, &[], &before), Ok(()));
    }

    #[test]
    fn queue_keeps_its_order_and_a_new_waiter_is_last() {
        let (before, asks) = (in_line(&[1, 2, 3]), acquire(4, true));
        let judge = |order: &[u64]| fifo_order(&before, Stamp(0), Some(&asks), &[], &in_line(order));
        for order in [&[1, 3, 2][..], &[1, 4, 2, 3], &[1, 2, 4, 3]] {
            refused(judge(order), "and became");
        }
        for order in [&[2, 1, 3][..], &[4, 1, 2, 3]] {
            refused(judge(order), "not with its grant");
        }
    }

    #[test]
    fn new_session_must_have_acquired() {
        let before = in_line(&[1]);
        for told in [None, Some(&acquire(3, true)), Some(&acquire(2, false)), Some(&release(2))] {
            refused(judged(&before, &acquire(2, true), told, None), "session 2.0 stands at k and has not asked");
        }
        let elsewhere = Command::Acquire { session: id(2), sequence: None, request: LockRequest::exclusive("l", true) };
        refused(judged(&before, &acquire(2, true), Some(&elsewhere), None), "has not asked");
    }

    #[test]
    fn a_session_that_is_opened_for_a_lock_stands_there_and_no_other() {
        let before = in_line(&[1]);
        let once =
            |key: Key, wait| Command::AcquireOnce { opening: opening(), request: LockRequest::exclusive(key, wait) };
        let asks = once(key(), true);
        for told in [once(key(), false), once(Key::from("l"), true)] {
            refused(judged(&before, &asks, Some(&told), None), "has not asked");
        }
        refused(judged(&before, &acquire(2, true), Some(&asks), None), "has not asked");
        assert_eq!(judged(&in_line(&[]), &once(key(), false), Some(&once(key(), false)), None), Ok(()));
        refused(judged(&in_line(&[]), &acquire(2, true), Some(&once(key(), false)), None), "has not asked");
    }

    #[test]
    fn loss_of_a_claim_requires_a_cause() {
        let before = in_line(&[1, 2, 3]);
        let elsewhere = Command::Release { session: id(2), sequence: None, keys: "l".into(), claim: Claim::Either };
        let elsewhere_now =
            Command::Acquire { session: id(2), sequence: None, request: LockRequest::exclusive("l", false) };
        for told in [None, Some(&release(1)), Some(&acquire(2, true)), Some(&elsewhere), Some(&elsewhere_now)] {
            refused(judged(&before, &release(2), told, None), "without a cause");
        }
        refused(judged(&before, &release(1), Some(&release(2)), None), "without a cause");
        refused(judged(&before, &acquire(2, false), Some(&acquire(3, false)), None), "without a cause");
        refused(fifo_order(&before, Stamp(0), None, &[], &in_line(&[])), "without a cause");
        // The grant of session 1 is broken, not that of a waiter, and only by its token.
        refused(judged(&before, &release(2), Some(&break_first()), None), "without a cause");
        let other = Command::Break { key: key(), token: Token(9), principal: Principal::default() };
        refused(judged(&before, &release(1), Some(&other), None), "without a cause");
    }

    /// Session 2 waits for two keys, and gives up both.
    #[test]
    fn claim_on_several_keys_is_given_up_as_a_whole() {
        let both = states::acquire_all(2, &["k", "l"], Mode::EXCLUSIVE);
        let mut before = in_line(&[1]);
        before.apply(Stamp(0), &both);
        let keys = Keys::new(vec![key(), Key::from("l")]).expect("they differ");
        let gives_up = |keys| Command::Release { session: id(2), sequence: None, keys, claim: Claim::Either };
        let done = gives_up(keys);
        assert_eq!(judged(&before, &done, Some(&done), None), Ok(()));
        refused(judged(&before, &done, Some(&gives_up(key().into())), None), "without a cause");
    }

    /// Sessions claim permits of a semaphore of three; then the rules deny eve, whose session is 4, all locks.
    fn denied_to_eve(claims: &[(u64, u32)]) -> LockTable {
        let mut table = opened(0);
        for principal in ["bob", "bob", "bob", "eve", "bob"] {
            let principal = Principal::from(principal);
            table.apply(Stamp(0), &Command::Open { opening: Opening { principal, ..opening() } });
        }
        for &(number, permits) in claims {
            let mode = Mode::semaphore(permits, 3).expect("it is possible");
            table.apply(Stamp(0), &states::acquire_all(number, &["k"], mode));
        }
        let bob = Subject::Principal(Principal::from("bob"));
        let rule = Rule { prefix: Prefix::from(""), subject: bob, rights: Rights::of([Right::Acquire]) };
        let rules = Some(Arc::new(Rules::new(vec![], vec![rule])));
        let set = Command::SetAccess { principal: Principal::from("admin/root"), revision: Revision(0), rules };
        table.apply(Stamp(0), &set);
        table
    }

    /// Sessions 1 and 2 hold all permits; 3, 4 and 5 wait, and 4 is passed over when its turn has come.
    #[test]
    fn denied_waiter_s_turn_comes_when_there_is_room_for_it() {
        let before = denied_to_eve(&[(1, 1), (2, 2), (3, 1), (4, 2), (5, 2)]);
        // One holder after the other: 3 is granted, then 5.
        let mut held = before.clone();
        held.apply(Stamp(0), &release(1));
        assert_eq!(line(&held, &key()).order(), [id(4), id(5)]);
        let mut after = held.clone();
        let events = after.apply(Stamp(0), &release(2)).events;
        assert_eq!(line(&after, &key()).sessions().collect::<Vec<_>>(), [id(3), id(5)]);
        assert_eq!(fifo_order(&held, Stamp(0), Some(&release(2)), &events, &after), Ok(()));
        // Both at once, as if 1 had been due: the permits of 5, which came after 4, take none of its room.
        let closed = Command::Close { session: id(1) };
        let mut after = before.clone();
        let mut events = after.apply(Stamp(0), &closed).events;
        events.extend(after.apply(Stamp(0), &release(2)).events);
        assert_eq!(fifo_order(&before, Stamp(0), Some(&release(2)), &events, &after), Ok(()));
    }

    /// Session 4 waits for all three permits, of which one is held: its turn does not come.
    #[test]
    fn denied_waiter_is_not_passed_over_before_its_turn() {
        let before = denied_to_eve(&[(1, 1), (4, 3)]);
        let mut gone = before.clone();
        let mut events = gone.apply(Stamp(0), &release(4)).events;
        let mut free = before.clone();
        let told = free.apply(Stamp(0), &release(1)).events;
        assert_eq!(fifo_order(&before, Stamp(0), Some(&release(1)), &told, &free), Ok(()));
        events.extend(told.into_iter().filter(|event| matches!(event, Event::Denied { .. })));
        assert_eq!(events.len(), 2, "{events:?}");
        refused(fifo_order(&before, Stamp(0), None, &events, &gone), "without a cause");
    }

    /// Session 1 holds k and l, session 2 waits for both, session 3 for k. Then no client may acquire l, session 1
    /// is due, and session 2 asks for k alone.
    #[test]
    fn denied_waiter_comes_anew_and_is_last() {
        let both = |number| states::acquire_all(number, &["k", "l"], Mode::EXCLUSIVE);
        let open =
            || Command::Open { opening: Opening { principal: Principal::from("bob"), ttl: Ttl(100), ..opening() } };
        let mut before = opened(0);
        for command in [open(), open(), open(), both(1), both(2), acquire(3, true)] {
            before.apply(Stamp(0), &command);
        }
        before.apply(Stamp(50), &Command::KeepAlive { sessions: vec![id(2), id(3)] });
        let rights = Rights::of([Right::Acquire]);
        let rule = Rule { prefix: Prefix::from("k"), subject: Subject::Everyone, rights };
        let rules = Some(Arc::new(Rules::new(vec![], vec![rule])));
        let (principal, revision) = (Principal::from("admin/eve"), Revision(0));
        let mut denying = before.clone();
        denying.apply(Stamp(50), &Command::SetAccess { principal, revision, rules });

        let (at, asks, tries, mut after) = (Stamp(101), acquire(2, true), acquire(2, false), denying.clone());
        let events = after.apply(at, &asks).events;
        assert_eq!(line(&after, &key()).sessions().collect::<Vec<_>>(), [id(3), id(2)]);
        let judge = |told, events: &[Event], after| fifo_order(&denying, at, told, events, after);
        assert_eq!(judge(Some(&asks), &events, &after), Ok(()));
        refused(judge(None, &events, &after), "has another claim on k than before");
        refused(judge(Some(&tries), &events, &after), "has another claim on k than before");
        refused(fifo_order(&before, at, Some(&asks), &events, &after), "has another claim on k than before");
        let untold: Vec<Event> =
            events.iter().filter(|event| !matches!(event, Event::Withdrawn { .. })).cloned().collect();
        refused(judge(Some(&asks), &untold, &after), "has another claim on k than before");
        // The same, if no other session waits.
        let mut alone = denying.clone();
        alone.apply(Stamp(50), &release(3));
        let mut now = alone.clone();
        let told = now.apply(at, &asks).events;
        assert_eq!(line(&now, &key()).sessions().collect::<Vec<_>>(), [id(2)]);
        assert_eq!(fifo_order(&alone, at, Some(&asks), &told, &now), Ok(()));
        // Its former position is lost.
        let mut first = denying.clone();
        let keys = Keys::new(vec![key(), Key::from("l")]).expect("they differ");
        let leave = Command::Release { session: id(2), sequence: None, keys, claim: Claim::Waiting };
        for command in [leave, release(3), acquire(2, true), acquire(3, true)] {
            first.apply(Stamp(100), &command);
        }
        first.apply(at, &Command::Close { session: id(1) });
        assert_eq!(line(&first, &key()).sessions().collect::<Vec<_>>(), [id(2), id(3)]);
        refused(judge(Some(&asks), &events, &first), "session 2.0 was granted k while 3.0 waited before it");
    }

    #[test]
    fn a_holder_that_stays_holds_what_it_held() {
        let before = in_line(&[1, 2]);
        let mut after = opened(5);
        for command in [acquire(1, true), release(1), acquire(1, true), acquire(2, true)] {
            after.apply(Stamp(0), &command);
        }
        refused(fifo_order(&before, Stamp(0), None, &[], &after), "not with its grant");
    }

    #[test]
    fn departure_must_be_reported() {
        let (before, key) = (in_line(&[1, 2, 3]), key());
        refused(judged(&before, &release(2), Some(&release(2)), Some(&[])), "no event reports");
        let granted = [states::granted("k", 2, 2, Mode::EXCLUSIVE)];
        refused(judged(&before, &release(2), Some(&release(2)), Some(&granted)), "no event reports");
        let other = [Event::Released { key: key.clone(), session: id(3), token: Token(1) }];
        refused(judged(&before, &release(2), Some(&release(2)), Some(&other)), "no event reports");
        let elsewhere = [Event::Released { key: Key::from("l"), session: id(2), token: Token(1) }];
        refused(judged(&before, &release(2), Some(&release(2)), Some(&elsewhere)), "no event reports");
        let closed = Command::Close { session: id(2) };
        refused(judged(&before, &closed, Some(&closed), Some(&[])), "no event reports");
    }

    #[test]
    fn withdrawal_is_reported_once_and_only_for_waiters() {
        let before = in_line(&[1, 2]);
        let lost = |number| Event::Withdrawn { key: key(), session: id(number) };
        let released = Event::Released { key: key(), session: id(1), token: Token(1) };
        let twice = vec![lost(2), lost(2)];
        refused(judged(&before, &release(2), Some(&release(2)), Some(&twice)), "twice");
        refused(fifo_order(&before, Stamp(0), None, &[lost(2)], &before), "and is there");
        refused(fifo_order(&before, Stamp(0), None, &[lost(3)], &before), "never had");
        refused(judged(&before, &release(1), Some(&release(1)), Some(&[released, lost(1)])), "never had");
    }
}
