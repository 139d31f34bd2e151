//! The frames of `GET /v1/hold`: one JSON object each, with the kind of the frame as its only field.

use palisade_client::wire::{Acquire, Acquired, Code, Failure, Keys, LeaderView, SessionId, SessionLease};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a client says.
#[derive(Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "HoldClientFrame"))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientFrame {
    /// Acquires a lock, in a session that the server opens. The first frame.
    Acquire(Claim),
    /// Goes on with the session of an earlier connection. The first frame.
    Resume(Resume),
    /// The client's process answers the check with this number.
    Here(u64),
    /// Replaces the value of the grant.
    Value {
        /// The answer has the same number.
        n: u64,
        /// The new value of the grant, at most 4,096 bytes.
        #[cfg_attr(test, schemars(length(max = crate::limits::VALUE_BYTES)))]
        value: String,
    },
    /// Releases the lock, or gives up the queue position, and closes the session.
    Release {},
}

impl ClientFrame {
    /// Reads a frame.
    ///
    /// # Errors
    /// If it is none; the sentence says what is wrong with it.
    pub fn parse(text: &str) -> Result<ClientFrame, Failure> {
        let unexpected = |error| Failure::new(Code::Invalid, format!("the frame cannot be parsed: {error}"));
        serde_json::from_str(text).map_err(unexpected)
    }
}

/// The locks that a client wants, and how: the fields of `POST /v1/locks/{key}/acquire` without `session` and
/// `reentrant`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Claim {
    pub(super) keys: Keys,
    pub(super) options: Acquire,
}

/// The session of an earlier connection, and what that connection was about.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Resume {
    pub(super) claim: Claim,
    pub(super) session: SessionId,
    /// The token of the grant; none if the client knows of no grant.
    pub(super) token: Option<u64>,
}

impl TryFrom<Map<String, Value>> for Claim {
    type Error = String;

    fn try_from(mut fields: Map<String, Value>) -> Result<Claim, String> {
        // The session is the connection's, which has one hold of the lock.
        for field in ["session", "reentrant"] {
            if fields.contains_key(field) {
                return Err(format!("unknown field `{field}`"));
            }
        }
        let keys = match (fields.remove("key"), fields.remove("keys")) {
            (Some(key), None) => Keys::from(value::<String>(key)?),
            (None, Some(keys)) => Keys::from(value::<Vec<String>>(keys)?),
            (None, None) => return Err("missing field `key`, or `keys` for several".into()),
            (Some(_), Some(_)) => return Err("`key` and `keys` are given: give one of them".into()),
        };
        Ok(Claim { keys, options: value(Value::Object(fields))? })
    }
}

impl TryFrom<Map<String, Value>> for Resume {
    type Error = String;

    fn try_from(mut fields: Map<String, Value>) -> Result<Resume, String> {
        let session = value(fields.remove("session").ok_or("missing field `session`")?)?;
        let token = fields.remove("token").map(value).transpose()?;
        Ok(Resume { claim: Claim::try_from(fields)?, session, token })
    }
}

fn value<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// What the server says.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "HoldServerFrame"))]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum ServerFrame {
    /// The session is open, or was renewed after a `resume`; the grant is to come.
    Waiting(SessionLease),
    /// The lock is held.
    Granted(Acquired),
    /// Is the client's process there?
    Check {
        /// The number of the check, which the answer has, too.
        n: u64,
    },
    /// The renewal that followed the answer to this check is committed.
    Renewed {
        /// The number of the check.
        n: u64,
        /// The session's time-to-live in milliseconds, from the moment at which the client sent the answer.
        ttl_ms: u64,
    },
    /// The grant has the value.
    Proclaimed {
        /// The number of the value.
        n: u64,
    },
    /// The lock is held no longer. The last frame.
    Lost(Failure),
    /// The answer to a release. The last frame.
    Released {},
    /// The request was refused. The last frame, unless it has the number of a value.
    Error(Refusal),
    /// This node cannot go on; the lock is as it was. The last frame.
    Interrupted(Interruption),
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::http) struct Refusal {
    /// The number of the value that was refused: the connection goes on. Without it, this is the last frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "u64"))]
    pub(super) n: Option<u64>,
    #[serde(flatten)]
    pub(super) failure: Failure,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::http) struct Interruption {
    /// What has happened to this node or connection.
    pub(super) error: Code,
    /// A sentence for people.
    pub(super) message: String,
    /// Where to go on, if it is known.
    pub(super) leader: Option<LeaderView>,
}

/// The fields of an acquire and the keys, as `TryFrom` above reads them.
#[cfg(test)]
impl schemars::JsonSchema for Claim {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HoldClaim".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        claim(generator, "The locks that a client wants, and how.", [])
    }
}

/// Those of a claim, and the session's.
#[cfg(test)]
impl schemars::JsonSchema for Resume {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HoldResume".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let session = ("session", generator.subschema_for::<SessionId>());
        let mut schema = claim(generator, "The session of an earlier connection, and what that was about.", [session]);
        let token = schemars::json_schema!({
            "description": "The token of the grant; without it the client knows of no grant.", "type": "integer", "minimum": 0,
        });
        schema.pointer_mut("/properties").expect("a claim has fields")["token"] = token.to_value();
        schema
    }
}

