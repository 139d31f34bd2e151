//! The keys of one claim.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One key, or several that are acquired and released together. A server accepts up to 32, each once, and shows them in order.
///
/// In JSON one key is a string, and several are a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keys(Inner);

/// Most claims are on one key, and need no list for it. Each number of keys has one representation, so equal keys are equal
/// values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Inner {
    One(String),
    Several(Vec<String>),
}

impl Keys {
    /// All of them.
    pub fn as_slice(&self) -> &[String] {
        match &self.0 {
            Inner::One(key) => std::slice::from_ref(key),
            Inner::Several(keys) => keys,
        }
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, String> {
        self.as_slice().iter()
    }

    /// The key, if it is only one.
    pub fn single(&self) -> Option<&str> {
        match &self.0 {
            Inner::One(key) => Some(key),
            Inner::Several(_) => None,
        }
    }
}

impl From<&str> for Keys {
    fn from(key: &str) -> Keys {
        Keys::from(key.to_owned())
    }
}

impl From<&String> for Keys {
    fn from(key: &String) -> Keys {
        Keys::from(key.as_str())
    }
}

impl From<String> for Keys {
    fn from(key: String) -> Keys {
        Keys(Inner::One(key))
    }
}

impl From<Vec<String>> for Keys {
    fn from(mut keys: Vec<String>) -> Keys {
        Keys(match (keys.len(), keys.pop()) {
            (1, Some(key)) => Inner::One(key),
            (_, last) => {
                keys.extend(last);
                Inner::Several(keys)
            }
        })
    }
}

impl<K: AsRef<str>> From<&[K]> for Keys {
    fn from(keys: &[K]) -> Keys {
        Keys::from(keys.iter().map(|key| key.as_ref().to_owned()).collect::<Vec<String>>())
    }
}

impl<K: AsRef<str>, const N: usize> From<[K; N]> for Keys {
    fn from(keys: [K; N]) -> Keys {
        Keys::from(&keys[..])
    }
}

/// Shows the keys with commas between them.
impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_slice().join(", "))
    }
}

impl Serialize for Keys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.single().filter(|_| serializer.is_human_readable()) {
            Some(key) => key.serialize(serializer),
            None => self.as_slice().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Keys, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(KeysVisitor)
        } else {
            deserializer.deserialize_seq(KeysVisitor)
        }
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key or a list of keys")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Keys, E> {
        Ok(Keys::from(key))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut keys: A) -> Result<Keys, A::Error> {
        let Some(first) = keys.next_element()? else { return Ok(Keys::from(Vec::new())) };
        let Some(second) = keys.next_element()? else { return Ok(Keys(Inner::One(first))) };
        let mut all = vec![first, second];
        while let Some(key) = keys.next_element()? {
            all.push(key);
        }
        Ok(Keys(Inner::Several(all)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Inner, Keys};

    /// Goal: one key is the same value however it was said, and needs no list.
    #[test]
    fn one_key_has_one_representation() {
        let one = Keys::from("a");
        let decoded: Keys = serde_json::from_str(r#"["a"]"#).unwrap();
        for keys in [Keys::from("a".to_owned()), Keys::from(["a"]), Keys::from(vec!["a".to_owned()]), decoded] {
            assert!(matches!(keys.0, Inner::One(_)), "{keys:?}");
            assert_eq!(keys, one);
        }
        assert_eq!((one.single(), one.as_slice()), (Some("a"), &["a".to_owned()][..]));
        for keys in [Keys::from(Vec::new()), Keys::from(["a", "b", "c"])] {
            assert_eq!((keys.single(), keys.iter().count()), (None, keys.as_slice().len()));
            assert_eq!(serde_json::from_str::<Keys>(&serde_json::to_string(&keys).unwrap()).unwrap(), keys);
        }
        assert_eq!(Keys::from(["a", "b", "c"]).to_string(), "a, b, c");
    }
}
