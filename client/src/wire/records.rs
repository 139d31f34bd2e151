//! The key-value store: records beside the locks, changed under the tokens of grants.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::{Consistency, SessionId};

/// The content of a record: any bytes. In JSON it is a text if it is UTF-8, and `{"base64":"…"}` if not; both forms are
/// read.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Content(pub Vec<u8>);

/// What `POST /v1/kv` takes: changes that are made together if all conditions are met, and otherwise not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Transaction {
    /// The session that asks, for operations with a number.
    #[serde(default)]
    pub session: Option<SessionId>,
    /// What must be the case; together with the changes at most 32.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// What is changed, in order.
    #[serde(default)]
    pub changes: Vec<RecordChange>,
}

/// What must be the case for a transaction to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Condition {
    /// A lock is held with this token.
    Held {
        /// The lock's key.
        lock: String,
        /// The token of the grant.
        token: u64,
    },
    /// A record has this version.
    Version {
        /// The record's key.
        key: String,
        /// Its version; 0 if there must be no such record.
        version: u64,
    },
}

/// A change of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RecordChange {
    /// Gives it this content, whether or not it exists.
    Put {
        /// The record's key.
        key: String,
        /// Its content, at most 65,536 bytes.
        value: Content,
    },
    /// Adds to its content; a record that does not exist begins empty.
    Append {
        /// The record's key.
        key: String,
        /// What is added.
        value: Content,
    },
    /// Removes it, if it exists.
    Delete {
        /// The record's key.
        key: String,
    },
}

impl Transaction {
    /// The length of the contents in it, in bytes.
    pub fn content_bytes(&self) -> usize {
        let content = |change: &RecordChange| match change {
            RecordChange::Put { value, .. } | RecordChange::Append { value, .. } => value.0.len(),
            RecordChange::Delete { .. } => 0,
        };
        self.changes.iter().map(content).sum()
    }
}

impl RecordChange {
    /// The record's key.
    pub fn key(&self) -> &str {
        match self {
            RecordChange::Put { key, .. } | RecordChange::Append { key, .. } | RecordChange::Delete { key } => key,
        }
    }
}

/// The query of `GET /v1/kv`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListRecords {
    /// Only keys that begin so.
    #[serde(default)]
    pub prefix: String,
    /// At most so many, 1 to 1,000; 100 if it is not said.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Only keys after this one: the last key of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// How current the answer must be.
    #[serde(default)]
    pub consistency: Consistency,
}

/// A record, read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordView {
    /// Its key.
    pub key: String,
    /// The number of the transaction that changed it last: no other change has the same.
    pub version: u64,
    /// The greatest token that this transaction had to hold; none if it had to hold none.
    pub fence: Option<u64>,
    /// Its content.
    pub value: Content,
}

/// A page of records, without their contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordPage {
    /// The records, in the order of their keys.
    pub records: Vec<RecordSummary>,
    /// Where the next page begins; none if this is the last.
    pub next_after: Option<String>,
    /// The bytes of all records of the store, as its limit counts them: of each its key, its content, and 64 more.
    pub stored_bytes: u64,
}

/// A record, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordSummary {
    /// Its key.
    pub key: String,
    /// As in [`RecordView`].
    pub version: u64,
    /// As in [`RecordView`].
    pub fence: Option<u64>,
    /// The length of its content, in bytes.
    pub bytes: u64,
}

impl Content {
    /// The content as a text, if it is UTF-8.
    pub fn as_text(&self) -> Option<&str> {
        str::from_utf8(&self.0).ok()
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Content {
        Content(text.into())
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Content {
        Content(bytes)
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_text() {
            Some(text) => write!(f, "{text:?}"),
            None => write!(f, "{} bytes", self.0.len()),
        }
    }
}

/// How JSON has it.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, rename = "Content")]
#[cfg_attr(
    feature = "schema",
    schemars(description = "The content of a record: a text if it is UTF-8, and otherwise its bytes in base64.")
)]
pub(super) enum ContentText {
    Text(String),
    Binary(Base64),
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Base64 {
    /// The bytes, in base64 with padding.
    base64: String,
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&self.0);
        }
        match self.as_text() {
            Some(text) => serializer.serialize_str(text),
            None => ContentText::Binary(Base64 { base64: STANDARD.encode(&self.0) }).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        if !deserializer.is_human_readable() {
            return deserializer.deserialize_byte_buf(Bytes);
        }
        match ContentText::deserialize(deserializer).map_err(|_| D::Error::custom(EXPECTED))? {
            ContentText::Text(text) => Ok(Content(text.into())),
            ContentText::Binary(Base64 { base64 }) => STANDARD.decode(base64).map(Content).map_err(D::Error::custom),
        }
    }
}

const EXPECTED: &str = "a content is a text, or {\"base64\":\"…\"}";

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Content, E> {
        Ok(Content(bytes.into()))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Content, E> {
        Ok(Content(bytes))
    }
}
