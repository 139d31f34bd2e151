//! A cluster that serves is upgraded node by node, and taken back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::wire::{Change, Watch, Watched};
use palisade_client::{Client, Error, LockOptions};
use parking_lot::Mutex;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{sleep, timeout};

use super::{PROTOCOLS, change_program, check_journal, previous, spoken, this};
use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::load::{Clients, GIVE_UP, options};
use crate::support::locks::{self, lock};
use crate::support::metrics;

const SEED: u64 = 37;
/// No session of this test expires.
const TTL: Duration = Duration::from_secs(3600);

/// Goal: three nodes of the version before are upgraded one after the other, and then taken back, while clients hold
/// locks, wait for them, watch them, and take and release others. No lock is lost, no wait ends, no token is granted
/// twice, a watch misses no grant, and each node tells in which version it speaks to each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_is_upgraded_node_by_node_and_taken_back() {
    let Some(previous) = previous() else { return };
    let programs = vec![previous.clone(); 3];
    let flags = ["--election-timeout", "750ms"];
    let mut cluster =
        block_in_place(|| Cluster::start_programs(&flags, &programs, |_, _| {}, palisade_client::Security::plain()));
    let clients = Clients::start(&cluster, SEED).await;
    let holder = Client::connect(&cluster.endpoints(), options()).await.unwrap();
    let held = holder.lock("held", LockOptions::default().ttl(TTL).owner("holder")).await.unwrap();
    let waits = {
        let client = Client::connect(&cluster.endpoints(), options()).await.unwrap();
        tokio::spawn(async move {
            let options = LockOptions::default().ttl(TTL).owner("waiter").wait_forever();
            let guard = client.lock("held", options).await.expect("the wait goes on");
            (client, guard)
        })
    };
    block_in_place(|| eventually("the waiter waits", || (lock(&cluster, "held").queue.len() == 1).then_some(())));
    let watched = Watching::begin(&holder, "beat").await;
    let (session, mut tokens) = (block_in_place(|| locks::open_session(&cluster, "beat", TTL)), Vec::new());
    let mut beat = |cluster: &Cluster| {
        let grant = locks::acquire(cluster, "beat", session);
        locks::release(cluster, "beat", session, grant.token);
        tokens.push(grant.token);
    };

    for to in [this(), previous.clone()] {
        let mut changed = BTreeSet::new();
        let leader = block_in_place(|| cluster.wait_connected());
        // The leader is the last one: it transfers leadership when it is stopped.
        for id in cluster.others(leader).into_iter().chain([leader]) {
            clients.get_on(50).await;
            block_in_place(|| {
                beat(&cluster);
                change_program(&mut cluster, id, to.clone());
                changed.insert(id);
                beat(&cluster);
                let shown = lock(&cluster, "held");
                assert_eq!(shown.holder.unwrap().token, held.token(), "the held lock stays");
                assert_eq!(shown.queue[0].owner, "waiter", "the waiter stays");
                let runs_this = |id: u16| changed.contains(&id) == (to == this());
                check_versions(&cluster, runs_this);
            });
            clients.get_on(50).await;
        }
    }

    assert!(tokens.is_sorted_by(|a, b| a < b), "the tokens grow: {tokens:?}");
    watched.has_shown(&tokens).await;
    let token = held.token();
    held.release().await.expect("the lock was held all the time");
    let (client, guard) = waits.await.expect("the waiter is granted the lock");
    assert!(guard.token() > token);
    guard.release().await.unwrap();
    client.close().await;
    let journal = clients.finish().await;
    holder.close().await;
    block_in_place(|| check_journal(&cluster, &journal));
}

/// A watch of a lock, which resumes at every node.
struct Watching {
    /// The tokens of the grants that it has shown, in their order.
    granted: Arc<Mutex<Vec<u64>>>,
    /// Ends with the error that ends the watch.
    task: JoinHandle<Error>,
}

impl Watching {
    /// Begins a watch: what happens after this is shown as an event.
    async fn begin(client: &Client, key: &str) -> Watching {
        let granted = Arc::new(Mutex::new(Vec::new()));
        let (mut watcher, grants) = (client.watch(Watch::key(key)), Arc::clone(&granted));
        loop {
            match watcher.next().await.expect("the watch begins") {
                Watched::Listing(listing) if listing.complete => break,
                Watched::Listing(_) => {}
                other => panic!("no listing: {other:?}"),
            }
        }
        let task = tokio::spawn(async move {
            loop {
                match watcher.next().await {
                    Ok(Watched::Event(event)) => {
                        if let Change::Granted { token, .. } = event.change {
                            grants.lock().push(token);
                        }
                    }
                    Ok(Watched::Listing(_)) => {}
                    Ok(Watched::Compacted { .. }) => panic!("the watch has missed events"),
                    Err(error) => return error,
                }
            }
        });
        Watching { granted, task }
    }

    /// Waits until it has shown grants with these tokens, and no others.
    async fn has_shown(self, tokens: &[u64]) {
        let Watching { granted, mut task } = self;
        let shown = async {
            while *granted.lock() != tokens {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            ended = &mut task => panic!("the watch ended: {ended:?}"),
            shown = timeout(GIVE_UP, shown) => {
                assert!(shown.is_ok(), "the watch has shown {:?}, not {tokens:?}", granted.lock());
            }
        }
        task.abort();
    }
}

/// Each node that runs this version speaks the newest protocol to those of this version, and the protocol of the version
/// before to the others; a node of the version before tells nothing.
fn check_versions(cluster: &Cluster, runs_this: impl Fn(u16) -> bool) {
    for id in cluster.ids() {
        for other in cluster.ids() {
            let expected = match (runs_this(id), runs_this(other)) {
                (false, _) => None,
                (true, false) => Some((PROTOCOLS[0], None)),
                (true, true) => Some((PROTOCOLS[1], Some(env!("CARGO_PKG_VERSION").to_owned()))),
            };
            eventually(&format!("node {id} tells what node {other} speaks: {expected:?}"), || {
                (spoken(cluster, id, other) == expected).then_some(())
            });
            let metric = format!("palisade_peer_protocol_version{{peer=\"{other}\"}}");
            let shown = metrics::sample(&cluster.client_addr(id), &metric);
            assert_eq!(shown, expected.filter(|_| id != other).map(|(protocol, _)| f64::from(protocol)));
        }
    }
}
