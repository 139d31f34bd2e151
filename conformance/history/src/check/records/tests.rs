//! Good histories of records, and one wrong answer for each thing that is checked.

use super::super::test_history::{TTL_MS, TestHistory};
use super::NAME;
use crate::{Answer, Call, Change, Condition, End, History, RecordChange, Refusal};

fn write(change: Change, token: Option<u64>, number: Option<u64>) -> Call {
    let (record, session) = ("k".into(), number.map(|_| "s1".into()));
    Call::WriteRecord { record, change, also: Vec::new(), token, conditions: Vec::new(), session, number }
}

/// The same with further conditions.
fn under<const N: usize>(mut call: Call, more: [Condition; N]) -> Call {
    if let Call::WriteRecord { conditions, .. } = &mut call {
        conditions.extend(more);
    }
    call
}

fn version(key: &str, version: u64) -> Condition {
    Condition::Version { key: key.into(), version }
}

fn holds(lock: &str, token: u64) -> Condition {
    Condition::Held { lock: lock.into(), token }
}

/// A put of record `k`, if it has this version.
fn put_if(text: &str, has: u64) -> Call {
    under(put(text), [version("k", has)])
}

/// The same change of record `l` in one transaction.
fn both(mut call: Call) -> Call {
    if let Call::WriteRecord { change, also, .. } = &mut call {
        also.push(RecordChange { record: "l".into(), change: change.clone() });
    }
    call
}

fn read_of(record: &str) -> Call {
    Call::ReadRecord { record: record.into(), stale: false }
}

fn other_version(version: u64) -> End {
    End::Fail(Refusal::OtherVersion { version })
}

fn append(text: &str, token: Option<u64>) -> Call {
    write(Change::Append(text.into()), token, None)
}

fn put(text: &str) -> Call {
    write(Change::Put(text.into()), None, None)
}

fn read() -> Call {
    read_of("k")
}

fn shows(version: u64, value: &str) -> End {
    End::Ok(Answer::Record { version, value: value.into() })
}

fn written(version: u64) -> End {
    End::Ok(Answer::Written { version })
}

/// Without an operation.
fn nothing() -> TestHistory {
    TestHistory::of(NAME)
}

/// A session has the lock from about 10 ms on, with token 1.
fn held() -> TestHistory {
    nothing().with_session().grant("s1", 1, 9, 10)
}

impl TestHistory {
    fn grant(self, session: &str, token: u64, from: u64, to: u64) -> TestHistory {
        self.grant_of("k", session, token, from, to)
    }

    fn grant_of(self, key: &str, session: &str, token: u64, from: u64, to: u64) -> TestHistory {
        let mut acquire = Call::acquire_one(key.into(), 50_000, None);
        if let Call::Acquire { session: of, .. } = &mut acquire {
            *of = Some(session.into());
        }
        self.with(acquire, from, to, End::Ok(Answer::Granted { session: session.into(), token }))
    }

    fn release(self, from: u64, to: u64) -> TestHistory {
        let release = Call::Release { keys: "k".into(), session: "s1".into(), token: 1, number: None };
        self.with(release, from, to, End::Ok(Answer::Released))
    }
}

