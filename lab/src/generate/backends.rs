//! How many locks at once are acquired on each backend.
//!
//! | backend | how |
//! |---|---|
//! | redis | `SET key owner NX PX ttl`, 1,000 in a pipeline |
//! | etcd | one lock on a lease: a lease and a put for each, 16 at a time on each of 16 connections; many locks: transactions of 128 puts |
//! | palisade | acquires over WebSockets to the leader, 500 on their way at a time on each; one lock on a session: the acquire opens it |
//! | the others | by the lab's lock library, 32 at a time; the handles are dropped, so that locks end with their TTL |

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client as Etcd, Compare, CompareOp, Error as EtcdError, PutOptions, Txn, TxnOp};
use futures_util::StreamExt;
use futures_util::stream::iter;
use palisade_client::wire::{Acquire, Answer, Code, Op, OpenSession, Outcome};
use redis::aio::MultiplexedConnection;

use super::fill::Fill;
use crate::dlock::{self, Backend, Locks, Request};

const OWNER: &str = "gen";
const REDIS_CONNECTIONS: usize = 4;
const ETCD_CONNECTIONS: usize = 16;
const PALISADE_CONNECTIONS: usize = 2;
/// Puts in a transaction: etcd's default maximum.
const TXN: usize = 128;
/// Requests on their way on a connection of etcd's, and of Palisade's.
const ETCD_AT_ONCE: usize = 16;
const PALISADE_AT_ONCE: usize = 500;
const LIBRARY_AT_ONCE: usize = 32;
/// How long a server of Palisade may take to send the next answer.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a batch of another backend may take.
const BATCH: Duration = Duration::from_secs(60);
/// Attempts at what a server left unanswered.
const ATTEMPTS: usize = 10;
/// The pause before another attempt.
const RETRY: Duration = Duration::from_millis(200);
/// gRPC's code of a server that cannot be reached, or that could not apply a request in time.
const UNAVAILABLE: i32 = 14;

/// The refusal that ends the fill.
type Refusal = Option<String>;

/// The workers of a fill.
pub(super) struct Fillers {
    /// Keys that a worker takes at a time.
    pub(super) batch: u64,
    pub(super) workers: Vec<Filler>,
}

/// A worker with its connection.
pub(super) enum Filler {
    Redis(Fill, MultiplexedConnection),
    Etcd(Fill, Box<Etcd>),
    Palisade(Fill),
    Library(Fill, Arc<dyn Locks>),
}

impl Filler {
    pub(super) async fn connect(fill: &Fill) -> Result<Fillers, String> {
        let mut workers = Vec::new();
        let batch = match fill.backend {
            Backend::Redis => {
                let client = redis::Client::open(format!("redis://{}/", fill.endpoints[0])).map_err(text)?;
                for _ in 0..REDIS_CONNECTIONS {
                    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
                    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
                    workers.push(Filler::Redis(fill.clone(), connection.map_err(text)?));
                }
                1_000
            }
            Backend::Etcd => {
                for _ in 0..ETCD_CONNECTIONS {
                    let client = Etcd::connect(&fill.endpoints, None).await.map_err(text)?;
                    workers.push(Filler::Etcd(fill.clone(), Box::new(client)));
                }
                if fill.share > 1 { fill.share } else { 200 }
            }
            Backend::Palisade => {
                leader(&fill.endpoints).await?;
                workers.extend((0..PALISADE_CONNECTIONS).map(|_| Filler::Palisade(fill.clone())));
                if fill.share > 1 { fill.share } else { 10_000 }
            }
            backend => {
                // A Redlock instance that answers late under this load is to give its vote all the same.
                let instance_timeout = Duration::from_secs(5);
                let options = dlock::Options { instance_timeout, ..dlock::Options::default() };
                let locks = dlock::connect(backend, &fill.endpoints, &options).map_err(text)?;
                workers.push(Filler::Library(fill.clone(), locks));
                1_000
            }
        };
        Ok(Fillers { batch, workers })
    }

    /// Locks the keys with these numbers, and counts them in `taken`.
    pub(super) async fn take(&mut self, numbers: Range<u64>, taken: &AtomicU64) -> Refusal {
        match self {
            // It waits for each answer as long as `ANSWER`, and repeats what was left unanswered.
            Filler::Palisade(fill) => sessions(fill, numbers, taken).await,
            _ => {
                let late = |_| Some(format!("the server did not answer a batch within {} s", BATCH.as_secs()));
                tokio::time::timeout(BATCH, self.batch(numbers, taken)).await.unwrap_or_else(late)
            }
        }
    }

