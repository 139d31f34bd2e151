//! Encodes commands for the log.
//!
//! A log outlives the program that wrote it. So the variants here only ever grow at their end, and
//! none changes: an entry that an earlier version wrote has the same meaning for every later one. A
//! claim on one key in exclusive mode is written as the first version wrote it, which is also the
//! shortest form.

use alloc::borrow::Cow::{self, Borrowed};
use alloc::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use super::{
    Claim, Command, Key, Keys, LockRequest, Mode, Opening, Principal, Revision, Rules, Sequence, SessionId, Token,
    Transaction, Value, Writer,
};

/// A [`Command`] as a log has it: borrowed where it is written, owned where it is read. The fields have the meaning
/// that they have there.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Command")]
pub(super) enum Encoded<'a> {
    Open {
        opening: Cow<'a, Opening>,
    },
    Close {
        session: SessionId,
    },
    KeepAlive {
        sessions: Cow<'a, [SessionId]>,
    },
    /// Acquires one key in exclusive mode.
    Acquire {
        session: SessionId,
        sequence: Option<Sequence>,
        key: Cow<'a, Key>,
        wait: bool,
    },
    /// Acquires one key in exclusive mode.
    AcquireOnce {
        opening: Cow<'a, Opening>,
        key: Cow<'a, Key>,
        wait: bool,
    },
    /// Releases one key.
    Release {
        session: SessionId,
        sequence: Option<Sequence>,
        key: Cow<'a, Key>,
        claim: Claim,
    },
    Break {
        key: Cow<'a, Key>,
        token: Token,
        principal: Cow<'a, Principal>,
    },
    SetAccess {
        principal: Cow<'a, Principal>,
        revision: Revision,
        rules: Option<Arc<Rules>>,
    },
    /// Acquires in any way.
    AcquireAny {
        session: SessionId,
        sequence: Option<Sequence>,
        request: Cow<'a, LockRequest>,
    },
    /// Acquires in any way.
    AcquireAnyOnce {
        opening: Cow<'a, Opening>,
        request: Cow<'a, LockRequest>,
    },
    /// Releases several keys.
    ReleaseSeveral {
        session: SessionId,
        sequence: Option<Sequence>,
        keys: Cow<'a, Keys>,
        claim: Claim,
    },
    Proclaim {
        session: SessionId,
        sequence: Option<Sequence>,
        key: Cow<'a, Key>,
        token: Token,
        value: Cow<'a, Value>,
    },
    Transact {
        writer: Cow<'a, Writer>,
        transaction: Cow<'a, Transaction>,
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

impl<'a> From<&'a Command> for Encoded<'a> {
    fn from(command: &'a Command) -> Encoded<'a> {
        match command {
            Command::Open { opening } => Encoded::Open { opening: Borrowed(opening) },
            Command::Close { session } => Encoded::Close { session: *session },
            Command::KeepAlive { sessions } => Encoded::KeepAlive { sessions: Borrowed(sessions.as_slice()) },
            Command::Acquire { session, sequence, request } => {
                let (session, sequence) = (*session, *sequence);
                match plain(request) {
                    Some((key, wait)) => Encoded::Acquire { session, sequence, key: Borrowed(key), wait },
                    None => Encoded::AcquireAny { session, sequence, request: Borrowed(request) },
                }
            }
            Command::AcquireOnce { opening, request } => {
                let opening = Borrowed(opening);
                match plain(request) {
                    Some((key, wait)) => Encoded::AcquireOnce { opening, key: Borrowed(key), wait },
                    None => Encoded::AcquireAnyOnce { opening, request: Borrowed(request) },
                }
            }
            Command::Release { session, sequence, keys, claim } => {
                let (session, sequence, claim) = (*session, *sequence, *claim);
                match only(keys) {
                    Some(key) => Encoded::Release { session, sequence, key: Borrowed(key), claim },
                    None => Encoded::ReleaseSeveral { session, sequence, keys: Borrowed(keys), claim },
                }
            }
            Command::Proclaim { session, sequence, key, token, value } => Encoded::Proclaim {
                session: *session,
                sequence: *sequence,
                key: Borrowed(key),
                token: *token,
                value: Borrowed(value),
            },
            Command::Break { key, token, principal } => {
                Encoded::Break { key: Borrowed(key), token: *token, principal: Borrowed(principal) }
            }
            Command::SetAccess { principal, revision, rules } => {
                Encoded::SetAccess { principal: Borrowed(principal), revision: *revision, rules: rules.clone() }
            }
            Command::Transact { writer, transaction } => {
                Encoded::Transact { writer: Borrowed(writer), transaction: Borrowed(transaction) }
            }
        }
    }
}

impl Serialize for Command {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Encoded::from(self).serialize(serializer)
    }
}

impl From<Encoded<'_>> for Command {
    fn from(encoded: Encoded<'_>) -> Command {
        match encoded {
            Encoded::Open { opening } => Command::Open { opening: opening.into_owned() },
            Encoded::Close { session } => Command::Close { session },
            Encoded::KeepAlive { sessions } => Command::KeepAlive { sessions: sessions.into_owned() },
            Encoded::Acquire { session, sequence, key, wait } => {
                Command::Acquire { session, sequence, request: LockRequest::exclusive(key.into_owned(), wait) }
            }
            Encoded::AcquireOnce { opening, key, wait } => {
                let request = LockRequest::exclusive(key.into_owned(), wait);
                Command::AcquireOnce { opening: opening.into_owned(), request }
            }
            Encoded::Release { session, sequence, key, claim } => {
                Command::Release { session, sequence, keys: key.into_owned().into(), claim }
            }
            Encoded::Break { key, token, principal } => {
                Command::Break { key: key.into_owned(), token, principal: principal.into_owned() }
            }
            Encoded::SetAccess { principal, revision, rules } => {
                Command::SetAccess { principal: principal.into_owned(), revision, rules }
            }
            Encoded::AcquireAny { session, sequence, request } => {
                Command::Acquire { session, sequence, request: request.into_owned() }
            }
            Encoded::AcquireAnyOnce { opening, request } => {
                Command::AcquireOnce { opening: opening.into_owned(), request: request.into_owned() }
            }
            Encoded::ReleaseSeveral { session, sequence, keys, claim } => {
                Command::Release { session, sequence, keys: keys.into_owned(), claim }
            }
            Encoded::Proclaim { session, sequence, key, token, value } => {
                Command::Proclaim { session, sequence, key: key.into_owned(), token, value: value.into_owned() }
            }
            Encoded::Transact { writer, transaction } => {
                Command::Transact { writer: writer.into_owned(), transaction: transaction.into_owned() }
            }
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
