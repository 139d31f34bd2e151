//! The hub, with events of a real table.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use palisade_client::wire::{Because, Change, EventId};
use palisade_spec::lock::{
    Access, Claim, Command, Keys, LockRequest, LockTable, Opening, Owner, Prefix, Principal, Proof, Right, Rights,
    Rule, Rules, SessionId, Subject, Token, Ttl, Value,
};
use palisade_spec::raft::{Stamp, StateMachine};

use super::dispatch::Pace;
use super::history::Unpublished;
use super::*;
use crate::metrics::Metrics;

/// A table whose entries go to a hub.
struct Source {
    table: LockTable,
    hub: Arc<Hub>,
    applied: u64,
    at: u64,
}

fn id(number: u64) -> SessionId {
    SessionId { number, proof: Proof::default() }
}

impl Source {
    fn new(history_bytes: usize) -> Source {
        let hub = Hub::new(history_bytes, &Metrics::new());
        Source { table: LockTable::default(), hub, applied: 0, at: 0 }
    }

    /// One with this many sessions of one second.
    fn with_sessions(history_bytes: usize, sessions: u64) -> Source {
        let mut source = Source::new(history_bytes);
        for number in 1..=sessions {
            let owner = Owner::from(format!("owner {number}").as_str());
            let opening = Opening { proof: Proof::default(), owner, principal: Principal::default(), ttl: Ttl(1_000) };
            source.apply(&Command::Open { opening });
        }
        source
    }

    /// Applies a command in an iteration of its own. Returns the index of its entry.
    fn apply(&mut self, command: &Command) -> u64 {
        let events = self.table.apply(Stamp(self.at), command).events;
        self.publish(events)
    }

    fn publish(&mut self, events: Vec<palisade_spec::lock::Event>) -> u64 {
        self.applied += 1;
        let mut unpublished = Unpublished::default();
        unpublished.push(self.applied, events);
        let mut shared = self.hub.shared.lock();
        shared.history.append(&mut unpublished, self.applied);
        shared.access = self.table.access().clone();
        drop(shared);
        self.hub.news.notify_one();
        self.applied
    }

    fn acquire(&mut self, session: u64, keys: &[&str]) -> u64 {
        let keys = Keys::new(keys.iter().map(|key| (*key).into()).collect()).unwrap();
        let request = LockRequest::exclusive(keys, true);
        self.apply(&Command::Acquire { session: id(session), sequence: None, request })
    }

    fn release(&mut self, session: u64, keys: &[&str]) -> u64 {
        let keys = Keys::new(keys.iter().map(|key| (*key).into()).collect()).unwrap();
        self.apply(&Command::Release { session: id(session), sequence: None, keys, claim: Claim::Either })
    }

    fn follow(&self, filter: Filter, after: &str) -> Follower {
        self.hub.follow(filter, Principal::default(), after.parse().unwrap())
    }
}

fn key(key: &str) -> Filter {
    Filter::Key(key.into())
}

fn prefix(prefix: &str) -> Filter {
    Filter::Prefix(prefix.into())
}

/// All events that are there: ID, key and what happened.
fn read(follower: &mut Follower) -> Vec<(String, String, Change)> {
    let mut all = Vec::new();
    loop {
        match follower.next(None) {
            Progress::Events(events) => all.extend(events.iter().map(|shown| {
                let event = shown.event();
                (event.id.to_string(), event.key, event.change)
            })),
            Progress::CaughtUp => return all,
            other => panic!("{other:?}"),
        }
    }
}

fn names(follower: &mut Follower) -> Vec<String> {
    read(follower).into_iter().map(|(id, key, change)| format!("{id} {} {key}", change.name())).collect()
}

