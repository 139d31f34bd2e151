//! Checks that a command's reply matches the table.

use palisade_spec::invariants::{Check, Property, permitted};
use palisade_spec::lock::{
    Claim, Command, Holder, Key, Lock, Opening, Outcome, Principal, Reply, Right, Sequence, SessionId, Token,
};
use palisade_spec::require;

use super::entry_step::Step;

/// Checks an entry's reply. No two possible replies to a command are true at once.
pub(super) fn reply_matches_table(step: &Step<'_>) -> Check {
    let Step { command, outcome: Outcome { reply, .. }, after, .. } = step;
    let matches = match (command, reply) {
        (None, reply) => reply.is_none() && opened(step).is_empty(),
        (Some(Command::Open { opening }), Some(Reply::Opened { session })) => step.is_opened(*session, opening, false),
        (Some(Command::AcquireOnce { opening, key, wait }), Some(reply)) => {
            step.acquire_once_reply_matches(opening, key, *wait, reply)
        }
        (Some(_), _) if !opened(step).is_empty() => false,
        (Some(Command::Close { session }), Some(Reply::Closed)) => after.session(*session).is_none(),
        (Some(Command::KeepAlive { sessions }), Some(Reply::KeptAlive { missing })) => {
            sessions.iter().filter(|session| !step.lives(**session)).eq(missing)
        }
        (Some(Command::Acquire { session, sequence, key, wait }), Some(reply)) => {
            step.acquire_reply_matches(*session, *sequence, key, *wait, reply)
        }
        (Some(Command::Release { session, sequence, key, claim }), Some(reply)) => {
            step.release_reply_matches(*session, *sequence, key, *claim, reply)
        }
        (Some(Command::Break { key, token, principal }), Some(reply)) => {
            match step.permits(Some(principal), Right::Break, key) {
                true => step.break_reply_matches(key, *token, reply),
                false => *reply == Reply::Denied,
            }
        }
        // The property of grants judges these replies.
        (Some(Command::SetAccess { .. }), Some(_)) => true,
        (Some(_), _) => false,
    };
    require!(Property::RepliesMatchTable, matches, "{command:?} got the reply {reply:?}")
}

/// The sessions that the entry opened.
fn opened(step: &Step<'_>) -> Vec<SessionId> {
    step.after.sessions().keys().copied().filter(|id| step.before.session(*id).is_none()).collect()
}

