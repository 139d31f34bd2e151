//! Counts the sessions that each client has opened, so that one client cannot take the room of all others. A client is
//! a principal, or an address ([`AccountName`]).
//!
//! The leader keeps the numbers in memory: it counts the sessions that clients open while it leads,
//! until each of them ends, and forgets all numbers when it loses leadership. The replicated state
//! knows no addresses. So after a failover a client may open as many sessions again, and the limit on
//! all sessions remains the only bound.

use std::collections::HashMap;

use palisade_spec::lock::SessionId;

use crate::accounts::AccountName;

/// The sessions that clients have opened at this leader.
#[derive(Debug, Default)]
pub(super) struct Openers {
    opened_by: HashMap<SessionId, AccountName>,
    sessions: HashMap<AccountName, usize>,
}

impl Openers {
    /// Number of live sessions that this client has opened.
    pub(super) fn sessions_of(&self, client: &AccountName) -> usize {
        self.sessions.get(client).copied().unwrap_or(0)
    }

    /// This client has opened a session.
    pub(super) fn opened(&mut self, session: SessionId, client: &AccountName) {
        if self.opened_by.insert(session, client.clone()).is_none() {
            *self.sessions.entry(client.clone()).or_default() += 1;
        }
    }

    /// A session has ended.
    pub(super) fn ended(&mut self, session: SessionId) {
        let Some(client) = self.opened_by.remove(&session) else { return };
        if let Some(sessions) = self.sessions.get_mut(&client) {
            *sessions -= 1;
            if *sessions == 0 {
                self.sessions.remove(&client);
            }
        }
    }

    /// Forgets everything: this node no longer leads.
    pub(super) fn clear(&mut self) {
        *self = Openers::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::ClientAddress;

    #[test]
    fn live_sessions_are_counted_by_client() {
        let mut openers = Openers::default();
        let session = |number| SessionId { number, proof: 7.into() };
        let one = AccountName::Principal("worker".into());
        let two = AccountName::Address(ClientAddress::of([10, 0, 0, 2].into()));
        openers.opened(session(1), &one);
        openers.opened(session(1), &one);
        openers.opened(session(2), &one);
        openers.opened(session(3), &two);
        assert_eq!((openers.sessions_of(&one), openers.sessions_of(&two)), (2, 1), "a repetition counts once");
        openers.ended(session(1));
        openers.ended(session(1));
        openers.ended(session(9));
        assert_eq!((openers.sessions_of(&one), openers.sessions_of(&two)), (1, 1));
        openers.clear();
        assert_eq!(openers.sessions_of(&two), 0);
    }
}
