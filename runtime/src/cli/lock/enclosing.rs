//! The locks under which this `palisade lock` itself runs.
//!
//! `palisade lock k -- palisade lock k -- COMMAND` would wait for itself: the outer lock is
//! released when the inner command ends, and the inner command starts when the outer lock is
//! released. So each `palisade lock` gives its command the sessions of all enclosing ones in
//! [`VARIABLE`]. A session identifies a holder exactly: the ID of a session is never used again, and
//! two clusters never give out the same one.

use palisade_client::Client;
use palisade_client::wire::{Consistency, HolderView, SessionId};

/// Sessions of the enclosing `palisade lock`s, the outermost first, separated by commas.
pub(super) const VARIABLE: &str = "PALISADE_SESSIONS";

/// The sessions of the enclosing `palisade lock`s.
pub(super) fn sessions() -> Vec<SessionId> {
    parse(&std::env::var(VARIABLE).unwrap_or_default())
}

fn parse(list: &str) -> Vec<SessionId> {
    list.split(',').filter_map(|session| session.parse().ok()).collect()
}

/// The value of [`VARIABLE`] for the command of this `palisade lock`.
pub(super) fn with(session: SessionId) -> String {
    let mut sessions = sessions();
    sessions.push(session);
    sessions.iter().map(SessionId::to_string).collect::<Vec<_>>().join(",")
}

/// The holder of the lock on `key`, if it is an enclosing `palisade lock`. A failed read finds
/// none: the request for the lock that follows reports the failure.
pub(super) async fn holder(client: &Client, key: &str) -> Option<HolderView> {
    let enclosing = sessions();
    if enclosing.is_empty() {
        return None;
    }
    let holder = client.show_lock(key, Consistency::Linearizable).await.ok()?.holder?;
    enclosing.contains(&holder.session).then_some(holder)
}
