//! Clients that follow all locks and records through every fault.
//!
//! Each goes on where it was, at any node, with connections that it replaces now and then. At the end, what each was
//! told is judged ([`followed`](super::followed)).

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use palisade_client::Client;
use palisade_client::wire::{Answer, Listing, Op, RecordChange, Transaction, Watch, Watched};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};

use super::followed::{END, Watcher};
use super::{Load, block_on};

/// What all keys of the load begin with.
const PREFIX: &str = "key-";
/// How long a watcher waits for an event before it looks whether it shall end.
const LOOK: Duration = Duration::from_millis(200);

/// Watchers that run until they are told of the end, or this is dropped.
pub(in crate::torture) struct Watches {
    load: Arc<Load>,
    threads: Vec<JoinHandle<Watcher>>,
}

impl Watches {
    pub(in crate::torture) fn start(load: &Arc<Load>, count: u64, seed: u64) -> Watches {
        let start = |number: u64| {
            let load = Arc::clone(load);
            let random = SmallRng::seed_from_u64(seed ^ (number + 1).wrapping_mul(0xD134_2543_DE82_EF95));
            std::thread::spawn(move || block_on(follow(&load, random, number)))
        };
        Watches { load: Arc::clone(load), threads: (0..count).map(start).collect() }
    }

    /// Ends the watchers, and judges what they were told.
    ///
    /// # Errors
    /// If no leader answers, or a watcher is not told of the last change within `bound`.
    pub(in crate::torture) fn end(mut self, bound: Duration) -> Result<(), String> {
        let begun = Instant::now();
        let listing = block_on(listing(&self.load, bound))?;
        block_on(write_end(&self.load, bound))?;
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            if begun.elapsed() > bound {
                self.load.end_watches();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let watchers: Result<Vec<Watcher>, _> = self.threads.drain(..).map(JoinHandle::join).collect();
        let watchers = watchers.map_err(|_| "a watcher panicked".to_owned())?;
        if let Some(late) = watchers.iter().find(|watcher| !watcher.is_complete) {
            return Err(format!("{} was not told of the last change within {bound:?}", late.name));
        }
        let mut complaints = self.load.complaints.lock();
        for (index, watcher) in watchers.iter().enumerate() {
            complaints.extend(watcher.complaints.iter().cloned());
            complaints.extend(watcher.check(&listing));
            watchers[index + 1..].iter().for_each(|other| complaints.extend(watcher.compare(other)));
        }
        Ok(())
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.load.end_watches();
    }
}

async fn follow(load: &Load, mut random: SmallRng, number: u64) -> Watcher {
    let mut watcher = Watcher::new(format!("watcher-{number}"));
    let mut position = None;
    while !watcher.is_complete && !load.watches_are_over() {
        let Some(client) = load.connect().await else { continue };
        let watch = Watch { after: position, ..Watch::prefix(PREFIX) };
        let mut watch = client.watch(watch);
        // Then another connection goes on: the nodes may be others by now.
        let until = Instant::now() + Duration::from_millis(random.random_range(500..5_000));
        while !watcher.is_complete && Instant::now() < until {
            if let Ok(Ok(watched)) = timeout(LOOK, watch.next()).await {
                watcher.note(load, watched);
            }
        }
        position = watch.position();
        drop(watch);
        client.close().await;
    }
    watcher
}

/// The present state, as a watch of another client begins with it.
async fn listing(load: &Load, bound: Duration) -> Result<Listing, String> {
    let endpoints = load.endpoints.lock().clone();
    let client = Client::connect(&endpoints, load.options()).await.map_err(|error| error.to_string())?;
    let first = timeout(bound, client.watch(Watch::prefix(PREFIX)).next()).await;
    match first.map_err(|_| format!("no listing came within {bound:?}"))?.map_err(|error| error.to_string())? {
        Watched::Listing(listing) if listing.begins && listing.complete => Ok(listing),
        other => Err(format!("a watch begins with a listing, and not with {other:?}")),
    }
}

/// Changes the record that ends all watches.
async fn write_end(load: &Load, bound: Duration) -> Result<(), String> {
    let change = RecordChange::Put { key: END.to_owned(), value: "end".into() };
    let transaction = Transaction { changes: vec![change], ..Transaction::default() };
    let begun = Instant::now();
    let mut why = String::new();
    while begun.elapsed() < bound {
        let endpoints = load.endpoints.lock().clone();
        for endpoint in endpoints {
            let op = Op::Transact { transaction: transaction.clone(), number: None };
            match load.security.ask(&endpoint, op, Duration::from_secs(2)).await {
                Ok(Answer::Written { .. }) => return Ok(()),
                Ok(other) => why = format!("{other:?}"),
                Err(error) => why = error.to_string(),
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    Err(format!("no leader took the change that ends the watches within {bound:?}: {why}"))
}
