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

mod followed;
mod lock_spec;
mod plain;
pub(super) mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use palisade_client::wire::{Code, Consistency, Failure};
use palisade_client::{Client, Error, Guard, Options, Security};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};

use super::operator::block_on;
use crate::transactions;
use lock_spec::{KEYS, LockSpec, any_key};
use palisade_history::{self as history, Answer, Call, Change, Condition, Pending, RecordChange, Recorder, Refusal};

/// How many of the transactions compare the version of a record, which the client reads before.
const COMPARES: f64 = 0.4;

/// Counts of operations and outcomes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) grants: AtomicU64,
    /// Of the grants: shared ones, permits of a semaphore, and grants of several keys.
    pub(super) shared: AtomicU64,
    pub(super) permits: AtomicU64,
    pub(super) several: AtomicU64,
    /// Holds that were added to grants.
    pub(super) holds: AtomicU64,
    /// Of them, those of guards.
    pub(super) held_again: AtomicU64,
    /// Acquires refused because of a long queue.
    pub(super) short_queues: AtomicU64,
    pub(super) releases: AtomicU64,
    pub(super) held: AtomicU64,
    pub(super) timed_out: AtomicU64,
    pub(super) unreachable: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) abandoned: AtomicU64,
    pub(super) pauses: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) stale: AtomicU64,
    /// Transactions, and those that were refused or not answered.
    pub(super) changes: AtomicU64,
    pub(super) not_changed: AtomicU64,
    /// Of the transactions: those that changed two records, those that compared a version.
    pub(super) of_two_records: AtomicU64,
    pub(super) compared: AtomicU64,
    /// Of those that were refused: those that compared another version than the record's.
    pub(super) other_version: AtomicU64,
    /// Reads of records.
    pub(super) record_reads: AtomicU64,
    /// Values that replaced those of grants.
    pub(super) proclaimed: AtomicU64,
    /// Of them, by guards.
    pub(super) proclaimed_by_guards: AtomicU64,
    /// Breaks of grants.
    pub(super) broken: AtomicU64,
    /// Breaks whose grant had ended, or was never made.
    pub(super) not_broken: AtomicU64,
    /// Events that watchers were told of.
    pub(super) events: AtomicU64,
    /// Listings with which they began, or went on behind a gap.
    pub(super) listings: AtomicU64,
    /// Requests that plain clients repeated.
    pub(super) repeated: AtomicU64,
}

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

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    fn count_grant(&self, spec: &LockSpec) {
        increment(&self.grants);
        match spec.mode {
            history::Mode::Exclusive => {}
            history::Mode::Shared => increment(&self.shared),
            history::Mode::Semaphore { .. } => increment(&self.permits),
        }
        if spec.keys.len() > 1 {
            increment(&self.several);
        }
    }

    fn count_change(&self, transaction: &Call) {
        increment(&self.changes);
        if transaction.changes().count() > 1 {
            increment(&self.of_two_records);
        }
        if transaction.must_have().next().is_some() {
            increment(&self.compared);
        }
    }

    /// The acquire was refused without a wait, or because of its bound on the queue.
    fn count_held(&self, waits: bool) {
        increment(if waits { &self.short_queues } else { &self.held });
    }
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

    /// Changes the record of a lock that a guard holds, or held.
    async fn write_record(
        &self,
        client: &Client,
        guard: &mut Guard,
        key: &str,
        spec: &LockSpec,
        name: &history::Client,
        random: &mut SmallRng,
    ) {
        let read = if random.random_bool(COMPARES) { self.read_version(client, key, name).await } else { None };
        let mut call = self.draw_transaction(key, spec, guard.token(), read, random);
        let transaction = transactions::on_wire(&call);
        // The guard adds the condition that its lock is held, and gives the transaction a number.
        if let Call::WriteRecord { token, number, .. } = &mut call {
            (*token, *number) = (Some(guard.token()), Some(0));
        }
        let pending = self.recorder.invoke(name, call.clone());
        match guard.transact(transaction).await {
            Ok(version) => {
                self.counts.count_change(&call);
                return pending.ok(Answer::Written { version });
            }
            // The number is used up: no attempt has done it, or will.
            Err(Error::Refused(failure)) if failure.error == Code::OtherVersion => {
                self.end_by_other_version(pending, name, failure);
            }
            // An attempt whose answer was lost may have done it.
            Err(error) => pending.info(error.to_string()),
        }
        increment(&self.counts.not_changed);
    }

    /// A transaction was refused because of another version, which the refusal must name.
    fn end_by_other_version(&self, pending: Pending, name: &history::Client, failure: Failure) {
        increment(&self.counts.other_version);
        if let Some(version) = failure.version {
            return pending.fail(Refusal::OtherVersion { version });
        }
        let complaint = format!("{name} was refused because of a version that is not named: {}", failure.message);
        self.complaints.lock().push(complaint);
        pending.info(failure.message);
    }

    /// Reads a record with the Rust client, and returns its version; 0 if it does not exist.
    async fn read_version(&self, client: &Client, key: &str, name: &history::Client) -> Option<u64> {
        let pending = self.recorder.invoke(name, Call::ReadRecord { record: key.into(), stale: false });
        // Without an answer the operation is dropped, which records it as unknown.
        let record = client.record(key, Consistency::Linearizable).await.ok()?;
        increment(&self.counts.record_reads);
        pending.ok(record.as_ref().map_or(Answer::NoRecord, transactions::shown));
        Some(record.map_or(0, |record| record.version))
    }

    /// A transaction under a grant, without the token of its first record's lock: it changes the record of a lock,
    /// sometimes together with another record, whose lock the grant may be of too. If the client has read a version of
    /// the record, it compares that one, or a wrong one.
    fn draw_transaction(
        &self,
        key: &str,
        spec: &LockSpec,
        token: u64,
        read: Option<u64>,
        random: &mut SmallRng,
    ) -> Call {
        let (mut also, mut conditions) = (Vec::new(), Vec::new());
        if random.random_bool(0.4) {
            let own = spec.keys.iter().find(|other| *other != key).cloned();
            let other = own.filter(|_| random.random_bool(0.7)).unwrap_or_else(|| any_key(random));
            if spec.keys.contains(&other) && other != key {
                conditions.push(Condition::Held { lock: other.as_str().into(), token });
            }
            if other != key {
                also.push(RecordChange { record: other.as_str().into(), change: self.draw_change(random) });
            }
        }
        conditions.extend(read.map(|version| {
            let version = match random.random_range(0..8) {
                0 => version + 1,
                1 => version.saturating_sub(1),
                _ => version,
            };
            Condition::Version { key: key.into(), version }
        }));
        let (record, change) = (key.into(), self.draw_change(random));
        Call::WriteRecord { record, change, also, token: None, conditions, session: None, number: None }
    }

    /// A text that nothing else has.
    fn new_text(&self) -> String {
        format!("{};", self.texts.fetch_add(1, Ordering::Relaxed))
    }

    /// No two changes write the same text.
    fn draw_change(&self, random: &mut SmallRng) -> Change {
        let text = self.new_text();
        match random.random_range(0..20) {
            0 => Change::Delete,
            1..4 => Change::Put(text.as_str().into()),
            _ => Change::Append(text.as_str().into()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_history::End;

    #[test]
    fn refusal_that_names_no_version_is_a_complaint() {
        for version in [Some(3), None] {
            let recorder = Recorder::in_memory();
            let load = Load::new(Vec::new(), Security::default(), recorder.clone());
            let conditions = vec![Condition::Version { key: "k".into(), version: 1 }];
            let (record, change) = ("k".into(), Change::Delete);
            let call = Call::WriteRecord {
                record,
                change,
                also: Vec::new(),
                token: None,
                conditions,
                session: None,
                number: None,
            };
            let name = "a".into();
            let failure = Failure { version, ..Failure::new(Code::OtherVersion, "another version".to_owned()) };
            load.end_by_other_version(recorder.invoke(&name, call), &name, failure);
            let history = recorder.history().unwrap();
            let (_, end) = history.operations[0].end.as_ref().unwrap();
            match version {
                Some(version) => assert_eq!(*end, End::Fail(Refusal::OtherVersion { version })),
                None => assert!(matches!(end, End::Info(_)), "{end:?}"),
            }
            assert_eq!(load.complaints().len(), usize::from(version.is_none()));
        }
    }
}
