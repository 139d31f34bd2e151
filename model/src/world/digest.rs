//! Digests of a state's parts, under every renaming of the servers.
//!
//! Servers are interchangeable: two states that differ only in the servers' numbers behave alike,
//! and exploring one of them is enough. The checker asks for a representative of each class; ours
//! is a number, the least of the state's digests over all renamings, so exactly the states that are
//! renamings of one another share it.
//!
//! A digest is computed from a value's serde form, so it cannot omit a field. Node numbers are
//! recognised by the name of their type, and renamed. A map, or a set of node numbers, is digested
//! without regard to order, because renaming changes the order of its keys; all other sequences
//! keep their order.

use std::fmt::Display;

use serde::ser::{self, Serialize};

/// The new numbers of the servers: `names[i]` is the new number of server `i + 1`.
pub type Renaming = Vec<u32>;

/// Every renaming of `servers` interchangeable servers, the identity first. The `others` that come
/// after them keep their numbers.
pub fn renamings(servers: u32, others: u32) -> Vec<Renaming> {
    let mut all = vec![Vec::new()];
    for _ in 0..servers {
        all = all
            .into_iter()
            .flat_map(|begun: Renaming| {
                (1..=servers)
                    .filter(|id| !begun.contains(id))
                    .map(|id| [begun.as_slice(), &[id]].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    for names in &mut all {
        names.extend(servers + 1..=servers + others);
    }
    all
}

/// The digest of `value` after renaming.
pub fn digest<T: Serialize + ?Sized>(value: &T, names: &[u32]) -> u64 {
    let mut digest = Digest::of(names);
    value.serialize(&mut digest).expect("protocol types can always be serialised");
    scramble(digest.state)
}

/// Mixes a number into a digest.
pub fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state.rotate_left(29) ^ word) * u128::from(MULTIPLIER);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let folded = product as u64 ^ (product >> 64) as u64;
    folded
}

const SEED: u64 = 0x243F_6A88_85A3_08D3;
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Distributes a digest's bits, so that digests can be added.
fn scramble(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let word = (word ^ (word >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    word ^ (word >> 32)
}

struct Digest<'a> {
    names: &'a [u32],
    state: u64,
    /// The last word that was digested.
    last: u64,
    /// Whether the value was a node's number.
    is_name: bool,
}

/// The error type of a digest, which never fails.
#[derive(Debug)]
struct Never(String);

impl Display for Never {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Never {}

impl ser::Error for Never {
    fn custom<T: Display>(message: T) -> Never {
        Never(message.to_string())
    }
}

impl<'a> Digest<'a> {
    fn of(names: &'a [u32]) -> Digest<'a> {
        Digest { names, state: SEED, last: 0, is_name: false }
    }

    fn word(&mut self, word: u64) -> Result<(), Never> {
        self.last = word;
        self.state = mix(self.state, word);
        Ok(())
    }

    fn part<T: Serialize + ?Sized>(&self, value: &T) -> Result<(u64, bool), Never> {
        let mut part = Digest::of(self.names);
        value.serialize(&mut part)?;
        Ok((scramble(part.state), part.is_name))
    }
}

/// A sequence, a struct or a map that is being digested.
struct Parts<'a, 'b> {
    digest: &'a mut Digest<'b>,
    ordered: u64,
    unordered: u64,
    only_names: bool,
    key: u64,
    count: u64,
}

impl<'a, 'b> Parts<'a, 'b> {
    fn of(digest: &'a mut Digest<'b>, only_names: bool) -> Parts<'a, 'b> {
        Parts { digest, ordered: SEED, unordered: 0, only_names, key: 0, count: 0 }
    }

    fn add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        let (part, is_name) = self.digest.part(value)?;
        self.ordered = mix(self.ordered, part);
        self.unordered = self.unordered.wrapping_add(part);
        self.only_names &= is_name;
        self.count += 1;
        Ok(())
    }

    fn end(self) -> Result<(), Never> {
        let content = if self.only_names { self.unordered } else { self.ordered };
        self.digest.word(self.count)?;
        self.digest.word(content)
    }
}

macro_rules! hash_integers {
    ($($name:ident $type:ty),*) => { $(
        fn $name(self, value: $type) -> Result<(), Never> {
            self.word(u64::from(value))
        }
    )* };
}

impl<'a, 'b> ser::Serializer for &'a mut Digest<'b> {
    type Ok = ();
    type Error = Never;
    type SerializeSeq = Parts<'a, 'b>;
    type SerializeTuple = Parts<'a, 'b>;
    type SerializeTupleStruct = Parts<'a, 'b>;
    type SerializeTupleVariant = Parts<'a, 'b>;
    type SerializeMap = Parts<'a, 'b>;
    type SerializeStruct = Parts<'a, 'b>;
    type SerializeStructVariant = Parts<'a, 'b>;

    hash_integers!(
        serialize_bool bool, serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_char char
    );

    fn serialize_i8(self, value: i8) -> Result<(), Never> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Never> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Never> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Never> {
        self.word(value.cast_unsigned())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Never> {
        self.serialize_u32(value.to_bits())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Never> {
        self.word(value.to_bits())
    }

    fn serialize_str(self, value: &str) -> Result<(), Never> {
        self.serialize_bytes(value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Never> {
        self.word(value.len() as u64)?;
        value.iter().try_for_each(|&byte| self.word(byte.into()))
    }

    fn serialize_none(self) -> Result<(), Never> {
        self.word(0)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Never> {
        self.word(1)?;
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Never> {
        self.word(0)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Never> {
        self.word(0)
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result<(), Never> {
        self.word(index.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<(), Never> {
        if name != "NodeId" {
            return value.serialize(self);
        }
        let mut number = Digest::of(self.names);
        value.serialize(&mut number)?;
        let position = usize::try_from(number.last).ok().and_then(|id| id.checked_sub(1));
        let renamed =
            position.and_then(|position| self.names.get(position)).expect("every node number has a new number");
        self.is_name = true;
        self.word(u64::from(*renamed))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Never> {
        self.word(index.into())?;
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Parts<'a, 'b>, Never> {
        Ok(Parts::of(self, true))
    }

    fn serialize_tuple(self, _: usize) -> Result<Parts<'a, 'b>, Never> {
        Ok(Parts::of(self, false))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts<'a, 'b>, Never> {
        Ok(Parts::of(self, false))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'a, 'b>, Never> {
        self.word(index.into())?;
        Ok(Parts::of(self, false))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Parts<'a, 'b>, Never> {
        // `only_names` stays true, which makes the content unordered: an entry's digest covers key
        // and value together.
        Ok(Parts::of(self, true))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Parts<'a, 'b>, Never> {
        Ok(Parts::of(self, false))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'a, 'b>, Never> {
        self.word(index.into())?;
        Ok(Parts::of(self, false))
    }
}

macro_rules! parts {
    ($($trait:ident $method:ident),*) => { $(
        impl ser::$trait for Parts<'_, '_> {
            type Ok = ();
            type Error = Never;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
                self.add(value)
            }

            fn end(self) -> Result<(), Never> {
                Parts::end(self)
            }
        }
    )* };
}

macro_rules! fields {
    ($($trait:ident),*) => { $(
        impl ser::$trait for Parts<'_, '_> {
            type Ok = ();
            type Error = Never;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Result<(), Never> {
                self.add(value)
            }

            fn end(self) -> Result<(), Never> {
                Parts::end(self)
            }
        }
    )* };
}

parts!(SerializeSeq serialize_element, SerializeTuple serialize_element, SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field);
fields!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for Parts<'_, '_> {
    type Ok = ();
    type Error = Never;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Never> {
        self.key = self.digest.part(key)?.0;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        let (value, _) = self.digest.part(value)?;
        self.unordered = self.unordered.wrapping_add(scramble(mix(self.key, value)));
        self.count += 1;
        Ok(())
    }

    fn end(self) -> Result<(), Never> {
        Parts::end(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use palisade_spec::raft::{NodeId, Role, Term};

    use super::*;

    #[test]
    fn renamings_are_distinct_and_begin_with_the_identity() {
        let all = renamings(3, 1);
        assert_eq!(all[0], [1, 2, 3, 4]);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 6);
        assert!(all.iter().all(|names| names[3] == 4));
    }

    #[test]
    fn digest_under_a_renaming_equals_digest_of_the_renamed_value() {
        let names = [2, 3, 1];
        let grants = |ids: [u32; 2]| Role::PreCandidate { grants: ids.map(NodeId).into_iter().collect() };
        // 1 becomes 2 and 3 becomes 1, which changes their order in the set.
        assert_eq!(digest(&grants([1, 3]), &names), digest(&grants([1, 2]), &[1, 2, 3]));
        assert_ne!(digest(&grants([1, 3]), &names), digest(&grants([1, 3]), &[1, 2, 3]));
        let led = |ids: [u32; 2]| BTreeMap::from([(NodeId(ids[0]), Term(4)), (NodeId(ids[1]), Term(5))]);
        assert_eq!(digest(&led([1, 3]), &names), digest(&led([2, 1]), &[1, 2, 3]));
        assert_ne!(digest(&led([1, 3]), &names), digest(&led([1, 2]), &[1, 2, 3]));
    }

    #[test]
    fn digest_distinguishes_order_option_and_length() {
        assert_ne!(digest(&[1u8, 2][..], &[]), digest(&[2u8, 1][..], &[]));
        assert_ne!(digest(&Some(0u8), &[]), digest(&None::<u8>, &[]));
        assert_ne!(digest(&[0u8][..], &[]), digest(&[0u8, 0][..], &[]));
    }
}