#[test]
fn right_answers_are_accepted() {
    held()
        .with(append("a;", Some(1)), 20, 30, written(1))
        .with(append("b;", Some(1)), 31, 40, written(2))
        .with(read(), 41, 50, shows(2, "a;b;"))
        .with(write(Change::Delete, Some(1), None), 51, 54, written(3))
        .with(read(), 55, 56, End::Ok(Answer::NoRecord))
        .release(57, 60)
        .with(append("late;", Some(1)), 61, 70, End::Fail(Refusal::StaleToken))
        .with(put("c;"), 91, 100, written(4))
        .with(read(), 101, 110, shows(4, "c;"))
        .is_accepted();
    // Changes that overlap have any order, and one without an answer may be there or not, or have removed the others.
    nothing()
        .with(append("a;", None), 10, 50, written(2))
        .with(append("b;", None), 20, 40, written(1))
        .unanswered(append("c;", None), 30)
        .with(read(), 60, 70, shows(3, "b;a;c;"))
        .is_accepted();
    nothing()
        .with(append("a;", None), 10, 20, written(1))
        .unanswered(put("b;"), 30)
        .with(read(), 40, 50, shows(1, "a;"))
        .with(append("c;", None), 60, 70, written(3))
        .with(read(), 80, 90, shows(3, "b;c;"))
        .is_accepted();
    // Without a number each sending may be done.
    nothing()
        .with(append("a;", None), 10, 20, written(2))
        .sent_again()
        .with(read(), 30, 40, shows(2, "a;a;"))
        .is_accepted();
    nothing()
        .with(append("a;", None), 10, 40, written(2))
        .sent_again()
        .with(read(), 20, 30, shows(1, "a;"))
        .is_accepted();
    nothing()
        .with(append("a;", None), 1, 5, written(1))
        .with(put("b;"), 10, 60, written(4))
        .sent_again()
        .with(append("c;", None), 20, 30, written(3))
        .with(read(), 40, 50, shows(3, "b;c;"))
        .is_accepted();
    // A stale read may show anything that was there.
    let stale = Call::ReadRecord { record: "k".into(), stale: true };
    nothing()
        .with(append("a;", None), 10, 20, written(1))
        .with(append("b;", None), 30, 40, written(2))
        .with(stale, 50, 60, shows(1, "a;"))
        .is_accepted();
}

#[test]
fn versions_that_fall_or_are_given_twice_are_found() {
    nothing()
        .with(append("a;", None), 10, 20, written(2))
        .with(append("b;", None), 30, 40, written(1))
        .is_refused("a later transaction has a greater version");
    nothing()
        .with(append("a;", None), 10, 40, written(2))
        .with(append("b;", None), 20, 30, written(2))
        .is_refused("two transactions have different versions");
}

#[test]
fn changes_by_sessions_without_the_lock_are_found() {
    held()
        .release(20, 30)
        .with(append("late;", Some(1)), 40, 50, written(1))
        .is_refused("while its grant lasts, but this one had ended");
    // The later holder is known; how the former lost the lock is not.
    held()
        .with(Call::OpenSession { ttl_ms: TTL_MS }, 11, 12, End::Ok(Answer::Opened { session: "s2".into() }))
        .grant("s2", 2, TTL_MS, TTL_MS + 100)
        .with(append("new;", Some(2)), TTL_MS + 110, TTL_MS + 200, written(1))
        .with(append("late;", Some(1)), TTL_MS + 120, TTL_MS + 190, written(2))
        .is_refused("a former holder writes nothing after its successor");
    nothing()
        .with_session()
        .with(append("early;", Some(1)), 2, 5, written(1))
        .grant("s1", 1, 9, 10)
        .is_refused("after the grant of the token");
    held()
        .with(append("a;", Some(1)), 20, 30, End::Fail(Refusal::StaleToken))
        .is_refused("a holder's change is not refused");
}

#[test]
fn reads_of_the_past_and_of_the_future_are_found() {
    let two = || nothing().with(append("a;", None), 10, 20, written(1)).with(append("b;", None), 30, 40, written(2));
    let old = "an answer shows what was there before its operation began";
    two().with(read(), 50, 60, shows(1, "a;")).is_refused(old);
    two().with(read(), 50, 60, End::Ok(Answer::NoRecord)).is_refused(old);
    two()
        .unanswered(append("c;", None), 41)
        .with(read(), 50, 60, shows(3, "a;b;c;"))
        .with(read(), 61, 70, shows(2, "a;b;"))
        .is_refused(old);
    let deleted = || two().with(write(Change::Delete, None, None), 50, 60, written(3));
    deleted().with(read(), 70, 80, shows(2, "a;b;")).is_refused(old);
    deleted().with(read(), 70, 80, shows(3, "")).is_refused("that was deleted");
    nothing()
        .with(read(), 5, 9, shows(1, "a;"))
        .with(append("a;", None), 10, 20, written(1))
        .is_refused("no client made this one");
}

