//! Memoised steps of servers.
//!
//! A step is a pure function of a server's state and its input, and the same few pairs recur. A
//! memo is a table of fixed size in which a newer result replaces an older one, so memory use is
//! bounded. The table is allocated page by page on demand, so a model of which only one path is
//! taken costs almost nothing. A memo affects only the running time.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// Memoises results under keys of part addresses and small numbers.
pub struct Memo<V> {
    pages: Box<[OnceLock<Page<V>>]>,
}

type Page<V> = Box<[Mutex<Slot<V>>; PAGE]>;

type Slot<V> = Option<(Key, Arc<V>)>;

type Key = [u64; 4];

/// The number of results in a page.
const PAGE: usize = 1 << 9;

impl<V> Memo<V> {
    /// Creates a memo with room for at least `size` results, which is a power of two; with size 0
    /// it memoises nothing.
    pub fn new(size: usize) -> Memo<V> {
        assert!(size == 0 || size.is_power_of_two(), "masking needs a power of two");
        Memo { pages: (0..size.div_ceil(PAGE)).map(|_| OnceLock::new()).collect() }
    }

    /// Returns the result for `key`, memoised or computed now.
    pub fn get(&self, key: Key, make: impl FnOnce() -> V) -> Arc<V> {
        if self.pages.is_empty() {
            return Arc::new(make());
        }
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let hash = key.into_iter().reduce(super::digest::mix).unwrap_or(0) as usize;
        let page = self.pages[(hash / PAGE) & (self.pages.len() - 1)]
            .get_or_init(|| Box::new([const { Mutex::new(None) }; PAGE]));
        let slot = &page[hash % PAGE];
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