    async fn batch(&mut self, numbers: Range<u64>, taken: &AtomicU64) -> Refusal {
        match self {
            Filler::Redis(fill, connection) => pipeline(fill, connection, numbers, taken).await,
            Filler::Etcd(fill, client) if fill.share > 1 => transactions(fill, client, numbers, taken).await,
            Filler::Etcd(fill, client) => {
                let one = |number| leased(fill, client, number);
                at_once(ETCD_AT_ONCE, numbers, taken, one).await
            }
            Filler::Palisade(fill) => sessions(fill, numbers, taken).await,
            Filler::Library(fill, locks) => {
                let one = |number| library(fill, locks.as_ref(), number);
                at_once(LIBRARY_AT_ONCE, numbers, taken, one).await
            }
        }
    }
}

/// Acquires locks one by one, several at a time.
async fn at_once<F>(count: usize, numbers: Range<u64>, taken: &AtomicU64, one: impl Fn(u64) -> F) -> Refusal
where
    F: Future<Output = Result<(), String>>,
{
    let mut outcomes = iter(numbers).map(one).buffer_unordered(count);
    let mut refusal = None;
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            Ok(()) => add(taken, 1),
            Err(refused) => {
                refusal.get_or_insert(refused);
            }
        }
    }
    refusal
}

fn add(taken: &AtomicU64, count: usize) {
    taken.fetch_add(count as u64, Ordering::Relaxed);
}

async fn pipeline(
    fill: &Fill,
    connection: &mut MultiplexedConnection,
    numbers: Range<u64>,
    taken: &AtomicU64,
) -> Refusal {
    let mut pipeline = redis::Pipeline::new();
    let ttl = u64::try_from(fill.lasts.ttl().as_millis()).unwrap_or(u64::MAX);
    for number in numbers {
        pipeline.cmd("SET").arg(fill.key(number)).arg(OWNER).arg("NX").arg("PX").arg(ttl);
    }
    match pipeline.query_async::<Vec<Option<String>>>(connection).await {
        Ok(answers) => {
            add(taken, answers.iter().flatten().count());
            None
        }
        Err(error) => Some(text(error)),
    }
}

/// One lock by the lab's library.
async fn library(fill: &Fill, locks: &dyn Locks, number: u64) -> Result<(), String> {
    let (ttl, wait) = (fill.lasts.ttl(), Duration::ZERO);
    let request = Request { owner: OWNER.to_owned(), ttl, wait };
    locks.acquire(&fill.key(number), &request).await.map(drop).map_err(text)
}

/// Sends a request to etcd, again if no server could be reached or it was not applied in time. Returns whether it was sent
/// again: an earlier attempt may have been applied.
async fn asked<T, F>(mut request: impl FnMut() -> F) -> Result<(T, bool), String>
where
    F: Future<Output = Result<T, EtcdError>>,
{
    let mut attempts = 0;
    loop {
        attempts += 1;
        match request().await {
            Ok(answer) => return Ok((answer, attempts > 1)),
            Err(EtcdError::GRpcStatus(status)) if i32::from(status.code()) == UNAVAILABLE && attempts < ATTEMPTS => {
                tokio::time::sleep(RETRY).await;
            }
            Err(error) => return Err(text(error)),
        }
    }
}

async fn lease(fill: &Fill, client: &Etcd) -> Result<i64, String> {
    let grant = || {
        let mut leases = client.lease_client();
        async move { leases.grant(seconds(fill), None).await }
    };
    asked(grant).await.map(|(lease, _)| lease.id())
}

/// Puts all of the keys under the lease if all of them are absent.
async fn put(client: &Etcd, keys: &[String], lease: i64) -> Result<(), String> {
    let absent: Vec<_> = keys.iter().map(|key| Compare::create_revision(key.as_str(), CompareOp::Equal, 0)).collect();
    let leased = || Some(PutOptions::new().with_lease(lease));
    let puts: Vec<_> = keys.iter().map(|key| TxnOp::put(key.as_str(), OWNER, leased())).collect();
    let txn = Txn::new().when(absent).and_then(puts);
    let request = || {
        let (mut kv, txn) = (client.kv_client(), txn.clone());
        async move { kv.txn(txn).await }
    };
    match asked(request).await? {
        (answer, again) if answer.succeeded() || again => Ok(()),
        _ => Err(format!("{} or a key of its batch is held", keys[0])),
    }
}