#[test]
fn contents_of_other_changes_are_found() {
    let two = |shown: &str| {
        nothing().with(append("a;", None), 10, 20, written(1)).with(append("b;", None), 30, 40, written(2)).with(
            read(),
            50,
            60,
            shows(2, shown),
        )
    };
    two("a;b;").is_accepted();
    two("b;a;").is_refused("ends with its last change");
    two("b;").is_refused("one is missing");
    two("a;a;b;").is_refused("more often than it was written");
    two("x;b;").is_refused("texts that were written");
    nothing()
        .with(append("a;", None), 10, 20, written(1))
        .with(put("b;"), 30, 40, written(2))
        .with(read(), 50, 60, shows(2, "a;b;"))
        .is_refused("a put replaces the content");
    nothing()
        .with(append("a;", None), 10, 20, written(1))
        .with(append("b;", None), 21, 30, written(2))
        .with(append("c;", None), 31, 40, written(3))
        .with(read(), 50, 60, shows(3, "b;a;c;"))
        .is_refused("in the order of their versions");
    // With a number it is done once, however often it is sent.
    held()
        .with(write(Change::Append("a;".into()), Some(1), Some(5)), 20, 30, written(1))
        .sent_again()
        .with(read(), 40, 50, shows(1, "a;a;"))
        .is_refused("more often than it was written");
}

/// A record of version 2, and one that was deleted by version 3.
fn two_versions() -> TestHistory {
    nothing().with(put("a;"), 10, 20, written(1)).with(put("b;"), 30, 40, written(2))
}

fn deleted() -> TestHistory {
    two_versions().with(write(Change::Delete, None, None), 50, 60, written(3))
}

#[test]
fn right_comparisons_are_accepted() {
    two_versions()
        .with(put_if("c;", 1), 50, 60, other_version(2))
        .with(put_if("c;", 2), 61, 70, written(3))
        .with(put_if("d;", 0), 71, 80, other_version(3))
        .with(read(), 81, 90, shows(3, "c;"))
        .is_accepted();
    deleted().with(put_if("c;", 2), 61, 70, other_version(0)).with(put_if("c;", 0), 71, 80, written(4)).is_accepted();
    // One of two is first, and the refusal of the other one shows that.
    two_versions()
        .with(put_if("c;", 2), 50, 90, written(3))
        .with(put_if("d;", 2), 60, 80, other_version(3))
        .with(put_if("e;", 3), 61, 81, other_version(2))
        .is_accepted();
    // A put without an answer may have any later version, and a deletion may have removed the record at any time.
    two_versions()
        .unanswered(put("c;"), 41)
        .with(put_if("d;", 2), 50, 60, other_version(3))
        .with(put_if("d;", 3), 70, 80, written(4))
        .is_accepted();
    two_versions()
        .unanswered(write(Change::Delete, None, None), 41)
        .with(put_if("d;", 0), 50, 60, written(4))
        .with(put_if("d;", 2), 70, 80, other_version(4))
        .is_accepted();
    // With a number it was refused once and for all.
    two_versions()
        .with_session()
        .with(under(write(Change::Put("c;".into()), None, Some(5)), [version("k", 1)]), 50, 60, other_version(2))
        .sent_again()
        .is_accepted();
    // The refusal may be because of either record.
    two_versions().with(under(put_if("c;", 1), [version("l", 1)]), 50, 60, other_version(0)).is_accepted();
    // The record that is compared is another one.
    two_versions()
        .with(under(both(put("c;")), [version("l", 0)]), 50, 60, written(3))
        .with(under(put("d;"), [version("l", 3)]), 61, 70, written(4))
        .is_accepted();
}

