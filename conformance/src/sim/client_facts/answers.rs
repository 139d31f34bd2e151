//! What clients were told, compared with the effects of the committed entries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use palisade_history::Call;
use palisade_spec::checker::Reference;
use palisade_spec::invariants::{Check, Property};
use palisade_spec::lock::{Key, Keys, LockTable, Mode, Proof, Revision, Rules, Sequence, SessionId, Token, Value};
use palisade_spec::raft::Index;
use palisade_spec::violated;

use super::{Acquired, ClientFacts, Grant, HolderState, Lease, LockState, RecordState, RulesSet, WINDOW};
use crate::transactions::as_proposed;

impl ClientFacts {
    /// A client is told that its transaction, for which it asked after entry `since`, has this version.
    pub(in crate::sim) fn client_wrote(&self, asked: &Call, version: u64, since: Index) -> Check {
        let is_older =
            self.written.len() >= WINDOW && self.written.first_key_value().is_some_and(|(first, _)| version < *first);
        if is_older {
            return Ok(());
        }
        let Some((entry, done)) = self.written.get(&version).filter(|(entry, _)| *entry > since) else {
            return violated!(
                Property::ReplyAfterCommit,
                "the client was told that its transaction has version {version}, and no transaction after entry {since} \
                 has it"
            );
        };
        let wanted = as_proposed(asked);
        if (&done.conditions, &done.changes) != (&wanted.conditions, &wanted.changes) {
            let detail = format!("a client asked for {wanted:?}, and entry {entry} has {done:?}");
            return violated!(Property::AnswersMatchRequests, "{detail}");
        }
        Ok(())
    }

    /// A client that asked for a transaction after entry `since` is told that the record has this version; 0: that there
    /// is none.
    pub(in crate::sim) fn client_refused_for_a_version(&self, record: &Key, version: u64, since: Index) -> Check {
        let none = VecDeque::new();
        let states = self.record_states.get(record).unwrap_or(&none);
        let first = states.partition_point(|(index, _)| *index <= since).checked_sub(1);
        let has_it = |state: &Option<RecordState>| state.as_ref().map_or(0, |state| state.version) == version;
        // See `client_read_record`.
        let is_older = first.is_none() && (version == 0 || states.len() >= WINDOW);
        if is_older || states.iter().skip(first.unwrap_or(0)).any(|(_, then)| has_it(then)) {
            return Ok(());
        }
        violated!(
            Property::ReplyAfterCommit,
            "the client was told that record {record} has version {version}, which it has not had since entry {since}"
        )
    }

    /// A client that asked for it after entry `since` is told that its grant has this value.
    pub(in crate::sim) fn client_proclaimed(&self, key: &Key, token: Token, value: &Value, since: Index) -> Check {
        let none = VecDeque::new();
        let states = self.lock_states.get(key).unwrap_or(&none);
        let has_it = |holder: &HolderState| holder.token == token && holder.value.as_deref() == Some(value.as_str());
        let mut later = states.iter().rev().take_while(|(index, _)| *index > since);
        if later.any(|(_, state)| state.holders.iter().any(has_it)) {
            return Ok(());
        }
        violated!(
            Property::ReplyAfterCommit,
            "the client was told that the grant of {key} with token {token} has the value {value}, and no entry after \
             {since} has given it"
        )
    }

    /// A client's read returns a record; when the client sent it, entries up to `since` were committed.
    pub(in crate::sim) fn client_read_record(&self, key: &Key, since: Index, seen: Option<&RecordState>) -> Check {
        let none = VecDeque::new();
        let states = self.record_states.get(key).unwrap_or(&none);
        let first = states.partition_point(|(index, _)| *index <= since).checked_sub(1);
        // There was no record before the first change, unless earlier ones were dropped.
        let is_older = first.is_none() && (seen.is_none() || states.len() >= WINDOW);
        if is_older || states.iter().skip(first.unwrap_or(0)).any(|(_, then)| then.as_ref() == seen) {
            return Ok(());
        }
        violated!(
            Property::LinearizableReads,
            "a read of record {key} returned {seen:?}, which it has not been since entry {since}"
        )
    }

    /// A client asks a node to close this session.
    pub(in crate::sim) fn client_asks_to_close(&mut self, session: SessionId) {
        self.close_asked.insert(session);
    }

