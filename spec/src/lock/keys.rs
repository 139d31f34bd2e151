//! The keys of one claim.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::Key;

/// One key or several, in order, each once. Most claims are on one key, and need no list for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "Vec<Key>")]
pub struct Keys(Inner);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Inner {
    One(Key),
    Several(Several),
}

/// Two or more keys in order. The parts of one claim, at each of its keys, share the list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Keys")]
pub(super) struct Several(Arc<Vec<Key>>);

impl Keys {
    /// The greatest number of keys of one claim. Every one of its keys knows all of them.
    pub const MAX: usize = 32;

    /// The keys in order; `None` if there is none, one occurs twice, or there are more than
    /// [`MAX`](Keys::MAX).
    pub fn new(mut keys: Vec<Key>) -> Option<Keys> {
        keys.sort_unstable();
        let is_a_set = keys.windows(2).all(|pair| pair[0] != pair[1]);
        match keys.len() {
            1 => keys.pop().map(Keys::from),
            2..=Keys::MAX => is_a_set.then(|| Keys(Inner::Several(Several(Arc::new(keys))))),
            _ => None,
        }
    }

    /// The keys, in order.
    pub fn as_slice(&self) -> &[Key] {
        match &self.0 {
            Inner::One(key) => core::slice::from_ref(key),
            Inner::Several(Several(keys)) => keys,
        }
    }

    /// The first key.
    pub fn first(&self) -> &Key {
        &self.as_slice()[0]
    }

    /// The keys, in order.
    pub fn iter(&self) -> core::slice::Iter<'_, Key> {
        self.as_slice().iter()
    }

    /// The number of keys.
    pub fn count(&self) -> usize {
        self.as_slice().len()
    }

    /// The list, if there are several keys.
    pub(super) fn several(&self) -> Option<&Several> {
        match &self.0 {
            Inner::One(_) => None,
            Inner::Several(keys) => Some(keys),
        }
    }

    /// The keys of a claim that one of its keys knows: with the list, if there are several.
    pub(super) fn of(key: &Key, several: Option<&Several>) -> Keys {
        several.map_or_else(|| Keys::from(key.clone()), |keys| Keys(Inner::Several(keys.clone())))
    }
}

impl Several {
    pub(super) fn as_slice(&self) -> &[Key] {
        &self.0
    }
}

impl TryFrom<Keys> for Several {
    type Error = &'static str;

    fn try_from(keys: Keys) -> Result<Several, &'static str> {
        keys.several().cloned().ok_or("several keys are two at least")
    }
}

impl From<Key> for Keys {
    fn from(key: Key) -> Keys {
        Keys(Inner::One(key))
    }
}

impl From<&str> for Keys {
    fn from(key: &str) -> Keys {
        Keys::from(Key::from(key))
    }
}

impl TryFrom<Vec<Key>> for Keys {
    type Error = &'static str;

    fn try_from(keys: Vec<Key>) -> Result<Keys, &'static str> {
        Keys::new(keys).ok_or("a claim has 1 to 32 keys, each once")
    }
}

impl Serialize for Keys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_slice().serialize(serializer)
    }
}

impl<'a> IntoIterator for &'a Keys {
    type Item = &'a Key;
    type IntoIter = core::slice::Iter<'a, Key>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Shows the keys with a plus between them.
impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, key) in self.iter().enumerate() {
            write!(f, "{}{key}", if index == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::Keys;
    use crate::lock::Key;

    #[test]
    fn keys_are_in_order_and_each_occurs_once() {
        let [a, b, c] = ["a", "b", "c"].map(Key::from);
        assert_eq!(Keys::new(Vec::new()), None);
        assert_eq!(Keys::new(vec![a.clone(), b.clone(), a.clone()]), None);
        let numbered = |count: usize| (0..count).map(|number| Key::from(alloc::format!("{number}").as_str())).collect();
        assert_eq!(Keys::new(numbered(Keys::MAX)).map(|keys| keys.count()), Some(Keys::MAX));
        assert_eq!(Keys::new(numbered(Keys::MAX + 1)), None);
        assert_eq!(Keys::new(vec![a.clone()]), Some(Keys::from("a")));
        let keys = Keys::new(vec![c.clone(), a.clone(), b.clone()]).unwrap();
        assert_eq!((keys.as_slice(), keys.first(), keys.count()), (&[a.clone(), b, c][..], &a, 3));
        assert_eq!(alloc::format!("{keys}"), "a+b+c");
    }

    #[test]
    fn keys_are_as_small_as_a_key() {
        assert_eq!(size_of::<Keys>(), size_of::<Key>());
    }
}
