//! Redlock: a majority of independent Redis servers.
//!
//! As its page defines it (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>):
//!
//! 1. Take the time.
//! 2. Try to take the lock in all N instances, with the same key and the same random value, each with a timeout that is
//!    small beside the TTL (`--instance-timeout`; the page names 5 to 50 ms for a TTL of 10 s). All instances are asked
//!    at the same time, which the page advises against split votes.
//! 3. The lock is acquired if a majority (N/2 + 1) granted it, and its **validity** = TTL − elapsed − drift is above
//!    zero; drift = TTL × 0.01 + 2 ms.
//! 4. Otherwise unlock in all instances, also those that seemed to refuse, and try again after a random delay.
//!
//! A release unlocks in all instances; a renewal extends in a majority, within the same validity.
//! [`Handle::valid_until`] is the end of the validity.
//!
//! **Redlock has no fencing token.** What [`Handle::fence`] gives is the greatest of the counters `fence:{key}` of the
//! instances that granted the lock, each counted by the script that takes the lock there. That is no fencing token: a
//! later grant may have the same number, or a lower one.
//!
//! - The counters drift apart: attempts that win a minority count in it, and an instance that was out of reach counts
//!   nothing. Two majorities share one instance at least, but its counter need not be the greatest of either.
//! - An instance that crashes and has not synced its last writes starts from an older counter, and without its locks:
//!   two owners can then hold the lock at the same time, with the same number.
//!
//! So a resource that compares these numbers refuses rightful writes and accepts stale ones; an experiment shows both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use rand::Rng;

use super::cleanup::{Patience, Undo};
use super::redis_node::{Connection, Node, millis, value};
use super::{Error, Handle, Held, Locks, Options, Released, Request};

const NAME: &str = "redlock";

/// Locks in a majority of independent Redis servers.
#[derive(Debug)]
pub struct Redlock {
    nodes: Arc<[Node]>,
    spin_max: Duration,
}

/// An answer of an instance, or why there is none.
type Answer<T> = Result<T, Error>;

/// What the page subtracts from a TTL for the clocks of the instances.
#[must_use]
pub fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

impl Redlock {
    /// Locks in the Redis servers at these addresses (`HOST:PORT`).
    ///
    /// # Errors
    /// An address is none.
    pub fn new(addresses: &[String], options: &Options) -> Result<Redlock, Error> {
        let node = |address: &String| Node::new(NAME, address, options.connections, options.instance_timeout);
        let nodes = addresses.iter().map(node).collect::<Result<Vec<_>, _>>()?;
        Ok(Redlock { nodes: nodes.into(), spin_max: options.spin_max })
    }

    async fn wait(&self, key: &str, request: &Request) -> Result<Handle, Error> {
        let patience = Patience::new(request);
        let ttl = Duration::from_millis(millis(request.ttl));
        loop {
            if let Some(handle) = self.attempt(key, request, ttl).await? {
                return Ok(handle);
            }
            let left = patience.left();
            if left.is_zero() {
                return Err(patience.timeout(key));
            }
            // The delay desynchronises the clients; it does not grow, because a split vote is no sign of load.
            let delay =
                rand::rng().random_range(Duration::from_millis(1)..=self.spin_max.max(Duration::from_millis(2)));
            tokio::time::sleep(delay.min(left)).await;
        }
    }

    /// One attempt at all instances; `None` if no majority granted the lock in time.
    async fn attempt(&self, key: &str, request: &Request, ttl: Duration) -> Result<Option<Handle>, Error> {
        let value = value(&request.owner);
        let undo = {
            let (nodes, key, value) = (Arc::clone(&self.nodes), key.to_owned(), value.clone());
            Undo::new(move || {
                Box::pin(async move { drop(join_all(nodes.iter().map(|node| node.undo(&key, &value))).await) })
            })
        };
        let began = Instant::now();
        let counter = format!("fence:{key}");
        let take = |node: Node| {
            let (counter, value) = (&counter, &value);
            async move {
                let mut connection = node.connection().await?;
                let token = node.take(&mut connection, key, counter, value, ttl).await?;
                Ok((token, connection))
            }
        };
        let answers: Vec<Answer<_>> = join_all(self.nodes.iter().cloned().map(take)).await;
        let granted = count(&answers, |(token, _)| token.is_some());
        let validity = ttl.saturating_sub(began.elapsed()).saturating_sub(drift(ttl));
        let quorum = self.nodes.len() / 2 + 1;
        if granted < quorum || validity.is_zero() {
            // The instances must be free before the next attempt of this waiter, which has another value.
            join_all(self.nodes.iter().map(|node| node.undo(key, &value))).await;
            undo.disarm();
            return if count(&answers, |_| true) < quorum { Err(unreachable(&answers)) } else { Ok(None) };
        }
        undo.disarm();
        let fence = answers.iter().flatten().filter_map(|(token, _)| *token).max().unwrap_or(0);
        let nodes = self.nodes.iter().cloned();
        let connections = answers.into_iter().map(|answer| answer.ok().map(|(_, connection)| connection));
        let held = Taken { nodes: nodes.zip(connections).collect(), key: key.to_owned(), value };
        Ok(Some(Handle::new(key, request, fence, ttl, began, Box::new(held))))
    }
}

