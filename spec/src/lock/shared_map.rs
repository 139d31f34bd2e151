//! A sorted map with constant-time copies, for tables of millions of entries.
//!
//! A snapshot is a copy of the table, taken between two entries by the thread that serves clients.
//! So the map is a B+ tree whose nodes are shared by all copies: a copy is one more reference to
//! the root, and a write copies only the shared nodes on the path from the root to the entry
//! ([`Arc::make_mut`]). The copy never changes.
//!
//! Where one node ends and the next begins depends on the map's history, and nothing else may:
//! equality, hash, order and serialization are those of the sequence of entries. So replicas that
//! reach the same content by different histories are equal, and their snapshots are the same bytes.
//! Therefore `Eq`, `Hash` and serde are implemented by hand, in this file only
//! (docs/decisions/0012).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;
use core::mem;
use core::ops::{Bound, Index};
use core::slice;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum number of items in a node. The first write to a node after a copy costs time
/// proportional to the node's length. Tests use a smaller value, for higher trees.
const WIDTH: usize = if cfg!(test) { 16 } else { 32 };

/// The number of items by which a node's capacity grows when it is used up. A child that has shrunk
/// to half of `WIDTH` or less is merged, or gives its spare capacity back, whenever its length is a
/// multiple of this; a merge leaves room for at least twice this many items.
const ROOM: usize = WIDTH / 8;

/// The items of a node, sorted by key.
type Run<K, T> = Vec<(K, T)>;

/// A node and its fence.
type Child<K, V> = (K, Arc<Node<K, V>>);

/// A sorted map whose copies share their common nodes.
pub struct SharedMap<K, V> {
    root: Arc<Node<K, V>>,
    len: usize,
}

/// A node of the tree. All leaves have the same depth, and only a root may be empty.
#[derive(Clone)]
enum Node<K, V> {
    /// Entries.
    Leaf(Run<K, V>),
    /// Child nodes, each with a **fence**: a key that is at most the least key of its node, and
    /// greater than all keys of the node before. The first fence is unused: the first node also
    /// takes keys less than all fences.
    Branch(Vec<Child<K, V>>),
}

use Node::{Branch, Leaf};

