//! The keys on which a session has a claim, in order.

use alloc::vec::Vec;
use core::mem;

use serde::{Deserialize, Serialize, Serializer};

use super::Key;

/// A sorted set of keys. Most sessions have at most one claim, and millions of such sessions need
/// no heap memory for it. Each size has exactly one representation, so equal sets are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "Vec<Key>")]
pub(crate) enum Claims {
    #[default]
    None,
    One(Key),
    /// Two or more keys.
    Many(Vec<Key>),
}

impl Claims {
    pub(super) fn as_slice(&self) -> &[Key] {
        match self {
            Claims::None => &[],
            Claims::One(key) => core::slice::from_ref(key),
            Claims::Many(keys) => keys,
        }
    }

    /// Adds a key, unless it is present.
    pub(crate) fn add(&mut self, key: &Key) {
        let Err(index) = self.as_slice().binary_search(key) else { return };
        let mut keys = mem::take(self).into_vec();
        keys.insert(index, key.clone());
        *self = keys.into();
    }

    /// Removes a key, if it is present.
    pub(crate) fn drop(&mut self, key: &Key) {
        let Ok(index) = self.as_slice().binary_search(key) else { return };
        let mut keys = mem::take(self).into_vec();
        keys.remove(index);
        *self = keys.into();
    }

    pub(super) fn into_vec(self) -> Vec<Key> {
        match self {
            Claims::None => Vec::new(),
            Claims::One(key) => [key].into(),
            Claims::Many(keys) => keys,
        }
    }
}

impl From<Vec<Key>> for Claims {
    fn from(mut keys: Vec<Key>) -> Claims {
        match (keys.pop(), keys.is_empty()) {
            (None, _) => Claims::None,
            (Some(key), true) => Claims::One(key),
            (Some(key), false) => {
                keys.push(key);
                Claims::Many(keys)
            }
        }
    }
}

impl Serialize for Claims {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_slice().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_in_order_and_have_one_form() {
        let [a, b, c] = ["a", "b", "c"].map(Key::from);
        let mut claims = Claims::None;
        let mut seen = Vec::new();
        for key in [&b, &b, &c, &a, &c] {
            claims.add(key);
            seen.push(claims.as_slice().to_vec());
        }
        assert_eq!(seen[1], core::slice::from_ref(&b));
        assert_eq!(seen[2], [b.clone(), c.clone()]);
        assert_eq!(seen[4], [a.clone(), b.clone(), c.clone()]);
        claims.drop(&b);
        assert_eq!(claims.as_slice(), [a.clone(), c.clone()]);
        claims.drop(&b);
        claims.drop(&c);
        assert_eq!(claims, Claims::One(a.clone()));
        claims.drop(&a);
        assert_eq!(claims, Claims::None);
    }

    #[test]
    fn claims_are_as_small_as_a_vec() {
        assert_eq!(size_of::<Claims>(), size_of::<Vec<Key>>());
    }
}