#[test]
fn comparisons_with_versions_that_were_not_there_are_found() {
    let between = "the record was changed between";
    two_versions().with(put_if("c;", 1), 35, 60, written(3)).is_refused(between);
    // Only a read, or the condition of another transaction, shows the change between.
    let unknown = || nothing().with(put("a;"), 10, 20, written(1)).unanswered(put("b;"), 21).unanswered(put("c;"), 22);
    unknown().with(read(), 30, 80, shows(2, "b;")).with(put_if("d;", 1), 31, 70, written(3)).is_refused(between);
    unknown()
        .with(put_if("e;", 0), 30, 80, other_version(2))
        .with(put_if("d;", 1), 31, 70, written(3))
        .is_refused(between);
    unknown()
        .with(under(append("e;", None), [version("k", 2)]), 30, 80, written(4))
        .with(put_if("d;", 1), 31, 70, written(3))
        .is_refused(between);
    two_versions().with(put_if("c;", 0), 35, 60, written(3)).is_refused("the record was there");
    two_versions()
        .unanswered(write(Change::Delete, None, None), 61)
        .with(put_if("c;", 0), 35, 60, written(3))
        .is_refused("the record was there");
    nothing()
        .with(put("a;"), 10, 20, written(1))
        .with(put_if("b;", 3), 11, 21, written(2))
        .is_refused("before its own");
    deleted().with(put_if("c;", 3), 61, 70, written(4)).is_refused("that was deleted");
    two_versions()
        .with(under(put("c;"), [version("l", 2)]), 50, 60, written(3))
        .is_refused("but this one changed others");
}

#[test]
fn refusals_because_of_versions_that_were_not_there_are_found() {
    let old = "an answer shows what was there before its operation began";
    two_versions().with(put_if("c;", 0), 50, 60, other_version(1)).is_refused(old);
    two_versions().with(put_if("c;", 1), 50, 60, other_version(0)).is_refused(old);
    two_versions().with(put_if("c;", 1), 50, 60, other_version(3)).is_refused("no client made this one");
    two_versions()
        .with(put_if("c;", 1), 50, 60, other_version(3))
        .with(put("d;"), 61, 70, written(3))
        .is_refused("no client made this one");
    two_versions().with(put_if("c;", 2), 50, 60, other_version(2)).is_refused("but this is the same");
    deleted().with(put_if("c;", 2), 61, 70, other_version(3)).is_refused("that was deleted");
    // What a refusal has shown, others find.
    two_versions()
        .unanswered(put("c;"), 41)
        .with(put_if("d;", 2), 50, 60, other_version(3))
        .with(read(), 61, 70, shows(2, "b;"))
        .is_refused(old);
}

#[test]
fn transactions_are_seen_whole() {
    let lost = || nothing().with(both(put("a;")), 10, 20, written(1)).unanswered(both(append("b;", None)), 21);
    lost().with(read(), 30, 40, shows(2, "a;b;")).with(read_of("l"), 41, 50, shows(2, "a;b;")).is_accepted();
    lost().with(read(), 30, 40, shows(1, "a;")).with(read_of("l"), 41, 50, shows(2, "a;b;")).is_accepted();
    // No answer says that it is done, but a part of it was read.
    lost()
        .with(read(), 30, 40, shows(2, "a;b;"))
        .with(read_of("l"), 41, 50, shows(1, "a;"))
        .is_refused("an answer shows what was there before its operation began");
    // Of two reads the one that ended first shows that.
    lost()
        .with(read(), 30, 80, shows(2, "a;b;"))
        .with(read_of("l"), 31, 40, shows(2, "a;b;"))
        .with(read(), 41, 50, shows(1, "a;"))
        .is_refused("an answer shows what was there before its operation began");
    lost()
        .with(read(), 30, 40, shows(2, "a;b;"))
        .with(read_of("l"), 30, 40, shows(3, "a;b;"))
        .is_refused("a transaction has a version of its own");
    lost()
        .with(append("c;", None), 22, 60, written(3))
        .with(under(append("d;", None), [version("l", 1)]), 23, 61, written(4))
        .with(read(), 30, 70, shows(4, "a;b;c;d;"))
        .with(read(), 31, 71, shows(2, "a;b;"))
        .is_refused("the record was changed between");
    let answered = || nothing().with(both(put("a;")), 10, 20, written(1));
    answered()
        .with(read_of("l"), 30, 40, End::Ok(Answer::NoRecord))
        .is_refused("an answer shows what was there before");
    answered()
        .with(put("b;"), 21, 30, written(2))
        .with(read_of("l"), 31, 40, shows(2, "a;"))
        .is_refused("changed others");
    // None of a refused one is seen.
    two_versions()
        .with(both(put_if("c;", 1)), 50, 60, other_version(2))
        .with(read_of("l"), 61, 70, shows(3, "c;"))
        .is_refused("no client made this one");
}

