//! The lock table: the state machine that Raft replicates.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use serde::Deserialize;

use super::claims::Claims;
use super::grants::note_contended;
use super::store::Store;
use super::stored;
use super::{
    Access, Command, Event, Key, Keys, Lock, Opening, Outcome, Reply, Right, Sequence, Session, SessionId, SharedMap,
    Token, Transaction, Writer,
};
use crate::raft::{MAX_NUMBER, Stamp, StateMachine};

/// All sessions, all locks that are held or waited for, and all records of the store.
///
/// A session whose deadline has passed is **due**: it cannot act any more, and is granted nothing.
/// It may end later: a no-op **sweeps** the due sessions with the earliest deadlines, as many as
/// every replica can end in a few milliseconds, and first the first holders of locks with waiters; a
/// command that names keys first ends the due holders of them, at most as many as a sweep.
///
/// Invariants (checked by [`table_is_sound`](crate::invariants::table_is_sound)): holders and
/// waiters are live sessions; a session claims exactly the keys it holds or waits for, each once;
/// the deadline index has exactly the deadlines of all live sessions; a second index has the
/// deadlines of exactly the first holders of locks with waiters, and counts these locks; the bytes of
/// all claims are counted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Stored")]
pub struct LockTable {
    /// Work after which a sweep ends no further session, counted in sessions, claims, and waiters
    /// behind them. The last session may exceed it; a sweep always ends at least one.
    pub(super) sweep: u64,
    pub(super) next_session: u64,
    pub(super) next_token: Token,
    pub(super) sessions: SharedMap<SessionId, Session>,
    pub(super) deadlines: SharedMap<(Stamp, SessionId), ()>,
    pub(super) contended: SharedMap<(Stamp, SessionId), u64>,
    pub(super) locks: SharedMap<Key, Lock>,
    /// The bytes of all claims.
    pub(super) claimed: u64,
    pub(super) access: Access,
    pub(super) store: Store,
}

/// The bytes of all claims follow from the rest and are left out: recordings of nodes that do not count them have
/// the same digests.
impl Hash for LockTable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let LockTable {
            sweep,
            next_session,
            next_token,
            sessions,
            deadlines,
            contended,
            locks,
            claimed: _,
            access,
            store,
        } = self;
        (sweep, next_session, next_token, sessions, deadlines, contended, locks, access, store).hash(state);
    }
}

/// A serialized table. The indexes by deadline and the bytes of claims are recomputed, not read:
/// so no file and no peer can contradict the rest of the table. The details of a claim on several keys
/// are written once, at the first of them.
#[derive(Deserialize)]
struct Stored {
    sweep: u64,
    next_session: u64,
    next_token: Token,
    sessions: SharedMap<SessionId, Session>,
    #[serde(rename = "deadlines")]
    _deadlines: SharedMap<(Stamp, SessionId), ()>,
    #[serde(rename = "contended")]
    _contended: SharedMap<(Stamp, SessionId), u64>,
    locks: SharedMap<Key, Lock>,
    #[serde(default)]
    access: Access,
    #[serde(default)]
    store: Store,
}

impl From<Stored> for LockTable {
    fn from(stored: Stored) -> LockTable {
        let Stored { sweep, next_session, next_token, sessions, mut locks, access, store, .. } = stored;
        let mut deadlines = SharedMap::new();
        for (&id, session) in sessions.iter() {
            deadlines.insert((session.deadline, id), ());
        }
        stored::share_details(&mut locks);
        let mut contended = SharedMap::new();
        for lock in locks.values() {
            note_contended(&sessions, &mut contended, lock.contended_holder(), |locks| locks + 1);
        }
        let claimed = locks.iter().map(|(key, lock)| lock.bytes(key)).sum();
        LockTable { sweep, next_session, next_token, sessions, deadlines, contended, locks, claimed, access, store }
    }
}

/// Default maximum work of one sweep: a few milliseconds (docs/performance.md).
const SWEEP: u64 = 250;

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable::sweeping(SWEEP)
    }
}

impl LockTable {
    /// An empty table whose sweeps end no further session after this many sessions and claims,
    /// including the waiters behind them, but always at least one session. All replicas must start
    /// with the same value.
    pub fn sweeping(sweep: u64) -> LockTable {
        LockTable {
            sweep,
            next_session: 1,
            next_token: Token(1),
            sessions: SharedMap::new(),
            deadlines: SharedMap::new(),
            contended: SharedMap::new(),
            locks: SharedMap::new(),
            claimed: 0,
            access: Access::default(),
            store: Store::default(),
        }
    }
}

