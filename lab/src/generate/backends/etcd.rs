//! Locks of etcd: a lease and a put for each, or many on one lease.

use std::ops::Range;

use etcd_client::{Client as Etcd, Compare, CompareOp, Error as EtcdError, PutOptions, Txn, TxnOp};

use super::{ATTEMPTS, OWNER, One, RETRY, Refusal, text};
use crate::generate::fill::Fill;
use crate::generate::taken::Taken;

/// Puts in a transaction: etcd's default maximum.
const TXN: usize = 128;
/// gRPC's code of a server that cannot be reached, or that could not apply a request in time.
const UNAVAILABLE: i32 = 14;

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

/// Puts all of the keys under the lease if all of them are absent; returns whether it did.
async fn put(client: &Etcd, keys: &[String], lease: i64) -> Result<bool, String> {
    let absent: Vec<_> = keys.iter().map(|key| Compare::create_revision(key.as_str(), CompareOp::Equal, 0)).collect();
    let leased = || Some(PutOptions::new().with_lease(lease));
    let puts: Vec<_> = keys.iter().map(|key| TxnOp::put(key.as_str(), OWNER, leased())).collect();
    let txn = Txn::new().when(absent).and_then(puts);
    let request = || {
        let (mut kv, txn) = (client.kv_client(), txn.clone());
        async move { kv.txn(txn).await }
    };
    let (answer, again) = asked(request).await?;
    Ok(answer.succeeded() || again)
}

/// One lock on a lease of its own.
pub(super) async fn leased(fill: &Fill, client: &Etcd, number: u64) -> Result<One, String> {
    let put = put(client, &[fill.key(number)], lease(fill, client).await?).await?;
    Ok(if put { One::Granted(None) } else { One::Held })
}

/// Many locks on one lease, in transactions.
pub(super) async fn transactions(fill: &Fill, client: &Etcd, numbers: Range<u64>, taken: &Taken) -> Refusal {
    let lease = match lease(fill, client).await {
        Ok(lease) => lease,
        Err(error) => return Some(error),
    };
    let numbers: Vec<u64> = numbers.collect();
    for numbers in numbers.chunks(TXN) {
        let keys: Vec<String> = numbers.iter().map(|&number| fill.key(number)).collect();
        match put(client, &keys, lease).await {
            Ok(true) => numbers.iter().for_each(|&number| taken.grant(number, None)),
            Ok(false) => return Some(format!("{} or a key of its batch is held", keys[0])),
            Err(error) => return Some(error),
        }
    }
    None
}

fn seconds(fill: &Fill) -> i64 {
    i64::try_from(fill.lasts.ttl().as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}
