//! A value for each address that has connections: what the address uses of a limit that all of them
//! share. An address without connections takes no memory.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::addresses::ClientAddress;
use crate::limits;
use crate::sync::Mutex;

/// The part of a limit that one address may use, and at least 1.
pub(crate) fn part(limit: usize, address: ClientAddress) -> usize {
    limits::part(limit, limits::STRANGER_SHARE, address.is_loopback())
}

/// The values, by address.
#[derive(Debug)]
pub(crate) struct PerAddress<T>(Arc<Mutex<HashMap<ClientAddress, Counted<T>>>>);

#[derive(Debug)]
struct Counted<T> {
    entries: usize,
    value: Arc<T>,
}

/// The value of an address: it exists for as long as an entry does.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    table: PerAddress<T>,
    address: ClientAddress,
    value: Arc<T>,
}

impl<T> PerAddress<T> {
    /// The value of an address; `new` makes the first one.
    pub(crate) fn enter(&self, address: ClientAddress, new: impl FnOnce() -> T) -> Entry<T> {
        let mut table = self.0.lock();
        let counted = table.entry(address).or_insert_with(|| Counted { entries: 0, value: Arc::new(new()) });
        counted.entries += 1;
        Entry { table: self.clone(), address, value: Arc::clone(&counted.value) }
    }
}

impl<T> Clone for PerAddress<T> {
    fn clone(&self) -> PerAddress<T> {
        PerAddress(Arc::clone(&self.0))
    }
}

impl<T> Default for PerAddress<T> {
    fn default() -> PerAddress<T> {
        PerAddress(Arc::default())
    }
}

impl<T> Entry<T> {
    /// The address.
    pub(crate) fn address(&self) -> ClientAddress {
        self.address
    }
}

impl<T> Deref for Entry<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Entry<T> {
    fn drop(&mut self) {
        let mut table = self.table.0.lock();
        if let Some(counted) = table.get_mut(&self.address) {
            counted.entries -= 1;
            if counted.entries == 0 {
                table.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn value_lives_as_long_as_its_address_has_entries() {
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|it| ClientAddress::of(it.parse().unwrap()));
        let table: PerAddress<AtomicUsize> = PerAddress::default();
        let (first, second) = (table.enter(one, || AtomicUsize::new(7)), table.enter(one, AtomicUsize::default));
        first.fetch_add(1, Ordering::Relaxed);
        drop(first);
        assert_eq!(second.load(Ordering::Relaxed), 8, "entries of an address share its value");
        assert_eq!(table.enter(two, AtomicUsize::default).load(Ordering::Relaxed), 0);
        assert_eq!(table.0.lock().len(), 1);
        drop(second);
        assert!(table.0.lock().is_empty());
    }

    #[test]
    fn an_address_has_an_eighth_and_loopback_half() {
        let of = |limit, address: &str| part(limit, ClientAddress::of(address.parse().unwrap()));
        assert_eq!((of(800, "10.0.0.1"), of(800, "2001:db8::1"), of(800, "127.0.0.1")), (100, 100, 400));
        assert_eq!((of(4, "10.0.0.1"), of(1, "::1")), (1, 1));
    }
}