impl<K, V> SharedMap<K, V> {
    /// An empty map.
    pub fn new() -> SharedMap<K, V> {
        SharedMap { root: Arc::new(Leaf(Vec::new())), len: 0 }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> Entries<'_, K, V> {
        let mut entries = Entries { leaf: [].iter(), ahead: Vec::new() };
        entries.descend(&self.root, |_| 0, |_| 0);
        entries
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// All values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// The entry with the least key.
    pub fn first(&self) -> Option<(&K, &V)> {
        self.outermost(<[_]>::first, <[_]>::first)
    }

    /// The entry with the greatest key.
    pub fn last(&self) -> Option<(&K, &V)> {
        self.outermost(<[_]>::last, <[_]>::last)
    }

    fn outermost(
        &self,
        in_branch: impl Fn(&[Child<K, V>]) -> Option<&Child<K, V>>,
        in_leaf: impl Fn(&[(K, V)]) -> Option<&(K, V)>,
    ) -> Option<(&K, &V)> {
        let mut node = &self.root;
        loop {
            match &**node {
                Leaf(run) => return in_leaf(run).map(|(key, value)| (key, value)),
                Branch(run) => node = &in_branch(run)?.1,
            }
        }
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// The value at `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        let mut node = &self.root;
        loop {
            match &**node {
                Leaf(run) => return find(run, key).ok().map(|position| &run[position].1),
                Branch(run) => node = &run[under(run, key)].1,
            }
        }
    }

    /// Whether there is an entry at `key`.
    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The entries from `start` on, in the order of their keys.
    pub fn range_from(&self, start: Bound<&K>) -> Entries<'_, K, V> {
        let (key, is_before): (_, fn(&K, &K) -> bool) = match start {
            Bound::Included(key) => (key, |known, key| known < key),
            Bound::Excluded(key) => (key, |known, key| known <= key),
            Bound::Unbounded => return self.iter(),
        };
        let mut entries = Entries { leaf: [].iter(), ahead: Vec::new() };
        entries.descend(
            &self.root,
            |branch| under(branch, key),
            |leaf| leaf.partition_point(|(known, _)| is_before(known, key)),
        );
        entries
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// The value at `key`, mutable. Copies the shared nodes on the path to it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if self.lacks(key) {
            return None;
        }
        let mut node = &mut self.root;
        loop {
            match Arc::make_mut(node) {
                Leaf(run) => return find(run, key).ok().map(|position| &mut run[position].1),
                Branch(run) => {
                    let position = under(run, key);
                    node = &mut run[position].1;
                }
            }
        }
    }

    /// Sets the value at `key`; returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (old, upper) = Arc::make_mut(&mut self.root).insert(key, value);
        if let Some(upper) = upper {
            let lower = mem::replace(&mut self.root, Arc::new(Leaf(Vec::new())));
            self.root = Arc::new(Branch([lower, Arc::new(upper)].map(|node| (node.fence().clone(), node)).into()));
        }
        self.len += usize::from(old.is_none());
        old
    }

    /// Removes the entry at `key`; returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.change_or_remove(key, |_| ((), false)).ok()?.1
    }

    /// Changes the value at `key`, and removes the entry if `change` returns false with its result. Returns `change` if
    /// there is no entry.
    pub fn change<R, F: FnOnce(&mut V) -> (R, bool)>(&mut self, key: &K, change: F) -> Result<R, F> {
        self.change_or_remove(key, change).map(|(result, _)| result)
    }

    fn change_or_remove<R, F: FnOnce(&mut V) -> (R, bool)>(&mut self, key: &K, change: F) -> Result<(R, Option<V>), F> {
        if self.lacks(key) {
            return Err(change);
        }
        let (result, removed) = Arc::make_mut(&mut self.root).change(key, change)?;
        if removed.is_some() {
            while let Branch(run) = &*self.root
                && run.len() < 2
            {
                self.root = run.first().map_or_else(|| Arc::new(Leaf(Vec::new())), |(_, only)| Arc::clone(only));
            }
            self.len -= 1;
        }
        Ok((result, removed))
    }

    /// Whether this map shares its root with a copy, and has no entry at `key`: a write would copy nodes for nothing. A
    /// map with a root of its own is searched once, by the write.
    fn lacks(&self, key: &K) -> bool {
        Arc::strong_count(&self.root) > 1 && !self.contains_key(key)
    }
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    /// A valid fence for this node, which is not empty.
    fn fence(&self) -> &K {
        match self {
            Leaf(run) => &run[0].0,
            Branch(run) => &run[0].0,
        }
    }

    /// Sets the value at `key`; returns the previous one, and the upper part of this node if it had
    /// to be split.
    fn insert(&mut self, key: K, value: V) -> (Option<V>, Option<Node<K, V>>) {
        match self {
            Leaf(run) => match find(run, &key) {
                Ok(position) => (Some(mem::replace(&mut run[position].1, value)), None),
                Err(position) => (None, put(run, position, (key, value)).map(Leaf)),
            },
            Branch(run) => {
                let position = under(run, &key);
                let (old, upper) = Arc::make_mut(&mut run[position].1).insert(key, value);
                let upper = upper.and_then(|upper| put(run, position + 1, (upper.fence().clone(), Arc::new(upper))));
                (old, upper.map(Branch))
            }
        }
    }

    /// Changes the value at `key`; removes and returns it if `change` returns false with its result. Returns `change` if
    /// there is no entry.
    fn change<R, F: FnOnce(&mut V) -> (R, bool)>(&mut self, key: &K, change: F) -> Result<(R, Option<V>), F> {
        match self {
            Leaf(run) => {
                let Ok(position) = find(run, key) else { return Err(change) };
                let (result, stays) = change(&mut run[position].1);
                Ok((result, (!stays).then(|| run.remove(position).1)))
            }
            Branch(run) => {
                let position = under(run, key);
                let (result, removed) = Arc::make_mut(&mut run[position].1).change(key, change)?;
                let len = run[position].1.len();
                if removed.is_some() && len <= WIDTH / 2 && len.is_multiple_of(ROOM) {
                    tidy(run, position);
                }
                Ok((result, removed))
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Leaf(run) => run.len(),
            Branch(run) => run.len(),
        }
    }

    /// Merges the next node, with its fence, into this one.
    fn join(&mut self, fence: K, upper: Node<K, V>) {
        match (self, upper) {
            (Leaf(run), Leaf(upper)) => run.extend(upper),
            (Branch(run), Branch(mut upper)) => {
                // The first fence of the upper node was unused, and becomes valid here.
                upper[0].0 = fence;
                run.extend(upper);
            }
            _ => unreachable!("all leaves are equally far from the root"),
        }
    }

    /// Gives spare capacity back.
    fn shrink(&mut self) {
        match self {
            Leaf(run) => run.shrink_to_fit(),
            Branch(run) => run.shrink_to_fit(),
        }
    }
}

/// The index of `key`, or where it would be inserted.
fn find<K: Ord, T>(run: &[(K, T)], key: &K) -> Result<usize, usize> {
    run.binary_search_by(|(known, _)| known.cmp(key))
}

/// The index of the child that `key` belongs to.
fn under<K: Ord, T>(run: &[(K, T)], key: &K) -> usize {
    run.partition_point(|(fence, _)| fence <= key).saturating_sub(1)
}

