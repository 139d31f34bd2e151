//! Replies match the table: a command's reply says what the table has.

use super::{Check, ClaimView, EntryStep, Property, permitted};
use crate::lock::{
    Claim, Command, Event, Key, Keys, LockRequest, LockTable, Mode, Opening, Outcome, Principal, Reply, Right,
    Sequence, SessionId, Token,
};
use crate::require;

/// Checks an entry's reply. No two possible replies to a command are true at once.
pub fn replies_match_table(step: &EntryStep<'_>) -> Check {
    let EntryStep { command, outcome: Outcome { reply, .. }, after, .. } = step;
    let matches = match (command, reply) {
        (None, reply) => reply.is_none() && step.opens_none(),
        (Some(Command::Open { opening }), Some(Reply::Opened { session })) => step.is_opened(*session, opening, false),
        (Some(Command::AcquireOnce { opening, request }), Some(reply)) => {
            step.acquire_once_reply_matches(opening, request, reply)
        }
        (Some(_), _) if !step.opens_none() => false,
        (Some(Command::Close { session }), Some(Reply::Closed)) => after.session(*session).is_none(),
        (Some(Command::KeepAlive { sessions }), Some(Reply::KeptAlive { missing })) => {
            sessions.iter().filter(|session| !step.lives(**session)).eq(missing)
        }
        (Some(Command::Acquire { session, sequence, request }), Some(reply)) => {
            step.acquire_reply_matches(*session, *sequence, request, reply)
        }
        (Some(Command::Release { session, sequence, keys, claim }), Some(reply)) => {
            step.release_reply_matches(*session, *sequence, keys, *claim, reply)
        }
        (Some(Command::Proclaim { session, key, token, .. }), Some(reply)) => {
            let holds = || ClaimView::of(after, *session, key).is_some_and(|claim| claim.token == Some(*token));
            match reply {
                Reply::NoSession => !step.lives(*session),
                Reply::Proclaimed => step.lives(*session) && holds(),
                Reply::NotHolder => step.lives(*session) && !holds(),
                _ => false,
            }
        }
        (Some(Command::Break { key, token, principal }), Some(reply)) => {
            step.break_reply_matches(key, *token, principal, reply)
        }
        (Some(Command::Transact { writer, transaction }), Some(reply)) => {
            *reply == step.transaction_reply(writer, transaction)
        }
        // The property of grants judges these replies.
        (Some(Command::SetAccess { .. }), Some(_)) => true,
        (Some(_), _) => false,
    };
    require!(Property::RepliesMatchTable, matches, "{command:?} got the reply {reply:?}")
}

