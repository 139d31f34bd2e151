//! The bounded queue from the core to the tasks that write.

#[allow(
    dead_code,
    unreachable_pub,
    clippy::module_inception,
    reason = "the server's file, of which each test uses its part"
)]
#[path = "../../src/outbox.rs"]
mod outbox;

use std::pin::pin;
use std::task::{Context, Waker};

use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use outbox::{Outbox, Rejected};

use crate::{Bell, block_on, explore};

/// Preemptions in the tests of three threads.
const PREEMPTIONS: usize = 4;

/// An item: its producer, and its number there.
type Item = (u8, u8);

/// A thread that pushes items 0 to `count`, and returns those that were taken in, and why another
/// one was not.
fn produce(outbox: &Arc<Outbox<Item>>, producer: u8, count: u8) -> JoinHandle<(Vec<Item>, Vec<Rejected>)> {
    let outbox = Arc::clone(outbox);
    thread::spawn(move || {
        let (mut accepted, mut rejected) = (Vec::new(), Vec::new());
        for number in 0..count {
            match outbox.push((producer, number)) {
                Ok(()) => accepted.push((producer, number)),
                Err(why) => rejected.push(why),
            }
        }
        (accepted, rejected)
    })
}

/// What one producer pushed, in the order in which it was taken.
fn of(producer: u8, taken: &[Item]) -> Vec<Item> {
    taken.iter().copied().filter(|&(from, _)| from == producer).collect()
}

/// Goal: one thread pushes and closes while the other takes, in every order there is. Every item
/// arrives, once and in order, then the end; and the consumer is always woken, or this would never
/// end.
#[test]
fn one_producer_and_the_consumer_in_every_order() {
    loom::model(|| {
        let outbox = Arc::new(Outbox::new(2));
        let producer = {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || {
                assert_eq!(outbox.push(0), Ok(()));
                assert_eq!(outbox.push(1), Ok(()));
                outbox.close();
                assert_eq!(outbox.push(2), Err(Rejected::Closed));
            })
        };
        let mut taken = Vec::new();
        while block_on(outbox.take(&mut taken)) {}
        assert_eq!(taken, [0, 1]);
        producer.join().unwrap();
    });
}

/// Goal: two threads push while the consumer goes to sleep again and again. It gets everything, each
/// item once, each producer's in order; and it is always woken, or this would never end.
#[test]
fn nothing_is_lost_repeated_or_reordered_and_the_consumer_is_always_woken() {
    explore(PREEMPTIONS, || {
        let outbox = Arc::new(Outbox::new(8));
        let producers = [produce(&outbox, 0, 2), produce(&outbox, 1, 1)];
        let mut taken = Vec::new();
        while taken.len() < 3 {
            let before = taken.len();
            assert!(block_on(outbox.take(&mut taken)), "the end of an outbox that is not closed");
            assert!(taken.len() > before, "the consumer was woken for nothing");
        }
        for (producer, pushing) in (0..).zip(producers) {
            let (accepted, rejected) = pushing.join().unwrap();
            assert_eq!(rejected, []);
            assert_eq!(of(producer, &taken), accepted);
        }
    });
}

/// Goal: an outbox never holds more than it may. A sender that finds it full is told so, and
/// what was taken in is what is taken out.
#[test]
fn the_bound_holds() {
    explore(PREEMPTIONS, || {
        let outbox = Arc::new(Outbox::new(2));
        let producers = [produce(&outbox, 0, 2), produce(&outbox, 1, 2)];
        let mut taken = Vec::new();
        assert!(block_on(outbox.take(&mut taken)));
        assert!(taken.len() <= 2, "{taken:?} were in an outbox for two");
        let [first, second] = producers.map(|pushing| pushing.join().unwrap());
        outbox.close();
        let already = taken.len();
        while block_on(outbox.take(&mut taken)) {}
        assert!(taken.len() - already <= 2, "{taken:?} after {already} were in an outbox for two");
        for (producer, (accepted, rejected)) in [(0, first), (1, second)] {
            assert_eq!(of(producer, &taken), accepted);
            assert!(rejected.iter().all(|&why| why == Rejected::Full), "{rejected:?}");
        }
        // Four do not fit in two and what one take makes room for, unless that take came late
        // enough.
        assert!(taken.len() >= 2, "an empty outbox refused {taken:?}");
    });
}

/// Goal: closing races with pushing and with a consumer that sleeps. The consumer gets exactly what was
/// taken in before, then the end; a sender that comes later is told that it is closed,
/// and so is every sender after that.
#[test]
fn a_closed_outbox_is_emptied_and_then_ends() {
    explore(PREEMPTIONS, || {
        let outbox = Arc::new(Outbox::new(8));
        let producer = produce(&outbox, 0, 2);
        let closer = {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || outbox.close())
        };
        let mut taken = Vec::new();
        while block_on(outbox.take(&mut taken)) {}
        // The end is the end: nothing comes after it, not even from a push that began before.
        assert!(outbox.is_closed());
        assert_eq!(outbox.push((9, 9)), Err(Rejected::Closed));
        let (accepted, rejected) = producer.join().unwrap();
        closer.join().unwrap();
        assert_eq!(taken, accepted, "taken, and accepted");
        assert!(rejected.iter().all(|&why| why == Rejected::Closed), "{rejected:?}");
        assert_eq!(accepted, [(0, 0), (0, 1)][..accepted.len()], "pushed after a push that was refused");
        assert!(!block_on(outbox.take(&mut taken)));
    });
}

/// Goal: a `take` that is dropped half-way, as `select!` drops it when a ping is due, takes nothing
/// along: the next one gets everything, and is woken though the waker that a push finds may be that
/// of the dropped one.
#[test]
fn a_take_that_is_dropped_half_way_loses_nothing() {
    loom::model(|| {
        let outbox = Arc::new(Outbox::new(8));
        let producer = produce(&outbox, 0, 2);
        let mut taken = Vec::new();
        {
            let waker = Waker::from(Bell::new());
            let mut dropped = pin!(outbox.take(&mut taken));
            let _ = dropped.as_mut().poll(&mut Context::from_waker(&waker));
        }
        while taken.len() < 2 {
            assert!(block_on(outbox.take(&mut taken)));
        }
        assert_eq!(taken, producer.join().unwrap().0);
    });
}

/// Goal: throwing away what is there, as a new connection to a peer does, leaves an outbox that
/// works: what comes later is taken, in order, and wakes the consumer.
#[test]
fn a_cleared_outbox_goes_on() {
    explore(PREEMPTIONS, || {
        let outbox = Arc::new(Outbox::new(2));
        let producer = produce(&outbox, 0, 2);
        let late = {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || {
                outbox.clear();
                // The producer may fill the outbox after the clearing; then this one has no place
                // in it.
                let pushed = outbox.push((1, 0));
                outbox.close();
                pushed
            })
        };
        let mut taken = Vec::new();
        while block_on(outbox.take(&mut taken)) {}
        let (accepted, _) = producer.join().unwrap();
        let pushed = late.join().unwrap();
        let left = of(0, &taken);
        let mut rest = accepted.iter();
        assert!(left.iter().all(|item| rest.any(|other| other == item)), "{left:?} of {accepted:?}");
        assert_eq!(of(1, &taken).len(), usize::from(pushed.is_ok()));
    });
}