impl StateMachine for LockTable {
    type Command = Command;
    type Outcome = Outcome;

    /// A session whose deadline lies before `at` can neither act nor block others.
    fn apply(&mut self, at: Stamp, command: &Command) -> Outcome {
        let mut events = Vec::new();
        if let Some(keys) = command.keys() {
            self.let_time_pass(at, keys, &mut events);
        }
        let reply = self.execute(at, command, &mut events);
        Outcome { reply: Some(reply), events }
    }

    fn advance(&mut self, at: Stamp) -> Outcome {
        let mut events = Vec::new();
        self.sweep(at, &mut events);
        Outcome { reply: None, events }
    }

    fn in_range(&self) -> bool {
        let next = [self.next_session, self.next_token.0, self.next_version().0, self.access.revision().0];
        next.into_iter().all(|next| next <= MAX_NUMBER)
    }

    fn next_deadline(&self) -> Option<Stamp> {
        self.deadlines.first().map(|(&(deadline, _), ())| deadline)
    }
}

impl LockTable {
    /// The session, if it has not ended.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// The lock on `key`, if a session holds it or waits for it.
    pub fn lock(&self, key: &Key) -> Option<&Lock> {
        self.locks.get(key)
    }

    /// All sessions that have not ended.
    pub fn sessions(&self) -> &SharedMap<SessionId, Session> {
        &self.sessions
    }

    /// All locks that are held or waited for, in the order of their keys.
    pub fn locks(&self) -> &SharedMap<Key, Lock> {
        &self.locks
    }

    /// The bytes of all claims: of each, at each of its keys, that key, all keys of a claim on several, its
    /// value, and 64 more.
    pub fn claimed_bytes(&self) -> u64 {
        self.claimed
    }

    /// The sessions' deadlines, the earliest first.
    pub fn deadlines(&self) -> &SharedMap<(Stamp, SessionId), ()> {
        &self.deadlines
    }

    /// The deadlines of the first holders of locks with waiters, and the number of such locks per session.
    /// These sessions are swept first.
    pub fn contended(&self) -> &SharedMap<(Stamp, SessionId), u64> {
        &self.contended
    }

    /// The access rules in force.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// The work after which a sweep ends no further session.
    pub fn sweep_cost(&self) -> u64 {
        self.sweep
    }

    /// The number that the next session will get.
    pub fn next_session(&self) -> u64 {
        self.next_session
    }

    /// The token that the next grant will get.
    pub fn next_token(&self) -> Token {
        self.next_token
    }

    /// Skips this many tokens, versions of records, and revisions of the access rules. A cluster
    /// restored from a backup needs that: the old cluster may have given them out after the backup
    /// was made.
    pub fn skip_numbers(&mut self, gap: u64) {
        self.next_token = Token(self.next_token.0 + gap);
        self.store.skip_versions(gap);
        self.access.skip_revisions(gap);
    }