/// One lock on a lease of its own.
async fn leased(fill: &Fill, client: &Etcd, number: u64) -> Result<(), String> {
    put(client, &[fill.key(number)], lease(fill, client).await?).await
}

/// Many locks on one lease, in transactions.
async fn transactions(fill: &Fill, client: &Etcd, numbers: Range<u64>, taken: &AtomicU64) -> Refusal {
    let lease = match lease(fill, client).await {
        Ok(lease) => lease,
        Err(error) => return Some(error),
    };
    let numbers: Vec<u64> = numbers.collect();
    for numbers in numbers.chunks(TXN) {
        let keys: Vec<String> = numbers.iter().map(|&number| fill.key(number)).collect();
        if let Err(error) = put(client, &keys, lease).await {
            return Some(error);
        }
        add(taken, keys.len());
    }
    None
}

fn seconds(fill: &Fill) -> i64 {
    i64::try_from(fill.lasts.ttl().as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// The address of the leader of a Palisade cluster.
async fn leader(endpoints: &[String]) -> Result<String, String> {
    let mut trouble = String::new();
    for _ in 0..100 {
        for endpoint in endpoints {
            match palisade_client::Security::plain().status(endpoint, Duration::from_secs(2)).await {
                Ok(status) => match status.leader.and_then(|leader| leader.client_addr) {
                    Some(address) => return Ok(address),
                    None => trouble = format!("{endpoint} knows no leader"),
                },
                Err(error) => trouble = error.to_string(),
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(format!("no leader was found: {trouble}"))
}

/// Locks on a session together, or each on one of its own. What was left unanswered is asked again.
async fn sessions(fill: &Fill, numbers: Range<u64>, taken: &AtomicU64) -> Refusal {
    let mut left: Vec<u64> = numbers.collect();
    let mut session = None;
    let mut trouble = None;
    for _ in 0..ATTEMPTS {
        let ttl_ms = u64::try_from(fill.lasts.ttl().as_millis()).unwrap_or(u64::MAX);
        let attempt = async {
            let leader = leader(&fill.endpoints).await?;
            if fill.share > 1 && session.is_none() {
                let open = Op::OpenSession(OpenSession { ttl_ms, owner: OWNER.to_owned() });
                match palisade_client::Security::plain().ask(&leader, open, ANSWER).await.map_err(text)? {
                    Answer::Session(lease) => session = Some(lease.session),
                    other => return Err(format!("no session was opened: {other:?}")),
                }
            }
            let options = Acquire { session, ttl_ms, wait_ms: 0, owner: OWNER.to_owned() };
            let acquire = |&number: &u64| Op::Acquire { key: fill.key(number), options: options.clone(), number: None };
            let mut held = vec![false; left.len()];
            let mut refusal = None;
            let answered = |index, outcome| match outcome {
                Outcome::Error(failure) if passes(failure.error) => {}
                // An earlier attempt acquired it, and its answer was lost.
                Outcome::Error(failure) if failure.error != Code::Held => {
                    refusal.get_or_insert(failure.message);
                }
                _ => {
                    if let Some(held) = usize::try_from(index).ok().and_then(|index| held.get_mut(index)) {
                        *held = true;
                        add(taken, 1);
                    }
                }
            };
            let ops = left.iter().map(acquire);
            let asked =
                palisade_client::Security::plain().ask_all(&leader, ops, PALISADE_AT_ONCE, ANSWER, answered).await;
            left = left.iter().zip(held).filter(|(_, held)| !held).map(|(&number, _)| number).collect();
            match refusal {
                Some(refusal) => Ok(Some(refusal)),
                None => asked.map(|()| None).map_err(text),
            }
        };
        match attempt.await {
            Ok(Some(refusal)) => return Some(refusal),
            Ok(None) => trouble = None,
            Err(error) => trouble = Some(error),
        }
        if left.is_empty() {
            return None;
        }
        tokio::time::sleep(RETRY).await;
    }
    let reason = trouble.unwrap_or_else(|| "the leader was overloaded".to_owned());
    Some(format!("gave up after {ATTEMPTS} attempts: {reason}"))
}

/// Whether a refusal passes by itself.
fn passes(code: Code) -> bool {
    matches!(code, Code::Overloaded | Code::NotLeader | Code::NoLeader | Code::LeadershipLost | Code::ShuttingDown)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
