//! Compares the answers that clients received with the committed log: a node reports only committed
//! grants and releases, reads are linearizable, leases are honoured, and a rejected request has no
//! effect.
//!
//! The checker executes each entry once; this reads the effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use palisade_history::Call;
use palisade_spec::checker::{Agreed, Reference};
use palisade_spec::invariants::{Check, Property};
use palisade_spec::lock::{
    Command, Event, Key, Keys, Lock, LockTable, Mode, Proof, Reply, Revision, Rules, Sequence, SessionId, Token,
    Transaction, Value,
};
use palisade_spec::raft::{Index, Payload, Stamp};
use palisade_spec::violated;

use crate::transactions::as_proposed;

/// Number of committed entries kept, with their states. A node that lags further is sent a snapshot
/// long before.
pub(super) const WINDOW: usize = 8192;

/// The effects of the committed entries, and what clients know of them.
#[derive(Debug, Default)]
pub(super) struct ClientFacts {
    /// The last entry whose effects are known here.
    last: Index,
    /// The stamp of that entry.
    stamp: Stamp,
    grants: BTreeMap<Token, Grant>,
    /// The holders and the queue of each key after each entry that changed them.
    lock_states: BTreeMap<Key, VecDeque<(Index, LockState)>>,
    /// Each record after each entry that changed it; `None` after a deletion.
    record_states: BTreeMap<Key, VecDeque<(Index, Option<RecordState>)>>,
    /// The transactions that were done, and their entries, by their versions.
    written: BTreeMap<u64, (Index, Transaction)>,
    /// The lease of each session, as its client was told.
    leases: BTreeMap<SessionId, Lease>,
    /// The sessions that a client has asked to close.
    close_asked: BTreeSet<SessionId>,
    /// The proofs of all committed openings, and of those that a client was told were not done.
    opened: BTreeSet<Proof>,
    refused: BTreeSet<Proof>,
    /// The replies to acquires that were queued, or refused because of another claim, by session and number.
    acquires: BTreeMap<(SessionId, Sequence), Acquired>,
    /// The last entry at which a waiter of a session was denied the lock.
    denied: BTreeMap<SessionId, Index>,
    /// The changes of the access rules, in order.
    rules_set: VecDeque<RulesSet>,
    pub(super) counts: Counts,
}

/// Counts of committed effects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) grants: u64,
    /// Of them, grants of a lock that others held.
    pub(super) grants_beside_others: u64,
    pub(super) expiries: u64,
}

#[derive(Debug)]
struct Grant {
    /// One key or several, in order.
    keys: Vec<Key>,
    session: SessionId,
    mode: Mode,
    /// The value that it has now.
    value: Option<Value>,
    /// The entry that ended the grant.
    ended: Option<Index>,
    /// Whether an operator ended it.
    is_broken: bool,
}

/// A change of the access rules that was done, or found them as they were to be.
#[derive(Debug)]
struct RulesSet {
    entry: Index,
    rules: Option<Arc<Rules>>,
    revision: Revision,
}

/// The reply to an acquire, as far as its client's answer must agree with it.
#[derive(Clone, Copy, Debug)]
enum Acquired {
    /// So many were ahead of it, in the longest of its queues.
    Queued(u64),
    /// The lock has another size, or the session another claim.
    OtherClaim,
}

/// A client's view of its session's lease.
#[derive(Clone, Copy, Debug)]
struct Lease {
    from: Duration,
    ttl: Duration,
}

/// A lock's holders and its queue, as every client may see them: sessions by their public numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LockState {
    /// In the order of the grants.
    pub(super) holders: Vec<HolderState>,
    pub(super) queue: Vec<WaiterState>,
}

/// A record as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordState {
    pub(super) version: u64,
    pub(super) fence: Option<u64>,
    pub(super) content: Vec<u8>,
}

/// A holder as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HolderState {
    pub(super) session: u64,
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) holds: u32,
    pub(super) value: Option<String>,
    /// All keys of the grant if there are several; a client sees those that it may read.
    pub(super) keys: Vec<String>,
}

