//! Locks of etcd: a lease and a put for each, or many on one lease.

use std::ops::Range;

use etcd_client::{Client as Etcd, Compare, CompareOp, Error as EtcdError, PutOptions, Txn, TxnOp, TxnOpResponse};

use super::{ATTEMPTS, OWNER, One, RETRY, Refusal, text};
use crate::generate::fill::Fill;
use crate::generate::taken::Taken;

/// Puts in a transaction: etcd's default maximum.
pub(crate) const TXN: usize = 128;
/// gRPC's code of a server that cannot be reached, or that could not apply a request in time.
const UNAVAILABLE: i32 = 14;

/// Sends a request to etcd, again if no server could be reached or it was not applied in time: an earlier attempt may have
/// been applied all the same.
async fn asked<T, F>(mut request: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, EtcdError>>,
{
    let mut attempts = 0;
    loop {
        attempts += 1;
        match request().await {
            Ok(answer) => return Ok(answer),
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
    asked(grant).await.map(|lease| lease.id())
}

/// Puts all of the keys under the lease if all of them are absent; returns whether it did, now or by an attempt whose answer
/// was lost.
async fn put(client: &Etcd, keys: &[String], lease: i64) -> Result<bool, String> {
    let absent: Vec<_> = keys.iter().map(|key| Compare::create_revision(key.as_str(), CompareOp::Equal, 0)).collect();
    let leased = || Some(PutOptions::new().with_lease(lease));
    let puts: Vec<_> = keys.iter().map(|key| TxnOp::put(key.as_str(), OWNER, leased())).collect();
    let txn = Txn::new().when(absent).and_then(puts).or_else([TxnOp::get(keys[0].as_str(), None)]);
    let request = || {
        let (mut kv, txn) = (client.kv_client(), txn.clone());
        async move { kv.txn(txn).await }
    };
    let answer = asked(request).await?;
    let own = |found: &TxnOpResponse| match found {
        TxnOpResponse::Get(found) => found.kvs().iter().any(|kv| kv.lease() == lease),
        _ => false,
    };
    Ok(answer.succeeded() || answer.op_responses().iter().any(own))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::{self, Error, Kind, Options};

    /// A request is sent again when its answer was lost: the keys are this lease's then, or another owner's.
    #[tokio::test]
    async fn put_that_is_sent_again_is_known_by_its_lease() {
        let cluster = match servers::start(Kind::Etcd, &Options { allow_tmpfs: true, ..Options::default() }).await {
            Err(error @ Error::Missing(_)) if std::env::var("LAB_REQUIRE").as_deref() != Ok("all") => {
                return eprintln!("SKIPPED a test of etcd: {error}");
            }
            started => started.unwrap(),
        };
        let client = Etcd::connect(cluster.endpoints(), None).await.unwrap();
        let keys = ["put/1".to_owned(), "put/2".to_owned()];
        let [own, other] = [client.lease_client().grant(60, None).await, client.lease_client().grant(60, None).await]
            .map(|lease| lease.unwrap().id());
        for (lease, is_put) in [(own, true), (own, true), (other, false)] {
            assert_eq!(put(&client, &keys, lease).await, Ok(is_put));
        }
    }
}
