//! Watches: what a client follows, and what it is told.
//!
//! All events are in [`Change`], a variant for each kind. In JSON an event is one object, whose field `event` has the
//! variant's name; a field that has nothing to say is left out.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::{Error as _, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{LockView, Mode, RecordSummary};

/// What to follow, and from where on: the query of `GET /v1/watch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// The events of this key. A watch names a key or a prefix.
    #[serde(default)]
    pub key: Option<String>,
    /// The events of all keys that begin so.
    #[serde(default)]
    pub prefix: Option<String>,
    /// Only events after this one. Without it, the watch begins with a listing of the present state.
    #[serde(default)]
    pub after: Option<EventId>,
}

impl Watch {
    /// The events of one key, 1 to 512 bytes.
    pub fn key(key: impl Into<String>) -> Watch {
        Watch { key: Some(key.into()), ..Watch::default() }
    }

    /// The events of all keys that begin so; of all keys, if the prefix is empty.
    pub fn prefix(prefix: impl Into<String>) -> Watch {
        Watch { prefix: Some(prefix.into()), ..Watch::default() }
    }

    /// Only events after this one, and no listing.
    #[must_use]
    pub fn after(mut self, event: EventId) -> Watch {
        self.after = Some(event);
        self
    }
}

/// The ID of an event: its revision, which is the index in the log of the entry that caused it, and its number among the
/// events of that entry. An event has the same ID at every node, in every watch, and greater IDs are later.
///
/// As text, and in JSON, it is `120.2`: the second event of the entry 120. The last event of an entry is `120`, so that
/// the text says what a client has seen: all of the entry, or a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId {
    /// The index of the entry.
    pub revision: u64,
    /// The event's number in the entry, from 1; `None` for the last.
    pub event: Option<u32>,
}

impl EventId {
    /// The end of the entry with this index.
    pub fn end_of(revision: u64) -> EventId {
        EventId { revision, event: None }
    }
}

impl Ord for EventId {
    fn cmp(&self, other: &EventId) -> std::cmp::Ordering {
        let order = |id: &EventId| (id.revision, id.event.map_or(u64::MAX, u64::from));
        order(self).cmp(&order(other))
    }
}

impl PartialOrd for EventId {
    fn partial_cmp(&self, other: &EventId) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.event {
            Some(event) => write!(f, "{}.{event}", self.revision),
            None => write!(f, "{}", self.revision),
        }
    }
}

/// The text is not an event's ID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the ID of an event: it has the form REVISION or REVISION.N, as a watch shows it")]
pub struct NotAnEvent(String);

impl FromStr for EventId {
    type Err = NotAnEvent;

    fn from_str(text: &str) -> Result<EventId, NotAnEvent> {
        let refused = || NotAnEvent(text.chars().take(50).collect());
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (revision, event) = text.split_once('.').map_or((text, None), |(revision, event)| (revision, Some(event)));
        if !is_number(revision) || !event.is_none_or(is_number) {
            return Err(refused());
        }
        let revision = revision.parse().map_err(|_| refused())?;
        let event = event.map(str::parse).transpose().map_err(|_| refused())?;
        Ok(EventId { revision, event })
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            (self.revision, self.event).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for EventId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EventId, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_any(EventIdVisitor);
        }
        let (revision, event) = <(u64, Option<u32>)>::deserialize(deserializer)?;
        Ok(EventId { revision, event })
    }
}

struct EventIdVisitor;

impl Visitor<'_> for EventIdVisitor {
    type Value = EventId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ID of an event")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<EventId, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, revision: u64) -> Result<EventId, E> {
        Ok(EventId::end_of(revision))
    }
}

/// A message of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Watched {
    /// The present state: the watch begins with it, or goes on with it after [`Watched::Compacted`].
    Listing(Listing),
    /// Something has happened.
    Event(Event),
    /// The events after the one that the watch names are not all there any more. A listing follows.
    Compacted {
        /// The node has all events of entries after this one.
        floor: u64,
    },
}