/// A waiter as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaiterState {
    pub(super) session: u64,
    pub(super) mode: Mode,
    /// As in [`HolderState`].
    pub(super) keys: Vec<String>,
}

impl LockState {
    fn of(lock: &Lock, key: &Key) -> LockState {
        let several = |keys: Keys| match keys.as_slice() {
            [_] => Vec::new(),
            several => several.iter().map(Key::to_string).collect(),
        };
        let holders = lock.holders.iter().map(|holder| HolderState {
            session: holder.session.number,
            token: holder.token,
            mode: holder.mode,
            holds: holder.holds,
            value: holder.value().map(|value| value.as_str().to_owned()),
            keys: several(holder.keys(key)),
        });
        let queue = lock.queue.iter().map(|waiter| WaiterState {
            session: waiter.session.number,
            mode: waiter.mode,
            keys: several(waiter.keys(key)),
        });
        LockState { holders: holders.collect(), queue: queue.collect() }
    }

    /// Whether a client that may read all keys, or not (`all_keys`), sees this state so.
    fn is_seen_as(&self, seen: &LockState, all_keys: bool) -> bool {
        let may_be = |all: &[String], seen: &[String]| {
            if all_keys { all == seen } else { seen.iter().all(|key| all.contains(key)) }
        };
        let is_holder = |(holder, seen): (&HolderState, &HolderState)| {
            let HolderState { session, token, mode, holds, value, keys } = seen;
            (holder.session, holder.token, holder.mode, holder.holds) == (*session, *token, *mode, *holds)
                && holder.value == *value
                && may_be(&holder.keys, keys)
        };
        let is_waiter = |(waiter, seen): (&WaiterState, &WaiterState)| {
            (waiter.session, waiter.mode) == (seen.session, seen.mode) && may_be(&waiter.keys, &seen.keys)
        };
        self.holders.len() == seen.holders.len()
            && self.queue.len() == seen.queue.len()
            && self.holders.iter().zip(&seen.holders).all(is_holder)
            && self.queue.iter().zip(&seen.queue).all(is_waiter)
    }
}

impl ClientFacts {
    /// Records the effects of the entries that were agreed on since; an entry whose first write is
    /// not known was written by `now`.
    pub(super) fn observe(&mut self, agreed: &Reference<LockTable>, now: Duration) -> Check {
        for entry in agreed.entries_after(self.last) {
            self.record(entry, now)?;
        }
        Ok(())
    }

    fn record(&mut self, agreed: &Agreed<LockTable>, now: Duration) -> Check {
        let command = match &agreed.entry.payload {
            Payload::Command(command) => Some(command),
            Payload::Noop | Payload::Members(_) => None,
        };
        (self.last, self.stamp) = (agreed.entry.index, agreed.entry.stamp);
        if let Some(Command::Open { opening } | Command::AcquireOnce { opening, .. }) = command {
            self.opened.insert(opening.proof);
            self.check_refusal(opening.proof)?;
        }
        if let Some(Command::Close { session }) = command {
            self.check_close(*session)?;
        }
        if let Some(Command::Acquire { session, sequence: Some(sequence), .. }) = command {
            let reply = match agreed.outcome.reply {
                Some(Reply::Queued { ahead, .. }) => Some(Acquired::Queued(ahead)),
                Some(Reply::OtherSize { .. } | Reply::OtherClaim { .. }) => Some(Acquired::OtherClaim),
                _ => None,
            };
            if let Some(reply) = reply {
                // A repetition finds the position of the first.
                self.acquires.entry((*session, *sequence)).or_insert(reply);
                if self.acquires.len() > WINDOW {
                    self.acquires.pop_first();
                }
            }
        }
        if let (Some(Command::SetAccess { rules, .. }), Some(Reply::AccessSet { revision })) =
            (command, &agreed.outcome.reply)
        {
            self.rules_set.push_back(RulesSet { entry: self.last, rules: rules.clone(), revision: *revision });
            if self.rules_set.len() > WINDOW {
                self.rules_set.pop_front();
            }
        }
        if let (Some(Command::Transact { transaction, .. }), Some(Reply::Written { version })) =
            (command, &agreed.outcome.reply)
        {
            // A repetition is answered with the version of the first.
            self.written.entry(version.0).or_insert_with(|| (self.last, transaction.clone()));
            if self.written.len() > WINDOW {
                self.written.pop_first();
            }
        }
        for event in &agreed.outcome.events {
            self.record_event(event, agreed.born.unwrap_or(now))?;
        }
        let table = agreed.machine().expect("the states of the last entries are kept");
        let asked = command.and_then(Command::keys).into_iter().flat_map(Keys::iter);
        for key in agreed.outcome.events.iter().filter_map(key_of).chain(asked) {
            self.record_lock_state(table, key.clone());
        }
        for event in &agreed.outcome.events {
            if let Event::Put { key, .. } | Event::Deleted { key, .. } = event {
                self.record_record_state(table, key);
            }
            if let Event::Granted { key, token, .. } = event
                && table.lock(key).is_some_and(|lock| lock.holders.len() > 1)
                && self.grants.get(token).is_some_and(|grant| grant.keys.first() == Some(key))
            {
                self.counts.grants_beside_others += 1;
            }
        }
        Ok(())
    }