/// Inserts an item. A full run is split: it keeps its lower half and the upper half is returned. If
/// the item's position is the first or one of the last `ROOM`, the run is split at that position instead,
/// so that keys that come in order fill one node after another. A run without spare capacity grows
/// by at most `ROOM` items, because most runs never become full.
fn put<K, T>(run: &mut Run<K, T>, position: usize, item: (K, T)) -> Option<Run<K, T>> {
    let add = |run: &mut Run<K, T>, position, item| {
        if run.len() == run.capacity() {
            run.reserve_exact(ROOM.min(WIDTH - run.len()));
        }
        run.insert(position, item);
    };
    if run.len() < WIDTH {
        add(run, position, item);
        return None;
    }
    let at = if position == 0 || position > WIDTH - ROOM { position } else { WIDTH / 2 };
    let mut upper = run.split_off(at);
    run.shrink_to_fit();
    if position < WIDTH && position <= at {
        add(run, position, item);
    } else {
        add(&mut upper, position - at, item);
    }
    Some(upper)
}

/// A child of this branch has become short: it is removed if it is empty, and merged with a
/// neighbour if the result leaves capacity to spare.
fn tidy<K: Ord + Clone, V: Clone>(run: &mut Vec<Child<K, V>>, position: usize) {
    if run[position].1.len() == 0 {
        run.remove(position);
        return;
    }
    let joins = |lower: usize| run[lower].1.len() + run[lower + 1].1.len() <= WIDTH - 2 * ROOM;
    let behind = (position + 1 < run.len() && joins(position)).then_some(position);
    let lower = behind.or_else(|| position.checked_sub(1).filter(|&before| joins(before)));
    let upper = lower.map(|lower| run.remove(lower + 1));
    let node = Arc::make_mut(&mut run[lower.unwrap_or(position)].1);
    if let Some((fence, upper)) = upper {
        node.join(fence, Arc::unwrap_or_clone(upper));
    }
    node.shrink();
}

/// Entries of a map, in the order of their keys.
pub struct Entries<'a, K, V> {
    leaf: slice::Iter<'a, (K, V)>,
    /// The remaining children of each branch on the path from the root to the leaf.
    ahead: Vec<slice::Iter<'a, Child<K, V>>>,
}

impl<'a, K, V> Entries<'a, K, V> {
    /// Descends to a leaf: in each branch into the child at the chosen index, then to an index in
    /// the leaf.
    fn descend(
        &mut self,
        mut node: &'a Node<K, V>,
        in_branch: impl Fn(&'a [Child<K, V>]) -> usize,
        in_leaf: impl FnOnce(&'a [(K, V)]) -> usize,
    ) {
        while let Branch(run) = node {
            let mut ahead = run[in_branch(run)..].iter();
            node = &ahead.next().expect("a branch has nodes").1;
            self.ahead.push(ahead);
        }
        if let Leaf(run) = node {
            self.leaf = run[in_leaf(run)..].iter();
        }
    }
}

impl<'a, K, V> Iterator for Entries<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        loop {
            if let Some((key, value)) = self.leaf.next() {
                return Some((key, value));
            }
            match self.ahead.last_mut()?.next() {
                Some((_, node)) => self.descend(node, |_| 0, |_| 0),
                None => _ = self.ahead.pop(),
            }
        }
    }
}

impl<K, V> Clone for Entries<'_, K, V> {
    fn clone(&self) -> Self {
        Entries { leaf: self.leaf.clone(), ahead: self.ahead.clone() }
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        SharedMap::new()
    }
}

/// Shares the tree with the copy.
impl<K, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> Self {
        SharedMap { root: Arc::clone(&self.root), len: self.len }
    }
}

impl<K: Eq, V: Eq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.root, &other.root) || self.len == other.len && self.iter().eq(other.iter())
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

/// Serializes a sequence of entries.
impl<K: Serialize, V: Serialize> Serialize for SharedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // `collect_seq` would take the length from the iterator, which does not know it.
        let mut sequence = serializer.serialize_seq(Some(self.len))?;
        self.iter().try_for_each(|entry| serde::ser::SerializeSeq::serialize_element(&mut sequence, &entry))?;
        serde::ser::SerializeSeq::end(sequence)
    }
}

/// Deserializes a sequence of entries, whose keys must be in order.
impl<'de, K: Deserialize<'de> + Ord + Clone, V: Deserialize<'de> + Clone> Deserialize<'de> for SharedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(InOrder(PhantomData))
    }
}

struct InOrder<K, V>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord + Clone, V: Deserialize<'de> + Clone> Visitor<'de> for InOrder<K, V> {
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
pub(super) mod tests;