impl Step<'_> {
    /// Whether the entry opened this session and no other, as requested, with a greater number than
    /// all others.
    fn is_opened(&self, id: SessionId, opening: &Opening, once: bool) -> bool {
        let is_next = self.before.sessions().keys().all(|known| known.number < id.number);
        let is_as_asked = self
            .after
            .session(id)
            .is_some_and(|session| (&session.owner, session.ttl, session.once) == (&opening.owner, opening.ttl, once));
        opened(self) == [id] && id.proof == opening.proof && is_next && is_as_asked
    }

    /// Whether the access rules in force permit it.
    fn permits(&self, principal: Option<&Principal>, right: Right, key: &Key) -> bool {
        let rules = self.before.access().rules().map(|rules| &**rules);
        principal.is_some_and(|principal| permitted(rules, principal, right, key.as_str()))
    }

    fn lock(&self, key: &Key) -> Option<&Lock> {
        self.after.lock(key)
    }

    fn holds(&self, key: &Key, id: SessionId, token: Token) -> bool {
        Step::has_claim(self.after, id, key, Claim::Held(token))
    }

    fn waits(&self, key: &Key, id: SessionId, ahead: u64) -> bool {
        let place = self.lock(key).and_then(|lock| lock.queue_position(id));
        place.is_some_and(|place| place as u64 == ahead)
    }

    /// Whether a session that is not due holds the lock, as the reply says.
    fn is_held(&self, key: &Key, reply: &Reply) -> bool {
        let Some(lock) = self.lock(key) else { return false };
        let Holder { session: holder, token, .. } = lock.holder;
        let Some(session) = self.after.session(holder) else { return false };
        let owner = session.owner.clone();
        session.deadline >= self.at && *reply == Reply::Held { holder, owner, token, queue: lock.queue.len() as u64 }
    }

    fn acquire_once_reply_matches(&self, opening: &Opening, key: &Key, wait: bool, reply: &Reply) -> bool {
        if !self.permits(Some(&opening.principal), Right::Acquire, key) {
            return *reply == Reply::Denied && opened(self).is_empty();
        }
        match reply {
            Reply::Granted { session, token } => {
                self.is_opened(*session, opening, true) && self.holds(key, *session, *token)
            }
            Reply::Queued { session, ahead } => {
                wait && self.is_opened(*session, opening, true) && self.waits(key, *session, *ahead)
            }
            reply => !wait && opened(self).is_empty() && self.is_held(key, reply),
        }
    }

    /// Whether the reply to an acquire is true. A repeated acquire learns what is left of its
    /// claim; a new one holds the lock, or waits, or has no claim if it did not want to wait.
    fn acquire_reply_matches(
        &self,
        requester: SessionId,
        sequence: Option<Sequence>,
        key: &Key,
        wait: bool,
        reply: &Reply,
    ) -> bool {
        let is_repeated = self.is_repeated(requester, sequence);
        let number = self.lock(key).and_then(|lock| {
            let waiter = lock.queue.iter().find(|waiter| waiter.session == requester).map(|waiter| waiter.sequence);
            if lock.holder.session == requester { Some(lock.holder.sequence) } else { waiter }
        });
        // Whether the claim belongs to this operation.
        let is_its_own = sequence.is_none() || number == Some(sequence);
        let lives = self.lives(requester);
        let principal = self.before.session(requester).map(|session| &session.principal);
        if lives && !is_repeated && !self.permits(principal, Right::Acquire, key) {
            return *reply == Reply::Denied;
        }
        match reply {
            Reply::Granted { session, token } => {
                lives && *session == requester && is_its_own && self.holds(key, requester, *token)
            }
            Reply::Queued { session, ahead } => {
                wait && lives && *session == requester && is_its_own && self.waits(key, requester, *ahead)
            }
            Reply::Gone => lives && is_repeated && !is_its_own,
            Reply::NoSession => !lives,
            reply => !wait && lives && !is_repeated && number.is_none() && self.is_held(key, reply),
        }
    }

    /// Whether the reply to a break is true, and the session ends if that was its only claim. Another
    /// property judges what observers are told.
    fn break_reply_matches(&self, key: &Key, token: Token, reply: &Reply) -> bool {
        let held = self.found.lock(key).map(|lock| &lock.holder).filter(|holder| holder.token == token);
        match (held, reply) {
            (Some(holder), Reply::Broken { session, .. }) => {
                let is_last = self.found.session(*session).is_some_and(|known| known.claims() == [key.clone()]);
                *session == holder.session
                    && self.lock(key).is_none_or(|lock| lock.holder.token > token)
                    && self.after.session(*session).is_none() == is_last
            }
            (None, reply) => *reply == Reply::NotHolder,
            (Some(_), _) => false,
        }
    }

    fn release_reply_matches(
        &self,
        requester: SessionId,
        sequence: Option<Sequence>,
        key: &Key,
        claim: Claim,
        reply: &Reply,
    ) -> bool {
        let is_repeated = self.is_repeated(requester, sequence);
        let lives = self.lives(requester);
        let had = Step::has_claim(self.found, requester, key, claim);
        match reply {
            Reply::Released => {
                lives && !is_repeated && had && !Step::has_claim(self.after, requester, key, Claim::Either)
            }
            Reply::NotHolder => lives && !is_repeated && !had,
            Reply::Gone => lives && is_repeated,
            Reply::NoSession => !lives,
            _ => false,
        }
    }
}