    /// The table's parts, for tests of states that no command reaches.
    #[cfg(test)]
    pub(crate) fn parts(&mut self) -> Parts<'_> {
        let LockTable { next_token, sessions, deadlines, contended, locks, claimed, access, .. } = self;
        Parts { next_token, sessions, deadlines, contended, locks, claimed, access }
    }

    fn execute(&mut self, at: Stamp, command: &Command, events: &mut Vec<Event>) -> Reply {
        match command {
            Command::Open { opening } => Reply::Opened { session: self.open(at, opening, false) },
            Command::Close { session } => {
                self.end(at, &[*session], events);
                Reply::Closed
            }
            Command::KeepAlive { sessions } => {
                let missing = sessions.iter().copied().filter(|&session| !self.renew(at, session)).collect();
                Reply::KeptAlive { missing }
            }
            Command::Acquire { session, sequence, request } => match self.register(at, *session, *sequence) {
                // The number is used up: a late repetition must not do later what was denied now.
                Operation::New if self.denied(*session, &request.keys).is_some() => Reply::Denied,
                Operation::New => self.acquire(at, *session, *sequence, request, events),
                Operation::Repeated(sequence) => self.acquired_before(*session, sequence, &request.keys),
                Operation::NoSession => Reply::NoSession,
            },
            Command::AcquireOnce { opening, request } => {
                let may = |key: &Key| self.access.permits(&opening.principal, Right::Acquire, key.as_str());
                if !request.keys.iter().all(may) {
                    return Reply::Denied;
                }
                match self.turn(request) {
                    Ok(turn) => {
                        let session = self.open(at, opening, true);
                        self.claim(at, session, None, request, turn, events)
                    }
                    Err(refusal) => refusal,
                }
            }
            Command::Release { session, sequence, keys, claim } => match self.register(at, *session, *sequence) {
                Operation::New => self.release(at, *session, keys, *claim, events),
                Operation::Repeated(sequence) => self.released_before(*session, sequence, keys, *claim),
                Operation::NoSession => Reply::NoSession,
            },
            Command::Proclaim { session, sequence, key, token, value } => {
                match self.register(at, *session, *sequence) {
                    Operation::New => self.proclaim(*session, key, *token, value, events),
                    Operation::Repeated(_) => self.proclaimed_before(*session, key, *token),
                    Operation::NoSession => Reply::NoSession,
                }
            }
            Command::Break { key, token, principal } => self.break_grant(at, key, *token, principal, events),
            Command::SetAccess { principal, revision, rules } => {
                self.access.replace(principal, *revision, rules.as_ref())
            }
            Command::Transact { writer, transaction } => self.write(at, writer, transaction, events),
        }
    }

    fn write(&mut self, at: Stamp, writer: &Writer, transaction: &Transaction, events: &mut Vec<Event>) -> Reply {
        let (session, sequence) = match writer {
            Writer::Client(principal) => return self.transact(at, principal, None, transaction, events),
            Writer::Session { session, sequence } => (*session, *sequence),
        };
        match self.register(at, session, sequence) {
            // The number is used up: a late repetition must not do later what was refused now.
            Operation::New => {
                let principal = self.sessions[&session].principal.clone();
                let number = sequence.map(|sequence| (session, sequence));
                self.transact(at, &principal, number, transaction, events)
            }
            Operation::Repeated(sequence) => self.store.written_before((session, sequence), transaction),
            Operation::NoSession => Reply::NoSession,
        }
    }

    /// The first of these keys that the access rules in force do not permit an existing session to
    /// acquire.
    pub(super) fn denied<'a>(&self, id: SessionId, keys: &'a Keys) -> Option<&'a Key> {
        if !self.access.is_enabled() {
            return None;
        }
        let principal = &self.sessions[&id].principal;
        keys.iter().find(|key| !self.access.permits(principal, Right::Acquire, key.as_str()))
    }

    /// The session, if it can act at `at`.
    fn live(&mut self, at: Stamp, id: SessionId) -> Option<&mut Session> {
        self.sessions.get_mut(&id).filter(|session| !session.is_due(at))
    }

    /// Exactly once (§6.3): an operation is new if its number is greater than all earlier numbers
    /// of its session, which then keeps it as the last.
    fn register(&mut self, at: Stamp, session: SessionId, sequence: Option<Sequence>) -> Operation {
        let Some(session) = self.live(at, session) else { return Operation::NoSession };
        match sequence {
            Some(sequence) if session.last >= Some(sequence) => Operation::Repeated(sequence),
            Some(sequence) => {
                session.last = Some(sequence);
                Operation::New
            }
            None => Operation::New,
        }
    }

    fn open(&mut self, at: Stamp, opening: &Opening, once: bool) -> SessionId {
        let id = SessionId { number: self.next_session, proof: opening.proof };
        self.next_session += 1;
        let deadline = at.plus(opening.ttl.0);
        let Opening { owner, principal, ttl, .. } = opening.clone();
        let session = Session { owner, principal, ttl, deadline, last: None, once, claims: Claims::None };
        self.sessions.insert(id, session);
        self.deadlines.insert((deadline, id), ());
        id
    }

    /// Sets the session's deadline to a full time-to-live from `at`, if the session lives.
    pub(super) fn renew(&mut self, at: Stamp, id: SessionId) -> bool {
        let Some(session) = self.live(at, id) else { return false };
        let (last, next) = (session.deadline, at.plus(session.ttl.0));
        session.deadline = next;
        self.deadlines.remove(&(last, id));
        self.deadlines.insert((next, id), ());
        if let Some(locks) = self.contended.remove(&(last, id)) {
            self.contended.insert((next, id), locks);
        }
        true
    }
}

/// What an operation is to its session.
enum Operation {
    /// The operation has not been done.
    New,
    /// The operation has been done before.
    Repeated(Sequence),
    /// The session does not exist or is due.
    NoSession,
}

/// The parts that the invariants compare.
#[cfg(test)]
pub(crate) struct Parts<'a> {
    pub(crate) next_token: &'a mut Token,
    pub(crate) sessions: &'a mut SharedMap<SessionId, Session>,
    pub(crate) deadlines: &'a mut SharedMap<(Stamp, SessionId), ()>,
    pub(crate) contended: &'a mut SharedMap<(Stamp, SessionId), u64>,
    pub(crate) locks: &'a mut SharedMap<Key, Lock>,
    pub(crate) claimed: &'a mut u64,
    pub(crate) access: &'a mut Access,
}

