//! The server's answers to requests that failed.

use std::borrow::Cow;

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::LeaderView;
use crate::escape::escaped;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", escaped(.message))]
pub struct Failure {
    /// What kind of failure.
    pub error: Code,
    /// A sentence for the user: what happened and what to do.
    pub message: String,
    /// With [`Code::Held`]: the holder.
    pub holder: Option<HeldBy>,
    /// With [`Code::Held`]: the number of waiters.
    pub queue: Option<u64>,
    /// With [`Code::NotLeader`]: the leader.
    pub leader: Option<LeaderView>,
    /// With [`Code::StaleToken`]: the greatest token that is known for the record.
    pub seen: Option<u64>,
    /// With [`Code::StaleToken`]: the token of the request; none if it has none, and the record needs one.
    pub got: Option<u64>,
    /// With [`Code::OtherVersion`]: the version of the record; 0 if there is no such record.
    pub version: Option<u64>,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeldBy {
    /// The name its opener gave.
    pub owner: String,
    /// The grant's fencing token.
    pub token: u64,
}

/// How many sessions wait for a lock, as part of a sentence for people.
pub fn waiters(queue: u64) -> String {
    match queue {
        0 => "no session waits for it".to_owned(),
        1 => "1 session waits for it".to_owned(),
        _ => format!("{queue} sessions wait for it"),
    }
}

/// The kinds of failure: `error` in every error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The lock is held and the request does not wait.
    Held,
    /// The wait ended without a grant.
    Timeout,
    /// The session does not hold the lock with that token.
    NotHolder,
    /// The session does not exist: it expired, was closed, or never was.
    NoSession,
    /// This very operation was applied before, and its claim has ended since.
    Gone,
    /// Another request dropped the waiting claim, or its connection was closed.
    Withdrawn,
    /// The request cannot be decoded, or a value is out of bounds.
    Invalid,
    /// There is no such path.
    NotFound,
    /// The path takes another method.
    MethodNotAllowed,
    /// A limit is reached; the message says which.
    Limit,
    /// The node cannot take the request at the moment, usually because too much work is waiting; the message says why.
    /// Try again.
    Overloaded,
    /// Another node leads. On a WebSocket the connection is closed after this answer.
    NotLeader,
    /// No leader is known.
    NoLeader,
    /// The node lost leadership before it knew the outcome. Repeat the request; numbered operations are applied once.
    LeadershipLost,
    /// The node is stopping.
    ShuttingDown,
    /// The request's body is over the limit; the message says which.
    TooLarge,
    /// The members cannot be changed now: another change is under way, the leader is new, or the member to be replaced is
    /// still connected to the leader. The message says which.
    ChangeNotReady,
    /// The learner lacks too much of the log to become a voter.
    NotCaughtUp,
    /// There is no such member.
    NoMember,
    /// A member has this node ID, or had it and was removed; IDs are never used again.
    NodeIdInUse,
    /// No voter would be left.
    LastVoter,
    /// Too few of the voters after the change follow the leader: the cluster could not decide anything.
    NoMajority,
    /// Leadership was not transferred: the successor did not take over in time.
    NotTransferred,
    /// The leader's disk is nearly full: it accepts releases and keepalives, but no new sessions and acquires, until space
    /// is freed. Nothing was changed.
    NoSpace,
    /// The request's `Host` header is missing, or names no host of this node.
    WrongHost,
    /// A web page of another site made the request.
    WrongOrigin,
    /// The request may be sent again, but not so soon; the message says when.
    TooSoon,
    /// The request proves no identity that the node knows; the message says what is missing.
    Unauthenticated,
    /// The access rules do not permit it; the message says which of them decides. Nothing was done.
    Denied,
    /// The access rules were changed after they were read; the message has the revision in force. Nothing was done.
    AccessChanged,
    /// The node cannot write its audit log, and so accepts no administrative request. Nothing was done.
    AuditUnavailable,
    /// The node has an address for administrative requests, and this one came to its address for clients. Nothing was done.
    WrongListener,
    /// The client of a watch reads too slowly: events that it has not read are not there any more. Watch again, after the
    /// last event that was read.
    TooSlow,
    /// The lock is not held with the token of the request, or the record was written under a token and the request has none.
    /// Nothing was changed.
    #[serde(rename = "stale fencing token")]
    StaleToken,
    /// The record has another version than the request says. Nothing was changed.
    OtherVersion,
    /// There is no such record.
    NoRecord,
    /// The store has no room for the change. Nothing was changed.
    StoreFull,
    /// A later connection of the client has resumed the session that this one held: go on with that one.
    TakenOver,
}

impl Failure {
    /// A failure with nothing but a sentence, which is escaped: it may name keys and owners.
    pub fn new(error: Code, message: impl Into<String>) -> Failure {
        let message: String = message.into();
        let message = match escaped(&message) {
            Cow::Borrowed(_) => message,
            Cow::Owned(escaped) => escaped,
        };
        Failure { error, message, holder: None, queue: None, leader: None, seen: None, got: None, version: None }
    }
}

/// JSON shows only what there is to say; bincode, which has no names, always has every field.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename = "Failure")]
#[cfg_attr(feature = "schema", schemars(description = "Why a request failed."))]
pub(super) struct FailureText {
    /// The kind of failure. Programs decide by it.
    error: Code,
    /// A sentence for people: what happened, and what to do.
    message: String,
    /// With `held`: the first of the holders. Without it, the lock is only waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "HeldBy"))]
    holder: Option<HeldBy>,
    /// With `held`: the number of waiters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    queue: Option<u64>,
    /// With `not_leader`: the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "LeaderView"))]
    leader: Option<LeaderView>,
    /// With `stale fencing token`: the greatest token that is known for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    seen: Option<u64>,
    /// With `stale fencing token`: the token of the request, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    got: Option<u64>,
    /// With `other_version`: the version of the record; 0 if there is no such record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    version: Option<u64>,
}

type FailureBinary =
    (Code, String, Option<HeldBy>, Option<u64>, Option<LeaderView>, Option<u64>, Option<u64>, Option<u64>);

impl Serialize for Failure {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        let Failure { error, message, holder, queue, leader, seen, got, version } = self.clone();
        if serializer.is_human_readable() {
            FailureText { error, message, holder, queue, leader, seen, got, version }.serialize(serializer)
        } else {
            (error, message, holder, queue, leader, seen, got, version).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Failure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Failure, D::Error> {
        if deserializer.is_human_readable() {
            let FailureText { error, message, holder, queue, leader, seen, got, version } =
                FailureText::deserialize(deserializer)?;
            Ok(Failure { error, message, holder, queue, leader, seen, got, version })
        } else {
            let (error, message, holder, queue, leader, seen, got, version) = FailureBinary::deserialize(deserializer)?;
            Ok(Failure { error, message, holder, queue, leader, seen, got, version })
        }
    }
}
