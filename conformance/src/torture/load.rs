//! The client load, and the resource that the locks protect.
//!
//! Each client is a thread with an event loop of its own, so that one can be paused, like a process
//! that is not scheduled or collects garbage: it wakes up past the end of its lease, believes that
//! it still holds the lock, and writes. The resource refuses a write with a token lower than the highest
//! that it has seen, and a read with one lower than that of a write: that is what fencing is for.
//! Permits of a semaphore fence nothing, so their holders leave it alone. Holders also write the record of
//! their lock in the key-value store, which does the same by itself.
//!
//! Most clients take locks as programs do, with the Rust client and its guards. The history does
//! not show which sessions these use, nor what the Rust client releases in the background, so a
//! checker can say little about their order. Other clients are therefore [plain]: they open
//! sessions themselves, number and repeat their requests, and record all of them. Some clients only
//! [read](plain), and now and then break the grant that they have read, as operators do.

mod counts;
mod followed;
mod lock_spec;
mod plain;
mod records;
pub(super) mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use palisade_client::wire::{Code, Consistency};
use palisade_client::{Client, Error, Guard, Options, Security};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};

use self::counts::{Counts, increment};
use self::lock_spec::{KEYS, LockSpec};
use super::operator::block_on;
use palisade_history::{self as history, Answer, Call, Recorder, Refusal};

/// The state that all clients share.
pub(super) struct Load {
    endpoints: Mutex<Vec<String>>,
    security: Security,
    stop: AtomicBool,
    /// Whether watchers shall end although they were not told of the end.
    watches_are_over: AtomicBool,
    resource: Mutex<BTreeMap<String, Highest>>,
    /// The tokens that breaks have named: such a grant may end within its lease.
    broken: Mutex<BTreeSet<u64>>,
    /// How many texts were written.
    texts: AtomicU64,
    recorder: Recorder,
    complaints: Mutex<Vec<String>>,
    pub(super) counts: Counts,
}

/// The highest tokens with which a resource was accessed, and written.
#[derive(Debug, Default)]
struct Highest {
    of_all: u64,
    of_writes: u64,
}

impl Load {
    pub(super) fn new(endpoints: Vec<String>, security: Security, recorder: Recorder) -> Arc<Load> {
        Arc::new(Load {
            recorder,
            endpoints: Mutex::new(endpoints),
            security,
            stop: AtomicBool::new(false),
            watches_are_over: AtomicBool::new(false),
            resource: Mutex::default(),
            broken: Mutex::default(),
            texts: AtomicU64::new(0),
            complaints: Mutex::default(),
            counts: Counts::default(),
        })
    }

    /// Sets the endpoints that new connections use.
    pub(super) fn point_to(&self, endpoints: Vec<String>) {
        *self.endpoints.lock() = endpoints;
    }

