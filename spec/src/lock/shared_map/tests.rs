//! The map beside a `BTreeMap`, and beside copies of itself.

use alloc::string::ToString;

use serde::de::value::{Error, MapDeserializer};

use super::*;

type Map = SharedMap<u64, u64>;

/// Remembers all that is hashed.
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

fn hash(map: &Map) -> Vec<u8> {
    let mut hashed = Hashed::default();
    map.hash(&mut hashed);
    hashed.0
}

/// So many entries, at every second key from 0 on.
fn even(count: u64) -> Map {
    let mut map = Map::new();
    for key in 0..count {
        map.insert(2 * key, key);
    }
    map
}

impl Map {
    /// What the rest of the map relies on.
    fn assert_sound(&self) {
        let mut last = None;
        for (fence, chunk) in &self.chunks {
            assert!(!chunk.is_empty() && chunk.len() <= CHUNK, "a chunk of {}", chunk.len());
            assert!(*fence <= chunk[0].0 && last.is_none_or(|last| last < *fence), "a fence in the wrong place");
            assert!(chunk.is_sorted_by(|a, b| a.0 < b.0));
            assert!(chunk.capacity() <= CHUNK.max(chunk.len() + CHUNK / 2 + ROOM), "room for {}", chunk.capacity());
            last = Some(chunk[chunk.len() - 1].0);
        }
        assert_eq!(self.len, self.chunks.values().map(|chunk| chunk.len()).sum::<usize>());
    }

    /// How full the chunks are, in percent.
    fn fill(&self) -> usize {
        100 * self.len / (CHUNK * self.chunks.len())
    }
}

/// Splitmix64: the same sequence everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }
}

/// Everything that a map can be asked, asked of both.
fn assert_same(map: &Map, expected: &BTreeMap<u64, u64>, random: &mut Random) {
    map.assert_sound();
    assert_eq!((map.len(), map.is_empty()), (expected.len(), expected.is_empty()));
    assert!(map.iter().eq(expected) && map.iter().rev().eq(expected.iter().rev()));
    assert!(map.keys().eq(expected.keys()) && map.values().eq(expected.values()));
    assert_eq!((map.first(), map.last()), (expected.first_key_value(), expected.last_key_value()));
    let start = random.below(5_000);
    for bound in [Bound::Included(&start), Bound::Excluded(&start), Bound::Unbounded] {
        assert!(map.range_from(bound).eq(expected.range((bound, Bound::Unbounded))), "from {bound:?}");
    }
}

#[test]
fn does_what_a_btree_map_does_and_copies_never_change() {
    for seed in 0..24 {
        let mut random = Random(seed);
        let (mut map, mut expected, mut copies) = (Map::new(), BTreeMap::new(), Vec::new());
        for step in 0..12_000_u64 {
            // It grows, shrinks and grows again; some keys come in order.
            let (key, grows) = (random.below(4_000), step / 3_000 % 2 == 0);
            let key = if random.below(3) == 0 { 4_000 + step / 16 } else { key };
            match random.below(10) {
                0 => assert_eq!(map.get(&key), expected.get(&key)),
                1 => assert_eq!(map.contains_key(&key), expected.contains_key(&key)),
                2 => {
                    let (value, other) = (map.get_mut(&key), expected.get_mut(&key));
                    assert_eq!(value, other);
                    value.into_iter().chain(other).for_each(|value| *value += 1);
                }
                deed if (deed < 8) == grows => assert_eq!(map.insert(key, step), expected.insert(key, step)),
                _ => assert_eq!(map.remove(&key), expected.remove(&key)),
            }
            if random.below(600) == 0 {
                copies.push((map.clone(), expected.clone()));
                assert_same(&map, &expected, &mut random);
            }
        }
        for (copy, expected) in &copies {
            assert_same(copy, expected, &mut random);
        }
        while let Some(key) = expected.pop_first().map(|(key, _)| key) {
            assert!(map.remove(&key).is_some(), "seed {seed}");
        }
        assert!(map.chunks.is_empty() && map.is_empty());
    }
}

#[test]
fn only_the_content_counts() {
    let grown = even(2_000);
    let mut other = Map::new();
    for key in (0..4_000).rev() {
        other.insert(key, key / 2);
    }
    assert_ne!(grown, other);
    for key in 0..2_000 {
        other.remove(&(2 * key + 1));
    }
    assert!(!grown.chunks.keys().eq(other.chunks.keys()), "the same chunks show nothing");
    assert_eq!((&grown, hash(&grown)), (&other, hash(&other)));
    *other.get_mut(&2_000).unwrap() += 1;
    assert_ne!(grown, other);
    assert_ne!(hash(&grown), hash(&other));
}

#[test]
fn a_write_copies_one_chunk_and_leaves_the_copy_alone() {
    let mut map = even(1_000);
    let (copy, chunks) = (map.clone(), map.chunks.len());
    let shared = |map: &Map| map.chunks.values().filter(|chunk| Arc::strong_count(chunk) == 2).count();
    assert_eq!(shared(&map), chunks);
    // Who only looks, or finds nothing to change, copies nothing.
    assert_eq!(map.get(&6), Some(&3));
    assert_eq!(map.get_mut(&7), None);
    assert_eq!(map.remove(&7), None);
    assert_eq!(shared(&map), chunks);
    *map.get_mut(&6).unwrap() = 0;
    assert_eq!(map.remove(&8), Some(4));
    assert_eq!(map.insert(10, 0), Some(5));
    assert_eq!(shared(&map), chunks - 1);
    assert_eq!(copy, even(1_000));
}

#[test]
fn keys_that_come_in_order_fill_the_chunks() {
    assert!(even(10_000).fill() >= 98);
    // In the midst of others, too, as the deadlines of short-lived sessions stand before those of long-lived ones.
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
fn chunks_that_have_become_short_are_joined() {
    let mut map = even(10_000);
    let mut random = Random(1);
    for key in (0..10_000).filter(|_| random.below(10) > 0) {
        map.remove(&(2 * key));
    }
    map.assert_sound();
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
}
