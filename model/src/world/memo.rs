//! What a server does with an input, remembered.
//!
//! A step is a pure function of a server's state and its input, and of the same few of both all the time. A memo is a
//! table of fixed size in which a newer result takes the place of an older one, so it needs no more memory the longer
//! it runs. It changes nothing but the time that a run takes.

use std::sync::Arc;

use parking_lot::Mutex;

/// Remembers results by what they follow from: the addresses of parts, and small numbers.
pub struct Memo<V> {
    slots: Box<[Mutex<Slot<V>>]>,
}

type Slot<V> = Option<(Key, Arc<V>)>;

type Key = [u64; 4];

impl<V> Memo<V> {
    /// Room for `size` results, a power of two; without room, nothing is remembered.
    pub fn new(size: usize) -> Memo<V> {
        assert!(size == 0 || size.is_power_of_two(), "places are found by masking");
        Memo { slots: (0..size).map(|_| Mutex::new(None)).collect() }
    }

    /// The result for `key`, from memory or made now.
    pub fn get(&self, key: Key, make: impl FnOnce() -> V) -> Arc<V> {
        if self.slots.is_empty() {
            return Arc::new(make());
        }
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let place = key.into_iter().reduce(super::digest::mix).unwrap_or(0) as usize & (self.slots.len() - 1);
        if let Some((known, value)) = &*self.slots[place].lock()
            && *known == key
        {
            return Arc::clone(value);
        }
        let value = Arc::new(make());
        *self.slots[place].lock() = Some((key, Arc::clone(&value)));
        value
    }
}
