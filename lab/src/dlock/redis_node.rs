//! One Redis server: its connections, and the scripts that take, renew and release a lock there.
//!
//! The scripts run by EVALSHA, and are loaded when the server answers NOSCRIPT. A script is one step to every other
//! client: between the comparison and the change nothing happens. The value of a lock is the owner's name with a random
//! number, so that a handle never takes a later lock of its own owner for its own.
//!
//! A server may have replicas. Connections then go to the one that says it is the primary, and a renewal or a release
//! whose connection broke is sent once more to the primary that is found then, as by a client that asks Sentinel.

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

/// How long one of several servers may take to say whether it is the primary.
const LOOK: Duration = Duration::from_millis(250);
/// The pause before the servers are asked again which is the primary.
const RETRY: Duration = Duration::from_millis(10);

/// A Redis server, or a primary with its replicas.
#[derive(Clone)]
pub(super) struct Node {
    backend: &'static str,
    address: Arc<str>,
    pool: Arc<Pool<MultiplexedConnection>>,
    timeout: Duration,
    /// Whether another server may take over.
    replicated: bool,
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
        Node::replicated(backend, &[address.to_owned()], connections, timeout)
    }

    /// A primary and its replicas, in any order.
    pub(super) fn replicated(
        backend: &'static str,
        addresses: &[String],
        connections: Connections,
        timeout: Duration,
    ) -> Result<Node, Error> {
        for address in addresses {
            client(address)
                .map_err(|error| Error::Backend { backend, reason: format!("{address} is no address: {error}") })?;
        }
        let servers: Arc<[String]> = Arc::from(addresses);
        let replicated = servers.len() > 1;
        let address: Arc<str> = Arc::from(addresses.join(","));
        let server = Arc::clone(&address);
        let pool = Pool::new(connections, move || {
            let (servers, server) = (servers.clone(), Arc::clone(&server));
            Box::pin(async move {
                match &*servers {
                    [only] => within(timeout, backend, &server, dial(only)).await,
                    several => within(timeout, backend, &server, primary(several)).await,
                }
            })
        });
        Ok(Node { backend, address, pool, timeout, replicated })
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

    /// Runs a script that may run twice. With replicas, a broken connection is replaced by one to the present primary, and
    /// the script is sent again. The second value is whether it was.
    async fn run_again<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        invocation: &ScriptInvocation<'_>,
    ) -> Result<(T, bool), Error> {
        match self.run(connection, invocation).await {
            Err(_) if self.replicated => {
                *connection = self.connection().await?;
                Ok((self.run(connection, invocation).await?, true))
            }
            answer => Ok((answer?, false)),
        }
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
        Ok(self.run_again(connection, RENEW.key(key).arg(value).arg(millis(ttl))).await?.0)
    }

    /// Deletes the lock; false if another value holds it, or none.
    pub(super) async fn release(&self, connection: &mut Connection, key: &str, value: &str) -> Result<bool, Error> {
        match self.run_again(connection, RELEASE.key(key).arg(value)).await? {
            (false, true) => {
                let reason = format!(
                    "{}: the answer to the release was lost; the lock is not this owner's now, by this release or before",
                    self.address
                );
                Err(Error::Backend { backend: self.backend, reason })
            }
            (released, _) => Ok(released),
        }
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

fn client(address: &str) -> Result<Client, ::redis::RedisError> {
    Client::open(format!("redis://{address}/"))
}

/// Makes a connection to HOST:PORT. The caller sets the deadlines: the crate's own are short.
pub(crate) async fn dial(address: &str) -> Result<MultiplexedConnection, ::redis::RedisError> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    client(address)?.get_multiplexed_async_connection_with_config(&config).await
}

/// Asks the servers until one says that it is the primary.
async fn primary(addresses: &[String]) -> Result<MultiplexedConnection, ::redis::RedisError> {
    loop {
        for address in addresses {
            let asked = tokio::time::timeout(LOOK, async {
                let mut connection = dial(address).await?;
                let mut ask = ::redis::cmd("INFO");
                let section: String = ask.arg("replication").query_async(&mut connection).await?;
                Ok::<_, ::redis::RedisError>((section, connection))
            });
            if let Ok(Ok((section, connection))) = asked.await
                && section.lines().any(|line| line.trim() == "role:master")
            {
                return Ok(connection);
            }
        }
        tokio::time::sleep(RETRY).await;
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