    /// Starts clients: with guards, plain ones, readers. They run until [`stop`](Load::stop).
    pub(super) fn clients(self: &Arc<Load>, [guarded, plain, readers]: [u64; 3], seed: u64) -> Vec<JoinHandle<()>> {
        let start = |number: u64| {
            let load = Arc::clone(self);
            let random = SmallRng::seed_from_u64(seed ^ (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            std::thread::spawn(move || {
                block_on(async {
                    if number < guarded {
                        load.run_client(random, number).await;
                    } else if number < guarded + plain {
                        plain::run_client(&load, random, number).await;
                    } else {
                        plain::run_reader(&load, random, number).await;
                    }
                });
            })
        };
        (0..guarded + plain + readers).map(start).collect()
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn end_watches(&self) {
        self.watches_are_over.store(true, Ordering::Relaxed);
    }

    fn watches_are_over(&self) -> bool {
        self.watches_are_over.load(Ordering::Relaxed)
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn options(&self) -> Options {
        Options { security: self.security.clone(), ..Options::default() }
    }

    /// Connects a client; if no node answers, after a pause for the next attempt.
    async fn connect(&self) -> Option<Client> {
        let endpoints = self.endpoints.lock().clone();
        let timeout = Duration::from_secs(3);
        let options = Options { request_timeout: timeout, connect_timeout: timeout, ..self.options() };
        let connected = Client::connect(&endpoints, options).await.ok();
        if connected.is_none() {
            sleep(Duration::from_millis(100)).await;
        }
        connected
    }

    async fn run_client(&self, mut random: SmallRng, number: u64) {
        while !self.stops() {
            let Some(client) = self.connect().await else { continue };
            // From time to time a client connects anew.
            for _ in 0..random.random_range(20..200) {
                if self.stops() {
                    break;
                }
                self.lock_once(&client, &mut random, number).await;
            }
            client.close().await;
        }
    }

    /// Acquires and releases one lock, or several together.
    async fn lock_once(&self, client: &Client, random: &mut SmallRng, number: u64) {
        let ttl = Duration::from_millis(random.random_range(400..1500));
        let wait_ms = if random.random_bool(0.3) { 0 } else { random.random_range(50..3000) };
        let spec = LockSpec::draw(random, wait_ms > 0);
        let name = history::Client::from(format!("client-{number}").as_str());
        let mut options = spec.options().ttl(ttl).owner(name.to_string());
        if wait_ms > 0 {
            options = options.wait(Duration::from_millis(wait_ms));
        }
        let ttl_ms = u64::try_from(ttl.as_millis()).ok();
        let (keys, mode, max_queue) = (spec.history_keys(), spec.mode, spec.max_queue);
        let call = Call::Acquire {
            keys,
            session: None,
            number: None,
            wait_ms,
            ttl_ms,
            mode,
            max_queue,
            reentrant: false,
            value: None,
        };
        let pending = self.recorder.invoke(&name, call);
        // Without a grant the operation is dropped, which records it as unknown: the Rust client
        // later releases by itself what it may have claimed. Some clients give up early, and with
        // that their queue position.
        let timeout_ms = if random.random_bool(0.1) { random.random_range(1..200) } else { 60_000 };
        let Ok(outcome) = timeout(Duration::from_millis(timeout_ms), client.lock(&spec.keys[..], options)).await else {
            return increment(&self.counts.abandoned);
        };
        match outcome {
            Ok(guard) => {
                self.counts.count_grant(&spec);
                pending.ok(Answer::Granted { session: session(&guard), token: guard.token() });
                if guard.keys() != spec.keys {
                    self.complaints.lock().push(format!("{name} asked for {:?}, and holds {guard:?}", spec.keys));
                }
                self.hold(client, guard, &spec, &name, random, ttl).await;
            }
            Err(Error::Held { holder, .. }) => {
                self.counts.count_held(wait_ms > 0);
                if wait_ms > 0 && max_queue.is_none() {
                    self.complaints.lock().push(format!("{name} would wait for {:?}, and was refused", spec.keys));
                }
                pending.fail(Refusal::Held { token: holder.map(|holder| holder.token) });
                sleep(Duration::from_millis(random.random_range(0..20))).await;
            }
            Err(Error::TimedOut { .. }) => increment(&self.counts.timed_out),
            Err(Error::Unreachable { .. }) => increment(&self.counts.unreachable),
            // The leader's disk is full, as an injected fault. Most likely nothing was done, and
            // nothing is claimed.
            Err(Error::Refused(failure)) if failure.error == Code::NoSpace => increment(&self.counts.unreachable),
            Err(Error::Lost) => increment(&self.counts.lost),
            Err(error) => self.complaints.lock().push(format!("client {number} got an unexpected error: {error}")),
        }
    }

    /// Uses the resource, holds the lock for a while, uses it again, and releases the lock.
    async fn hold(
        &self,
        client: &Client,
        mut guard: Guard,
        spec: &LockSpec,
        name: &history::Client,
        random: &mut SmallRng,
        ttl: Duration,
    ) {
        let key = &spec.keys[random.random_range(0..spec.keys.len())];
        let access = |guard: &Guard| self.access(key, spec, guard.token(), name, || guard.is_valid());
        access(&guard);
        let again = if random.random_bool(0.2) { self.hold_again(&guard, spec, name).await } else { None };
        if random.random_bool(0.2) {
            self.proclaim(&mut guard, key, name).await;
        }
        if random.random_bool(0.02) {
            increment(&self.counts.pauses);
            std::thread::sleep(ttl * 2);
        } else {
            sleep(Duration::from_millis(random.random_range(0..15))).await;
        }
        access(&guard);
        if random.random_bool(0.4) {
            self.write_record(client, &mut guard, key, spec, name, random).await;
        }
        if let Some(again) = again
            && self.release(again, false, spec, name, random).await
        {
            self.look_at_holds(client, &guard, key, name).await;
        }
        self.release(guard, true, spec, name, random).await;
    }

    /// Acquires what a guard holds once more.
    async fn hold_again(&self, guard: &Guard, spec: &LockSpec, name: &history::Client) -> Option<Guard> {
        // The Rust client gives it a number.
        let call = Call::Acquire {
            keys: spec.history_keys(),
            session: Some(session(guard)),
            number: Some(0),
            wait_ms: 0,
            ttl_ms: None,
            mode: spec.mode,
            max_queue: None,
            reentrant: true,
            value: None,
        };
        let pending = self.recorder.invoke(name, call);
        match guard.hold_again().await {
            Ok(again) => {
                increment(&self.counts.holds);
                increment(&self.counts.held_again);
                pending.ok(Answer::Granted { session: session(&again), token: again.token() });
                Some(again)
            }
            // The Rust client gives back a hold that it was not told of.
            Err(error) => {
                pending.info(error.to_string());
                None
            }
        }
    }

    /// Gives the grant of a guard another value.
    async fn proclaim(&self, guard: &mut Guard, key: &str, name: &history::Client) {
        let (session, token, value) = (session(guard), guard.token(), self.new_text());
        let given = value.as_str().into();
        let call = Call::Proclaim { key: key.into(), session, token, value: given, number: Some(0) };
        let pending = self.recorder.invoke(name, call);
        match guard.proclaim(value).await {
            Ok(()) => {
                increment(&self.counts.proclaimed);
                increment(&self.counts.proclaimed_by_guards);
                pending.ok(Answer::Proclaimed);
            }
            Err(error) => pending.info(error.to_string()),
        }
    }

    /// Releases a guard. Returns whether the client was told that it is released.
    async fn release(
        &self,
        guard: Guard,
        is_last: bool,
        spec: &LockSpec,
        name: &history::Client,
        random: &mut SmallRng,
    ) -> bool {
        let (keys, session, token) = (spec.history_keys(), session(&guard), guard.token());
        let pending = self.recorder.invoke(name, Call::Release { keys, session, token, number: None });
        if random.random_bool(0.1) {
            // Released in the background: no answer is recorded.
            drop(guard);
            return false;
        }
        let released = guard.release().await;
        match &released {
            Ok(()) if is_last => {
                increment(&self.counts.releases);
                pending.ok(Answer::Released);
            }
            Ok(()) => pending.info("the guard does not tell how many holds are left"),
            Err(Error::Lost) => increment(&self.counts.lost),
            Err(_) => increment(&self.counts.unreachable),
        }
        released.is_ok()
    }

    /// Complains if the lock of a guard, one of whose two holds was given back, is not held once.
    async fn look_at_holds(&self, client: &Client, guard: &Guard, key: &str, name: &history::Client) {
        // A lock that is not shown as this guard's is lost; and without an answer the read shows nothing.
        let Ok(lock) = client.show_lock(key, Consistency::Linearizable).await else { return };
        let holder = lock.holders.iter().find(|holder| holder.token == guard.token());
        if let Some(holder) = holder.filter(|holder| holder.holds != 1) {
            self.complaints.lock().push(format!(
                "{name} has given back one of two holds of {key}, but token {} has {} holds",
                holder.token, holder.holds
            ));
        }
    }

    /// Writes to the resource, or reads it. The client believes that it holds the lock; within its lease it
    /// must be right, unless an operator has broken its grant: the holder learns of that later.
    fn access(&self, key: &str, spec: &LockSpec, token: u64, name: &history::Client, is_good: impl FnOnce() -> bool) {
        let Some(reads) = spec.access_reads() else { return };
        let mut resource = self.resource.lock();
        let access = self.recorder.invoke(name, Call::Access { key: key.into(), token, reads });
        let highest = resource.entry(key.to_owned()).or_default();
        let fence = if reads { highest.of_writes } else { highest.of_all };
        if token < fence {
            increment(&self.counts.stale);
            access.fail(Refusal::Refused);
            // Checked after the refusal: if the lease is valid now, it was valid at the access.
            if is_good() && !self.broken.lock().contains(&token) {
                let complaint = format!(
                    "the access to {key} with token {token} is within its lease, but token {fence} has been there already"
                );
                self.complaints.lock().push(complaint);
            }
        } else {
            highest.of_all = highest.of_all.max(token);
            if !reads {
                highest.of_writes = token;
            }
            increment(if reads { &self.counts.reads } else { &self.counts.writes });
            access.ok(Answer::Accepted);
        }
    }

    /// Reads every key a last time: a checker cannot miss an acknowledged change that no later read
    /// shows.
    pub(super) fn read_all(self: &Arc<Load>) {
        block_on(plain::read_all(self));
    }

    /// Violations that the clients themselves noticed.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().clone()
    }

    /// Starts this many waiters for each key. All must be granted within the bound: after the
    /// faults, no waiter may be forgotten. Returns the time until the last grant.
    pub(super) fn await_all_granted(&self, each: usize, bound: Duration) -> Result<Duration, String> {
        let started = Instant::now();
        let endpoints = self.endpoints.lock().clone();
        let granted = block_on(async {
            let client = Client::connect(&endpoints, self.options()).await?;
            let mut waiters = tokio::task::JoinSet::new();
            let mut random = SmallRng::seed_from_u64(0);
            for waiter in 0..each * KEYS {
                let (client, spec) = (client.clone(), LockSpec::of_key(waiter % KEYS, &mut random));
                waiters.spawn(async move {
                    let options = spec.options().ttl(Duration::from_secs(5)).wait(bound);
                    client.lock(&spec.keys[..], options).await?.release().await
                });
            }
            while let Some(outcome) = waiters.join_next().await {
                outcome.expect("a waiter does not panic")?;
            }
            client.close().await;
            Ok(())
        });
        match granted {
            Ok(()) if started.elapsed() <= bound => Ok(started.elapsed()),
            Ok(()) => {
                Err(format!("the last waiter was granted after {:?}, which is later than {bound:?}", started.elapsed()))
            }
            Err::<_, Error>(error) => Err(format!("a waiter was not granted after the faults: {error}")),
        }
    }
}

fn session(guard: &Guard) -> history::Session {
    guard.session().number().to_string().as_str().into()
}
