//! Counts the live sessions of each client, so that one client cannot take the room of all others. A client is
//! a principal, or an address ([`AccountName`]).
//!
//! The numbers are in the leader's memory. It counts the sessions that clients open while it leads. For a
//! session that began under another leader, the replicated state has the principal, and no address. So
//! a new leader recounts the sessions of principals ([`Openers::recount`]): a change of leader gives a
//! principal no further share. The clients of the other sessions are unknown ([`Openers::unknown`]), and
//! an address gets a share of what these leave (`admission.rs`). They have no limit together: after a
//! failover they may be most sessions, opened by honest clients at many addresses, and a limit would
//! refuse these clients until they had closed sessions.
//!
//! A node that loses leadership keeps its numbers, and goes on subtracting the sessions that end. If it
//! leads again, it knows what addresses have opened at it, so a client that changes the leader again and
//! again opens less each time.

use std::collections::{HashMap, HashSet};
use std::ops::{Bound, Range};
use std::sync::Arc;

use palisade_spec::lock::{LockTable, Proof, Session, SessionId};

use crate::accounts::AccountName;

/// Maximum number of sessions that one iteration of the core recounts: a million at once could delay a new
/// leader's heartbeats by an election timeout.
const RECOUNTED_AT_ONCE: usize = 8_192;

/// The live sessions whose clients this node knows.
#[derive(Debug, Default)]
pub(super) struct Openers {
    /// The clients that have sessions.
    clients: HashSet<Arc<AccountName>>,
    /// The client of each session, by the session's number: one more reference to it in `clients`.
    opened_by: HashMap<u64, Arc<AccountName>>,
    /// The numbers of the sessions that are still to be recounted.
    uncounted: Range<u64>,
}

impl Openers {
    /// Number of live sessions that this client has opened, as far as this node knows.
    pub(super) fn sessions_of(&self, client: &AccountName) -> usize {
        // `clients` has one reference, and each session another.
        self.clients.get(client).map_or(0, |client| Arc::strong_count(client) - 1)
    }

    /// Number of live sessions whose clients this node does not know.
    pub(super) fn unknown(&self, table: &LockTable) -> usize {
        table.sessions().len().saturating_sub(self.opened_by.len())
    }

    /// This client has opened a session.
    pub(super) fn opened(&mut self, session: SessionId, client: &AccountName) {
        let client = self.shared(client);
        self.count(session, client);
    }

    /// A session has ended.
    pub(super) fn ended(&mut self, session: SessionId) {
        if let Some(client) = self.opened_by.remove(&session.number) {
            self.drop_idle(&client);
        }
    }

    /// This node leads from now on: the sessions of principals are to be recounted.
    pub(super) fn began_to_lead(&mut self) {
        self.uncounted = 0..u64::MAX;
    }

    /// This node no longer leads.
    pub(super) fn lost_leadership(&mut self) {
        self.uncounted = 0..0;
    }

    /// Forgets all sessions.
    pub(super) fn forget(&mut self) {
        *self = Openers::default();
    }

    /// Whether sessions are still to be recounted.
    pub(super) fn is_recounting(&self) -> bool {
        !self.uncounted.is_empty()
    }

    /// Recounts some sessions of principals. It does not matter whether a session is counted already.
    pub(super) fn recount(&mut self, table: &LockTable) {
        // Later sessions are counted when they are opened.
        let end = self.uncounted.end.min(table.next_session());
        let first = SessionId { number: self.uncounted.start, proof: Proof::default() };
        let mut left =
            table.sessions().range_from(Bound::Included(&first)).take_while(|(session, _)| session.number < end);
        let mut named: HashMap<&str, Arc<AccountName>> = HashMap::new();
        for (&session, Session { principal, .. }) in left.by_ref().take(RECOUNTED_AT_ONCE) {
            if principal.is_none() {
                continue;
            }
            if named.is_empty() {
                // The map grows once, and not again and again while the clients wait.
                self.opened_by.reserve(table.sessions().len().saturating_sub(self.opened_by.len()));
            }
            let name = principal.as_str();
            let client = named.entry(name).or_insert_with(|| self.shared(&AccountName::Principal(name.into())));
            self.count(session, Arc::clone(client));
        }
        self.uncounted = left.next().map_or(end, |(session, _)| session.number)..end;
    }

    /// The client's name, which all its sessions share.
    fn shared(&mut self, client: &AccountName) -> Arc<AccountName> {
        if let Some(known) = self.clients.get(client) {
            return Arc::clone(known);
        }
        let client = Arc::new(client.clone());
        self.clients.insert(Arc::clone(&client));
        client
    }

    fn count(&mut self, session: SessionId, client: Arc<AccountName>) {
        if let Some(before) = self.opened_by.insert(session.number, client) {
            self.drop_idle(&before);
        }
    }

