use palisade_client::wire::{AccessRule, Right as WireRight};
use palisade_spec::lock::{Command, Opening, Owner, Ttl};
use palisade_spec::raft::StateMachine;

use super::*;
use crate::core::access::tests as rules;

/// A table whose keys are all held; `ann` may read those below `b/`, but below `b/b/` only `b/b/b`, and
/// `zz`.
fn table(keys: &[String]) -> LockTable {
    let rule = |subject: &str, prefix: &str, rights: &[WireRight]| AccessRule {
        subject: subject.into(),
        prefix: prefix.into(),
        rights: rights.into(),
    };
    let mut table = rules::table(vec![
        rule("ann", "b/", &[WireRight::Acquire]),
        rule("*", "b/b/", &[]),
        rule("ann", "b/b/b", &[WireRight::Read]),
        rule("ann", "zz", &[WireRight::Break]),
        rule("bob", "a", &[WireRight::Read]),
    ]);
    for key in keys {
        let principal = Principal::from("admin/root");
        let opening = Opening { proof: Proof::default(), owner: Owner::from(""), principal, ttl: Ttl(1000) };
        table.apply(Stamp(0), &Command::AcquireOnce { opening, key: Key::from(key.as_str()), wait: false });
    }
    table
}

fn keys() -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for letter in ["a", "b", "c", "zz"] {
        keys.extend((0..5).map(|number| format!("{letter}/{number}")));
        keys.extend((0..5).map(|number| format!("{letter}/b/{number}")));
        keys.push(format!("{letter}/b/b"));
    }
    keys.sort_unstable();
    keys
}

/// All keys that a reader is shown, in pages of this size.
fn pages(table: &LockTable, reader: &str, prefix: &str, limit: usize) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = locks(table, Stamp(0), &Principal::from(reader), prefix, after.as_ref(), limit);
        assert!(page.locks.len() == limit || page.next_after.is_none(), "only the last page is not full");
        assert!(!page.locks.is_empty() || all.is_empty(), "no page after the last lock");
        all.extend(page.locks.into_iter().map(|lock| lock.key));
        match page.next_after {
            // The cursor names nothing that the reader may not read.
            Some(last) => {
                assert_eq!(Some(&last), all.last());
                after = Some(Key::from(last.as_str()));
            }
            None => return all,
        }
    }
}

/// Goal: a reader sees exactly the locks that it may read, whatever the pages, and pages are full.
#[test]
fn lists_are_filtered_and_their_pages_are_full() {
    let keys = keys();
    let table = table(&keys);
    for prefix in ["", "b/", "b/b", "z", "a/1", "none"] {
        for reader in ["ann", "bob", "carl", "admin/eve", "node/1", ""] {
            let may_read = |key: &&String| table.access().permits(&Principal::from(reader), Right::Read, key.as_str());
            let expected: Vec<String> =
                keys.iter().filter(|key| key.starts_with(prefix)).filter(may_read).cloned().collect();
            for limit in [1, 2, 3, 7, 1000] {
                assert_eq!(pages(&table, reader, prefix, limit), expected, "{reader} {prefix} {limit}");
            }
        }
    }
    assert_eq!(pages(&table, "ann", "b/b", 10), ["b/b/b"]);
    assert_eq!(pages(&table, "ann", "", 10).len(), 17);
    assert_eq!(pages(&table, "admin/eve", "", 10).len(), keys.len());
}
