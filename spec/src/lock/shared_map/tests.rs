//! Compares the map with a `BTreeMap` and with copies of itself.

use alloc::collections::BTreeMap;
use alloc::string::ToString;

use serde::de::value::{Error, MapDeserializer};

use super::*;

type Map = SharedMap<u64, u64>;

/// Records all hashed bytes.
#[derive(Default)]
struct Hashed(Vec<u8>);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    fn finish(&self) -> u64 {
        unreachable!("only what is hashed counts")
    }
}

/// The bytes that a value gives to a hasher.
pub(in crate::lock) fn hash(value: &impl Hash) -> Vec<u8> {
    let mut hashed = Hashed::default();
    value.hash(&mut hashed);
    hashed.0
}

/// A map with `count` entries, at the even keys from 0 on.
fn even(count: u64) -> Map {
    let mut map = Map::new();
    for key in 0..count {
        map.insert(2 * key, key);
    }
    map
}

impl Map {
    /// Asserts the invariants of the tree; returns all leaves and the tree's height.
    fn sound(&self) -> (Vec<&Arc<Node<u64, u64>>>, usize) {
        let (mut leaves, mut heights) = (Vec::new(), Vec::new());
        sound(&self.root, 1, &(0..u64::MAX), true, &mut |leaf, height| {
            leaves.push(leaf);
            heights.push(height);
        });
        assert!(heights.iter().all(|height| *height == heights[0]), "leaves at {heights:?}");
        assert_eq!(self.len, leaves.iter().map(|leaf| leaf.len()).sum::<usize>());
        (leaves, heights[0])
    }

    /// The leaves' fill level, in percent.
    fn fill(&self) -> usize {
        100 * self.len / (WIDTH * self.sound().0.len())
    }
}

/// Asserts the invariants of a node whose keys must be in `range`.
fn sound<'a>(
    node: &'a Arc<Node<u64, u64>>,
    height: usize,
    range: &core::ops::Range<u64>,
    is_root: bool,
    leaf: &mut impl FnMut(&'a Arc<Node<u64, u64>>, usize),
) {
    let (len, capacity) = match &**node {
        Leaf(run) => (run.len(), run.capacity()),
        Branch(run) => (run.len(), run.capacity()),
    };
    assert!(len <= WIDTH && (is_root || len > 0), "a node of {len}");
    assert!(capacity <= WIDTH, "room for {capacity}");
    match &**node {
        Leaf(run) => {
            assert!(run.is_sorted_by(|a, b| a.0 < b.0), "{run:?}");
            assert!(run.iter().all(|(key, _)| range.contains(key)), "{run:?} in {range:?}");
            leaf(node, height);
        }
        Branch(run) => {
            assert!(!is_root || len > 1, "a root over one node");
            let fences: Vec<u64> = run.iter().skip(1).map(|(fence, _)| *fence).collect();
            let bounds: Vec<u64> = [&[range.start], &fences[..], &[range.end]].concat();
            assert!(bounds.is_sorted(), "{fences:?} in {range:?}");
            for ((_, node), bounds) in run.iter().zip(bounds.windows(2)) {
                sound(node, height + 1, &(bounds[0]..bounds[1]), false, leaf);
            }
        }
    }
}

/// Splitmix64: the same sequence on every platform.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }
}

/// Compares the results of all read operations.
fn assert_same(map: &Map, expected: &BTreeMap<u64, u64>, random: &mut Random) {
    map.sound();
    assert_eq!((map.len(), map.is_empty()), (expected.len(), expected.is_empty()));
    assert!(map.iter().eq(expected));
    assert!(map.keys().eq(expected.keys()) && map.values().eq(expected.values()));
    assert_eq!((map.first(), map.last()), (expected.first_key_value(), expected.last_key_value()));
    let start = random.below(5_000);
    for bound in [Bound::Included(&start), Bound::Excluded(&start), Bound::Unbounded] {
        assert!(map.range_from(bound).eq(expected.range((bound, Bound::Unbounded))), "from {bound:?}");
    }
}

