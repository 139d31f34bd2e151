//! A sorted map that is cheap to copy, for tables of millions of entries.
//!
//! A snapshot is a copy of the table, taken between two entries by the thread that serves clients. So the entries stand
//! in sorted **chunks** that copies share: a copy costs a reference to each chunk, and whoever writes to a chunk that is
//! shared copies that one chunk first ([`Arc::make_mut`]). The copy never changes.
//!
//! Where one chunk ends and the next begins depends on the map's history, and nothing else may: equality, hash, order and
//! serialization are those of the sequence of entries. So replicas that came to the same content in different ways are
//! equal, and their snapshots are the same bytes. That is why `Eq`, `Hash` and serde are written by hand here, and only
//! here (docs/decisions/0012).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;
use core::mem;
use core::ops::{Bound, Index};

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most entries in a chunk. A copy costs as much as there are chunks, a write after it as much as a chunk is long.
const CHUNK: usize = 128;

/// How many entries a chunk makes room for when it has none, and gives back when it has twice that to spare.
const ROOM: usize = 16;

type Chunk<K, V> = Vec<(K, V)>;

/// A sorted map whose copies share what they have in common.
///
/// Each chunk stands under a **fence**: a key that is not above its first, and above all keys of the chunk before. No
/// chunk is empty.
pub struct SharedMap<K, V> {
    chunks: BTreeMap<K, Arc<Chunk<K, V>>>,
    len: usize,
}

impl<K, V> SharedMap<K, V> {
    /// An empty map.
    pub const fn new() -> SharedMap<K, V> {
        SharedMap { chunks: BTreeMap::new(), len: 0 }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + Clone {
        self.chunks.values().flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value))
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// All values, in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// The entry with the least key.
    pub fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// The entry with the greatest key.
    pub fn last(&self) -> Option<(&K, &V)> {
        self.iter().next_back()
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// The value at `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        let (_, chunk) = self.chunks.range(up_to(key)).next_back()?;
        let place = find(chunk, key).ok()?;
        Some(&chunk[place].1)
    }

    /// Whether there is an entry at `key`.
    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The entries from `start` on, in the order of their keys.
    pub fn range_from(&self, start: Bound<&K>) -> impl Iterator<Item = (&K, &V)> {
        let fence = match start {
            Bound::Included(key) | Bound::Excluded(key) => self.chunks.range(up_to(key)).next_back(),
            Bound::Unbounded => None,
        };
        let chunks = fence.map_or(Bound::Unbounded, |(fence, _)| Bound::Included(fence));
        let chunks = self.chunks.range((chunks, Bound::Unbounded)).flat_map(|(_, chunk)| chunk.iter());
        let is_before = move |key: &K| match start {
            Bound::Included(start) => key < start,
            Bound::Excluded(start) => key <= start,
            Bound::Unbounded => false,
        };
        chunks.map(|(key, value)| (key, value)).skip_while(move |(key, _)| is_before(key))
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// The value at `key`, to be changed. Copies the chunk if it is shared.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (_, chunk) = self.chunks.range_mut(up_to(key)).next_back()?;
        let place = find(chunk, key).ok()?;
        Some(&mut Arc::make_mut(chunk)[place].1)
    }