#[cfg(test)]
impl Parts<'_> {
    pub(crate) fn claims(&mut self, session: SessionId) -> &mut Claims {
        &mut self.sessions.get_mut(&session).expect("it lives").claims
    }
}

#[cfg(test)]
mod tests {
    use super::{LockTable, SharedMap, Stored};
    use crate::invariants::states::{acquire, id, key, table};
    use crate::lock::shared_map::tests::hash;
    use crate::lock::{Command, Keys, LockRequest, Revision, Token, Version};
    use crate::raft::{MAX_NUMBER, Stamp, StateMachine};

    /// A table is read back as it was written; its indexes by deadline are computed from the sessions and the
    /// queues, whatever the file or the peer says about them.
    #[test]
    fn a_stored_table_is_read_back_whole() {
        let mut table = table(3);
        for (session, key) in [(1, "contended"), (2, "contended"), (3, "free")] {
            table.apply(Stamp(0), &acquire(session, 0, key));
        }
        assert!(table.contended.len() == 1 && table.locks.len() == 2);
        let LockTable { sweep, next_session, next_token, sessions, locks, access, store, .. } = table.clone();
        let (_deadlines, _contended) = (SharedMap::new(), SharedMap::new());
        let stored = Stored { sweep, next_session, next_token, sessions, _deadlines, _contended, locks, access, store };
        assert_eq!(LockTable::from(stored), table);
    }

    /// Goal: in JSON a table without records says nothing about a store, and is read back whole.
    #[test]
    fn table_without_a_store_is_read_back_whole() {
        let mut table = table(2);
        table.apply(Stamp(0), &acquire(1, 0, "k"));
        let text = serde_json::to_string(&table).unwrap();
        assert!(!text.contains("store"), "{text}");
        assert_eq!(serde_json::from_str::<LockTable>(&text).unwrap(), table);
    }

    /// The models take tables with one hash for one state.
    #[test]
    fn tables_that_differ_have_other_hashes() {
        let mut held = table(2);
        held.apply(Stamp(0), &acquire(1, 0, "k"));
        assert_eq!(hash(&table(2)), hash(&table(2)));
        assert!(hash(&table(2)) != hash(&table(1)) && hash(&table(2)) != hash(&held));
    }

    /// A table's next numbers may be as large as the largest number of the protocol, and no larger.
    #[test]
    fn both_next_numbers_of_a_table_are_limited() {
        for (next_session, next_token, is_in_range) in
            [(MAX_NUMBER, MAX_NUMBER, true), (MAX_NUMBER + 1, MAX_NUMBER, false), (MAX_NUMBER, MAX_NUMBER + 1, false)]
        {
            let table = LockTable { next_session, next_token: Token(next_token), ..table(1) };
            assert_eq!(table.in_range(), is_in_range, "{next_session}, {next_token}");
            assert_eq!((table.next_session(), table.next_token()), (next_session, Token(next_token)));
        }
    }

    /// The old cluster may have given them out after the backup was made.
    #[test]
    fn skipped_numbers_are_never_given_out() {
        let mut table = table(2);
        table.apply(Stamp(0), &acquire(1, 0, "k"));
        table.skip_numbers(1000);
        table.apply(Stamp(0), &acquire(2, 0, "l"));
        let token = |name| table.lock(&key(name)).unwrap().holders[0].token;
        assert_eq!((token("k"), token("l"), table.next_token()), (Token(1), Token(1002), Token(1003)));
        assert_eq!((table.next_version(), table.access().revision()), (Version(1001), Revision(1000)));
    }

    /// Goal: what a request says it will count is what its claim counts, as a holder and as a waiter.
    #[test]
    fn request_says_the_bytes_of_its_claim() {
        let keys = Keys::new(["a", "b"].map(key).into()).unwrap();
        let with_value = LockRequest { value: Some("value".into()), ..LockRequest::exclusive(keys, true) };
        for request in [LockRequest::exclusive("k", true), with_value] {
            let mut table = table(2);
            for session in [1, 2].map(id) {
                let before = table.claimed_bytes();
                table.apply(Stamp(0), &Command::Acquire { session, sequence: None, request: request.clone() });
                assert_eq!(table.claimed_bytes() - before, request.claimed_bytes());
            }
        }
    }
}