#[test]
fn tokens_are_compared_with_every_lock_that_they_are_said_to_be_of() {
    let two = || held().grant_of("l", "s1", 2, 11, 12);
    two()
        .with(under(append("a;", Some(1)), [holds("l", 2)]), 20, 30, written(1))
        .with(under(append("b;", None), [holds("l", 2)]), 31, 40, written(2))
        .release(41, 50)
        .with(under(append("c;", None), [holds("l", 2)]), 51, 60, written(3))
        .with(under(append("d;", Some(1)), [holds("l", 2)]), 61, 70, End::Fail(Refusal::StaleToken))
        .with(under(append("e;", Some(9)), [holds("l", 2)]), 71, 80, End::Fail(Refusal::StaleToken))
        .is_accepted();
    two()
        .with(under(append("a;", None), [holds("l", 1)]), 20, 30, written(1))
        .is_refused("a token is for the lock that it was granted for");
    two()
        .release(20, 30)
        .with(under(append("late;", None), [holds("l", 2), holds("k", 1)]), 40, 50, written(1))
        .is_refused("while its grant lasts, but this one had ended");
    two()
        .with(under(append("a;", Some(1)), [holds("l", 2)]), 20, 30, End::Fail(Refusal::StaleToken))
        .is_refused("a holder's change is not refused");
    // The former holder of a lock writes another record than its successor.
    held()
        .with(Call::OpenSession { ttl_ms: TTL_MS }, 11, 12, End::Ok(Answer::Opened { session: "s2".into() }))
        .grant("s2", 2, TTL_MS, TTL_MS + 100)
        .with(append("new;", Some(2)), TTL_MS + 110, TTL_MS + 200, written(1))
        .with(
            Call::WriteRecord {
                record: "l".into(),
                change: Change::Put("late;".into()),
                also: Vec::new(),
                token: None,
                conditions: vec![holds("k", 1)],
                session: None,
                number: None,
            },
            TTL_MS + 120,
            TTL_MS + 190,
            written(2),
        )
        .is_refused("a former holder writes nothing after its successor");
}

#[test]
fn transactions_without_an_answer_are_judged_as_soon_as_a_read_shows_them() {
    held()
        .release(20, 30)
        .unanswered(append("late;", Some(1)), 40)
        .with(read(), 50, 60, shows(1, "late;"))
        .is_refused("while its grant lasts, but this one had ended");
    nothing()
        .with_session()
        .unanswered(append("early;", Some(1)), 2)
        .with(read(), 3, 5, shows(1, "early;"))
        .grant("s1", 1, 9, 10)
        .is_refused("after the grant of the token");
    held()
        .with(Call::OpenSession { ttl_ms: TTL_MS }, 11, 12, End::Ok(Answer::Opened { session: "s2".into() }))
        .grant("s2", 2, TTL_MS, TTL_MS + 100)
        .unanswered(append("late;", Some(1)), TTL_MS + 101)
        .with(append("new;", Some(2)), TTL_MS + 110, TTL_MS + 200, written(1))
        .with(read(), TTL_MS + 201, TTL_MS + 210, shows(2, "new;late;"))
        .is_refused("a former holder writes nothing after its successor");
    two_versions()
        .unanswered(put_if("c;", 1), 50)
        .with(read(), 60, 70, shows(3, "c;"))
        .is_refused("the record was changed between");
    let later = "a later transaction has a greater version";
    let lost = || nothing().unanswered(put("a;"), 10).with(read(), 20, 30, shows(5, "a;"));
    lost().with(under(both(put("b;")), [version("k", 5)]), 31, 40, written(4)).is_refused(later);
    nothing()
        .with(put("a;"), 1, 5, written(4))
        .unanswered(put("b;"), 10)
        .with(read(), 20, 30, shows(3, "b;"))
        .is_refused(later);
    // It may be done after a transaction that begins before the read is answered.
    lost().with(append("b;", None), 25, 40, written(4)).is_accepted();
    held().unanswered(append("a;", Some(1)), 20).release(21, 30).with(read(), 31, 40, shows(1, "a;")).is_accepted();
}