/// A part of the present state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Listing {
    /// The state is that after this entry.
    pub revision: u64,
    /// Whether this is the first part: what was shown before is out of date.
    pub begins: bool,
    /// The locks that are held or waited for, in the order of their keys.
    pub locks: Vec<LockView>,
    /// The records that there are, in the order of their keys.
    pub records: Vec<RecordSummary>,
    /// Whether this is the last part. Between two parts there may be events of keys that were shown already.
    pub complete: bool,
}

impl Listing {
    /// The greatest key of this part: all keys up to it were shown.
    pub fn last_key(&self) -> Option<&str> {
        let lock = self.locks.last().map(|lock| lock.key.as_str());
        lock.max(self.records.last().map(|record| record.key.as_str()))
    }
}

/// Something that has happened to a lock or a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its ID. Until a listing is complete, a client that resumes needs a new listing, and no ID helps.
    pub id: EventId,
    /// The key.
    pub key: String,
    /// What has happened.
    pub change: Change,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A session holds the lock.
    Granted {
        /// Its public number.
        session: u64,
        /// The name its opener gave.
        owner: String,
        /// The grant's fencing token.
        token: u64,
        /// Whether others may hold the lock at the same time.
        mode: Mode,
        /// The permits that it takes, of a semaphore.
        permits: Option<u32>,
        /// All permits of the semaphore.
        of: Option<u32>,
        /// All keys of the claim, if there are several.
        #[serde(default)]
        keys: Vec<String>,
        /// The value of the grant.
        value: Option<String>,
    },
    /// A session waits for the lock, as the last in the queue.
    Queued {
        /// Its public number.
        session: u64,
        /// The name its opener gave.
        owner: String,
        /// Whether others may hold the lock beside it.
        mode: Mode,
        /// The permits that it will take, of a semaphore.
        permits: Option<u32>,
        /// All permits of the semaphore.
        of: Option<u32>,
        /// All keys of the claim, if there are several.
        #[serde(default)]
        keys: Vec<String>,
        /// How many wait before it.
        ahead: u64,
    },
    /// The holder has replaced the value of its grant.
    Value {
        /// The holder.
        session: u64,
        /// The grant's token.
        token: u64,
        /// The new value.
        value: String,
    },
    /// A session holds the lock no longer.
    Released {
        /// The former holder.
        session: u64,
        /// The token of the grant that has ended.
        token: u64,
        /// Why.
        because: Because,
    },
    /// A session waits no longer, and was not granted the lock.
    Withdrawn {
        /// The former waiter.
        session: u64,
        /// Why.
        because: Because,
    },
    /// The deadline of a session has passed, and it loses what it has of this lock: `released` or `withdrawn` follows.
    Expired {
        /// The session.
        session: u64,
        /// The token of its grant; none of a waiter.
        token: Option<u64>,
    },
    /// An operator has broken the grant: `released` follows.
    Broken {
        /// The holder.
        session: u64,
        /// The token of the grant.
        token: u64,
    },
    /// The record of this key was written.
    Put {
        /// The version that it has now.
        version: u64,
        /// The greatest token that the transaction had to hold; none if it had to hold none.
        fence: Option<u64>,
    },
    /// The record of this key was deleted.
    Deleted {
        /// The version of the transaction.
        version: u64,
    },
}

/// Why a session has lost what it had of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// Its client released the lock or withdrew, or the wait was over.
    Request,
    /// Its deadline has passed.
    Expired,
    /// It was closed.
    Closed,
    /// An operator has broken the grant.
    Broken,
    /// The access rules do not permit it the lock for which it waited.
    Denied,
}