/// The number of instances whose answer is like that.
fn count<T>(answers: &[Answer<T>], like: impl Fn(&T) -> bool) -> usize {
    answers.iter().flatten().filter(|answer| like(answer)).count()
}

/// The error of a request that no majority answered, with what each instance said.
fn unreachable<T>(answers: &[Answer<T>]) -> Error {
    let reasons: Vec<String> = answers
        .iter()
        .filter_map(|answer| match answer {
            Err(Error::Backend { reason, .. }) => Some(reason.clone()),
            Err(other) => Some(other.to_string()),
            Ok(_) => None,
        })
        .collect();
    let answered = answers.len() - reasons.len();
    let reason =
        format!("{answered} of {} servers answered, which is no majority; {}", answers.len(), reasons.join("; "));
    Error::Backend { backend: NAME, reason }
}

/// Whether a majority said yes. If the instances that did not answer could make the difference, that is not known.
fn majority(answers: &[Answer<bool>]) -> Result<bool, Error> {
    let quorum = answers.len() / 2 + 1;
    let yes = count(answers, |&yes| yes);
    let silent = answers.iter().filter(|answer| answer.is_err()).count();
    match yes {
        _ if yes >= quorum => Ok(true),
        _ if yes + silent >= quorum => Err(unreachable(answers)),
        _ => Ok(false),
    }
}

impl Locks for Redlock {
    fn name(&self) -> &'static str {
        NAME
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        Box::pin(self.wait(key, request))
    }
}

/// A lock that a majority granted, with a connection to each instance that answered.
#[derive(Debug)]
struct Taken {
    nodes: Vec<(Node, Option<Connection>)>,
    key: String,
    value: String,
}

impl Taken {
    /// Asks all instances at the same time; a connection that is missing is made.
    async fn ask_all(&mut self, ttl: Option<Duration>) -> Vec<Answer<bool>> {
        let (key, value) = (&self.key, &self.value);
        join_all(self.nodes.iter_mut().map(|(node, connection)| async move {
            let mut link = match connection.take() {
                Some(link) => link,
                None => node.connection().await?,
            };
            let answer = match ttl {
                Some(ttl) => node.renew(&mut link, key, value, ttl).await,
                None => node.release(&mut link, key, value).await,
            };
            if answer.is_ok() {
                *connection = Some(link);
            }
            answer
        }))
        .await
    }
}

impl Held for Taken {
    fn renew(&mut self, ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let began = Instant::now();
            let renewed = majority(&self.ask_all(Some(ttl)).await)?;
            Ok(renewed && began.elapsed() + drift(ttl) < ttl)
        })
    }

    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        Box::pin(async move {
            let released = majority(&self.ask_all(None).await)?;
            Ok(if released { Released::Done } else { Released::NotOwner })
        })
    }

    fn drift(&self, ttl: Duration) -> Duration {
        drift(ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> Answer<bool> {
        Err(Error::Backend { backend: NAME, reason: "127.0.0.1:1 did not answer within 50ms".to_owned() })
    }

    #[test]
    fn drift_is_that_of_the_page() {
        assert_eq!(drift(Duration::from_secs(10)), Duration::from_millis(102));
    }

    #[test]
    fn a_majority_decides_and_silence_that_matters_is_an_error() {
        assert!(majority(&[Ok(true), Ok(true), Ok(true), silent(), Ok(false)]).unwrap());
        assert!(!majority(&[Ok(true), Ok(true), Ok(false), Ok(false), Ok(false)]).unwrap());
        assert!(!majority(&[Ok(false), Ok(false), Ok(false), silent(), silent()]).unwrap());
        let error = majority(&[Ok(true), Ok(true), silent(), Ok(false), Ok(false)]).unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:1 did not answer"), "{error}");
    }
}
