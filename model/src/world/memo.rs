//! What a server does with an input, remembered.
//!
//! A step is a pure function of a server's state and its input, and of the same few of both all the time. A memo is a
//! table of fixed size in which a newer result takes the place of an older one, so it needs no more memory the longer
//! it runs, and page by page as it comes to need it: to make a model of which one path is taken costs next to nothing.
//! It changes nothing but the time that a run takes.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// Remembers results by what they follow from: the addresses of parts, and small numbers.
pub struct Memo<V> {
    pages: Box<[OnceLock<Page<V>>]>,
}

type Page<V> = Box<[Mutex<Slot<V>>; PAGE]>;

type Slot<V> = Option<(Key, Arc<V>)>;

type Key = [u64; 4];

/// How many results a page has room for.
const PAGE: usize = 1 << 9;

impl<V> Memo<V> {
    /// Room for at least `size` results, a power of two; without room, nothing is remembered.
    pub fn new(size: usize) -> Memo<V> {
        assert!(size == 0 || size.is_power_of_two(), "places are found by masking");
        Memo { pages: (0..size.div_ceil(PAGE)).map(|_| OnceLock::new()).collect() }
    }

    /// The result for `key`, from memory or made now.
    pub fn get(&self, key: Key, make: impl FnOnce() -> V) -> Arc<V> {
        if self.pages.is_empty() {
            return Arc::new(make());
        }
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let place = key.into_iter().reduce(super::digest::mix).unwrap_or(0) as usize;
        let page = self.pages[(place / PAGE) & (self.pages.len() - 1)]
            .get_or_init(|| Box::new([const { Mutex::new(None) }; PAGE]));
        let slot = &page[place % PAGE];
        if let Some((known, value)) = &*slot.lock()
            && *known == key
        {
            return Arc::clone(value);
        }
        let value = Arc::new(make());
        *slot.lock() = Some((key, Arc::clone(&value)));
        value
    }
}
