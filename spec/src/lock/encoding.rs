//! Encodes commands for the log.
//!
//! A log outlives the program that wrote it. So the variants here only ever grow at their end, and
//! none changes: an entry that an earlier version wrote has the same meaning for every later one. A
//! claim on one key in exclusive mode is written as the first version wrote it, which is also the
//! shortest form.

use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize, Serializer};

use super::{
    Claim, Command, Key, Keys, LockRequest, Mode, Opening, Principal, Revision, Rules, Sequence, SessionId, Token,
    Transaction, Value, Writer,
};

/// A [`Command`] as it is read. The fields have the meaning that they have there.
#[derive(Deserialize)]
#[serde(rename = "Command")]
pub(super) enum Encoded {
    Open {
        opening: Opening,
    },
    Close {
        session: SessionId,
    },
    KeepAlive {
        sessions: Vec<SessionId>,
    },
    Acquire {
        session: SessionId,
        sequence: Option<Sequence>,
        key: Key,
        wait: bool,
    },
    AcquireOnce {
        opening: Opening,
        key: Key,
        wait: bool,
    },
    Release {
        session: SessionId,
        sequence: Option<Sequence>,
        key: Key,
        claim: Claim,
    },
    Break {
        key: Key,
        token: Token,
        #[serde(default)]
        principal: Principal,
    },
    SetAccess {
        principal: Principal,
        revision: Revision,
        rules: Option<Arc<Rules>>,
    },
    AcquireAny {
        session: SessionId,
        sequence: Option<Sequence>,
        request: LockRequest,
    },
    AcquireAnyOnce {
        opening: Opening,
        request: LockRequest,
    },
    ReleaseSeveral {
        session: SessionId,
        sequence: Option<Sequence>,
        keys: Keys,
        claim: Claim,
    },
    Proclaim {
        session: SessionId,
        sequence: Option<Sequence>,
        key: Key,
        token: Token,
        value: Value,
    },
    Transact {
        writer: Writer,
        transaction: Transaction,
    },
}

/// The same as it is written, without a copy.
#[derive(Serialize)]
#[serde(rename = "Command")]
enum Written<'a> {
    Open {
        opening: &'a Opening,
    },
    Close {
        session: SessionId,
    },
    KeepAlive {
        sessions: &'a [SessionId],
    },
    /// Acquires one key in exclusive mode.
    Acquire {
        session: SessionId,
        sequence: Option<Sequence>,
        key: &'a Key,
        wait: bool,
    },
    /// Acquires one key in exclusive mode.
    AcquireOnce {
        opening: &'a Opening,
        key: &'a Key,
        wait: bool,
    },
    /// Releases one key.
    Release {
        session: SessionId,
        sequence: Option<Sequence>,
        key: &'a Key,
        claim: Claim,
    },
    Break {
        key: &'a Key,
        token: Token,
        principal: &'a Principal,
    },
    SetAccess {
        principal: &'a Principal,
        revision: Revision,
        rules: &'a Option<Arc<Rules>>,
    },
    /// Acquires in any way.
    AcquireAny {
        session: SessionId,
        sequence: Option<Sequence>,
        request: &'a LockRequest,
    },
    /// Acquires in any way.
    AcquireAnyOnce {
        opening: &'a Opening,
        request: &'a LockRequest,
    },
    /// Releases several keys.
    ReleaseSeveral {
        session: SessionId,
        sequence: Option<Sequence>,
        keys: &'a Keys,
        claim: Claim,
    },
    Proclaim {
        session: SessionId,
        sequence: Option<Sequence>,
        key: &'a Key,
        token: Token,
        value: &'a Value,
    },
    Transact {
        writer: &'a Writer,
        transaction: &'a Transaction,
    },
}

/// The key and whether to wait, if that is all that the request says.
fn plain(request: &LockRequest) -> Option<(&Key, bool)> {
    match request {
        LockRequest {
            keys,
            mode: Mode::EXCLUSIVE,
            max_queue: 0 | LockRequest::ANY_QUEUE,
            reentrant: false,
            value: None,
        } => Some((only(keys)?, request.waits())),
        _ => None,
    }
}

fn only(keys: &Keys) -> Option<&Key> {
    (keys.count() == 1).then(|| keys.first())
}

