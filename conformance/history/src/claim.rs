//! The keys of a claim, and the part of them that it takes: keys and modes, as records have them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::names::Key;

/// The keys of one claim: one, or several that are acquired and released together. A record has one key
/// as a string, and several as a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "OneOrSeveral<Key>", into = "OneOrSeveral<Key>")]
pub struct Keys(Vec<Key>);

impl Keys {
    /// Keys in any order, each once; `None` if there is none, or one occurs twice.
    pub fn new(mut keys: Vec<Key>) -> Option<Keys> {
        keys.sort_unstable();
        let is_a_set = keys.windows(2).all(|pair| pair[0] != pair[1]);
        (is_a_set && !keys.is_empty()).then_some(Keys(keys))
    }

    /// The keys, in order.
    pub fn as_slice(&self) -> &[Key] {
        &self.0
    }

    /// The key, if there is only one.
    pub fn single(&self) -> Option<&Key> {
        if let [key] = &self.0[..] { Some(key) } else { None }
    }
}

impl From<Key> for Keys {
    fn from(key: Key) -> Keys {
        Keys(vec![key])
    }
}

impl From<&str> for Keys {
    fn from(key: &str) -> Keys {
        Keys::from(Key::from(key))
    }
}

impl TryFrom<OneOrSeveral<Key>> for Keys {
    type Error = &'static str;

    fn try_from(keys: OneOrSeveral<Key>) -> Result<Keys, &'static str> {
        Keys::new(keys.into()).ok_or("a claim has at least one key, and each once")
    }
}

impl From<Keys> for OneOrSeveral<Key> {
    fn from(keys: Keys) -> OneOrSeveral<Key> {
        OneOrSeveral::from(keys.0)
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, key) in self.0.iter().enumerate() {
            write!(f, "{}{key}", if index == 0 { "" } else { " and " })?;
        }
        Ok(())
    }
}

/// A list as records have it: nothing, one value by itself, or several in brackets.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrSeveral<T> {
    Several(Vec<T>),
    One(T),
    None,
}

impl<T> From<Vec<T>> for OneOrSeveral<T> {
    fn from(mut list: Vec<T>) -> OneOrSeveral<T> {
        match (list.len(), list.pop()) {
            (1, Some(one)) => OneOrSeveral::One(one),
            (_, Some(last)) => {
                list.push(last);
                OneOrSeveral::Several(list)
            }
            (_, None) => OneOrSeveral::None,
        }
    }
}

impl<T> From<OneOrSeveral<T>> for Vec<T> {
    fn from(list: OneOrSeveral<T>) -> Vec<T> {
        match list {
            OneOrSeveral::Several(list) => list,
            OneOrSeveral::One(one) => vec![one],
            OneOrSeveral::None => Vec::new(),
        }
    }
}

/// For the lists in a record.
pub(super) mod one_or_several {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::OneOrSeveral;

    pub(crate) fn serialize<T: Clone + Serialize, S: Serializer>(list: &[T], into: S) -> Result<S::Ok, S::Error> {
        OneOrSeveral::from(list.to_vec()).serialize(into)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        OneOrSeveral::deserialize(from).map(Vec::from)
    }
}

/// How much of a lock a claim takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Mode {
    /// All of it.
    #[default]
    Exclusive,
    /// What other shared claims leave: any number of them hold the lock together.
    Shared,
    /// Some of the permits of a semaphore.
    Semaphore {
        /// The permits that the claim takes.
        permits: u32,
        /// All permits of the lock.
        of: u32,
    },
}

impl Mode {
    /// Takes the lock alone.
    pub fn is_exclusive(&self) -> bool {
        *self == Mode::Exclusive
    }

    /// The permits of the lock: `None` for a lock that is no semaphore. Claims of different sizes never
    /// hold a lock together.
    pub fn size(self) -> Option<u32> {
        match self {
            Mode::Semaphore { of, .. } => Some(of),
            Mode::Exclusive | Mode::Shared => None,
        }
    }

    /// How much of the lock the claim takes, and how much there is.
    pub fn share(self) -> (u64, u64) {
        const ALL: u64 = u32::MAX as u64;
        match self {
            Mode::Exclusive => (ALL, ALL),
            Mode::Shared => (1, ALL),
            Mode::Semaphore { permits, of } => (permits.into(), of.into()),
        }
    }

    /// Whether a claim can be made so: with one permit at least, and at most all.
    pub fn is_possible(self) -> bool {
        let (takes, of) = self.share();
        (1..=of).contains(&takes)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Semaphore { permits, of } => write!(f, "{permits} of {of}"),
        }
    }
}
