//! Which client addresses have opened how many sessions, so that one address cannot take the room of
//! all others.
//!
//! The leader keeps the numbers in memory: it counts the sessions that clients open while it leads,
//! until each of them ends, and forgets all numbers when it loses leadership. The replicated state
//! knows no addresses. So after a failover an address may open as many sessions again, and the limit
//! on all sessions remains the only bound.

use std::collections::HashMap;

use palisade_spec::lock::SessionId;

use crate::addresses::ClientAddress;

/// The sessions that clients have opened at this leader.
#[derive(Debug, Default)]
pub(super) struct Openers {
    opened_by: HashMap<SessionId, ClientAddress>,
    sessions: HashMap<ClientAddress, usize>,
}

impl Openers {
    /// Number of live sessions that this address has opened.
    pub(super) fn sessions_of(&self, address: ClientAddress) -> usize {
        self.sessions.get(&address).copied().unwrap_or(0)
    }

    /// A client at this address has opened a session.
    pub(super) fn opened(&mut self, session: SessionId, address: ClientAddress) {
        if self.opened_by.insert(session, address).is_none() {
            *self.sessions.entry(address).or_default() += 1;
        }
    }

    /// A session has ended.
    pub(super) fn ended(&mut self, session: SessionId) {
        let Some(address) = self.opened_by.remove(&session) else { return };
        if let Some(sessions) = self.sessions.get_mut(&address) {
            *sessions -= 1;
            if *sessions == 0 {
                self.sessions.remove(&address);
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

    #[test]
    fn live_sessions_are_counted_by_address() {
        let mut openers = Openers::default();
        let session = |number| SessionId { number, proof: 7.into() };
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|address| ClientAddress::of(address.parse().unwrap()));
        openers.opened(session(1), one);
        openers.opened(session(1), one);
        openers.opened(session(2), one);
        openers.opened(session(3), two);
        assert_eq!((openers.sessions_of(one), openers.sessions_of(two)), (2, 1), "a repetition counts once");
        openers.ended(session(1));
        openers.ended(session(1));
        openers.ended(session(9));
        assert_eq!((openers.sessions_of(one), openers.sessions_of(two)), (1, 1));
        openers.clear();
        assert_eq!(openers.sessions_of(two), 0);
    }
}