impl<'a> From<&'a Command> for Written<'a> {
    fn from(command: &'a Command) -> Written<'a> {
        match command {
            Command::Open { opening } => Written::Open { opening },
            Command::Close { session } => Written::Close { session: *session },
            Command::KeepAlive { sessions } => Written::KeepAlive { sessions },
            Command::Acquire { session, sequence, request } => {
                let (session, sequence) = (*session, *sequence);
                match plain(request) {
                    Some((key, wait)) => Written::Acquire { session, sequence, key, wait },
                    None => Written::AcquireAny { session, sequence, request },
                }
            }
            Command::AcquireOnce { opening, request } => match plain(request) {
                Some((key, wait)) => Written::AcquireOnce { opening, key, wait },
                None => Written::AcquireAnyOnce { opening, request },
            },
            Command::Release { session, sequence, keys, claim } => {
                let (session, sequence, claim) = (*session, *sequence, *claim);
                match only(keys) {
                    Some(key) => Written::Release { session, sequence, key, claim },
                    None => Written::ReleaseSeveral { session, sequence, keys, claim },
                }
            }
            Command::Proclaim { session, sequence, key, token, value } => {
                Written::Proclaim { session: *session, sequence: *sequence, key, token: *token, value }
            }
            Command::Break { key, token, principal } => Written::Break { key, token: *token, principal },
            Command::SetAccess { principal, revision, rules } => {
                Written::SetAccess { principal, revision: *revision, rules }
            }
            Command::Transact { writer, transaction } => Written::Transact { writer, transaction },
        }
    }
}

impl Serialize for Command {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written::from(self).serialize(serializer)
    }
}

impl From<Encoded> for Command {
    fn from(encoded: Encoded) -> Command {
        match encoded {
            Encoded::Open { opening } => Command::Open { opening },
            Encoded::Close { session } => Command::Close { session },
            Encoded::KeepAlive { sessions } => Command::KeepAlive { sessions },
            Encoded::Acquire { session, sequence, key, wait } => {
                Command::Acquire { session, sequence, request: LockRequest::exclusive(key, wait) }
            }
            Encoded::AcquireOnce { opening, key, wait } => {
                Command::AcquireOnce { opening, request: LockRequest::exclusive(key, wait) }
            }
            Encoded::Release { session, sequence, key, claim } => {
                Command::Release { session, sequence, keys: key.into(), claim }
            }
            Encoded::Break { key, token, principal } => Command::Break { key, token, principal },
            Encoded::SetAccess { principal, revision, rules } => Command::SetAccess { principal, revision, rules },
            Encoded::AcquireAny { session, sequence, request } => Command::Acquire { session, sequence, request },
            Encoded::AcquireAnyOnce { opening, request } => Command::AcquireOnce { opening, request },
            Encoded::ReleaseSeveral { session, sequence, keys, claim } => {
                Command::Release { session, sequence, keys, claim }
            }
            Encoded::Proclaim { session, sequence, key, token, value } => {
                Command::Proclaim { session, sequence, key, token, value }
            }
            Encoded::Transact { writer, transaction } => Command::Transact { writer, transaction },
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;
    use crate::invariants::states::{id, key};
    use crate::lock::Ttl;

    /// How the command is written, up to its fields; it is read back as it was.
    fn variant(command: &Command) -> String {
        let text = serde_json::to_string(command).unwrap();
        assert_eq!(&serde_json::from_str::<Command>(&text).unwrap(), command, "{text}");
        text.split('"').nth(1).unwrap().into()
    }

    /// Goal: an earlier version reads what it could have written itself, also where this one knows more.
    #[test]
    fn exclusive_claims_on_one_key_are_written_as_before() {
        let keys = Keys::new(["a", "b"].map(key).into()).unwrap();
        let acquire = |request| variant(&Command::Acquire { session: id(1), sequence: None, request });
        let release = |keys| variant(&Command::Release { session: id(1), sequence: None, keys, claim: Claim::Either });
        assert_eq!([true, false].map(|wait| acquire(LockRequest::exclusive("a", wait))), ["Acquire"; 2]);
        assert_eq!(release("a".into()), "Release");
        let opening =
            Opening { proof: id(1).proof, owner: "worker".into(), principal: Principal::default(), ttl: Ttl(100) };
        let once = |request| variant(&Command::AcquireOnce { opening: opening.clone(), request });
        let plain = LockRequest::exclusive("a", true);
        assert_eq!(once(plain.clone()), "AcquireOnce");
        assert_eq!(once(LockRequest { mode: Mode::SHARED, ..plain.clone() }), "AcquireAnyOnce");
        let command = Command::Acquire { session: id(1), sequence: None, request: plain.clone() };
        let session = serde_json::to_string(&id(1)).unwrap();
        assert_eq!(
            serde_json::to_string(&command).unwrap(),
            alloc::format!(r#"{{"Acquire":{{"session":{session},"sequence":null,"key":"a","wait":true}}}}"#)
        );
        let more = [
            LockRequest { keys: keys.clone(), ..plain.clone() },
            LockRequest { mode: Mode::SHARED, ..plain.clone() },
            LockRequest { max_queue: 3, ..plain.clone() },
            LockRequest { reentrant: true, ..plain.clone() },
            LockRequest { value: Some("v".into()), ..plain },
        ];
        assert_eq!(more.map(acquire), ["AcquireAny"; 5]);
        assert_eq!(release(keys), "ReleaseSeveral");
    }
}
