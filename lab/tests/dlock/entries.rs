//! The entries of a key at a server, read with clients of the tests' own: the holder and every waiter are one entry
//! each.

use palisade_client::Client;
use palisade_client::wire::Consistency;
use palisade_lab::dlock::Backend;

use crate::support::{Bench, MINUTE};

/// The entries of the key. A waiter that spins (Redis, Redlock) has none.
pub(crate) async fn entries(bench: &Bench, key: &str) -> usize {
    let asked = async {
        match bench.backend {
            Backend::Redis | Backend::Redlock => redis(bench, key).await,
            Backend::Etcd | Backend::EtcdLock => etcd(bench, key).await,
            Backend::ZooKeeper => zookeeper(bench, key).await,
            Backend::Palisade => palisade(bench, key).await,
        }
    };
    tokio::time::timeout(MINUTE, asked).await.expect("the servers answer")
}

/// Whether waiters have entries at the server.
pub(crate) fn queues(backend: Backend) -> bool {
    !matches!(backend, Backend::Redis | Backend::Redlock)
}

async fn redis(bench: &Bench, key: &str) -> usize {
    let mut held = 0;
    for endpoint in bench.cluster.endpoints() {
        let client = redis::Client::open(format!("redis://{endpoint}/")).unwrap();
        let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        held += redis::Cmd::exists(key).query_async::<usize>(&mut connection).await.unwrap();
    }
    held
}

async fn etcd(bench: &Bench, key: &str) -> usize {
    let mut client = etcd_client::Client::connect(bench.cluster.endpoints(), None).await.unwrap();
    let options = etcd_client::GetOptions::new().with_prefix();
    let found = client.get(format!("lock/{}:{key}/", key.len()), Some(options)).await.unwrap();
    found.kvs().len()
}

async fn zookeeper(bench: &Bench, key: &str) -> usize {
    let client = zookeeper_client::Client::connect(&bench.cluster.endpoints().join(",")).await.unwrap();
    match client.list_children(&format!("/locks/key:{key}")).await {
        Ok(names) => names.len(),
        Err(zookeeper_client::Error::NoNode) => 0,
        Err(error) => panic!("{error}"),
    }
}

async fn palisade(bench: &Bench, key: &str) -> usize {
    let client = Client::connect(bench.cluster.endpoints(), palisade_client::Options::default()).await.unwrap();
    let lock = client.show_lock(key, Consistency::Linearizable).await.unwrap();
    client.close().await;
    usize::from(lock.held) + lock.queue.len()
}