/// Goal: a watcher of a key sees its events alone, in order, and one of a prefix those of all its keys.
#[test]
fn watchers_see_their_events_in_order() {
    let mut source = Source::with_sessions(1 << 20, 3);
    let [mut one, mut all, mut other] =
        [key("jobs/a"), prefix("jobs/"), key("jobs")].map(|filter| source.follow(filter, "0"));
    source.acquire(1, &["jobs/a"]);
    source.acquire(2, &["jobs/a", "jobs/b"]);
    source.acquire(3, &["elsewhere"]);
    source.release(1, &["jobs/a"]);
    let of_a = ["4 granted jobs/a", "5.1 queued jobs/a", "7.1 released jobs/a", "7.2 granted jobs/a"];
    assert_eq!(names(&mut one), of_a);
    let of_all = [
        "4 granted jobs/a",
        "5.1 queued jobs/a",
        "5 queued jobs/b",
        "7.1 released jobs/a",
        "7.2 granted jobs/a",
        "7 granted jobs/b",
    ];
    assert_eq!(names(&mut all), of_all);
    assert_eq!(names(&mut other), Vec::<String>::new());
    assert_eq!(names(&mut one), Vec::<String>::new(), "nothing is shown twice");
}

/// Goal: events name the session, and its token, mode and value.
#[test]
fn events_say_what_happened() {
    let mut source = Source::with_sessions(1 << 20, 2);
    let mut watcher = source.follow(key("k"), "0");
    let request = LockRequest { value: Some(Value::from("here")), ..LockRequest::exclusive("k", true) };
    source.apply(&Command::Acquire { session: id(1), sequence: None, request });
    source.acquire(2, &["k", "l"]);
    let (value, token) = (Value::from("there"), Token(1));
    source.apply(&Command::Proclaim { session: id(1), sequence: None, key: "k".into(), token, value });
    let changes: Vec<Change> = read(&mut watcher).into_iter().map(|(.., change)| change).collect();
    let mode = palisade_client::wire::Mode::Exclusive;
    let (permits, of) = (None, None);
    let owner = |number| format!("owner {number}");
    assert_eq!(
        changes,
        [
            Change::Granted {
                session: 1,
                owner: owner(1),
                token: 1,
                mode,
                permits,
                of,
                keys: vec![],
                value: Some("here".into())
            },
            Change::Queued {
                session: 2,
                owner: owner(2),
                mode,
                permits,
                of,
                keys: vec!["k".into(), "l".into()],
                ahead: 0
            },
            Change::Value { session: 1, token: 1, value: "there".into() },
        ]
    );
}

/// Goal: a loss says why, and an expiry is told at each key at which the session loses something.
#[test]
fn losses_say_why() {
    let mut source = Source::with_sessions(1 << 20, 5);
    let mut watcher = source.follow(prefix(""), "0");
    let mut changes = |source: &Source| {
        assert!(source.applied > 0);
        let because = |change: Change| match change {
            Change::Released { because, session, .. } => format!("released {session} {because:?}"),
            Change::Withdrawn { because, session } => format!("withdrawn {session} {because:?}"),
            Change::Expired { session, token } => format!("expired {session} {token:?}"),
            change => change.name().to_owned(),
        };
        read(&mut watcher).into_iter().map(|(_, key, change)| format!("{key} {}", because(change))).collect::<Vec<_>>()
    };
    source.acquire(1, &["k"]);
    source.acquire(2, &["k"]);
    source.release(2, &["k"]);
    source.release(1, &["k"]);
    assert_eq!(changes(&source), ["k granted", "k queued", "k withdrawn 2 Request", "k released 1 Request"]);
    source.acquire(1, &["k"]);
    source.acquire(2, &["l"]);
    source.acquire(2, &["k"]);
    source.apply(&Command::Break { key: "k".into(), token: Token(2), principal: Principal::default() });
    assert_eq!(changes(&source)[3..], ["k broken", "k released 1 Broken", "k granted"]);
    source.apply(&Command::Close { session: id(2) });
    assert_eq!(changes(&source), ["k released 2 Closed", "l released 2 Closed"]);
    // Session 3 holds k, 4 waits for it and holds l, and 5 waits behind 4.
    source.acquire(3, &["k"]);
    source.acquire(4, &["l"]);
    source.acquire(4, &["k"]);
    source.at = 500;
    source.acquire(5, &["k"]);
    source.apply(&Command::KeepAlive { sessions: vec![id(3), id(5)] });
    changes(&source);
    source.at = 1_001;
    source.release(3, &["k"]);
    assert_eq!(changes(&source), ["k released 3 Request", "k expired 4 None", "k withdrawn 4 Expired", "k granted"]);
    let events = source.table.advance(Stamp(source.at)).events;
    source.publish(events);
    assert_eq!(changes(&source), ["l expired 4 Some(6)", "l released 4 Expired"]);
    assert_eq!(Because::Denied as u8, 4, "the last reason, which needs access rules");
}

