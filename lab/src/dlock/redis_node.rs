//! One Redis server: its connections, and the scripts that take, renew and release a lock there.
//!
//! The scripts run by EVALSHA, and are loaded when the server answers NOSCRIPT. A script is one step to every other
//! client: between the comparison and the change nothing happens. The value of a lock is the owner's name with a random
//! number, so that a handle never takes a later lock of its own owner for its own.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, FromRedisValue, Script, ScriptInvocation};
use uuid::Uuid;

use super::cleanup::within;
use super::pool::{Pool, Pooled};
use super::{Connections, Error};

/// Takes the lock and counts the fencing token; 0 if another value holds it.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
           return redis.call('INCR', KEYS[2]) \
         end \
         return 0",
    )
});

/// Sets the lock's TTL if it holds this value.
static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then \
           return redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
         end \
         return 0",
    )
});

/// Deletes the lock if it holds this value.
static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then \
           return redis.call('DEL', KEYS[1]) \
         end \
         return 0",
    )
});

/// A connection that an acquire uses, and the handle after it.
pub(super) type Connection = Pooled<MultiplexedConnection>;

/// A Redis server.
#[derive(Clone)]
pub(super) struct Node {
    backend: &'static str,
    address: Arc<str>,
    pool: Arc<Pool<MultiplexedConnection>>,
    timeout: Duration,
}

/// The value of a lock: who holds it, and which of the owner's acquires it is.
pub(super) fn value(owner: &str) -> String {
    format!("{owner}:{}", Uuid::new_v4().simple())
}

/// A TTL in milliseconds, rounded up, at least 1.
pub(super) fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

impl Node {
    pub(super) fn new(
        backend: &'static str,
        address: &str,
        connections: Connections,
        timeout: Duration,
    ) -> Result<Node, Error> {
        let client = Client::open(format!("redis://{address}/"))
            .map_err(|error| Error::Backend { backend, reason: format!("{address} is no address: {error}") })?;
        let address: Arc<str> = Arc::from(address);
        let server = Arc::clone(&address);
        let pool = Pool::new(connections, move || {
            let (client, server) = (client.clone(), Arc::clone(&server));
            Box::pin(async move {
                // The deadlines are ours: the crate's own are shorter.
                let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
                let dial = client.get_multiplexed_async_connection_with_config(&config);
                within(timeout, backend, &server, dial).await
            })
        });
        Ok(Node { backend, address, pool, timeout })
    }

    pub(super) async fn connection(&self) -> Result<Connection, Error> {
        within(self.timeout, self.backend, &self.address, async { Ok::<_, Plain>(self.pool.take().await) }).await?
    }

    /// Runs a script within the deadline.
    async fn run<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        invocation: &ScriptInvocation<'_>,
    ) -> Result<T, Error> {
        let link: &mut MultiplexedConnection = connection;
        let answer = within(self.timeout, self.backend, &self.address, invocation.invoke_async(link)).await;
        if answer.is_err() {
            connection.broke();
        }
        answer
    }

    /// Takes the lock: its fencing token, or `None` if another value holds it.
    pub(super) async fn take(
        &self,
        connection: &mut Connection,
        key: &str,
        counter: &str,
        value: &str,
        ttl: Duration,
    ) -> Result<Option<u64>, Error> {
        let token: u64 = self.run(connection, TAKE.key(key).key(counter).arg(value).arg(millis(ttl))).await?;
        Ok(Some(token).filter(|&token| token > 0))
    }

    /// Sets the lock's TTL; false if another value holds it, or none.
    pub(super) async fn renew(
        &self,
        connection: &mut Connection,
        key: &str,
        value: &str,
        ttl: Duration,
    ) -> Result<bool, Error> {
        self.run(connection, RENEW.key(key).arg(value).arg(millis(ttl))).await
    }

    /// Deletes the lock; false if another value holds it, or none.
    pub(super) async fn release(&self, connection: &mut Connection, key: &str, value: &str) -> Result<bool, Error> {
        self.run(connection, RELEASE.key(key).arg(value)).await
    }

    /// Deletes what an acquire may have left, over a connection of the pool. An acquire whose answer is late may take
    /// effect after this; then it lasts for its TTL.
    pub(super) async fn undo(&self, key: &str, value: &str) {
        if let Ok(mut connection) = self.connection().await {
            let _ = self.release(&mut connection, key, value).await;
        }
    }

    /// A command of one step, for the wrong release.
    pub(super) async fn command<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        command: &::redis::Cmd,
    ) -> Result<T, Error> {
        let link: &mut MultiplexedConnection = connection;
        let answer = within(self.timeout, self.backend, &self.address, command.query_async(link)).await;
        if answer.is_err() {
            connection.broke();
        }
        answer
    }
}

/// An error that does not occur: the inner result has the errors.
type Plain = std::convert::Infallible;

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("address", &self.address).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_round_up_to_milliseconds() {
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
        assert_eq!(millis(Duration::from_millis(2_000)), 2_000);
        assert_eq!(millis(Duration::ZERO), 1);
    }

    #[test]
    fn two_acquires_of_an_owner_have_different_values() {
        assert_ne!(value("worker-7"), value("worker-7"));
        assert!(value("worker-7").starts_with("worker-7:"));
    }
}