    /// A server may close a session by itself only if no client knows it.
    pub(super) fn check_close(&self, session: SessionId) -> Check {
        if !self.leases.contains_key(&session) || self.close_asked.contains(&session) {
            return Ok(());
        }
        violated!(
            Property::LeasesAreHonoured,
            "session {session}, which its client knows, was closed, and no client has asked for that"
        )
    }

    /// A client is told that the node is not the leader, or that there is no leader: its request to
    /// open a session with this proof was not done, and never will be.
    pub(in crate::sim) fn client_refused(&mut self, proof: Proof) -> Check {
        self.refused.insert(proof);
        self.check_refusal(proof)
    }

    pub(super) fn check_refusal(&self, proof: Proof) -> Check {
        if self.opened.contains(&proof) && self.refused.contains(&proof) {
            let detail = format!(
                "the session with proof {proof:x} was opened although its client was told that nothing was done"
            );
            return violated!(Property::RejectedRequestsHaveNoEffect, "{detail}");
        }
        Ok(())
    }

    /// A client is told that it holds these locks, which it asked for after entry `since`, in this mode and, if it
    /// gave one, with this value.
    pub(in crate::sim) fn client_granted(
        &self,
        keys: &Keys,
        mode: Mode,
        value: Option<&Value>,
        session: SessionId,
        token: Token,
        since: Index,
    ) -> Check {
        let is_asked_for = |grant: &Grant| {
            grant.keys == keys.as_slice() && grant.mode == mode && (value.is_none() || grant.value.as_ref() == value)
        };
        match self.grants.get(&token) {
            Some(grant) if grant.session != session => {}
            Some(Grant { ended: Some(ended), .. }) if *ended <= since => {
                return violated!(
                    Property::ReplyAfterCommit,
                    "session {session} asked for {keys} after entry {since}, and was told of the grant with token \
                     {token}, which entry {ended} had ended"
                );
            }
            Some(grant) if is_asked_for(grant) => return Ok(()),
            Some(grant) => {
                let detail =
                    format!("session {session} asked for {keys} ({mode}, value {value:?}), and its grant is {grant:?}");
                return violated!(Property::AnswersMatchRequests, "{detail}");
            }
            None => {}
        }
        violated!(
            Property::ReplyAfterCommit,
            "session {session} was told that it holds {keys} with token {token}; the grant of that token is {:?}",
            self.grants.get(&token)
        )
    }

    /// A client that would join a queue with fewer than `max_queue` waiters is told that it waited.
    pub(in crate::sim) fn client_waited(&self, session: SessionId, number: Sequence, max_queue: u32) -> Check {
        match self.acquires.get(&(session, number)) {
            Some(Acquired::Queued(ahead)) if *ahead >= u64::from(max_queue) => violated!(
                Property::AnswersMatchRequests,
                "session {session} asked for a queue with fewer than {max_queue} waiters, and joined one of {ahead}"
            ),
            _ => Ok(()),
        }
    }

    /// A client is told that another request has withdrawn its wait, which began after entry `since`.
    pub(in crate::sim) fn client_withdrawn(&self, session: SessionId, since: Index) -> Check {
        match self.denied.get(&session) {
            Some(denied) if *denied > since => violated!(
                Property::AnswersMatchRequests,
                "session {session} was told that its wait was withdrawn, and the access rules denied it at entry {denied}"
            ),
            _ => Ok(()),
        }
    }

    /// A client is told that its acquire is invalid because of another claim.
    pub(in crate::sim) fn client_refused_for_another_claim(&self, session: SessionId, number: Sequence) -> Check {
        match self.acquires.get(&(session, number)) {
            Some(Acquired::OtherClaim) => Ok(()),
            _ => violated!(
                Property::AnswersMatchRequests,
                "operation {number:?} of session {session} was refused as invalid, and there is no other claim"
            ),
        }
    }

    /// A client is told that it released a lock.
    pub(in crate::sim) fn client_released(&self, keys: &Keys, token: Token) -> Check {
        match self.grants.get(&token) {
            Some(grant) if grant.ended.is_none() => violated!(
                Property::ReplyAfterCommit,
                "the client was told that {keys} is released with token {token}, and it is still held"
            ),
            _ => Ok(()),
        }
    }