/// Goal: a watch is resumed after any event, also in the middle of an entry, without a gap or repetition.
#[test]
fn resumed_after_any_event() {
    let mut source = Source::with_sessions(1 << 20, 3);
    for _ in 0..40 {
        source.acquire(1, &["a", "b", "c"]);
        source.acquire(2, &["b"]);
        source.apply(&Command::KeepAlive { sessions: vec![id(3)] });
        source.release(1, &["a", "b", "c"]);
        source.release(2, &["b"]);
    }
    for filter in [prefix(""), key("b"), key("c")] {
        let all = names(&mut source.follow(filter.clone(), "0"));
        assert!(all.len() >= 80, "more than are read at a time");
        for (seen, event) in all.iter().enumerate() {
            let (after, _) = event.split_once(' ').unwrap();
            assert_eq!(names(&mut source.follow(filter.clone(), after)), all[seen + 1..], "{filter:?} after {after}");
        }
    }
}

/// Goal: the history has a limit, texts included; what a watcher lacks is said, and nothing is skipped.
#[test]
fn history_is_bounded_and_a_gap_is_noticed() {
    let limit = 100_000;
    let mut source = Source::with_sessions(limit, 1);
    let mut slow = source.follow(key("k"), "0");
    let mut reader = source.follow(prefix(""), "0");
    let mut shown = 0;
    for _ in 0..1_000 {
        source.acquire(1, &["k"]);
        source.release(1, &["k"]);
        while let Progress::Events(events) = reader.next(None) {
            shown += events.len();
            assert!(events.iter().all(|event| event.text().starts_with(b"id: ")));
        }
        assert!(source.hub.shared.lock().history.bytes() <= limit + 1_000);
    }
    assert_eq!(shown, 2_000, "a watcher that keeps up sees all");
    let floor = source.hub.shared.lock().history.floor();
    assert!(floor > 1_000, "{floor}");
    assert!(matches!(slow.next(None), Progress::Dropped(at) if at == floor));
    let before = source.follow(key("k"), &(floor - 1).to_string()).next(None);
    assert!(matches!(before, Progress::Dropped(at) if at == floor));
    let first = read(&mut source.follow(key("k"), &floor.to_string())).remove(0);
    assert_eq!(first.0, (floor + 1).to_string());
}

/// Goal: a watcher that had seen everything, and was not woken before the events after that were dropped, is not too
/// slow: it is told that they are gone, as after a snapshot. One that has stopped reading is.
#[test]
fn watcher_that_was_not_woken_in_time_is_not_too_slow() {
    let mut source = Source::with_sessions(10_000, 1);
    let mut watchers = [source.follow(key("k"), "0"), source.follow(key("k"), "0")];
    source.acquire(1, &["k"]);
    for watcher in &mut watchers {
        assert!(matches!(watcher.follow().now_or_never(), Some(Progress::Events(_))));
    }
    let [waiting, reading] = &mut watchers;
    assert!(waiting.follow().now_or_never().is_none());
    for _ in 0..200 {
        source.release(1, &["k"]);
        source.acquire(1, &["k"]);
    }
    while source.hub.look_through(&mut 0, &mut VecDeque::new()) {}
    let floor = source.hub.shared.lock().history.floor();
    assert!(matches!(waiting.follow().now_or_never(), Some(Progress::NeverHad(at)) if at == floor));
    assert!(matches!(reading.follow().now_or_never(), Some(Progress::Dropped(at)) if at == floor));
}

