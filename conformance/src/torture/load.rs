//! The client load, and the resource that the locks protect.
//!
//! Each client is a thread with an event loop of its own, so that one can be paused, like a process
//! that is not scheduled or collects garbage: it wakes up past the end of its lease, believes that
//! it still holds the lock, and writes. The resource refuses a token lower than the highest that it
//! has seen: that is what fencing is for.
//!
//! Most clients take locks as programs do, with the Rust client and its guards. The history does
//! not show which sessions these use, nor what the Rust client releases in the background, so a
//! checker can say little about their order. Other clients are therefore [plain]: they open
//! sessions themselves, number and repeat their requests, and record all of them. Some clients only
//! [read](plain), and now and then break the grant that they have read, as operators do.

mod plain;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use palisade_client::wire::Code;
use palisade_client::{Client, Error, Guard, LockOptions, Options};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};

use super::operator::block_on;
use palisade_history::{self as history, Answer, Call, Recorder, Refusal};

/// Number of keys.
const KEYS: usize = 4;

/// Counts of operations and outcomes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) grants: AtomicU64,
    pub(super) releases: AtomicU64,
    pub(super) held: AtomicU64,
    pub(super) timed_out: AtomicU64,
    pub(super) unreachable: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) abandoned: AtomicU64,
    pub(super) pauses: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) stale: AtomicU64,
    /// Breaks of grants.
    pub(super) broken: AtomicU64,
    /// Breaks whose grant had ended, or was never made.
    pub(super) not_broken: AtomicU64,
    /// Requests that plain clients repeated.
    pub(super) repeated: AtomicU64,
}

/// The state that all clients share.
pub(super) struct Load {
    endpoints: Mutex<Vec<String>>,
    stop: AtomicBool,
    resource: Mutex<BTreeMap<String, u64>>,
    /// The tokens that breaks have named: such a grant may end within its lease.
    broken: Mutex<BTreeSet<u64>>,
    recorder: Recorder,
    complaints: Mutex<Vec<String>>,
    pub(super) counts: Counts,
}

fn any_key(random: &mut SmallRng) -> String {
    format!("key-{}", random.random_range(0..KEYS))
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Load {
    pub(super) fn new(endpoints: Vec<String>, recorder: Recorder) -> Arc<Load> {
        Arc::new(Load {
            recorder,
            endpoints: Mutex::new(endpoints),
            stop: AtomicBool::new(false),
            resource: Mutex::default(),
            broken: Mutex::default(),
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

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    async fn run_client(&self, mut random: SmallRng, number: u64) {
        while !self.stops() {
            let endpoints = self.endpoints.lock().clone();
            let timeout = Duration::from_secs(3);
            let options = Options { request_timeout: timeout, connect_timeout: timeout, ..Options::default() };
            let Ok(client) = Client::connect(&endpoints, options).await else {
                sleep(Duration::from_millis(100)).await;
                continue;
            };
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

    /// Acquires and releases one lock.
    async fn lock_once(&self, client: &Client, random: &mut SmallRng, number: u64) {
        let key = any_key(random);
        let ttl = Duration::from_millis(random.random_range(400..1500));
        let wait_ms = if random.random_bool(0.3) { 0 } else { random.random_range(50..3000) };
        let name = history::Client::from(format!("client-{number}").as_str());
        let mut options = LockOptions::default().ttl(ttl).owner(name.to_string());
        if wait_ms > 0 {
            options = options.wait(Duration::from_millis(wait_ms));
        }
        let ttl_ms = u64::try_from(ttl.as_millis()).ok();
        let call = Call::Acquire { key: key.as_str().into(), session: None, number: None, wait_ms, ttl_ms };
        let asked = self.recorder.invoke(&name, call);
        // Without a grant the operation is dropped, which records it as unknown: the Rust client
        // later releases by itself what it may have claimed. Some clients give up early, and with
        // that their queue position.
        let timeout_ms = if random.random_bool(0.1) { random.random_range(1..200) } else { 60_000 };
        let Ok(outcome) = timeout(Duration::from_millis(timeout_ms), client.lock(&key, options)).await else {
            return increment(&self.counts.abandoned);
        };
        match outcome {
            Ok(guard) => {
                increment(&self.counts.grants);
                asked.ok(Answer::Granted { session: session(&guard), token: guard.token() });
                self.hold(guard, &name, random, ttl).await;
            }
            Err(Error::Held { holder, .. }) => {
                increment(&self.counts.held);
                match holder {
                    Some(holder) => asked.fail(Refusal::Held { token: holder.token }),
                    None => asked.info("held by an unknown holder"),
                }
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

    /// Writes, holds the lock for a while, writes again, and releases it.
    async fn hold(&self, guard: Guard, name: &history::Client, random: &mut SmallRng, ttl: Duration) {
        let write = || self.write(guard.key(), guard.token(), name, || guard.is_valid());
        write();
        if random.random_bool(0.02) {
            increment(&self.counts.pauses);
            std::thread::sleep(ttl * 2);
        } else {
            sleep(Duration::from_millis(random.random_range(0..15))).await;
        }
        write();
        let (key, session, token) = (guard.key().into(), session(&guard), guard.token());
        let asked = self.recorder.invoke(name, Call::Release { key, session, token, number: None });
        if random.random_bool(0.1) {
            // Released in the background: no answer is recorded.
            return drop(guard);
        }
        match guard.release().await {
            Ok(()) => {
                increment(&self.counts.releases);
                asked.ok(Answer::Released);
            }
            Err(Error::Lost) => increment(&self.counts.lost),
            Err(_) => increment(&self.counts.unreachable),
        }
    }

    /// Writes to the resource. The client believes that it holds the lock; within its lease it must
    /// be right, unless an operator has broken its grant: the holder learns of that later.
    fn write(&self, key: &str, token: u64, name: &history::Client, is_good: impl FnOnce() -> bool) {
        let mut resource = self.resource.lock();
        let access = self.recorder.invoke(name, Call::Access { key: key.into(), token });
        let highest = resource.entry(key.to_owned()).or_default();
        if token < *highest {
            increment(&self.counts.stale);
            access.fail(Refusal::Refused);
            // Checked after the refusal: if the lease is valid now, it was valid at the write.
            if is_good() && !self.broken.lock().contains(&token) {
                let complaint = format!(
                    "the write to {key} with token {token} is within its lease, but token {highest} has written already"
                );
                self.complaints.lock().push(complaint);
            }
        } else {
            *highest = token;
            increment(&self.counts.writes);
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
            let client = Client::connect(&endpoints, Options::default()).await?;
            let mut waiters = tokio::task::JoinSet::new();
            for waiter in 0..each * KEYS {
                let client = client.clone();
                waiters.spawn(async move {
                    let options = LockOptions::default().ttl(Duration::from_secs(5)).wait(bound);
                    client.lock(format!("key-{}", waiter % KEYS), options).await?.release().await
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
