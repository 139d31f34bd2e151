//! Many clients, and the resource that the locks protect.
//!
//! Each client is a thread with an event loop of its own. So one can be made to stand still, as a process does that is not
//! scheduled or collects garbage: it wakes up past the end of its lease, believes that it still holds the lock, and writes.
//! The resource refuses a token lower than the highest that it has seen: that is what fencing is for.
//!
//! Most take locks as programs do, with the Rust client and its guards. Which sessions these use, and what they give back
//! behind a caller's back, is not on record, so a checker can say little of their order. So others are [plain]: they open
//! sessions themselves, number what they ask for, repeat it, and record all of it. And some only [read](plain).

mod plain;

use std::collections::BTreeMap;
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
use crate::history::{self, Answer, Call, Recorder, Refusal};

/// On how many keys the clients meet.
const KEYS: usize = 4;

/// What was done, and what came of it.
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
    /// Requests of plain clients that were said again.
    pub(super) repeated: AtomicU64,
}

/// What all clients share.
pub(super) struct Field {
    endpoints: Mutex<Vec<String>>,
    stop: AtomicBool,
    resource: Mutex<BTreeMap<String, u64>>,
    recorder: Recorder,
    complaints: Mutex<Vec<String>>,
    pub(super) counts: Counts,
}

fn any_key(random: &mut SmallRng) -> String {
    format!("key-{}", random.random_range(0..KEYS))
}

fn more(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Field {
    pub(super) fn new(endpoints: Vec<String>, recorder: Recorder) -> Arc<Field> {
        Arc::new(Field {
            recorder,
            endpoints: Mutex::new(endpoints),
            stop: AtomicBool::new(false),
            resource: Mutex::default(),
            complaints: Mutex::default(),
            counts: Counts::default(),
        })
    }

    /// Where clients that come from now on find the cluster.
    pub(super) fn point_to(&self, endpoints: Vec<String>) {
        *self.endpoints.lock() = endpoints;
    }

    /// Starts clients: so many with guards, so many plain ones, so many readers. They go on until [`stop`](Field::stop).
    pub(super) fn clients(self: &Arc<Field>, [guarded, plain, readers]: [u64; 3], seed: u64) -> Vec<JoinHandle<()>> {
        let start = |number: u64| {
            let field = Arc::clone(self);
            let random = SmallRng::seed_from_u64(seed ^ (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            std::thread::spawn(move || {
                block_on(async {
                    if number < guarded {
                        field.work(random, number).await;
                    } else if number < guarded + plain {
                        plain::work(&field, random, number).await;
                    } else {
                        plain::read(&field, random, number).await;
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

    async fn work(&self, mut random: SmallRng, number: u64) {
        while !self.stops() {
            let endpoints = self.endpoints.lock().clone();
            let options = Options { request_timeout: Duration::from_secs(3), ..Options::default() };
            let Ok(client) = Client::connect(&endpoints, options).await else {
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            // Now and then a client comes back as another one.
            for _ in 0..random.random_range(20..200) {
                if self.stops() {
                    break;
                }
                self.once(&client, &mut random, number).await;
            }
            client.close().await;
        }
    }

    /// One lock, taken and given back.
    async fn once(&self, client: &Client, random: &mut SmallRng, number: u64) {
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
        // What is not answered with a grant is recorded as unknown, by being dropped: the client gives back what it may have
        // claimed, later and by itself. Some give up, and their place in the queue with it.
        let patience = if random.random_bool(0.1) { random.random_range(1..200) } else { 60_000 };
        let Ok(outcome) = timeout(Duration::from_millis(patience), client.lock(&key, options)).await else {
            return more(&self.counts.abandoned);
        };
        match outcome {
            Ok(guard) => {
                more(&self.counts.grants);
                asked.ok(Answer::Granted { session: session(&guard), token: guard.token() });
                self.hold(guard, &name, random, ttl).await;
            }
            Err(Error::Held { holder, .. }) => {
                more(&self.counts.held);
                match holder {
                    Some(holder) => asked.fail(Refusal::Held { token: holder.token }),
                    None => asked.info("held, and nobody said by whom"),
                }
                sleep(Duration::from_millis(random.random_range(0..20))).await;
            }
            Err(Error::TimedOut { .. }) => more(&self.counts.timed_out),
            Err(Error::Unreachable { .. }) => more(&self.counts.unreachable),
            // The leader's disk is full, as it is meant to be for a while. Most likely nothing was done, and nothing is claimed.
            Err(Error::Refused(failure)) if failure.error == Code::NoSpace => more(&self.counts.unreachable),
            Err(Error::Lost) => more(&self.counts.lost),
            Err(error) => self.complaints.lock().push(format!("client {number} was told: {error}")),
        }
    }

    /// Writes, holds the lock for a while, writes again, and gives it back.
    async fn hold(&self, guard: Guard, name: &history::Client, random: &mut SmallRng, ttl: Duration) {
        let write = || self.write(guard.key(), guard.token(), name, || guard.is_valid());
        write();
        if random.random_bool(0.02) {
            more(&self.counts.pauses);
            std::thread::sleep(ttl * 2);
        } else {
            sleep(Duration::from_millis(random.random_range(0..15))).await;
        }
        write();
        let (key, session, token) = (guard.key().into(), session(&guard), guard.token());
        let asked = self.recorder.invoke(name, Call::Release { key, session, token, number: None });
        if random.random_bool(0.1) {
            // Released in the background, and nobody hears how that went.
            return drop(guard);
        }
        match guard.release().await {
            Ok(()) => {
                more(&self.counts.releases);
                asked.ok(Answer::Released);
            }
            Err(Error::Lost) => more(&self.counts.lost),
            Err(_) => more(&self.counts.unreachable),
        }
    }

    /// The client believes that it holds the lock. As long as its lease is good, it does.
    fn write(&self, key: &str, token: u64, name: &history::Client, is_good: impl FnOnce() -> bool) {
        let mut resource = self.resource.lock();
        let access = self.recorder.invoke(name, Call::Access { key: key.into(), token });
        let highest = resource.entry(key.to_owned()).or_default();
        if token < *highest {
            more(&self.counts.stale);
            access.fail(Refusal::Refused);
            // Looked at last: if it is good now, it was good all along.
            if is_good() {
                let complaint =
                    format!("token {token} for {key} is within its lease, and {highest} has written already");
                self.complaints.lock().push(complaint);
            }
        } else {
            *highest = token;
            more(&self.counts.writes);
            access.ok(Answer::Accepted);
        }
    }

    /// Reads every key a last time: what was acknowledged and nobody looks at afterwards cannot be missed.
    pub(super) fn read_all(self: &Arc<Field>) {
        block_on(plain::read_all(self));
    }

    /// Whatever is wrong with what the clients themselves noticed.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().clone()
    }

    /// How many of each key must be granted, in any order, within a bound: nobody waits for ever once the faults are over.
    pub(super) fn everybody_is_granted(&self, each: usize, bound: Duration) -> Result<Duration, String> {
        let began = Instant::now();
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
            Ok(()) if began.elapsed() <= bound => Ok(began.elapsed()),
            Ok(()) => Err(format!("it took {:?} until everybody was granted", began.elapsed())),
            Err::<_, Error>(error) => Err(format!("somebody waits in vain after the faults: {error}")),
        }
    }
}

fn session(guard: &Guard) -> history::Session {
    guard.session().to_string().as_str().into()
}
