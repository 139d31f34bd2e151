//! The answers about a client's session and its grants, and the sentences that say why it does not have them.

use std::ops::Bound;

use palisade_client::wire::{Acquired, Answer, Code, Failure, SessionView};
use palisade_spec::lock::{Key, Keys, LockTable, Proof, SessionId, Token};
use palisade_spec::raft::Stamp;

use super::credential::Secret;

/// A session, as its client sees it.
///
/// # Errors
/// [`Code::NoSession`].
pub(super) fn show(table: &LockTable, now: Stamp, id: SessionId) -> Result<Answer, Failure> {
    let session = table.session(id).ok_or_else(|| no_session(table, id))?;
    Ok(Answer::SessionView(SessionView {
        session: id.number,
        owner: session.owner.to_string(),
        ttl_ms: session.ttl.0,
        expires_in_ms: session.deadline.0.saturating_sub(now.0),
        keys: session.claims().iter().map(Key::to_string).collect(),
    }))
}

/// The grant by which the session holds exactly these keys. A session whose deadline has passed has it until it is swept:
/// a renewal of an earlier time may be on its way.
pub(super) fn grant(table: &LockTable, id: SessionId, secret: Secret, keys: &Keys) -> Result<Answer, Failure> {
    table.session(id).ok_or_else(|| no_session(table, id))?;
    let holders = table.lock(keys.first()).into_iter().flat_map(|lock| lock.holders.iter());
    let held = holders.filter(|holder| holder.session == id).find(|holder| holder.keys(keys.first()) == *keys);
    acquired(table, keys, id, secret, held.ok_or_else(not_holder)?.token)
}

/// The answer to a granted acquire. The table may be some entries ahead of the grant; if the
/// session has ended in them, so has the grant.
pub(super) fn acquired(
    table: &LockTable,
    keys: &Keys,
    id: SessionId,
    secret: Secret,
    token: Token,
) -> Result<Answer, Failure> {
    let ttl_ms = table.session(id).ok_or_else(|| no_session(table, id))?.ttl.0;
    let keys = match keys.as_slice() {
        [key] => key.to_string().into(),
        several => several.iter().map(Key::to_string).collect::<Vec<String>>().into(),
    };
    let session = secret.credential(id.number);
    // Signed off this thread, where the answer is encoded (`crate::grant_signer`).
    Ok(Answer::Acquired(Acquired { keys, token: token.0, session, ttl_ms, signed: Vec::new() }))
}

/// The failure of a request in the name of a session that does not exist.
pub(super) fn no_session(table: &LockTable, id: SessionId) -> Failure {
    wrong_secret(table, id).unwrap_or_else(|| {
        let message = "the session does not exist: it expired, was closed, or was never opened";
        Failure::new(Code::NoSession, message)
    })
}

/// The failure of a request that names a live session's number and is not of its client.
pub(super) fn wrong_secret(table: &LockTable, id: SessionId) -> Option<Failure> {
    let first = SessionId { proof: Proof::default(), ..id };
    let live = table.sessions().range_from(Bound::Included(&first)).next().map(|(live, _)| *live);
    live.filter(|live| live.number == id.number && live.proof != id.proof).map(|live| {
        let message = format!(
            "session {} is another client's: its secret, or the identity under which it is presented, is another one; open a session of your own",
            live.number
        );
        Failure::new(Code::NoSession, message)
    })
}

/// The failure of a request that names a grant that its session does not have.
pub(super) fn not_holder() -> Failure {
    let message = "the session does not hold the lock with this token: \
                   the lock was released before, or the session expired";
    Failure::new(Code::NotHolder, message)
}

/// The failure of a renewal whose session has lost the grant.
pub(super) fn grant_lost(key: &Key, token: Token) -> Failure {
    let message = format!(
        "the session is alive, and no longer holds {key} with token {token}: another request with its credential has \
         released the lock, or an operator broke the grant"
    );
    Failure::new(Code::NotHolder, message)
}
