//! The core publishes events, the dispatcher notes and wakes, and a watcher reads.

/// The server's files without those that need an executor of tokio's.
#[allow(dead_code, unreachable_pub, reason = "the server's files, of which the tests use a part")]
#[path = "../../src/watch"]
mod watch {
    mod directory;
    mod dispatch;
    mod filter;
    mod follow;
    mod history;
    mod hub;
    mod notice;

    pub(crate) use filter::Filter;
    pub(crate) use follow::{Follower, Progress};
    pub(crate) use hub::{Feed, Hub};

    use std::collections::VecDeque;
    use std::sync::Arc;

    use palisade_spec::lock::{Access, Event};
    use palisade_spec::raft::Index;

    use crate::block_on;

    impl Hub {
        /// The loop of the server's dispatcher, which also spreads wakes over time.
        pub(crate) fn dispatch_at_once(&self) {
            let (mut access, mut queue) = (0, VecDeque::new());
            loop {
                block_on(self.news.notified());
                while self.look_through(&mut access, &mut queue) {}
                if self.shared.lock().closed {
                    return;
                }
                while dispatch::wake_group(&mut queue) > 0 {}
            }
        }
    }

    /// Publishes entries in one iteration of the core, as the driver does.
    pub(crate) fn publish(feed: &mut Feed, entries: &[(u64, Vec<Event>)]) {
        for (index, events) in entries {
            feed.applied(Index(*index), events.clone());
        }
        feed.publish_up_to(entries.last().map_or(0, |(index, _)| *index), &Access::default());
    }

    /// A hub, whose history holds all that a test publishes.
    pub(crate) fn hub() -> Arc<Hub> {
        Hub::new(1 << 20, &Arc::default())
    }
}

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use loom::thread::{self, JoinHandle};
use palisade_client::wire::EventId;
use palisade_spec::lock::{Event, Principal, Proof, SessionId, Token};
use watch::{Feed, Filter, Follower, Hub, Progress};

use crate::{Bell, block_on, explore};

/// Preemptions in the tests of three threads.
const PREEMPTIONS: usize = 3;

/// An entry by which a lock is released.
fn release(index: u64, key: &str) -> (u64, Vec<Event>) {
    let session = SessionId { number: 1, proof: Proof::default() };
    (index, vec![Event::Released { key: key.into(), session, token: Token(index) }])
}

fn dispatcher(hub: &Arc<Hub>) -> JoinHandle<()> {
    let hub = Arc::clone(hub);
    thread::spawn(move || hub.dispatch_at_once())
}

/// A thread that publishes each group of entries in an iteration of its own.
fn core(hub: &Arc<Hub>, iterations: Vec<Vec<(u64, Vec<Event>)>>) -> JoinHandle<()> {
    let mut feed = Feed::new(hub);
    thread::spawn(move || {
        for entries in iterations {
            watch::publish(&mut feed, &entries);
        }
    })
}

/// Follows all keys that begin with `jobs/`, from the beginning.
fn follow(hub: &Arc<Hub>) -> Follower {
    hub.follow(Filter::Prefix("jobs/".into()), Principal::default(), EventId::end_of(0))
}

/// Reads events until the one of this entry; the entries of all of them.
fn read_up_to(follower: &mut Follower, last: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        match block_on(follower.follow()) {
            Progress::Events(events) => seen.extend(events.iter().map(|shown| shown.event().id.revision)),
            other => panic!("{other:?} after {seen:?}"),
        }
    }
    seen
}

/// Goal: a watcher that is asleep, awake or about to be woken when entries are published is shown each event
/// once, in order, and does not wait for one that is there, or this would never end. The entries of one iteration
/// have keys of their own: the dispatcher notes them one by one.
#[test]
fn a_watcher_is_shown_every_event_once_and_in_order() {
    explore(PREEMPTIONS, || {
        let hub = watch::hub();
        let mut follower = follow(&hub);
        let dispatcher = dispatcher(&hub);
        let core = core(&hub, vec![vec![release(1, "jobs/a"), release(2, "other"), release(3, "jobs/b")]]);
        assert_eq!(read_up_to(&mut follower, 3), [1, 3]);
        core.join().unwrap();
        hub.close();
        dispatcher.join().unwrap();
    });
}

/// Goal: what is published while a watcher reads what came before is not lost.
#[test]
fn what_is_published_while_a_watcher_reads_is_shown() {
    explore(PREEMPTIONS, || {
        let hub = watch::hub();
        let mut follower = follow(&hub);
        let dispatcher = dispatcher(&hub);
        let core = core(&hub, vec![vec![release(1, "jobs/a")], vec![release(2, "jobs/a")], vec![release(3, "jobs/b")]]);
        assert_eq!(read_up_to(&mut follower, 3), [1, 2, 3]);
        core.join().unwrap();
        hub.close();
        dispatcher.join().unwrap();
    });
}

/// Goal: a watcher that comes while entries are published misses none: the core sees the watcher, or the watcher
/// sees the entry. The same holds for one that follows a dispatcher that was not needed until then.
#[test]
fn a_watcher_that_comes_meanwhile_misses_nothing() {
    explore(PREEMPTIONS, || {
        let hub = watch::hub();
        let dispatcher = dispatcher(&hub);
        let core = core(&hub, vec![vec![release(1, "jobs/a")], vec![release(2, "jobs/b")]]);
        let mut follower = follow(&hub);
        assert_eq!(read_up_to(&mut follower, 2), [1, 2]);
        core.join().unwrap();
        hub.close();
        dispatcher.join().unwrap();
    });
}

/// Goal: a wait that is dropped half-way, as `select!` drops it when a ping is due, takes no event along.
#[test]
fn a_follow_that_is_dropped_half_way_loses_nothing() {
    explore(PREEMPTIONS, || {
        let hub = watch::hub();
        let mut follower = follow(&hub);
        let dispatcher = dispatcher(&hub);
        let core = core(&hub, vec![vec![release(1, "jobs/a"), release(2, "jobs/b")]]);
        let mut seen = Vec::new();
        {
            let waker = Waker::from(Bell::new());
            let mut dropped = pin!(follower.follow());
            if let std::task::Poll::Ready(Progress::Events(events)) =
                dropped.as_mut().poll(&mut Context::from_waker(&waker))
            {
                seen.extend(events.iter().map(|shown| shown.event().id.revision));
            }
        }
        if seen.last() != Some(&2) {
            seen.extend(read_up_to(&mut follower, 2));
        }
        assert_eq!(seen, [1, 2]);
        core.join().unwrap();
        hub.close();
        dispatcher.join().unwrap();
    });
}

/// Goal: a node that stops ends each watch, however it sleeps, and the dispatcher.
#[test]
fn a_node_that_stops_ends_its_watches() {
    explore(PREEMPTIONS, || {
        let hub = watch::hub();
        let mut follower = follow(&hub);
        let dispatcher = dispatcher(&hub);
        let closer = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.close())
        };
        assert!(matches!(block_on(follower.follow()), Progress::Closed));
        closer.join().unwrap();
        dispatcher.join().unwrap();
    });
}
