//! The content of a record.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Shared, immutable bytes: cheap to clone, because the table, the log and the answers to reads have
/// the same content. They mean nothing to the protocol.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(Arc<[u8]>);

impl Bytes {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These bytes, and others behind them.
    pub(super) fn with(&self, more: &Bytes) -> Bytes {
        Bytes([self.as_slice(), more.as_slice()].concat().into())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(bytes.into())
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Bytes {
        Bytes(text.as_bytes().into())
    }
}

/// As a literal of bytes: text is readable.
impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// In JSON, text is a string, and everything else a list of numbers.
impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match str::from_utf8(&self.0) {
            Ok(text) if serializer.is_human_readable() => serializer.serialize_str(text),
            _ => serializer.serialize_bytes(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Content)
        } else {
            deserializer.deserialize_byte_buf(Content)
        }
    }
}

struct Content;

impl<'de> Visitor<'de> for Content {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_str<E>(self, text: &str) -> Result<Bytes, E> {
        Ok(text.into())
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
        Ok(Bytes(bytes.into()))
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
        Ok(bytes.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bytes, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = list.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use super::Bytes;

    #[test]
    fn every_byte_is_read_back_and_shown() {
        for (bytes, json) in [
            (Bytes::from("text\n"), r#""text\n""#),
            (Bytes::from([b'a', 0, b'"', 0xff].to_vec()), "[97,0,34,255]"),
            (Bytes::from(""), r#""""#),
        ] {
            assert_eq!(serde_json::to_string(&bytes).unwrap(), json);
            assert_eq!(serde_json::from_str::<Bytes>(json).unwrap(), bytes);
            assert_eq!(bytes.is_empty(), json.len() == 2);
        }
        let all = Bytes::from((0..=u8::MAX).collect::<Vec<u8>>());
        assert_eq!(serde_json::from_value::<Bytes>(serde_json::to_value(&all).unwrap()).unwrap(), all);
        assert!(serde_json::from_str::<Bytes>("[1,256]").is_err() && serde_json::from_str::<Bytes>("7").is_err());
        let refusal = serde_json::from_str::<Bytes>("true").unwrap_err().to_string();
        assert!(refusal.contains("expected bytes"), "{refusal}");
        assert_eq!(format!("{:?}", Bytes::from([b'a', 0, b'"', 0xff].to_vec())), r#"b"a\x00\"\xff""#);
        assert_eq!(Bytes::from("ab").with(&Bytes::from("c")), Bytes::from("abc"));
    }
}