    /// Puts a value at `key`; gives back the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some((_, chunk)) = self.chunks.range_mut(up_to(&key)).next_back() else {
            self.insert_between(key, value);
            return None;
        };
        match find(chunk, &key) {
            Ok(place) => return Some(mem::replace(&mut Arc::make_mut(chunk)[place].1, value)),
            Err(place) if chunk.len() < CHUNK => put(Arc::make_mut(chunk), place, (key, value)),
            Err(CHUNK) => {
                self.insert_between(key, value);
                return None;
            }
            Err(place) => {
                let upper = split(Arc::make_mut(chunk), place, (key, value));
                self.chunks.insert(upper[0].0.clone(), Arc::new(upper));
            }
        }
        self.len += 1;
        None
    }

    /// Takes the entry at `key` away.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (fence, chunk) = self.chunks.range_mut(up_to(key)).next_back()?;
        let place = find(chunk, key).ok()?;
        let chunk = Arc::make_mut(chunk);
        let (_, value) = chunk.remove(place);
        self.len -= 1;
        if chunk.len() <= CHUNK / 2 && chunk.len().is_multiple_of(ROOM) {
            let fence = fence.clone();
            self.tidy(&fence);
        }
        Some(value)
    }

    /// Inserts a key that lies between two chunks, the first of which is full, or before all: it begins the second, or
    /// a chunk of its own if that is full, too. So keys that come in order fill one chunk after the other.
    fn insert_between(&mut self, key: K, value: V) {
        let next = self.chunks.range((Bound::Excluded(&key), Bound::Unbounded)).next();
        let fence = next.filter(|(_, chunk)| chunk.len() < CHUNK).map(|(fence, _)| fence.clone());
        let mut chunk = fence.and_then(|fence| self.chunks.remove(&fence)).unwrap_or_default();
        put(Arc::make_mut(&mut chunk), 0, (key.clone(), value));
        self.chunks.insert(key, chunk);
        self.len += 1;
    }

    /// A chunk has become short: it goes if it is empty, and is joined with a neighbour if both leave room together.
    fn tidy(&mut self, fence: &K) {
        let len = self.chunks[fence].len();
        if len == 0 {
            self.chunks.remove(fence);
            return;
        }
        let joins =
            |(other, chunk): (&K, &Arc<Chunk<K, V>>)| (len + chunk.len() <= CHUNK - 2 * ROOM).then(|| other.clone());
        let after = self.chunks.range((Bound::Excluded(fence), Bound::Unbounded)).next().and_then(joins);
        let before = self.chunks.range((Bound::Unbounded, Bound::Excluded(fence))).next_back().and_then(joins);
        let (lower, upper) = match (before, after) {
            (_, Some(after)) => (fence.clone(), Some(after)),
            (Some(before), None) => (before, Some(fence.clone())),
            (None, None) => (fence.clone(), None),
        };
        let upper = upper.and_then(|upper| self.chunks.remove(&upper)).map(Arc::unwrap_or_clone);
        let chunk = Arc::make_mut(self.chunks.get_mut(&lower).expect("a fence has a chunk"));
        chunk.extend(upper.unwrap_or_default());
        chunk.shrink_to_fit();
    }
}

fn up_to<K>(key: &K) -> (Bound<&K>, Bound<&K>) {
    (Bound::Unbounded, Bound::Included(key))
}

fn find<K: Ord, V>(chunk: &Chunk<K, V>, key: &K) -> Result<usize, usize> {
    chunk.binary_search_by(|(known, _)| known.cmp(key))
}

/// Inserts into a chunk that may have no room left: it makes little, for most chunks do not grow to the end.
fn put<K, V>(chunk: &mut Chunk<K, V>, place: usize, entry: (K, V)) {
    if chunk.len() == chunk.capacity() {
        chunk.reserve_exact(ROOM);
    }
    chunk.insert(place, entry);
}

/// Inserts into a full chunk, and gives back its upper half; or, near its end, only what comes behind: keys that come in
/// order before a few greater ones fill the lower chunk next.
fn split<K, V>(chunk: &mut Chunk<K, V>, place: usize, entry: (K, V)) -> Chunk<K, V> {
    let at = if place > CHUNK - ROOM { place } else { CHUNK / 2 };
    let mut upper = chunk.split_off(at);
    chunk.shrink_to_fit();
    if place <= at {
        put(chunk, place, entry);
    } else {
        put(&mut upper, place - at, entry);
    }
    upper
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        SharedMap::new()
    }
}

/// Shares the chunks.
impl<K: Clone, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> Self {
        SharedMap { chunks: self.chunks.clone(), len: self.len }
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for SharedMap<K, V> {}

impl<K: Hash, V: Hash> Hash for SharedMap<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord, V> Index<&K> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).expect("an entry at this key")
    }
}

/// As a sequence of entries.
impl<K: Serialize, V: Serialize> Serialize for SharedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // `collect_seq` takes its length from the iterator, which knows none.
        let mut sequence = serializer.serialize_seq(Some(self.len))?;
        self.iter().try_for_each(|entry| serde::ser::SerializeSeq::serialize_element(&mut sequence, &entry))?;
        serde::ser::SerializeSeq::end(sequence)
    }
}

/// From a sequence of entries, whose keys must be in order.
impl<'de, K: Deserialize<'de> + Ord + Clone, V: Deserialize<'de> + Clone> Deserialize<'de> for SharedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Entries(PhantomData))
    }
}

struct Entries<K, V>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord + Clone, V: Deserialize<'de> + Clone> Visitor<'de> for Entries<K, V> {
    type Value = SharedMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("entries in the order of their keys")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<SharedMap<K, V>, A::Error> {
        let mut map = SharedMap::new();
        while let Some((key, value)) = entries.next_element::<(K, V)>()? {
            if map.last().is_some_and(|(last, _)| *last >= key) {
                return Err(A::Error::custom("the keys are not in order"));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests;
