//! Keys in order, without those that a reader may not read.

use std::iter;
use std::ops::Bound;

use palisade_spec::lock::{Access, Entries, Key, Principal, Right, SharedMap};

/// The locks or records with this prefix and after `after` that the reader may read.
pub(super) fn readable<'a, T>(
    all: &'a SharedMap<Key, T>,
    access: &'a Access,
    reader: &'a Principal,
    prefix: &'a str,
    after: Option<&Key>,
) -> impl Iterator<Item = (&'a Key, &'a T)> {
    let prefix_key = Key::from(prefix);
    let start = match after.filter(|after| after.as_str() >= prefix) {
        Some(after) => Bound::Excluded(after),
        None => Bound::Included(&prefix_key),
    };
    let mut rest = all.range_from(start);
    iter::from_fn(move || next_readable(all, access, reader, &mut rest))
        .take_while(move |(key, _)| key.as_str().starts_with(prefix))
}

/// The next of them that the reader may read. It skips all others together to the next key about which
/// other rules may decide: so a page costs as much as it shows, and as there are rules.
fn next_readable<'a, T>(
    all: &'a SharedMap<Key, T>,
    access: &Access,
    reader: &Principal,
    rest: &mut Entries<'a, Key, T>,
) -> Option<(&'a Key, &'a T)> {
    loop {
        let (key, found) = rest.next()?;
        if access.permits(reader, Right::Read, key.as_str()) {
            return Some((key, found));
        }
        let next = access.rules()?.next_decision(reader, key.as_str())?;
        *rest = all.range_from(Bound::Included(&Key::from(next.as_str())));
    }
}