#[cfg(test)]
fn claim<const N: usize>(
    generator: &mut schemars::SchemaGenerator,
    what: &str,
    more: [(&'static str, schemars::Schema); N],
) -> schemars::Schema {
    let key = ("key", schemars::json_schema!({ "description": "The key of the lock.", "type": "string" }));
    let more = more.into_iter().chain([key, crate::http::description::keys()]);
    let mut schema = palisade_client::wire::with_fields::<Acquire>(generator, &["session", "reentrant"], more);
    schema.insert("description".to_owned(), what.into());
    palisade_client::wire::key_or_keys(&mut schema);
    schema
}

#[cfg(test)]
mod tests {
    use palisade_client::wire::Mode;
    use serde_json::json;

    use super::*;

    /// Goal: a claim has the fields and defaults of an acquire over HTTP, and a resume those and its session.
    #[test]
    fn first_frame_has_the_fields_of_an_acquire() {
        let parsed = |text: &str| ClientFrame::parse(text).unwrap();
        let claim = |keys: Keys, options: Acquire| Claim { keys, options };
        let plain = claim("k".into(), Acquire::default());
        assert_eq!(parsed(r#"{"acquire":{"key":"k"}}"#), ClientFrame::Acquire(plain.clone()));
        let options = Acquire { wait_ms: 7, mode: Mode::Shared, owner: "w".into(), ..Acquire::default() };
        let text = r#"{"acquire":{"keys":["a","b"],"wait_ms":7,"mode":"shared","owner":"w"}}"#;
        assert_eq!(parsed(text), ClientFrame::Acquire(claim(["a", "b"].into(), options)));

        let session = SessionId::new(3, [7; 10]).unwrap();
        for token in [None, Some(17)] {
            let mut fields = json!({ "key": "k", "session": session });
            token.map(|token| fields.as_object_mut().unwrap().insert("token".into(), json!(token)));
            let resume = Resume { claim: plain.clone(), session, token };
            assert_eq!(parsed(&json!({ "resume": fields }).to_string()), ClientFrame::Resume(resume));
        }
        assert_eq!(parsed(r#"{"here":4}"#), ClientFrame::Here(4));
        assert_eq!(parsed(r#"{"release":{}}"#), ClientFrame::Release {});
        let value = ClientFrame::Value { n: 1, value: "v".into() };
        assert_eq!(parsed(r#"{"value":{"n":1,"value":"v"}}"#), value);
    }

    /// Goal: whatever is no frame of a client is refused with a sentence.
    #[test]
    fn frames_of_another_form_are_invalid() {
        let bad = [
            "",
            "[]",
            "{}",
            r#""release""#,
            r#"{"dance":{}}"#,
            r#"{"here":-1}"#,
            r#"{"here":1,"release":{}}"#,
            r#"{"release":{"key":"k"}}"#,
            r#"{"value":{"value":"v"}}"#,
            r#"{"value":{"n":1,"value":"v","key":"k"}}"#,
            r#"{"acquire":{}}"#,
            r#"{"acquire":{"key":["a"]}}"#,
            r#"{"acquire":{"keys":"a"}}"#,
            r#"{"acquire":{"key":"a","keys":["b"]}}"#,
            r#"{"acquire":{"key":"k","force":true}}"#,
            r#"{"acquire":{"key":"k","reentrant":false}}"#,
            r#"{"acquire":{"key":"k","session":"00000000-0000-0001-a3d2-6ffe1fa85f94"}}"#,
            r#"{"resume":{"key":"k"}}"#,
            r#"{"resume":{"key":"k","session":"me"}}"#,
            r#"{"resume":{"key":"k","session":"00000000-0000-0001-a3d2-6ffe1fa85f94","token":"17"}}"#,
        ];
        for text in bad {
            let failure = ClientFrame::parse(text).expect_err(text);
            assert_eq!(failure.error, Code::Invalid, "{text}");
            assert!(failure.message.starts_with("the frame cannot be parsed: "), "{text}: {}", failure.message);
        }
    }

    /// Goal: the frames of the server are those of docs/api.md.
    #[test]
    fn server_frames_have_one_field() {
        let session = SessionId::new(3, [7; 10]).unwrap();
        let failure = || Failure::new(Code::NotHolder, "a sentence");
        let leader = Some(LeaderView { id: 2, client_addr: None });
        let acquired = Acquired { keys: "k".into(), token: 17, session, ttl_ms: 3_000, signed: Vec::new() };
        let frames = [
            (
                ServerFrame::Waiting(SessionLease { session, ttl_ms: 3_000 }),
                json!({ "waiting": { "session": session, "ttl_ms": 3_000 } }),
            ),
            (
                ServerFrame::Granted(acquired),
                json!({ "granted": { "key": "k", "token": 17, "session": session, "ttl_ms": 3_000 } }),
            ),
            (ServerFrame::Check { n: 1 }, json!({ "check": { "n": 1 } })),
            (ServerFrame::Renewed { n: 1, ttl_ms: 3_000 }, json!({ "renewed": { "n": 1, "ttl_ms": 3_000 } })),
            (ServerFrame::Proclaimed { n: 5 }, json!({ "proclaimed": { "n": 5 } })),
            (ServerFrame::Lost(failure()), json!({ "lost": { "error": "not_holder", "message": "a sentence" } })),
            (ServerFrame::Released {}, json!({ "released": {} })),
            (
                ServerFrame::Error(Refusal { n: None, failure: failure() }),
                json!({ "error": { "error": "not_holder", "message": "a sentence" } }),
            ),
            (
                ServerFrame::Error(Refusal { n: Some(5), failure: failure() }),
                json!({ "error": { "n": 5, "error": "not_holder", "message": "a sentence" } }),
            ),
            (
                ServerFrame::Interrupted(Interruption { error: Code::NotLeader, message: "a sentence".into(), leader }),
                json!({ "interrupted": {
                    "error": "not_leader", "message": "a sentence", "leader": { "id": 2, "client_addr": null }
                } }),
            ),
        ];
        for (frame, expected) in frames {
            assert_eq!(serde_json::to_value(&frame).unwrap(), expected);
        }
    }
}