#[test]
fn versions_and_contents_of_other_changes_are_found_in_spite_of_lost_answers() {
    let lost = |change| two_versions().unanswered(change, 41);
    // The last text is of an older version than the record: an append that was lost has left no trace.
    lost(append("c;", None)).with(read(), 50, 60, shows(3, "b;")).is_refused("the version of its last change");
    lost(append("c;", None)).with(read(), 50, 60, shows(3, "b;c;")).is_accepted();
    // Another client may have written the same.
    lost(append("b;", None)).with(read(), 50, 60, shows(3, "b;b;")).is_accepted();
    // A deletion leaves no record with its version.
    let made_up = "no client made this one";
    lost(write(Change::Delete, None, None)).with(read(), 50, 60, shows(9, "b;")).is_refused(made_up);
    lost(write(Change::Delete, None, None)).with(put_if("d;", 1), 50, 60, other_version(9)).is_refused(made_up);
}

#[test]
fn changes_of_fenced_records_without_a_token_are_found() {
    let delete = |token| write(Change::Delete, token, None);
    let fenced = || held().with(append("a;", Some(1)), 20, 30, written(1));
    let under_tokens_only = "is changed under tokens only";
    fenced().with(append("b;", None), 31, 40, written(2)).is_refused(under_tokens_only);
    fenced().with(delete(None), 31, 40, written(2)).is_refused(under_tokens_only);
    fenced().unanswered(append("b;", None), 31).with(read(), 32, 40, shows(2, "a;b;")).is_refused(under_tokens_only);
    // The record was changed before it was fenced, or after it was deleted, perhaps without an answer.
    held()
        .with(append("a;", None), 20, 40, written(1))
        .with(append("b;", Some(1)), 21, 39, written(2))
        .with(append("c;", None), 41, 50, End::Fail(Refusal::StaleToken))
        .is_accepted();
    fenced().with(delete(Some(1)), 31, 40, written(2)).with(put("b;"), 41, 50, written(3)).is_accepted();
    fenced().unanswered(delete(Some(1)), 31).with(put("b;"), 41, 50, written(3)).is_accepted();
    // One that was never fenced.
    let needless = "no client had written so";
    nothing().with(put("a;"), 10, 20, End::Fail(Refusal::StaleToken)).is_refused(needless);
    held()
        .with(put("a;"), 11, 20, End::Fail(Refusal::StaleToken))
        .with(append("b;", Some(1)), 21, 30, written(1))
        .is_refused(needless);
    held().unanswered(append("b;", Some(1)), 11).with(put("a;"), 12, 20, End::Fail(Refusal::StaleToken)).is_accepted();
}

#[test]
fn malformed_transactions_are_refused() {
    let is_malformed = |call: Call, end: End| {
        let test_history = nothing().with(call, 10, 20, end);
        History::from_events(test_history.history.events()).is_err()
    };
    for text in ["", "a", "a;b;", "a;b"] {
        assert!(is_malformed(append(text, None), written(1)), "{text:?}");
        let mut two = both(put("a;"));
        if let Call::WriteRecord { also, .. } = &mut two {
            also[0].change = Change::Put(text.into());
        }
        assert!(is_malformed(two, written(1)), "{text:?}");
    }
    assert!(is_malformed(both(both(put("a;"))), written(1)), "it changes a record twice");
    assert!(is_malformed(put("a;"), other_version(1)), "it compares no version");
    let twice = two_versions().with(put_if("c;", 1), 50, 60, other_version(2)).sent_again();
    assert!(History::from_events(twice.history.events()).is_err(), "the other sending may be done");
    assert!(!is_malformed(put_if("a;", 2), other_version(1)));
}