impl EntryStep<'_> {
    /// The sessions that the entry opened.
    fn opened(&self) -> impl Iterator<Item = SessionId> {
        self.after.sessions().keys().copied().filter(|id| self.before.session(*id).is_none())
    }

    fn opens_none(&self) -> bool {
        self.opened().next().is_none()
    }

    /// Whether the entry opened this session and no other, as requested, with a greater number than
    /// all others.
    fn is_opened(&self, id: SessionId, opening: &Opening, once: bool) -> bool {
        let is_next = self.before.sessions().keys().all(|known| known.number < id.number);
        let is_as_asked = self
            .after
            .session(id)
            .is_some_and(|session| (&session.owner, session.ttl, session.once) == (&opening.owner, opening.ttl, once));
        self.opened().eq([id]) && id.proof == opening.proof && is_next && is_as_asked
    }

    /// Whether the access rules in force permit it.
    pub(super) fn permits(&self, principal: Option<&Principal>, right: Right, key: &Key) -> bool {
        let rules = self.before.access().rules().map(|rules| &**rules);
        principal.is_some_and(|principal| permitted(rules, principal, right, key.as_str()))
    }

    /// Whether the access rules in force permit an acquire of all these keys.
    fn permits_all(&self, principal: Option<&Principal>, keys: &Keys) -> bool {
        keys.iter().all(|key| self.permits(principal, Right::Acquire, key))
    }

    /// Whether the session holds all the keys with this token, as the request asked.
    fn holds(&self, request: &LockRequest, id: SessionId, token: Token) -> bool {
        self.stands(request, id, Some(token))
    }

    /// Whether the session waits for all the keys, as the request asked, and is behind so many at most.
    fn waits(&self, request: &LockRequest, id: SessionId, ahead: u64) -> bool {
        self.stands(request, id, None) && self.ahead(&request.keys, id) == Some(ahead)
    }

    /// The number of waiters before a session; of several keys, the greatest number.
    fn ahead(&self, keys: &Keys, id: SessionId) -> Option<u64> {
        let position = |key: &Key| self.after.lock(key)?.queue.iter().position(|waiter| waiter.session == id);
        keys.iter().filter_map(position).max().map(|most| most as u64)
    }

    fn stands(&self, request: &LockRequest, id: SessionId, token: Option<Token>) -> bool {
        request.keys.iter().all(|key| {
            let claim = ClaimView::of(self.after, id, key);
            claim.is_some_and(|claim| claim.token == token && is_as_asked(&claim, request))
        })
    }

    /// Whether the reply names the session that has held the key longest, or if there is none, the first
    /// waiter. Which due holders it may still meet, another property judges.
    fn is_held(&self, key: &Key, reply: &Reply) -> bool {
        let Some(ClaimView { session: holder, token, .. }) = ClaimView::all(self.after, key).next() else {
            return false;
        };
        let Some(session) = self.after.session(holder) else { return false };
        let (key, owner, queue) = (key.clone(), session.owner.clone(), queue(self.after, key));
        *reply == Reply::Held { key, holder, owner, token, queue }
    }

    /// What a request gets if its session has no claim on the keys.
    fn turn(&self, request: &LockRequest) -> Turn {
        for key in &request.keys {
            if let Some(first) = ClaimView::all(self.found(), key).next()
                && first.mode.of() != request.mode.of()
            {
                return Turn::OtherSize(key.clone(), first.mode);
            }
        }
        let is_behind = |key: &&Key| is_behind(self.found(), key, request.mode, None);
        let Some(blocked) = request.keys.iter().find(is_behind) else { return Turn::Now };
        let is_full = |key: &&Key| queue(self.found(), key) >= u64::from(request.max_queue);
        match request.keys.iter().find(is_full) {
            _ if !request.waits() => Turn::Held(blocked.clone()),
            Some(full) => Turn::Held(full.clone()),
            None => Turn::Later,
        }
    }

    fn acquire_once_reply_matches(&self, opening: &Opening, request: &LockRequest, reply: &Reply) -> bool {
        if !self.permits_all(Some(&opening.principal), &request.keys) {
            return *reply == Reply::Denied && self.opens_none();
        }
        match (self.turn(request), reply) {
            (Turn::Now, Reply::Granted { session, token }) => {
                self.is_opened(*session, opening, true) && self.holds(request, *session, *token)
            }
            (Turn::Later, Reply::Queued { session, ahead }) => {
                self.is_opened(*session, opening, true) && self.waits(request, *session, *ahead)
            }
            (turn, reply) => self.opens_none() && self.is_refusal(turn, reply),
        }
    }

    fn is_refusal(&self, turn: Turn, reply: &Reply) -> bool {
        match turn {
            Turn::Now | Turn::Later => false,
            Turn::Held(key) => self.is_held(&key, reply),
            Turn::OtherSize(key, mode) => *reply == Reply::OtherSize { key, mode },
        }
    }

    /// Whether the reply to an acquire is true. A repeated acquire learns what is left of its
    /// claim; a new one holds the lock, or waits, or has no claim if it did not want to wait.
    fn acquire_reply_matches(
        &self,
        requester: SessionId,
        sequence: Option<Sequence>,
        request: &LockRequest,
        reply: &Reply,
    ) -> bool {
        let lives = self.lives(requester);
        if !lives {
            return *reply == Reply::NoSession;
        }
        let claim = ClaimView::of(self.after, requester, request.keys.first());
        if self.is_repeated(requester, sequence) {
            // The client may have given the number to another request, for other keys.
            let is_its_own =
                |claim: &ClaimView<'_>| claim.sequence == sequence && claim.keys == request.keys.as_slice();
            let its_own = claim.filter(is_its_own);
            return match (its_own.map(|claim| claim.token), reply) {
                (Some(Some(held)), Reply::Granted { session, token }) => (*session, *token) == (requester, held),
                (Some(None), Reply::Queued { session, ahead }) => {
                    *session == requester && self.ahead(&request.keys, requester) == Some(*ahead)
                }
                (None, reply) => *reply == Reply::Gone,
                _ => false,
            };
        }
        let principal = self.before.session(requester).map(|session| &session.principal);
        if !self.permits_all(principal, &request.keys) {
            return *reply == Reply::Denied;
        }
        // Whether the claim belongs to this operation.
        let is_its_own = sequence.is_none() || claim.is_some_and(|claim| claim.sequence == sequence);
        let is_granted = |held: Option<Token>| match reply {
            Reply::Granted { session, token } => {
                *session == requester
                    && is_its_own
                    && held.is_none_or(|held| held == *token)
                    && self.holds(request, requester, *token)
            }
            _ => false,
        };
        let is_queued = || match reply {
            Reply::Queued { session, ahead } => {
                *session == requester && is_its_own && self.waits(request, requester, *ahead)
            }
            _ => false,
        };
        let had = request.keys.iter().find_map(|key| Some((key, ClaimView::of(self.found(), requester, key)?)));
        match had {
            Some((key, had)) if !is_as_asked(&had, request) => {
                *reply == Reply::OtherClaim { key: key.clone() }
                    && ClaimView::of(self.after, requester, key) == Some(had)
            }
            Some((_, ClaimView { token: Some(token), .. })) => is_granted(Some(token)),
            Some(_) if request.waits() => is_queued(),
            // It waited, and gives that up: the reply names the first key at which its turn had not come.
            Some(_) => {
                let is_behind = |key: &&Key| is_behind(self.found(), key, request.mode, Some(requester));
                let blocked = request.keys.iter().find(is_behind);
                claim.is_none() && blocked.is_some_and(|key| self.is_held(key, reply))
            }
            None => match self.turn(request) {
                Turn::Now => is_granted(None),
                Turn::Later => is_queued(),
                turn => claim.is_none() && self.is_refusal(turn, reply),
            },
        }
    }

    /// Whether the reply to a break is true, and the session ends if that was its only claim, or if it was opened for one
    /// lock and is passed over at the others. The rules must permit it for all keys of the grant. Another property judges
    /// what observers are told.
    fn break_reply_matches(&self, key: &Key, token: Token, principal: &Principal, reply: &Reply) -> bool {
        let held = ClaimView::all(self.found(), key).find(|claim| claim.token == Some(token));
        let keys = held.map_or(core::slice::from_ref(key), |claim| claim.keys);
        if !keys.iter().all(|key| self.permits(Some(principal), Right::Break, key)) {
            return *reply == Reply::Denied;
        }
        match (held, reply) {
            (Some(claim), Reply::Broken { session, .. }) => {
                let holder = claim.session;
                let is_last = self.found().session(holder).is_some_and(|known| known.claims() == claim.keys);
                let is_left = |key: &Key| self.after.lock(key).is_some_and(|lock| lock.holder_with(token).is_some());
                let ends = self.after.session(holder).is_none();
                let has_right_end = if is_last { ends } else { !ends || self.is_passed_over(holder) };
                *session == holder && !claim.keys.iter().any(is_left) && has_right_end
            }
            (None, reply) => *reply == Reply::NotHolder,
            (Some(_), _) => false,
        }
    }

    /// Whether a session that was opened for one lock has lost a queue position.
    fn is_passed_over(&self, id: SessionId) -> bool {
        let is_told = |event: &Event| matches!(event, Event::Withdrawn { session, .. } if *session == id);
        self.before.session(id).is_some_and(|session| session.once) && self.outcome.events.iter().any(is_told)
    }

    fn release_reply_matches(
        &self,
        requester: SessionId,
        sequence: Option<Sequence>,
        keys: &Keys,
        claim: Claim,
        reply: &Reply,
    ) -> bool {
        let is_repeated = self.is_repeated(requester, sequence);
        let lives = self.lives(requester);
        let had = ClaimView::of(self.found(), requester, keys.first())
            .filter(|_| EntryStep::has_claim(self.found(), requester, keys, claim));
        let has = |key| ClaimView::of(self.after, requester, key);
        // A repetition that names no grant tells of one only if nothing came after it.
        let is_last = self.found().session(requester).is_some_and(|session| session.last == sequence);
        let tells_of_grant = match claim {
            Claim::Held(_) => true,
            Claim::Either => is_last,
            Claim::Waiting => false,
        };
        match (reply, had) {
            (Reply::Released, Some(had)) => {
                lives && !is_repeated && had.holds <= 1 && keys.iter().all(|key| has(key).is_none())
            }
            (Reply::StillHeld { holds }, Some(had)) if is_repeated => {
                lives && tells_of_grant && *holds == had.holds && has(keys.first()) == Some(had)
            }
            (Reply::StillHeld { holds }, Some(had)) => {
                let left = ClaimView { holds: *holds, ..had };
                let is_one_less = had.holds.checked_sub(1) == Some(*holds);
                lives && is_one_less && keys.iter().all(|key| has(key) == Some(left))
            }
            (Reply::NotHolder, had) => lives && !is_repeated && had.is_none(),
            (Reply::Gone, had) => lives && is_repeated && !had.is_some_and(|had| had.token.is_some() && tells_of_grant),
            (Reply::NoSession, _) => !lives,
            _ => false,
        }
    }
}

