//! A server's answers to requests that were done.

use serde::de::{Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::{
    AccessRules, AccessVerdict, Failure, Keys, LeaderView, LockPage, LockView, MembersView, RecordPage, RecordView,
    SessionId, StatusView, Watched,
};

/// The answer to a [`Request`](super::Request).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Response {
    /// The request's id.
    pub id: u64,
    /// What came of it.
    pub result: Outcome,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Ok(Answer),
    /// The request failed, or its outcome is not known.
    Error(Failure),
}

/// What a request that was done is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The session was opened, or its deadline was renewed.
    Session(SessionLease),
    /// The session was closed.
    SessionClosed,
    /// A session, read.
    SessionView(SessionView),
    /// The lock is held.
    Acquired(Acquired),
    /// The locks were given back.
    Released,
    /// The claim was dropped.
    Withdrawn,
    /// A lock, read.
    Lock(LockView),
    /// A page of locks.
    Locks(LockPage),
    /// A lock, as the node that was asked has it.
    StaleLock(Stale<LockView>),
    /// A page of locks, as the node that was asked has them.
    StaleLocks(Stale<LockPage>),
    /// The node's view of the cluster.
    Status(Box<StatusView>),
    /// The members after the change, which is committed.
    Members(MembersView),
    /// Another node leads now.
    Transferred(LeaderView),
    /// The grant was broken.
    Broken(Broken),
    /// Not an answer: an operator has broken this grant. The server tells all WebSockets, with the id
    /// [`UNASKED`](super::UNASKED). With access control, only those whose clients may read the lock or hold it.
    Lost(Broken),
    /// The access rules in force.
    Access(AccessRules),
    /// Whether the access rules permit something.
    AccessVerdict(AccessVerdict),
    /// A hold was given back, and the session still has others: the locks remain its.
    StillHeld {
        /// How many holds the session still has.
        holds: u32,
    },
    /// The grant has the value.
    Proclaimed,
    /// The next message of a watch.
    Watched(Watched),
    /// The watch has ended: no frame of it follows.
    Unwatched,
    /// A record, read.
    Record(RecordView),
    /// A page of records.
    Records(RecordPage),
    /// A record, as the node that was asked has it.
    StaleRecord(Stale<RecordView>),
    /// A page of records, as the node that was asked has them.
    StaleRecords(Stale<RecordPage>),
    /// The changes of the transaction are made.
    Written {
        /// The version that all records changed by it have.
        version: u64,
    },
}

/// A grant that an operator broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Broken {
    /// The lock's key.
    pub key: String,
    /// The token of the grant.
    pub token: u64,
    /// The public number of the session that held the lock.
    pub session: u64,
    /// The name of that session's client: for the operator; empty in [`Answer::Lost`], and without TLS.
    #[serde(default)]
    pub principal: String,
}

/// A session and its time-to-live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionLease {
    /// The session.
    pub session: SessionId,
    /// Its time-to-live in milliseconds. The lease is good until the moment the request was sent plus this.
    pub ttl_ms: u64,
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The keys of its locks.
    pub keys: Keys,
    /// The fencing token: greater than that of every earlier grant in the cluster.
    pub token: u64,
    /// The session that holds the locks.
    pub session: SessionId,
    /// The session's time-to-live in milliseconds.
    pub ttl_ms: u64,
    /// If the node signs grants, a signed token (docs/fencing.md) for each key, in their order.
    pub signed: Vec<String>,
}

#[cfg(feature = "schema")]
const GRANT: &str = "A grant: it has its key as `key`, or its keys as `keys` if there are several, and never both.";

/// JSON has `key` for one key and `keys` for several, and `signed` only if there is something: for one key a string, for
/// several a list. bincode, which has no names, always has every field.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename = "Acquired")]
#[cfg_attr(feature = "schema", schemars(description = GRANT, transform = super::key_or_keys))]
pub(super) struct AcquiredText {
    /// The key of its lock, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    key: Option<String>,
    /// The keys of its locks, in order, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    keys: Option<Keys>,
    /// The fencing token: greater than that of every earlier grant in the cluster.
    token: u64,
    /// The session that holds the locks.
    session: SessionId,
    /// The session's time-to-live in milliseconds.
    ttl_ms: u64,
    /// If the node signs grants, a signed token: of one key a text, of several keys a list, in their order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Keys"))]
    signed: Option<Keys>,
}

impl Serialize for Acquired {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        let Acquired { keys, token, session, ttl_ms, signed } = self;
        if serializer.is_human_readable() {
            let (token, session, ttl_ms) = (*token, *session, *ttl_ms);
            let key = keys.single().map(str::to_owned);
            let keys = key.is_none().then(|| keys.clone());
            let signed = (!signed.is_empty()).then(|| Keys::from(signed.as_slice()));
            AcquiredText { key, keys, token, session, ttl_ms, signed }.serialize(serializer)
        } else {
            (keys, token, session, ttl_ms, signed).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Acquired {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Acquired, D::Error> {
        if deserializer.is_human_readable() {
            let AcquiredText { key, keys, token, session, ttl_ms, signed } = AcquiredText::deserialize(deserializer)?;
            let keys = keys.or_else(|| key.map(Keys::from)).ok_or_else(|| D::Error::missing_field("key"))?;
            let signed = signed.map_or_else(Vec::new, |signed| signed.as_slice().to_vec());
            Ok(Acquired { keys, token, session, ttl_ms, signed })
        } else {
            let (keys, token, session, ttl_ms, signed) =
                <(Keys, u64, SessionId, u64, Vec<String>)>::deserialize(deserializer)?;
            Ok(Acquired { keys, token, session, ttl_ms, signed })
        }
    }
}

/// A session, as `GET /v1/sessions/{id}` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionView {
    /// Its public number.
    pub session: u64,
    /// The name its opener gave.
    pub owner: String,
    /// Its time-to-live in milliseconds.
    pub ttl_ms: u64,
    /// Milliseconds of cluster time until it expires.
    pub expires_in_ms: u64,
    /// The keys it holds or waits for.
    pub keys: Vec<String>,
}

/// A node's state, read without contact to other nodes
/// ([`Consistency::Stale`](super::Consistency::Stale)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Stale{T}"))]
pub struct Stale<T> {
    /// What it has.
    pub view: T,
    /// So many milliseconds ago the node last heard from the leader, or as a leader from a majority. What it shows may be older
    /// by the time that the message took. There is none if the node has heard from no other since it started.
    pub age_ms: Option<u64>,
}
