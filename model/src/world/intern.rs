//! Interned parts of states.
//!
//! A cluster has many states and a server has few, so a state shares most of its parts with
//! thousands of others. Each part is stored once, with its digests, and a state is a handful of
//! references. Equal parts are the same reference.
//!
//! Parts are never freed. A checker's run ends with its process, and there are a thousand times
//! fewer parts than states.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;

use parking_lot::Mutex;
use serde::{Serialize, Serializer};

use super::digest::{Renaming, digest};

/// A reference to an interned part.
pub struct Ref<T: 'static>(&'static Interned<T>);

struct Interned<T> {
    value: T,
    /// The digests under each renaming, the identity first.
    digests: Box<[u64]>,
}

impl<T> Clone for Ref<T> {
    fn clone(&self) -> Ref<T> {
        *self
    }
}

impl<T> Copy for Ref<T> {}

impl<T> PartialEq for Ref<T> {
    fn eq(&self, other: &Ref<T>) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl<T> Eq for Ref<T> {}

impl<T> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

/// A reference within another part serialises as the part's digest.
impl<T> Serialize for Ref<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.digest(0))
    }
}

impl<T> Ref<T> {
    /// The part's digest under a renaming.
    #[inline]
    pub fn digest(self, renaming: usize) -> u64 {
        self.0.digests[renaming]
    }

    /// The number of renamings for which the part has a digest.
    pub fn renamings(self) -> usize {
        self.0.digests.len()
    }

    /// A number that identifies the part within one run.
    #[inline]
    pub(crate) fn key(self) -> u64 {
        std::ptr::from_ref(self.0).addr() as u64
    }
}

const SHARDS: usize = 64;

/// Stores each part of one type once.
pub struct Interner<T: 'static> {
    shards: Vec<Mutex<HashMap<u64, Vec<Ref<T>>>>>,
}

impl<T> Default for Interner<T> {
    fn default() -> Interner<T> {
        Interner { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl<T: Eq + Serialize> Interner<T> {
    /// The unique reference to `value`.
    pub fn intern(&self, value: T, renamings: &[Renaming]) -> Ref<T> {
        let identity = digest(&value, &renamings[0]);
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let mut shard = self.shards[identity as usize % SHARDS].lock();
        let alike = shard.entry(identity).or_default();
        if let Some(known) = alike.iter().find(|known| known.0.value == value) {
            return *known;
        }
        let others = renamings[1..].iter().map(|names| digest(&value, names));
        let digests = std::iter::once(identity).chain(others).collect();
        let part = Ref(Box::leak(Box::new(Interned { value, digests })));
        alike.push(part);
        part
    }

    /// The number of parts.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().values().map(Vec::len).sum::<usize>()).sum()
    }
}