/// What a request gets.
enum Turn {
    /// The locks.
    Now,
    /// Positions in the queues.
    Later,
    /// Nothing, because of the claims on this key.
    Held(Key),
    /// Nothing, because the claims on this key are of another size; the mode of the first.
    OtherSize(Key, Mode),
}

/// The number of sessions that wait for the key.
fn queue(table: &LockTable, key: &Key) -> u64 {
    ClaimView::all(table, key).filter(|claim| claim.token.is_none()).count() as u64
}

/// Whether a claim has the mode and the keys of a request.
fn is_as_asked(claim: &ClaimView<'_>, request: &LockRequest) -> bool {
    (claim.mode, claim.keys) == (request.mode, request.keys.as_slice())
}

/// Whether a claim in this mode cannot have the key now: a session waits before it, or the holders leave
/// no room for it. `waiter` is the session of the claim, if it waits already.
fn is_behind(table: &LockTable, key: &Key, mode: Mode, waiter: Option<SessionId>) -> bool {
    let held = ClaimView::all(table, key).filter(|claim| claim.token.is_some());
    let taken: u64 = held.map(|claim| u64::from(claim.mode.permits())).sum();
    let first = ClaimView::all(table, key).find(|claim| claim.token.is_none());
    let is_first = first.is_none_or(|first| Some(first.session) == waiter);
    !is_first || taken + u64::from(mode.permits()) > u64::from(mode.of())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::states::{acquire, complaint, id, key, table};
    use crate::lock::{Owner, Proof, Ttl};
    use crate::raft::{Stamp, StateMachine};

    /// The complaint about this reply to a command that made one table into another.
    fn judge(before: &LockTable, command: &Command, reply: Reply, after: &LockTable) -> alloc::string::String {
        let outcome = Outcome { reply: Some(reply), events: [].into() };
        complaint(replies_match_table(&EntryStep::new(before, Stamp(0), Some(command), &outcome, after)))
    }

    /// The table after the command, and its reply.
    fn after(before: &LockTable, command: &Command) -> (LockTable, Reply) {
        let mut after = before.clone();
        let reply = after.apply(Stamp(0), command).reply.expect("a command has a reply");
        (after, reply)
    }

    #[track_caller]
    fn refused(before: &LockTable, command: &Command, reply: Reply, after: &LockTable) {
        assert_ne!(judge(before, command, reply.clone(), after), "", "{command:?} may have {reply:?}");
    }

    fn reentrant(sequence: u64) -> Command {
        let request = LockRequest { reentrant: true, ..LockRequest::exclusive("k", true) };
        Command::Acquire { session: id(1), sequence: Sequence::new(sequence), request }
    }

    fn release(sequence: u64, claim: Claim) -> Command {
        Command::Release { session: id(1), sequence: Sequence::new(sequence), keys: "k".into(), claim }
    }

    fn held(times: u64) -> LockTable {
        let mut table = table(2);
        for sequence in 1..=times {
            table.apply(Stamp(0), &reentrant(sequence));
        }
        table.apply(Stamp(0), &acquire(2, 0, "k"));
        table
    }

    #[test]
    fn session_that_no_command_opened_is_seen() {
        let (before, keeps) = (table(1), Command::KeepAlive { sessions: [id(1)].into() });
        let kept = || Reply::KeptAlive { missing: [].into() };
        assert_eq!(judge(&before, &keeps, kept(), &before), "");
        refused(&before, &keeps, kept(), &table(2));
    }

    #[test]
    fn number_of_a_session_that_comes_again_is_seen() {
        let (owner, principal) = (Owner::from("a"), Principal::default());
        let opening = Opening { proof: Proof::from(5), owner, principal, ttl: Ttl(100) };
        let open = Command::Open { opening };
        let (right, reply) = after(&table(1), &open);
        assert_eq!(judge(&table(1), &open, reply, &right), "");
        // As if the number was free: the session with it is another one.
        let (wrong, reply) = after(&LockTable::default(), &open);
        refused(&table(1), &open, reply, &wrong);
    }

    /// Session 2 waits for k, and asks for it without waiting: it gives up its position.
    #[test]
    fn waiter_that_stays_although_it_gave_up_is_seen() {
        let before = held(1);
        let request = LockRequest::exclusive("k", false);
        let gives_up = Command::Acquire { session: id(2), sequence: None, request };
        let (gone, reply) = after(&before, &gives_up);
        assert_eq!(judge(&before, &gives_up, reply.clone(), &gone), "");
        refused(&before, &gives_up, Reply::Queued { session: id(2), ahead: 0 }, &before);
        // The queue still has the waiter, and the reply says so.
        let Reply::Held { key, holder, owner, token, queue } = reply else { unreachable!() };
        refused(&before, &gives_up, Reply::Held { key, holder, owner, token, queue: queue + 1 }, &before);
    }

    #[test]
    fn break_that_leaves_the_grant_or_ends_another_session_is_seen() {
        let breaks = Command::Break { key: key("k"), token: Token(1), principal: Principal::default() };
        for others in [&[][..], &["l"]] {
            let mut before = held(1);
            others.iter().for_each(|name| drop(before.apply(Stamp(0), &acquire(1, 0, name))));
            let (broken, reply) = after(&before, &breaks);
            assert_eq!(judge(&before, &breaks, reply.clone(), &broken), "");
            refused(&before, &breaks, Reply::Broken { session: id(2), principal: Principal::default() }, &broken);
            refused(&before, &breaks, reply.clone(), &before);
            // The session ends with its only claim, and not before.
            let release = Command::Release { session: id(1), sequence: None, keys: "k".into(), claim: Claim::Either };
            let close = Command::Close { session: id(1) };
            let (wrong, _) = after(&before, if others.is_empty() { &release } else { &close });
            refused(&before, &breaks, reply, &wrong);
        }
    }

    /// Session 1 holds k and waits for l, and both it and session 2, which holds l, are due. A break of k ends session 1 if it
    /// was opened for k alone and is passed over at l.
    #[test]
    fn session_for_one_lock_that_is_passed_over_after_a_break_may_end() {
        let (at, breaks) =
            (Stamp(101), Command::Break { key: key("k"), token: Token(2), principal: Principal::default() });
        for once in [true, false] {
            let mut before = table(1);
            let opening = Opening {
                proof: Proof::default(),
                owner: Owner::from("a"),
                principal: Principal::default(),
                ttl: Ttl(100),
            };
            let both = LockRequest::exclusive(Keys::new([key("k"), key("m")].into()).expect("they differ"), true);
            before.apply(Stamp(0), &acquire(1, 0, "l"));
            if once {
                before.apply(Stamp(0), &Command::AcquireOnce { opening, request: both });
            } else {
                before.apply(Stamp(0), &Command::Open { opening });
                before.apply(Stamp(0), &Command::Acquire { session: id(2), sequence: None, request: both });
            }
            before.apply(Stamp(0), &acquire(2, 0, "l"));
            let judge = |events: &[Event], after: &LockTable| {
                let reply = Some(Reply::Broken { session: id(2), principal: Principal::default() });
                let outcome = Outcome { reply, events: events.into() };
                complaint(replies_match_table(&EntryStep::new(&before, at, Some(&breaks), &outcome, after)))
            };
            let mut gone = before.clone();
            gone.apply(Stamp(0), &Command::Close { session: id(2) });
            let withdrawn = |number| [Event::Withdrawn { key: key("l"), session: id(number) }];
            assert_eq!(judge(&withdrawn(2), &gone).is_empty(), once);
            assert_ne!(judge(&withdrawn(1), &gone), "");
            assert_ne!(judge(&[], &gone), "");
        }
    }

    #[test]
    fn release_that_counts_wrong_is_seen() {
        let (before, one) = (held(3), release(4, Claim::Held(Token(1))));
        let (right, reply) = after(&before, &one);
        assert_eq!((judge(&before, &one, reply.clone(), &right), reply), ("".into(), Reply::StillHeld { holds: 2 }));
        for holds in [1, 3] {
            refused(&before, &one, Reply::StillHeld { holds }, &right);
            let (mut wrong, _) = (right.clone(), ());
            wrong.parts().locks.get_mut(&key("k")).unwrap().holders.at(0).holds = holds;
            refused(&before, &one, Reply::StillHeld { holds: 2 }, &wrong);
            refused(&before, &one, Reply::StillHeld { holds }, &wrong);
        }
        // The last hold is released, not counted.
        let (before, one) = (held(1), release(4, Claim::Held(Token(1))));
        let (gone, reply) = after(&before, &one);
        assert_eq!((judge(&before, &one, reply.clone(), &gone), reply), ("".into(), Reply::Released));
        refused(&before, &one, Reply::StillHeld { holds: 0 }, &before);
    }

    #[test]
    fn repeated_release_that_changes_or_says_something_else_is_seen() {
        let (before, again) = (held(3), release(3, Claim::Held(Token(1))));
        let (same, reply) = after(&before, &again);
        assert_eq!((judge(&before, &again, reply.clone(), &same), reply), ("".into(), Reply::StillHeld { holds: 3 }));
        refused(&before, &again, Reply::StillHeld { holds: 2 }, &same);
        let mut wrong = before.clone();
        wrong.parts().locks.get_mut(&key("k")).unwrap().holders.at(0).holds = 2;
        refused(&before, &again, Reply::StillHeld { holds: 3 }, &wrong);
        let (again, late) = (release(3, Claim::Either), release(2, Claim::Either));
        for (one, reply, other) in
            [(again, Reply::StillHeld { holds: 3 }, Reply::Gone), (late, Reply::Gone, Reply::StillHeld { holds: 3 })]
        {
            assert_eq!((judge(&before, &one, reply.clone(), &before), after(&before, &one).1), ("".into(), reply));
            refused(&before, &one, other, &before);
        }
    }
}