    fn record_event(&mut self, event: &Event, born: Duration) -> Check {
        match event {
            Event::Granted { key, session, token, mode, value, .. } => {
                let (session, mode, value) = (*session, *mode, value.clone());
                let new = || Grant { keys: Vec::new(), session, mode, value, ended: None, is_broken: false };
                let grant = self.grants.entry(*token).or_insert_with(new);
                self.counts.grants += u64::from(grant.keys.is_empty());
                grant.keys.push(key.clone());
                if self.grants.len() > WINDOW {
                    self.grants.pop_first();
                }
            }
            Event::Released { token, .. } => {
                if let Some(grant) = self.grants.get_mut(token) {
                    grant.ended = Some(self.last);
                }
            }
            Event::Expired { session, .. } => {
                self.counts.expiries += 1;
                if let Some(Lease { from, ttl }) = self.leases.remove(session)
                    && born < from + ttl
                {
                    let detail =
                        format!("session {session} expired at {born:?}, and its lease lasts until {:?}", from + ttl);
                    return violated!(Property::LeasesAreHonoured, "{detail}");
                }
            }
            Event::Closed { session } => drop(self.leases.remove(session)),
            Event::Broken { token, .. } => {
                if let Some(grant) = self.grants.get_mut(token) {
                    grant.is_broken = true;
                }
            }
            Event::Denied { session, .. } => {
                self.denied.insert(*session, self.last);
                if self.denied.len() > WINDOW {
                    self.denied.pop_first();
                }
            }
            Event::Proclaimed { token, value, .. } => {
                if let Some(grant) = self.grants.get_mut(token) {
                    grant.value = Some(value.clone());
                }
            }
            Event::Withdrawn { .. }
            | Event::Queued { .. }
            | Event::Overdue { .. }
            | Event::Put { .. }
            | Event::Deleted { .. } => {}
        }
        Ok(())
    }

    fn record_lock_state(&mut self, table: &LockTable, key: Key) {
        let state = table.lock(&key).map(|lock| LockState::of(lock, &key)).unwrap_or_default();
        let states = self.lock_states.entry(key).or_default();
        if states.back().is_none_or(|(_, last)| *last != state) {
            states.push_back((self.last, state));
            if states.len() > WINDOW {
                states.pop_front();
            }
        }
    }

    fn record_record_state(&mut self, table: &LockTable, key: &Key) {
        let state = table.record(key).map(|record| RecordState {
            version: record.version.0,
            fence: record.fence.map(|fence| fence.0),
            content: record.bytes.as_slice().to_vec(),
        });
        let states = self.record_states.entry(key.clone()).or_default();
        states.push_back((self.last, state));
        if states.len() > WINDOW {
            states.pop_front();
        }
    }

