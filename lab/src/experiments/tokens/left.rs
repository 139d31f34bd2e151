//! Reads the counters that are left when no lock is held.

use etcd_client::{Client as Etcd, GetOptions, KvClient};
use serde::{Deserialize, Serialize};

use super::super::{Context, text};
use crate::dlock::Backend;
use crate::dlock::tokens::{Counters, Tokens};

/// Keys that Redis looks at in one step of a scan.
const STEP: usize = 1_000;

/// Counters, and what they take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Number of counters.
    pub counters: u64,
    /// Redis: their `MEMORY USAGE`. etcd: the lengths of their names.
    pub bytes: u64,
}

/// Counts the counters of a source whose locks' names begin with `prefix`.
///
/// # Errors
/// The server does not answer.
pub(super) async fn left(context: &Context, tokens: Tokens, prefix: &str) -> Result<Left, String> {
    let Some(counters) = tokens.counters(&format!("{prefix}-")) else { return Ok(Left::default()) };
    match context.backend {
        Backend::Redis => in_redis(&context.endpoints[0], &counters).await.map_err(text),
        Backend::Etcd => {
            let client = Etcd::connect([&context.endpoints[0]], None).await.map_err(text)?;
            in_etcd(client.kv_client(), counters).await.map_err(text)
        }
        backend => Err(format!("{backend} has no counters of tokens")),
    }
}

async fn in_redis(address: &str, counters: &Counters) -> redis::RedisResult<Left> {
    let client = redis::Client::open(format!("redis://{address}/"))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let pattern = match counters {
        Counters::One(name) => name.clone(),
        Counters::Prefix(prefix) => format!("{prefix}*"),
    };
    let (mut left, mut cursor) = (Left::default(), 0_u64);
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
        let (next, names): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
        let mut sizes = redis::Pipeline::new();
        for name in &names {
            sizes.cmd("MEMORY").arg("USAGE").arg(name);
        }
        let sizes: Vec<u64> = if names.is_empty() { Vec::new() } else { sizes.query_async(&mut connection).await? };
        left.counters += names.len() as u64;
        left.bytes += sizes.iter().sum::<u64>();
        cursor = next;
        if cursor == 0 {
            return Ok(left);
        }
    }
}

async fn in_etcd(mut kv: KvClient, counters: Counters) -> Result<Left, etcd_client::Error> {
    let options = GetOptions::new().with_keys_only();
    let (name, options) = match counters {
        Counters::One(name) => (name, options),
        Counters::Prefix(prefix) => (prefix, options.with_prefix()),
    };
    let found = kv.get(name, Some(options)).await?;
    let bytes = found.kvs().iter().map(|counter| counter.key().len() as u64).sum();
    Ok(Left { counters: found.kvs().len() as u64, bytes })
}