    /// A client is told that its session no longer has a claim on these keys; it has asked for nothing since.
    pub(in crate::sim) fn client_withdrew(
        &self,
        agreed: Option<&Reference<LockTable>>,
        keys: &Keys,
        session: SessionId,
    ) -> Check {
        // The claims of a due session count as ended, although the sweep that ends them may still be to come.
        let claimant = agreed.and_then(|agreed| agreed.machine().session(session));
        let lives = claimant.filter(|claimant| !claimant.is_due(self.stamp));
        match lives.and_then(|claimant| keys.iter().find(|key| claimant.claims_key(key))) {
            Some(key) => violated!(
                Property::ReplyAfterCommit,
                "session {session} was told that its claim on {keys} is withdrawn, and it has one on {key}"
            ),
            None => Ok(()),
        }
    }

    /// A client is told that its session is closed.
    pub(in crate::sim) fn client_closed(agreed: Option<&Reference<LockTable>>, session: SessionId) -> Check {
        if agreed.is_some_and(|agreed| agreed.machine().session(session).is_some()) {
            return violated!(
                Property::ReplyAfterCommit,
                "the client was told that session {session} is closed, and it lives"
            );
        }
        Ok(())
    }

    /// A client that asked for these access rules after entry `since` is told that they are set.
    pub(in crate::sim) fn client_set_rules(
        &self,
        rules: Option<&Arc<Rules>>,
        revision: Revision,
        since: Index,
    ) -> Check {
        let is_it = |set: &RulesSet| (set.rules.as_ref(), set.revision) == (rules, revision);
        if self.rules_set.iter().rev().take_while(|set| set.entry > since).any(is_it) {
            return Ok(());
        }
        violated!(
            Property::ReplyAfterCommit,
            "the client was told that revision {} of the access rules has {rules:?}, and no entry after {since} has set \
             them so",
            revision.0
        )
    }

    /// A client is told that its grant had so many holds left after entry `since`.
    pub(in crate::sim) fn client_holds(&self, keys: &Keys, token: Token, holds: u32, since: Index) -> Check {
        let none = VecDeque::new();
        let states = self.lock_states.get(keys.first()).unwrap_or(&none);
        let has_them =
            |state: &LockState| state.holders.iter().any(|holder| (holder.token, holder.holds) == (token, holds));
        if states.iter().rev().take_while(|(index, _)| *index > since).any(|(_, state)| has_them(state)) {
            return Ok(());
        }
        violated!(
            Property::ReplyAfterCommit,
            "the client was told that {keys} has {holds} holds left with token {token}, and it never had since entry {since}"
        )
    }

    /// A client is told that it has broken the grant of a session.
    pub(in crate::sim) fn client_broke(&self, key: &Key, session: u64, token: Token) -> Check {
        match self.grants.get(&token) {
            Some(grant)
                if !grant.is_broken
                    || grant.ended.is_none()
                    || !grant.keys.contains(key)
                    || grant.session.number != session =>
            {
                violated!(
                    Property::ReplyAfterCommit,
                    "the client was told that the grant of {key} with token {token} to session {session} is broken; the \
                     grant of that token is {grant:?}"
                )
            }
            _ => Ok(()),
        }
    }

    /// A client's read returns a lock's holders and queue; when the client sent it, entries up to
    /// `since` were committed.
    /// `all_keys`: the client may read every key.
    pub(in crate::sim) fn client_read(&self, key: &Key, since: Index, state: &LockState, all_keys: bool) -> Check {
        let none = VecDeque::new();
        let states = self.lock_states.get(key).unwrap_or(&none);
        let first = states.partition_point(|(index, _)| *index <= since).checked_sub(1);
        // The lock was free before its first record, unless earlier records were dropped: then any
        // state is possible.
        let is_older = first.is_none() && (*state == LockState::default() || states.len() >= WINDOW);
        if is_older || states.iter().skip(first.unwrap_or(0)).any(|(_, then)| then.is_seen_as(state, all_keys)) {
            return Ok(());
        }
        violated!(
            Property::LinearizableReads,
            "a read of {key} returned {state:?}, which it has not been since entry {since}"
        )
    }

    /// A client was told that its session lives: for the time-to-live from its request, less what
    /// the fastest allowed clock and the client's rounding take off.
    pub(in crate::sim) fn client_leased(
        &mut self,
        agreed: Option<&Reference<LockTable>>,
        session: SessionId,
        asked: Duration,
        ttl: Duration,
    ) {
        let lease = Lease { from: asked, ttl };
        if agreed.is_some_and(|agreed| agreed.machine().session(session).is_some()) {
            let known = self.leases.entry(session).or_insert(lease);
            known.from = known.from.max(asked);
        }
    }
}