    /// Removes a client, to which the caller has a reference, if it has no session left.
    fn drop_idle(&mut self, client: &Arc<AccountName>) {
        if Arc::strong_count(client) == 2 {
            self.clients.remove(&**client);
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_spec::lock::{Command, Opening, Owner, Principal, Ttl};
    use palisade_spec::raft::{Stamp, StateMachine};

    use super::*;
    use crate::addresses::ClientAddress;

    fn session(number: u64) -> SessionId {
        SessionId { number, proof: 7.into() }
    }

    fn worker() -> AccountName {
        AccountName::Principal("worker".into())
    }

    fn address() -> AccountName {
        AccountName::Address(ClientAddress::of([10, 0, 0, 2].into()))
    }

    /// A table whose sessions, from number 1 on, are those of these principals.
    fn table<'a>(principals: impl IntoIterator<Item = &'a str>) -> LockTable {
        let mut table = LockTable::default();
        for principal in principals {
            open(&mut table, principal);
        }
        table
    }

    fn open(table: &mut LockTable, principal: &str) {
        let principal = Principal::from(principal);
        let opening = Opening { proof: 7.into(), owner: Owner::from(""), principal, ttl: Ttl(60_000) };
        table.apply(Stamp(0), &Command::Open { opening });
    }

    fn close(table: &mut LockTable, openers: &mut Openers, number: u64) {
        table.apply(Stamp(0), &Command::Close { session: session(number) });
        openers.ended(session(number));
    }

    /// Begins to lead, and recounts all sessions; returns the number of parts.
    fn recounted(openers: &mut Openers, table: &LockTable) -> usize {
        openers.began_to_lead();
        let mut parts = 0;
        while openers.is_recounting() {
            openers.recount(table);
            parts += 1;
        }
        parts
    }

    #[test]
    fn live_sessions_are_counted_by_client() {
        let mut openers = Openers::default();
        let (one, two) = (worker(), address());
        openers.opened(session(1), &one);
        openers.opened(session(1), &one);
        openers.opened(session(2), &one);
        openers.opened(session(3), &two);
        assert_eq!((openers.sessions_of(&one), openers.sessions_of(&two)), (2, 1), "a repetition counts once");
        openers.ended(session(1));
        openers.ended(session(1));
        openers.ended(session(9));
        assert_eq!((openers.sessions_of(&one), openers.sessions_of(&two)), (1, 1));
        openers.ended(session(2));
        assert_eq!(openers.clients.len(), 1, "a client without a session takes no memory");
        openers.forget();
        assert_eq!(openers.sessions_of(&two), 0);
    }

    /// Goal: a new leader counts the sessions that principals opened under other leaders, each once, and
    /// subtracts those that end.
    #[test]
    fn new_leader_recounts_the_sessions_of_principals() {
        let mut table = table(["worker", "", "other", "worker", ""]);
        let mut openers = Openers::default();
        // Opened at this leader before it had recounted the others.
        openers.opened(session(4), &worker());
        assert_eq!(recounted(&mut openers, &table), 1);
        let other = AccountName::Principal("other".into());
        assert_eq!((openers.sessions_of(&worker()), openers.sessions_of(&other)), (2, 1));
        assert_eq!(openers.unknown(&table), 2, "the replicated state knows no addresses");
        [1, 5].into_iter().for_each(|number| close(&mut table, &mut openers, number));
        assert_eq!((openers.sessions_of(&worker()), openers.unknown(&table)), (1, 1));
        assert_eq!(recounted(&mut openers, &table), 1, "it leads again");
        assert_eq!((openers.sessions_of(&worker()), openers.sessions_of(&other)), (1, 1));
    }

    /// Goal: no iteration recounts more than its part, whatever ends or is opened between two parts.
    #[test]
    fn sessions_are_recounted_in_parts() {
        let many = 2 * RECOUNTED_AT_ONCE + 1;
        let mut table = table(std::iter::repeat_n("worker", many));
        let mut openers = Openers::default();
        assert_eq!(recounted(&mut openers, &table), 3);
        assert_eq!((openers.sessions_of(&worker()), openers.unknown(&table)), (many, 0));

        openers.forget();
        openers.began_to_lead();
        openers.recount(&table);
        assert_eq!(openers.sessions_of(&worker()), RECOUNTED_AT_ONCE);
        [1, many as u64].into_iter().for_each(|number| close(&mut table, &mut openers, number));
        open(&mut table, "worker");
        openers.opened(session(many as u64 + 1), &worker());
        while openers.is_recounting() {
            openers.recount(&table);
        }
        assert_eq!((openers.sessions_of(&worker()), openers.unknown(&table)), (many - 1, 0));
    }

    /// Goal: a node that leads again knows what addresses opened at it before, but not after a snapshot, in
    /// which sessions may have ended.
    #[test]
    fn leadership_that_ends_takes_no_number_with_it() {
        let table = table(["", "", "worker"]);
        let mut openers = Openers::default();
        openers.began_to_lead();
        [1, 2].into_iter().for_each(|number| openers.opened(session(number), &address()));
        openers.lost_leadership();
        assert!(!openers.is_recounting(), "a follower counts nothing");
        openers.ended(session(2));
        recounted(&mut openers, &table);
        assert_eq!((openers.sessions_of(&address()), openers.sessions_of(&worker())), (1, 1));
        openers.forget();
        recounted(&mut openers, &table);
        assert_eq!((openers.sessions_of(&address()), openers.sessions_of(&worker())), (0, 1));
        assert_eq!(openers.unknown(&table), 2);
    }
}
