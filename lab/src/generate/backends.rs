//! The number of locks that are acquired at once on each backend.
//!
//! | backend | how |
//! |---|---|
//! | redis | `SET key owner NX PX ttl`, 1,000 in a pipeline |
//! | etcd | one lock on a lease: a lease and a put for each, 16 at a time on each of 16 connections; many locks: transactions of 128 puts |
//! | palisade | acquires over WebSockets to the leader, 500 on their way at a time on each; one lock on a session: the acquire opens it |
//! | the others | by the lab's lock library, 32 at a time; the handles are dropped, so that locks end with their TTL |

mod etcd;
mod palisade;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client as Etcd;
use futures_util::StreamExt;
use futures_util::stream::iter;
use redis::aio::MultiplexedConnection;

pub(crate) use self::etcd::TXN as ETCD_TXN;
use self::etcd::{leased, transactions};
pub(crate) use self::palisade::AT_ONCE as PALISADE_AT_ONCE;
use self::palisade::{leader, sessions};
use super::fill::Fill;
use super::taken::Taken;
use crate::dlock::{self, Backend, Locks, Request};

const OWNER: &str = "gen";
pub(crate) const REDIS_CONNECTIONS: usize = 4;
/// Locks of a pipeline.
pub(crate) const REDIS_PIPELINE: u64 = 1_000;
pub(crate) const ETCD_CONNECTIONS: usize = 16;
pub(crate) const PALISADE_CONNECTIONS: usize = 2;
/// Requests on their way on a connection.
pub(crate) const ETCD_AT_ONCE: usize = 16;
pub(crate) const LIBRARY_AT_ONCE: usize = 32;
/// How long a batch may take, of another backend than Palisade.
const BATCH: Duration = Duration::from_secs(60);
/// Attempts at what a server left unanswered.
const ATTEMPTS: usize = 10;
/// The pause before another attempt.
const RETRY: Duration = Duration::from_millis(200);

/// The refusal that ends the fill.
type Refusal = Option<String>;

/// What became of one acquire.
enum One {
    /// It was granted, with this token, if the client got one.
    Granted(Option<u64>),
    /// Another owner holds the lock.
    Held,
}

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
                REDIS_PIPELINE
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
    pub(super) async fn take(&mut self, numbers: Range<u64>, taken: &Taken) -> Refusal {
        taken.ask(self.fill(), numbers.clone());
        match self {
            // It waits for each answer by itself, and repeats what was left unanswered.
            Filler::Palisade(fill) => sessions(fill, numbers, taken).await,
            _ => {
                let late = |_| Some(format!("the server did not answer a batch within {} s", BATCH.as_secs()));
                tokio::time::timeout(BATCH, self.batch(numbers, taken)).await.unwrap_or_else(late)
            }
        }
    }

    fn fill(&self) -> &Fill {
        match self {
            Filler::Redis(fill, _) | Filler::Etcd(fill, _) | Filler::Palisade(fill) | Filler::Library(fill, _) => fill,
        }
    }

    async fn batch(&mut self, numbers: Range<u64>, taken: &Taken) -> Refusal {
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
async fn at_once<F>(count: usize, numbers: Range<u64>, taken: &Taken, one: impl Fn(u64) -> F) -> Refusal
where
    F: Future<Output = Result<One, String>>,
{
    let numbered = |number| {
        let outcome = one(number);
        async move { (number, outcome.await) }
    };
    let mut outcomes = iter(numbers).map(numbered).buffer_unordered(count);
    let mut refusal = None;
    while let Some((number, outcome)) = outcomes.next().await {
        match outcome {
            Ok(One::Granted(token)) => taken.grant(number, token),
            Ok(One::Held) => taken.refuse(number),
            Err(refused) => {
                refusal.get_or_insert(refused);
            }
        }
    }
    refusal
}

async fn pipeline(fill: &Fill, connection: &mut MultiplexedConnection, numbers: Range<u64>, taken: &Taken) -> Refusal {
    let mut pipeline = redis::Pipeline::new();
    let ttl = u64::try_from(fill.lasts.ttl().as_millis()).unwrap_or(u64::MAX);
    for number in numbers.clone() {
        pipeline.cmd("SET").arg(fill.key(number)).arg(OWNER).arg("NX").arg("PX").arg(ttl);
    }
    match pipeline.query_async::<Vec<Option<String>>>(connection).await {
        Ok(answers) => {
            for (number, answer) in numbers.zip(answers) {
                if answer.is_some() { taken.grant(number, None) } else { taken.refuse(number) }
            }
            None
        }
        Err(error) => Some(text(error)),
    }
}

/// One lock by the lab's library.
async fn library(fill: &Fill, locks: &dyn Locks, number: u64) -> Result<One, String> {
    let (ttl, wait) = (fill.lasts.ttl(), Duration::ZERO);
    let request = Request { owner: OWNER.to_owned(), ttl, wait };
    match locks.acquire(&fill.key(number), &request).await {
        Ok(handle) => Ok(One::Granted(fill.backend.fences().then(|| handle.fence()))),
        Err(dlock::Error::Timeout { .. }) => Ok(One::Held),
        Err(error) => Err(text(error)),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