impl Change {
    /// The name of the kind of event: `event` in JSON, and of an event of a stream.
    pub fn name(&self) -> &'static str {
        match self {
            Change::Granted { .. } => "granted",
            Change::Queued { .. } => "queued",
            Change::Value { .. } => "value",
            Change::Released { .. } => "released",
            Change::Withdrawn { .. } => "withdrawn",
            Change::Expired { .. } => "expired",
            Change::Broken { .. } => "broken",
            Change::Put { .. } => "put",
            Change::Deleted { .. } => "deleted",
        }
    }
}

impl Event {
    /// The event as one JSON object.
    fn to_object(&self) -> Result<Map<String, Value>, serde_json::Error> {
        let mut object = Map::new();
        object.insert("event".to_owned(), self.change.name().into());
        object.insert("id".to_owned(), serde_json::to_value(self.id)?);
        object.insert("revision".to_owned(), self.id.revision.into());
        object.insert("key".to_owned(), self.key.as_str().into());
        if let Value::Object(named) = serde_json::to_value(&self.change)?
            && let Some(Value::Object(fields)) = named.into_iter().next().map(|(_, fields)| fields)
        {
            let has_content = |value: &Value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
            object.extend(fields.into_iter().filter(|(_, value)| has_content(value)));
        }
        Ok(object)
    }

    fn of_object<E: Error>(mut object: Map<String, Value>) -> Result<Event, E> {
        let mut take = |name: &'static str| object.remove(name).ok_or_else(|| E::missing_field(name));
        let (name, id, key) = (take("event")?, take("id")?, take("key")?);
        object.remove("revision");
        let mut change = Map::new();
        change.insert(serde_json::from_value(name).map_err(E::custom)?, Value::Object(object));
        Ok(Event {
            id: serde_json::from_value(id).map_err(E::custom)?,
            key: serde_json::from_value(key).map_err(E::custom)?,
            change: serde_json::from_value(Value::Object(change)).map_err(E::custom)?,
        })
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            self.to_object().map_err(S::Error::custom)?.serialize(serializer)
        } else {
            (self.id, &self.key, &self.change).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Event, D::Error> {
        if deserializer.is_human_readable() {
            return Event::of_object(Map::deserialize(deserializer)?);
        }
        let (id, key, change) = <(EventId, String, Change)>::deserialize(deserializer)?;
        Ok(Event { id, key, change })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_ids_are_ordered_as_the_events() {
        let ids = ["7", "120.1", "120.2", "120.10", "120", "121.1"].map(|text| text.parse::<EventId>().unwrap());
        assert!(ids.is_sorted());
        for id in ids {
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(serde_json::from_str::<EventId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
        }
        assert_eq!(serde_json::from_str::<EventId>("120").unwrap(), EventId::end_of(120));
        for wrong in ["", "x", "-1", "+1", "1.", ".1", "1.2.3", "1,2", " 1", "99999999999999999999", "1.99999999999"] {
            assert!(wrong.parse::<EventId>().unwrap_err().to_string().contains("is not the ID of an event"), "{wrong}");
        }
    }

    #[test]
    fn event_is_one_object_with_what_there_is_to_say() {
        let change = Change::Granted {
            session: 3,
            owner: "worker".into(),
            token: 9,
            mode: Mode::Exclusive,
            permits: None,
            of: None,
            keys: vec![],
            value: None,
        };
        let event = Event { id: EventId { revision: 120, event: Some(1) }, key: "k".into(), change };
        let json = r#"{"event":"granted","id":"120.1","key":"k","mode":"exclusive","owner":"worker","revision":120,"session":3,"token":9}"#;
        assert_eq!(serde_json::to_string(&event).unwrap(), json);
        assert_eq!(serde_json::from_str::<Event>(json).unwrap(), event);
        for wrong in
            [r#"{"event":"granted"}"#, r#"{"event":"flown","id":"1","key":"k"}"#, r#"{"id":"1","key":"k"}"#, "[]"]
        {
            assert!(serde_json::from_str::<Event>(wrong).is_err(), "{wrong}");
        }
    }
}
