use palisade_client::wire::{AccessRule, Right as WireRight};
use palisade_spec::lock::{
    Bytes, Change, Command, Keys, LockRequest, Opening, Owner, Proof, Transaction, Ttl, Value, Writer,
};
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
        table.apply(
            Stamp(0),
            &Command::AcquireOnce { opening, request: LockRequest::exclusive(Key::from(key.as_str()), false) },
        );
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
        let page = locks::list(table, Stamp(0), &Principal::from(reader), prefix, after.as_ref(), limit);
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

/// Goal: a view shows the values of the holders, and a page ends before the values are too many for one answer.
#[test]
fn views_show_values_and_pages_of_them_end() {
    let mut table = table(&[]);
    let long = "v".repeat(limits::VALUE_BYTES);
    let count = limits::PAGE_VALUE_BYTES / limits::VALUE_BYTES + 10;
    for number in 0..count {
        let principal = Principal::from("admin/root");
        let opening = Opening { proof: Proof::default(), owner: Owner::from(""), principal, ttl: Ttl(1000) };
        let value = Some(Value::from(long.as_str()));
        let keys = Key::from(format!("b/{number:04}").as_str());
        let request = LockRequest { value, ..LockRequest::exclusive(keys, false) };
        table.apply(Stamp(0), &Command::AcquireOnce { opening, request });
    }
    let eve = Principal::from("admin/eve");
    let page = locks::list(&table, Stamp(0), &eve, "", None, 1000);
    assert_eq!(page.locks.len(), limits::PAGE_VALUE_BYTES / limits::VALUE_BYTES);
    assert!(page.locks.iter().all(|lock| lock.holders[0].value.as_ref() == Some(&long)));
    let after = page.next_after.map(|key| Key::from(key.as_str()));
    assert_eq!(locks::list(&table, Stamp(0), &eve, "", after.as_ref(), 1000).locks.len(), 10);
}

/// Goal: claims on several keys make shorter pages, as their keys are shown with each of them.
#[test]
fn pages_of_claims_on_several_keys_end() {
    let mut table = table(&[]);
    let number = limits::PAGE_CLAIMS / Keys::MAX / Keys::MAX + 1;
    for claim in 0..number {
        let principal = Principal::from("admin/root");
        let opening = Opening { proof: Proof::default(), owner: Owner::from(""), principal, ttl: Ttl(1000) };
        let keys = (0..Keys::MAX).map(|key| Key::from(format!("b/{claim:04}/{key:02}").as_str())).collect();
        let request = LockRequest::exclusive(Keys::new(keys).unwrap(), false);
        table.apply(Stamp(0), &Command::AcquireOnce { opening, request });
    }
    let eve = Principal::from("admin/eve");
    let page = locks::list(&table, Stamp(0), &eve, "", None, 1000);
    assert_eq!(page.locks.len(), limits::PAGE_CLAIMS / Keys::MAX);
    assert!(page.next_after.is_some() && table.locks().len() > page.locks.len());
    assert_eq!(claims(&Answer::Locks(page)), limits::PAGE_CLAIMS / Keys::MAX * Keys::MAX);
}

/// Goal: a view of a lock names no key of a claim that its reader may not read.
#[test]
fn views_name_keys_that_the_reader_may_read() {
    let mut table = table(&[]);
    for max_queue in [0, 1] {
        let principal = Principal::from("admin/root");
        let opening = Opening { proof: Proof::default(), owner: Owner::from(""), principal, ttl: Ttl(1000) };
        let keys = Keys::new(vec![Key::from("b/1"), Key::from("c/1")]).unwrap();
        let request = LockRequest { max_queue, ..LockRequest::exclusive(keys, false) };
        table.apply(Stamp(0), &Command::AcquireOnce { opening, request });
    }
    let key = Key::from("b/1");
    let shown = |reader: &str| {
        let view = locks::show(&table, Stamp(0), &Principal::from(reader), &key, table.lock(&key));
        (view.holders[0].keys.clone(), view.queue[0].keys.clone())
    };
    let [all, own] = [vec!["b/1".to_owned(), "c/1".into()], vec!["b/1".to_owned()]];
    assert_eq!(shown("admin/eve"), (all.clone(), all));
    assert_eq!(shown("ann"), (own.clone(), own));
}

/// Goal: the parts of a listing show each lock and each record once, in order, and each part all keys up to its last,
/// whether a key has a lock, a record or both.
#[test]
fn listings_show_locks_and_records_up_to_the_same_key() {
    let all: Vec<String> = (0..40).map(|number| format!("b/{number:02}")).collect();
    let some = |wanted: fn(usize) -> bool| {
        let wanted = all.iter().enumerate().filter(|(number, _)| wanted(*number));
        wanted.map(|(_, key)| key.clone()).collect::<Vec<String>>()
    };
    for (held, written) in [
        (some(|number| number % 2 == 0), some(|number| number % 3 == 0)),
        (some(|number| number < 20), some(|number| number >= 20)),
        (some(|_| false), some(|_| true)),
        (some(|_| true), some(|number| number == 39)),
    ] {
        let mut table = table(&held);
        for key in &written {
            let record = Key::from(key.as_str());
            let changes = vec![Change::Put { record, bytes: Bytes::from("1") }];
            let transaction = Transaction { conditions: Vec::new(), changes, limit: 1 << 20 };
            let writer = Writer::Client(Principal::from("admin/root"));
            table.apply(Stamp(0), &Command::Transact { writer, transaction });
        }
        for limit in [1, 2, 7, 1000] {
            let (mut locks, mut records, mut after) = (Vec::new(), Vec::new(), None);
            loop {
                let reader = Principal::from("admin/root");
                let part = listing(&table, Stamp(0), &reader, "b/", after.as_ref(), limit);
                assert_eq!(part.begins, after.is_none());
                let last = part.last_key().map(Key::from);
                let new = |key: &str| after.as_ref().is_none_or(|after| key > after.as_str());
                assert!(part.locks.iter().all(|lock| new(&lock.key)) && part.records.iter().all(|one| new(&one.key)));
                locks.extend(part.locks.into_iter().map(|lock| lock.key));
                records.extend(part.records.into_iter().map(|record| record.key));
                if part.complete {
                    break;
                }
                let up_to = |keys: &[String]| {
                    let last = last.as_ref().expect("a part that is not the last one shows a key").as_str();
                    keys.iter().filter(|key| key.as_str() <= last).cloned().collect::<Vec<String>>()
                };
                assert_eq!((&locks, &records), (&up_to(&held), &up_to(&written)), "limit {limit}");
                after = last;
            }
            assert_eq!((&locks, &records), (&held, &written), "limit {limit}");
        }
    }
}