/// Goal: behind a snapshot of a leader the history begins anew, and no watcher misses that.
#[test]
fn history_begins_anew_behind_a_snapshot() {
    let mut source = Source::with_sessions(1 << 20, 1);
    source.acquire(1, &["k"]);
    let mut watcher = source.follow(key("k"), "0");
    assert_eq!(read(&mut watcher).len(), 1);
    source.hub.shared.lock().history.begin(100);
    source.applied = 100;
    assert!(matches!(watcher.next(None), Progress::NeverHad(100)));
    source.release(1, &["k"]);
    assert!(matches!(watcher.next(None), Progress::NeverHad(100)));
    watcher.list(100, Listed::All);
    assert_eq!(names(&mut watcher), ["101 released k"]);
    // A node that lags behind is waited for.
    let mut ahead = source.follow(key("k"), "103");
    source.acquire(1, &["k"]);
    source.release(1, &["k"]);
    assert_eq!(names(&mut ahead), Vec::<String>::new());
    source.acquire(1, &["k"]);
    assert_eq!(names(&mut ahead), ["104 granted k"]);
}

/// Goal: while a listing is read in parts, events of keys that were not listed yet are left out, and no client
/// can resume after one of the others.
#[test]
fn listing_in_parts_meets_the_events() {
    let mut source = Source::with_sessions(1 << 20, 2);
    let mut watcher = source.follow(prefix(""), "0");
    let listed = source.acquire(1, &["m"]);
    watcher.list(listed, Listed::UpTo("m".into()));
    source.acquire(2, &["a"]);
    source.acquire(2, &["z"]);
    let second = source.release(1, &["m"]);
    source.release(2, &["z"]);
    let Progress::Events(events) = watcher.next(Some(second)) else { panic!("there are events") };
    let texts: Vec<String> = events.iter().map(|shown| String::from_utf8(shown.text().to_vec()).unwrap()).collect();
    assert_eq!(texts.len(), 2);
    assert!(texts[0].starts_with("event: granted\ndata: {") && texts[0].contains(r#""key":"a""#), "{texts:?}");
    assert!(texts[1].starts_with("event: released\ndata: {") && texts[1].contains(r#""key":"m""#), "{texts:?}");
    assert!(matches!(watcher.next(Some(second)), Progress::CaughtUp));
    watcher.list(second, Listed::All);
    assert_eq!(names(&mut watcher), [format!("{} released z", second + 1)]);
}

fn set_rules(source: &mut Source, rules: &[(&str, &[Right])]) {
    let rule = |(prefix, rights): &(&str, &[Right])| {
        let subject = Subject::Principal(Principal::from("reader"));
        Rule { prefix: Prefix::from(*prefix), subject, rights: Rights::of(rights.iter().copied()) }
    };
    let rules = Some(Arc::new(Rules::new(vec![], rules.iter().map(rule).collect())));
    let (principal, revision) = (Principal::from("admin/eve"), source.table.access().revision());
    source.apply(&Command::SetAccess { principal, revision, rules });
    assert!(source.table.access() != &Access::default());
}

/// Goal: no watcher is shown what the rules in force do not permit it to read, neither events nor the other
/// keys of a claim; a watcher of such a key alone learns that.
#[test]
fn rules_decide_what_is_shown() {
    let mut source = Source::with_sessions(1 << 20, 1);
    let reader = || Principal::from("reader");
    let follow = |source: &Source, filter| source.hub.follow(filter, reader(), EventId::end_of(0));
    let (mut all, mut one) = (follow(&source, prefix("")), follow(&source, key("secret")));
    source.acquire(1, &["open", "secret"]);
    set_rules(&mut source, &[("open", &[Right::Read])]);
    let seen = read(&mut all);
    assert_eq!(seen.len(), 1);
    let Change::Granted { keys, .. } = &seen[0].2 else { panic!("{seen:?}") };
    assert_eq!((seen[0].1.as_str(), keys), ("open", &vec!["open".to_owned()]));
    assert!(matches!(one.next(None), Progress::Denied));
    let mut again = follow(&source, key("open"));
    let Progress::Events(events) = again.next(None) else { panic!("it may read it") };
    assert!(!String::from_utf8(events[0].text().to_vec()).unwrap().contains("secret"));
    set_rules(&mut source, &[("", &[Right::Read])]);
    let seen = read(&mut follow(&source, key("secret")));
    let Change::Granted { keys, .. } = &seen[0].2 else { panic!("{seen:?}") };
    assert_eq!(keys, &["open", "secret"]);
}

/// Goal: the dispatcher wakes the watchers of a key that has changed, and no others; all of them at the end.
#[tokio::test]
async fn only_the_watchers_of_a_key_are_woken() {
    let mut source = Source::with_sessions(1 << 20, 1);
    let dispatcher = tokio::spawn(Arc::clone(&source.hub).dispatch());
    let reached = source.applied.to_string();
    let filters = [key("jobs/a"), prefix("jobs/"), prefix(""), key("jobs/b"), prefix("jobs/b"), prefix("ä")];
    let mut watchers: Vec<Follower> = filters.into_iter().map(|filter| source.follow(filter, &reached)).collect();
    for watcher in &mut watchers {
        watcher.wait().await;
        assert!(matches!(watcher.next(None), Progress::CaughtUp), "each looks once by itself");
    }
    let woken = async |watchers: &mut Vec<Follower>| {
        let mut woken = Vec::new();
        for watcher in watchers {
            woken.push(tokio::time::timeout(Duration::from_millis(100), watcher.wait()).await.is_ok());
        }
        woken
    };
    source.acquire(1, &["jobs/a"]);
    assert_eq!(woken(&mut watchers).await, [true, true, true, false, false, false]);
    assert_eq!(watchers.iter_mut().map(|watcher| names(watcher).len()).collect::<Vec<_>>(), [1, 1, 1, 0, 0, 0]);
    source.acquire(1, &["x"]);
    assert_eq!(woken(&mut watchers).await, [false, false, true, false, false, false]);
    // A watcher of quiet keys misses nothing, although the history no longer has what it was not woken for.
    source.hub.shared.lock().history.begin(source.applied);
    source.acquire(1, &["jobs/b"]);
    assert_eq!(woken(&mut watchers).await, [false, true, true, true, true, false]);
    source.hub.close();
    assert_eq!(woken(&mut watchers).await, [true; 6]);
    assert!(watchers.iter_mut().all(|watcher| matches!(watcher.next(None), Progress::Closed)));
    dispatcher.await.unwrap();
    assert_eq!(source.hub.metrics.watchers.get(), 6);
    drop(watchers);
    assert_eq!(source.hub.metrics.watchers.get(), 0);
}

/// Goal: of an iteration with many entries, a watcher of a prefix is shown all.
#[tokio::test]
async fn first_of_many_entries_counts() {
    let mut source = Source::with_sessions(1 << 20, 1);
    let dispatcher = tokio::spawn(Arc::clone(&source.hub).dispatch());
    let mut watcher = source.follow(prefix(""), "0");
    watcher.wait().await;
    assert_eq!(read(&mut watcher).len(), 0);
    for round in 0..50 {
        let mut unpublished = Unpublished::default();
        for number in 0..10 {
            let keys = Keys::new(vec![format!("{round}/{number}").as_str().into()]).unwrap();
            let request = LockRequest::exclusive(keys, true);
            let acquire = Command::Acquire { session: id(1), sequence: None, request };
            source.applied += 1;
            unpublished.push(source.applied, source.table.apply(Stamp(0), &acquire).events);
        }
        source.hub.shared.lock().history.append(&mut unpublished, source.applied);
        source.hub.news.notify_one();
        watcher.wait().await;
        assert_eq!(read(&mut watcher).len(), 10, "in round {round}");
    }
    dispatcher.abort();
}

/// Goal: watchers that look while the dispatcher notes the entries of an iteration are shown all of them. The
/// dispatcher once noted them in no order, and a watcher that was woken for a later entry skipped the earlier
/// ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watchers_that_look_while_entries_are_noted_skip_none() {
    const WATCHERS: usize = 8;
    const ENTRIES: u64 = 40;
    let mut source = Source::with_sessions(1 << 20, 1);
    let reached = source.applied.to_string();
    let dispatcher = tokio::spawn(Arc::clone(&source.hub).dispatch());
    let (sender, mut receiver) = tokio::sync::mpsc::channel(WATCHERS);
    for _ in 0..WATCHERS {
        let (mut watcher, sender) = (source.follow(prefix(""), &reached), sender.clone());
        tokio::spawn(async move {
            let mut seen = 0;
            while let Progress::Events(events) = watcher.follow().await {
                seen += events.len() as u64;
                if seen.is_multiple_of(ENTRIES) && sender.send(()).await.is_err() {
                    return;
                }
            }
        });
    }
    for round in 0..200 {
        let mut unpublished = Unpublished::default();
        for number in 0..ENTRIES {
            let keys = Keys::new(vec![format!("{round}/{number}").as_str().into()]).unwrap();
            let acquire =
                Command::Acquire { session: id(1), sequence: None, request: LockRequest::exclusive(keys, true) };
            source.applied += 1;
            unpublished.push(source.applied, source.table.apply(Stamp(0), &acquire).events);
        }
        source.hub.shared.lock().history.append(&mut unpublished, source.applied);
        source.hub.news.notify_one();
        for watcher in 0..WATCHERS {
            let all = tokio::time::timeout(Duration::from_secs(20), receiver.recv()).await;
            assert!(all.is_ok(), "only {watcher} watchers were shown all entries of round {round}");
        }
    }
    dispatcher.abort();
}

/// Goal: a watcher of a quiet key stays, although all other keys fill the history many times over, and is then
/// shown its next event.
#[tokio::test]
async fn watcher_of_a_quiet_key_is_not_too_slow() {
    let mut source = Source::with_sessions(10_000, 2);
    let dispatcher = tokio::spawn(Arc::clone(&source.hub).dispatch());
    let mut watcher = source.follow(key("quiet"), "2");
    for _ in 0..5 {
        let nothing = tokio::time::timeout(Duration::from_millis(20), watcher.follow()).await;
        assert!(nothing.is_err(), "{nothing:?}");
        for _ in 0..100 {
            source.acquire(1, &["busy"]);
            source.release(1, &["busy"]);
            // The dispatcher must not fall behind by more than the history has.
            tokio::task::yield_now().await;
        }
    }
    assert!(source.hub.shared.lock().history.floor() > 900);
    source.acquire(2, &["quiet"]);
    let Progress::Events(events) = watcher.follow().await else { panic!("there is one") };
    assert_eq!(events[0].event().id, EventId::end_of(source.applied));
    dispatcher.abort();
}

/// Goal: the watchers of a key that ten thousand follow stand in a queue, once each, and those of another key do not wait
/// for them.
#[test]
fn watchers_of_a_crowded_key_stand_in_a_queue() {
    let mut source = Source::with_sessions(1 << 20, 1);
    let reached = source.applied.to_string();
    let mut watchers: Vec<Follower> = (0..10_000).map(|_| source.follow(key("k"), &reached)).collect();
    let mut other = source.follow(key("other"), &reached);
    for watcher in watchers.iter_mut().chain([&mut other]) {
        assert!(watcher.wait().now_or_never().is_some() && matches!(watcher.next(None), Progress::CaughtUp));
        assert!(watcher.wait().now_or_never().is_none(), "there is nothing more to read");
    }
    let mut queue = VecDeque::new();
    let mut look_through = |source: &Source| while source.hub.look_through(&mut 0, &mut queue) {};
    source.acquire(1, &["k"]);
    look_through(&source);
    source.release(1, &["k"]);
    source.acquire(1, &["other"]);
    look_through(&source);
    assert!(other.wait().now_or_never().is_some());
    assert_eq!(names(&mut other).len(), 1);
    assert_eq!(queue.len(), watchers.len(), "a watcher that is in the queue is not put into it again");
    // A watcher that is woken reads all events.
    for watcher in &mut watchers {
        assert!(watcher.wait().now_or_never().is_some());
        assert_eq!(names(watcher).len(), 2);
    }
}

/// Goal: 40,000 wakes, of which 20,000 may come at once, and then 20,000 a second, take a second; after a pause a burst
/// comes at once again.
#[test]
fn wakes_are_spread() {
    let begin = tokio::time::Instant::now();
    let (mut now, mut pace) = (begin, Pace::new(begin));
    for wakes in [64; 625] {
        now += pace.after(wakes, now);
    }
    let took = (now - begin).as_secs_f64();
    assert!((took - 1.0).abs() < 0.001, "{took} s");
    now += Duration::from_secs(60);
    let waits = [64; 313].map(|wakes| pace.after(wakes, now));
    assert!(waits[..312].iter().all(Duration::is_zero) && !waits[312].is_zero(), "{waits:?}");
}
