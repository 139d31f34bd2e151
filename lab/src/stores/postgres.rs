//! A PostgreSQL row with a column `fence`.
//!
//! The check and the write are one statement, in a transaction of its own:
//!
//! ```sql
//! UPDATE fenced SET value = $1, fence = $2 WHERE key = $3 AND fence < $2
//! ```
//!
//! For the first write the row does not exist, so the statement that is sent is an INSERT whose
//! conflict becomes this UPDATE. A count of zero rows is the refusal.
//!
//! Why this is safe without a read before it: an UPDATE locks the row and then tests its condition on
//! the newest committed version of the row, also when it has waited for the lock (READ COMMITTED;
//! under REPEATABLE READ the statement fails with a serialization error instead, which is safe too).
//! Two writers of one row are therefore one after the other, and the second sees the first's token. A
//! SELECT of the token before an UPDATE without the condition would be the mistake: the pause may be
//! between the two.

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

use super::{Answer, Kind, Store, Value, in_time};
use crate::resource::rule::Fence;
use crate::text::chain;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS fenced (
    key text PRIMARY KEY,
    value text NOT NULL,
    fence bigint NOT NULL CHECK (fence >= 0)
)";

const FENCED: &str = "INSERT INTO fenced (key, value, fence) VALUES ($3, $1, $2)
    ON CONFLICT (key) DO UPDATE SET value = $1, fence = $2 WHERE fenced.fence < $2";

const UNFENCED: &str = "INSERT INTO fenced (key, value, fence) VALUES ($3, $1, $2)
    ON CONFLICT (key) DO UPDATE SET value = $1, fence = $2";

const READ: &str = "SELECT value, fence FROM fenced WHERE key = $1";

/// A connection to the table.
#[derive(Debug)]
pub struct Postgres {
    client: tokio_postgres::Client,
    connection: JoinHandle<()>,
    address: String,
}

impl Postgres {
    /// Connects to `HOST:PORT`.
    ///
    /// # Errors
    /// The server could not be reached, or has refused.
    pub async fn connect(address: &str) -> Result<Postgres, String> {
        let url = format!("postgres://postgres@{address}/postgres");
        let connecting = async { tokio_postgres::connect(&url, NoTls).await.map_err(|error| chain(&error)) };
        let connected = in_time("PostgreSQL", connecting).await;
        let (client, connection) = connected.map_err(|error| format!("PostgreSQL at {address}: {error}"))?;
        // A request fails when its connection has failed, with the same reason.
        let connection = tokio::spawn(async move { drop(connection.await) });
        Ok(Postgres { client, connection, address: address.to_owned() })
    }

    /// Makes the table, if there is none. Not by two connections at the same time: PostgreSQL reports
    /// a conflict of its catalogue then.
    ///
    /// # Errors
    /// The server could not be reached, or has refused.
    pub async fn make_table(&self) -> Result<(), String> {
        self.ask(self.client.batch_execute(TABLE)).await
    }

    async fn ask<T>(&self, asked: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, String> {
        let answer = in_time("PostgreSQL", async { asked.await.map_err(|error| chain(&error)) }).await;
        answer.map_err(|error| format!("PostgreSQL at {}: {error}", self.address))
    }

    async fn row(&self, key: &str) -> Result<Option<Value>, String> {
        let Some(row) = self.ask(self.client.query_opt(READ, &[&key])).await? else { return Ok(None) };
        let wrong = |error: &dyn std::fmt::Display| format!("the row {key} of the table `fenced`: {error}");
        let value = row.try_get(0).map_err(|error| wrong(&error))?;
        let fence: i64 = row.try_get(1).map_err(|error| wrong(&error))?;
        Ok(Some(Value { value, fence: u64::try_from(fence).map_err(|error| wrong(&error))? }))
    }

    async fn put(&self, key: &str, value: &str, token: u64, fence: Fence) -> Result<Answer, String> {
        let number = i64::try_from(token).map_err(|_| {
            format!("the token {token} does not fit PostgreSQL's bigint; the column `fence` must be a numeric")
        })?;
        let statement = if fence == Fence::On { FENCED } else { UNFENCED };
        match self.ask(self.client.execute(statement, &[&value, &number, &key])).await? {
            1 => Ok(Answer::Accepted { attempts: 1 }),
            0 => {
                // For the report only: the refusal is decided.
                let row = self.row(key).await?;
                let row =
                    row.ok_or_else(|| format!("the row {key} has refused a write and is gone; do not delete it"))?;
                Ok(Answer::Stale { seen: row.fence, attempts: 1 })
            }
            rows => Err(format!("a write to the row {key} has changed {rows} rows; is `key` the primary key?")),
        }
    }
}

impl Store for Postgres {
    fn kind(&self) -> Kind {
        Kind::Postgres
    }

    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, String>> {
        Box::pin(self.row(key))
    }

    fn write<'a>(
        &'a self,
        key: &'a str,
        value: &'a str,
        token: u64,
        fence: Fence,
    ) -> BoxFuture<'a, Result<Answer, String>> {
        Box::pin(self.put(key, value, token, fence))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