#[test]
fn does_what_a_btree_map_does_and_copies_never_change() {
    let mut highest = 0;
    for seed in 0..24 {
        let mut random = Random(seed);
        let (mut map, mut expected, mut copies) = (Map::new(), BTreeMap::new(), Vec::new());
        for step in 0..12_000_u64 {
            // The map grows, shrinks and grows again; a third of the keys come in order.
            let (key, grows) = (random.below(4_000), step / 3_000 % 2 == 0);
            let key = if random.below(3) == 0 { 4_000 + step / 16 } else { key };
            match random.below(11) {
                0 => assert_eq!(map.get(&key), expected.get(&key)),
                1 => assert_eq!(map.contains_key(&key), expected.contains_key(&key)),
                2 => {
                    let (value, other) = (map.get_mut(&key), expected.get_mut(&key));
                    assert_eq!(value, other);
                    value.into_iter().chain(other).for_each(|value| *value += 1);
                }
                3 => {
                    let stays = random.below(2) == 0;
                    let was = expected.get(&key).copied();
                    let changed = map.change(&key, |value| (core::mem::replace(value, step), stays)).ok();
                    assert_eq!(changed, was);
                    match was {
                        Some(_) if stays => drop(expected.insert(key, step)),
                        _ => drop(expected.remove(&key)),
                    }
                }
                choice if (choice < 9) == grows => assert_eq!(map.insert(key, step), expected.insert(key, step)),
                _ => assert_eq!(map.remove(&key), expected.remove(&key)),
            }
            if random.below(600) == 0 {
                copies.push((map.clone(), expected.clone()));
                highest = highest.max(map.sound().1);
                assert_same(&map, &expected, &mut random);
            }
        }
        for (copy, expected) in &copies {
            assert_same(copy, expected, &mut random);
        }
        while let Some(key) = expected.pop_first().map(|(key, _)| key) {
            assert!(map.remove(&key).is_some(), "seed {seed}");
        }
        assert!(map.is_empty());
        assert_eq!(map.sound().1, 1, "the tree has not shrunk");
    }
    assert!(highest >= 4, "no tree was high");
}

#[test]
fn equality_and_hash_depend_only_on_the_entries() {
    let grown = even(2_000);
    let mut other = Map::new();
    for key in (0..4_000).rev() {
        other.insert(key, key / 2);
    }
    assert_ne!(grown, other);
    for key in 0..2_000 {
        other.remove(&(2 * key + 1));
    }
    let nodes = |map: &Map| map.sound().0.iter().map(|leaf| leaf.len()).collect::<Vec<_>>();
    assert_ne!(nodes(&grown), nodes(&other), "the same nodes show nothing");
    assert_eq!((&grown, hash(&grown)), (&other, hash(&other)));
    *other.get_mut(&2_000).unwrap() += 1;
    assert_ne!(grown, other);
    assert_ne!(hash(&grown), hash(&other));
}

#[test]
fn debug_output_shows_the_entries() {
    assert_eq!(alloc::format!("{:?}", even(3)), "{0: 0, 2: 1, 4: 2}");
}

#[test]
fn a_write_copies_the_way_to_one_leaf_and_leaves_the_copy_alone() {
    let mut map = even(1_000);
    let copy = map.clone();
    let unshared = |map: &Map| {
        let leaves = copy.sound().0;
        map.sound().0.iter().filter(|leaf| !leaves.iter().any(|known| Arc::ptr_eq(known, leaf))).count()
    };
    assert_eq!(unshared(&map), 0);
    // A read, or a write that changes nothing, copies nothing.
    assert_eq!(map.get(&6), Some(&3));
    assert_eq!(map.get_mut(&7), None);
    assert_eq!(map.remove(&7), None);
    assert!(Arc::ptr_eq(&map.root, &copy.root));
    *map.get_mut(&6).unwrap() = 0;
    assert_eq!(map.remove(&8), Some(4));
    assert_eq!(map.insert(10, 0), Some(5));
    assert_eq!(unshared(&map), 1);
    assert_eq!(copy, even(1_000));
}

#[test]
fn keys_that_come_in_order_fill_the_leaves() {
    assert!(even(10_000).fill() >= 98);
    // Also between other keys, as deadlines of short-lived sessions precede those of long-lived
    // ones.
    let mut map = Map::new();
    for key in 0..10_000 {
        map.insert(key, 0);
        map.insert(1_000_000 + key, 0);
    }
    assert!(map.fill() > 95, "{}%", map.fill());
    let mut map = Map::new();
    for key in (0..10_000).rev() {
        map.insert(key, 0);
    }
    assert!(map.fill() >= 98, "{}%", map.fill());
}

#[test]
fn leaves_that_have_become_short_are_joined() {
    let mut map = even(10_000);
    let mut random = Random(1);
    for key in (0..10_000).filter(|_| random.below(10) > 0) {
        map.remove(&(2 * key));
    }
    assert!(map.fill() > 30, "{}%", map.fill());
}

#[test]
fn entries_out_of_order_are_refused() {
    let read = |entries: &[(u64, u64)]| Map::deserialize(MapDeserializer::<_, Error>::new(entries.iter().copied()));
    let map = read(&[(0, 0), (2, 1), (4, 2)]).unwrap();
    assert_eq!(map, even(3));
    for wrong in [[(2, 1), (0, 0)], [(0, 0), (0, 0)]] {
        assert_eq!(read(&wrong).unwrap_err().to_string(), "the keys are not in order");
    }
    let number = serde::de::value::U64Deserializer::<Error>::new(7);
    let error = Map::deserialize(number).unwrap_err().to_string();
    assert_eq!(error, "invalid type: integer `7`, expected entries in the order of their keys");
}