    /// A client is told that its transaction, for which it asked after entry `since`, has this version.
    pub(super) fn client_wrote(&self, asked: &Call, version: u64, since: Index) -> Check {
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
    pub(super) fn client_refused_for_a_version(&self, record: &Key, version: u64, since: Index) -> Check {
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
    pub(super) fn client_proclaimed(&self, key: &Key, token: Token, value: &Value, since: Index) -> Check {
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
    pub(super) fn client_read_record(&self, key: &Key, since: Index, seen: Option<&RecordState>) -> Check {
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
    pub(super) fn client_asks_to_close(&mut self, session: SessionId) {
        self.close_asked.insert(session);
    }

    /// A server may close a session by itself only if no client knows it.
    fn check_close(&self, session: SessionId) -> Check {
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
    pub(super) fn client_refused(&mut self, proof: Proof) -> Check {
        self.refused.insert(proof);
        self.check_refusal(proof)
    }

    fn check_refusal(&self, proof: Proof) -> Check {
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
    pub(super) fn client_granted(
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
    pub(super) fn client_waited(&self, session: SessionId, number: Sequence, max_queue: u32) -> Check {
        match self.acquires.get(&(session, number)) {
            Some(Acquired::Queued(ahead)) if *ahead >= u64::from(max_queue) => violated!(
                Property::AnswersMatchRequests,
                "session {session} asked for a queue with fewer than {max_queue} waiters, and joined one of {ahead}"
            ),
            _ => Ok(()),
        }
    }

    /// A client is told that another request has withdrawn its wait, which began after entry `since`.
    pub(super) fn client_withdrawn(&self, session: SessionId, since: Index) -> Check {
        match self.denied.get(&session) {
            Some(denied) if *denied > since => violated!(
                Property::AnswersMatchRequests,
                "session {session} was told that its wait was withdrawn, and the access rules denied it at entry {denied}"
            ),
            _ => Ok(()),
        }
    }

    /// A client is told that its acquire is invalid because of another claim.
    pub(super) fn client_refused_for_another_claim(&self, session: SessionId, number: Sequence) -> Check {
        match self.acquires.get(&(session, number)) {
            Some(Acquired::OtherClaim) => Ok(()),
            _ => violated!(
                Property::AnswersMatchRequests,
                "operation {number:?} of session {session} was refused as invalid, and there is no other claim"
            ),
        }
    }

    /// A client is told that it released a lock.
    pub(super) fn client_released(&self, keys: &Keys, token: Token) -> Check {
        match self.grants.get(&token) {
            Some(grant) if grant.ended.is_none() => violated!(
                Property::ReplyAfterCommit,
                "the client was told that {keys} is released with token {token}, and it is still held"
            ),
            _ => Ok(()),
        }
    }

    /// A client is told that its session no longer has a claim on these keys; it has asked for nothing since.
    pub(super) fn client_withdrew(
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
    pub(super) fn client_closed(agreed: Option<&Reference<LockTable>>, session: SessionId) -> Check {
        if agreed.is_some_and(|agreed| agreed.machine().session(session).is_some()) {
            return violated!(
                Property::ReplyAfterCommit,
                "the client was told that session {session} is closed, and it lives"
            );
        }
        Ok(())
    }

    /// A client that asked for these access rules after entry `since` is told that they are set.
    pub(super) fn client_set_rules(&self, rules: Option<&Arc<Rules>>, revision: Revision, since: Index) -> Check {
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
    pub(super) fn client_holds(&self, keys: &Keys, token: Token, holds: u32, since: Index) -> Check {
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
    pub(super) fn client_broke(&self, key: &Key, session: u64, token: Token) -> Check {
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
    pub(super) fn client_read(&self, key: &Key, since: Index, state: &LockState, all_keys: bool) -> Check {
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
    pub(super) fn client_leased(
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

fn key_of(event: &Event) -> Option<&Key> {
    match event {
        Event::Granted { key, .. }
        | Event::Released { key, .. }
        | Event::Proclaimed { key, .. }
        | Event::Broken { key, .. }
        | Event::Withdrawn { key, .. }
        | Event::Denied { key, .. }
        | Event::Queued { key, .. }
        | Event::Overdue { key, .. } => Some(key),
        Event::Expired { .. } | Event::Closed { .. } | Event::Put { .. } | Event::Deleted { .. } => None,
    }
}
