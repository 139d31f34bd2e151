//! Real clients and real nodes with a bad network between them: every operation is done once,
//! whatever is repeated, lost, cut off or late.
//!
//! Both sides ensure this: a client sends an unanswered operation again under the same number, and
//! the lock table applies a number once (docs/protocol.md, "Exactly once"). So these tests run
//! through both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::locks::read;
use crate::support::proxy::{Faults, Proxies};
use futures_util::SinkExt;
use palisade_client::wire::{self, LockPage, LockView, RecordChange, Transaction};
use palisade_client::{Client, Guard, LockOptions, Options, codec};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::{self, Message};

/// Longer than any of these tests: a lock that is free in the end was released, it did not expire.
const TTL: Duration = Duration::from_secs(600);
/// A task that takes longer waits for a lock that no client will release.
const GIVE_UP: Duration = Duration::from_secs(120);
const KEYS: [&str; 2] = ["left", "right"];
const CLIENTS: usize = 3;
const TASKS: usize = 9;
/// How many requests an abandoning client leaves unanswered.
const STRANGERS: u64 = 8;
const SEED: u64 = 11;

/// Impatient enough that a lost reply costs a moment, patient enough for a busy machine.
fn options() -> Options {
    Options {
        request_timeout: Duration::from_secs(60),
        connect_timeout: Duration::from_secs(60),
        attempt_timeout: Duration::from_millis(150),
        dial_timeout: Duration::from_secs(2),
        ask_again: Duration::from_millis(50),
        probe_after: Duration::from_secs(1),
        ..Options::default()
    }
}

/// Every key's holder, as the clients themselves believe.
#[derive(Default)]
struct Registry(Mutex<BTreeMap<&'static str, Seen>>);

#[derive(Default)]
struct Seen {
    holder: Option<u64>,
    tokens: Vec<u64>,
}

impl Registry {
    /// A client received a guard: no other client has one for the key, and its token is greater
    /// than all before.
    fn granted(&self, key: &'static str, guard: &Guard) {
        let mut seen = self.0.lock();
        let Seen { holder, tokens } = seen.entry(key).or_default();
        let token = guard.token();
        assert!(guard.is_valid(), "{key}: a guard that is lost from its first moment");
        assert_eq!(*holder, None, "{key}: token {token} was granted while another guard is held");
        assert!(tokens.last().is_none_or(|&last| last < token), "{key}: token {token} after {tokens:?}");
        *holder = Some(token);
        tokens.push(token);
    }

    /// A client is about to release its guard.
    fn releasing(&self, key: &'static str, guard: &Guard) {
        let mut seen = self.0.lock();
        let holder = seen.entry(key).or_default().holder.take();
        assert_eq!(holder, Some(guard.token()), "{key}: the guard that ends is the one that was given out");
        assert!(guard.is_valid(), "{key}: token {} was lost while it was held", guard.token());
    }

    /// Every token that any client saw.
    fn tokens(&self) -> Vec<u64> {
        let mut tokens: Vec<u64> = self.0.lock().values().flat_map(|seen| seen.tokens.iter().copied()).collect();
        tokens.sort_unstable();
        tokens
    }
}

/// While a client holds a lock, the replicated state says so too: no late release has freed it.
async fn assert_holds(nodes: &Arc<Vec<String>>, key: &'static str, guard: &Guard) {
    let nodes = Arc::clone(nodes);
    let body = tokio::task::spawn_blocking(move || read(&nodes, &format!("/v1/locks/{key}"))).await.unwrap();
    let lock: LockView = serde_json::from_str(&body).unwrap();
    let holder = lock.holder.unwrap_or_else(|| panic!("{key} is free while token {} is held", guard.token()));
    assert_eq!((holder.token, holder.session), (guard.token(), guard.session().number()), "{key}: the state's holder");
}

/// How one of the tasks behaves.
#[derive(Clone, Copy)]
struct Manners {
    rounds: usize,
    /// How often it cancels the call, or drops the guard, in the middle.
    abandons: f64,
}

/// One task: it takes and releases locks, and checks at every step what it can know.
async fn contend(client: Client, registry: Arc<Registry>, nodes: Arc<Vec<String>>, seed: u64, manners: Manners) {
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0..manners.rounds {
        let key = KEYS[random.random_range(0..KEYS.len())];
        let asked = client.lock(key, LockOptions::default().ttl(TTL).wait_forever());
        let guard = if random.random_bool(manners.abandons) {
            let patience = Duration::from_millis(random.random_range(1..100));
            let Ok(answered) = timeout(patience, asked).await else { continue };
            answered
        } else {
            asked.await
        };
        let mut guard = guard.expect("a client that waits for ever is granted the lock in the end");
        registry.granted(key, &guard);
        let line = format!("{}\n", guard.token());
        let change = RecordChange::Append { key: key.into(), value: line.as_str().into() };
        let transaction = Transaction { changes: vec![change], ..Transaction::default() };
        guard.transact(transaction).await.expect("the lock is held");
        if round % 2 == 0 {
            assert_holds(&nodes, key, &guard).await;
        } else {
            sleep(Duration::from_millis(random.random_range(0..5))).await;
        }
        registry.releasing(key, &guard);
        if random.random_bool(manners.abandons) {
            drop(guard);
        } else {
            guard.release().await.expect("it was held, so it is given back, and once");
        }
    }
}

/// Lets all tasks contend behind the proxies, with `trouble` beside them until all are done; in the
/// end the cluster must hold no session and no lock. Returns every token that was seen.
async fn storm<F>(proxies: &Arc<Proxies>, cluster: &Cluster, manners: Manners, trouble: F) -> Vec<u64>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client::connect(proxies.endpoints(), options()).await.expect("the cluster serves"));
    }
    let (registry, nodes) = (Arc::new(Registry::default()), Arc::new(cluster.endpoints()));
    let trouble = tokio::spawn(trouble);
    let tasks = (0..TASKS).zip(clients.iter().cycle()).map(|(task, client)| {
        let (registry, nodes) = (Arc::clone(&registry), Arc::clone(&nodes));
        tokio::spawn(contend(client.clone(), registry, nodes, SEED + task as u64, manners))
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        let ended = timeout(GIVE_UP, task).await.expect("a lock that is given back is granted to the next one");
        ended.expect("no task met anything wrong");
    }
    trouble.abort();
    for client in &clients {
        client.close().await;
    }
    drop(clients);

    let locks = || serde_json::from_str::<LockPage>(&read(&nodes, "/v1/locks")).unwrap().locks;
    eventually("no session holds or waits, long before any could expire", || locks().is_empty().then_some(()));
    // Late messages must not bring a lock back.
    eventually("every connection is over", || (proxies.connections() == 0).then_some(()));
    assert_eq!(locks(), []);
    // Every holder has written its line once, and none after its successor.
    for (key, seen) in registry.0.lock().iter() {
        let lines: String = seen.tokens.iter().map(|token| format!("{token}\n")).collect();
        assert_eq!(read(&nodes, &format!("/v1/kv/{key}")), lines, "{key}: the record");
    }
    registry.tokens()
}

/// Goal: every message of every client arrives twice, and every third reply is lost. No lock is
/// taken twice, no release frees a newer holder, nothing is left behind, every grant that the
/// cluster made is known to a client, and each holder's line is in the record once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_requests_and_lost_replies() {
    let faults = Faults { repeat: true, lose_every: 3, ..Faults::default() };
    let (proxies, cluster) = Proxies::before(3, faults).await;
    let proxies = Arc::new(proxies);
    let manners = Manners { rounds: 12, abandons: 0.0 };
    let tokens = storm(&proxies, &cluster, manners, async {}).await;

    let expected: Vec<u64> = (1..=(TASKS * manners.rounds) as u64).collect();
    assert_eq!(tokens, expected, "one grant for each call, and each was heard of");
    let counts = proxies.counts();
    for (what, count) in
        [("repeated", &counts.repeated), ("lost grants", &counts.lost_grants), ("lost releases", &counts.lost_releases)]
    {
        assert!(count.load(Ordering::Relaxed) > 10, "the network was not bad enough: {what} in {counts:?}");
    }
}

/// Goal: connections are cut again and again, at any moment, and messages sent on them arrive once
/// more after their client has reconnected elsewhere; callers cancel; replies are lost as well. The
/// same holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_and_late_requests() {
    let late = Some(Duration::from_millis(250));
    let faults = Faults { repeat: false, lose_every: 5, late };
    let (proxies, cluster) = Proxies::before(3, faults).await;
    let proxies = Arc::new(proxies);
    let trouble = {
        let proxies = Arc::clone(&proxies);
        async move {
            let mut random = StdRng::seed_from_u64(SEED);
            loop {
                sleep(Duration::from_millis(random.random_range(10..200))).await;
                proxies.cut();
            }
        }
    };
    let manners = Manners { rounds: 20, abandons: 0.3 };
    let tokens = storm(&proxies, &cluster, manners, trouble).await;

    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "a token was seen twice: {tokens:?}");
    assert!(tokens.len() > TASKS * manners.rounds / 2, "most calls got their lock: {}", tokens.len());
    let counts = proxies.counts();
    for (what, count) in [("cuts", &counts.cut), ("late", &counts.late), ("lost grants", &counts.lost_grants)] {
        assert!(count.load(Ordering::Relaxed) > 10, "the network was not bad enough: {what} in {counts:?}");
    }
}

/// A client that asks for a lock many times at once, and disconnects before the answers. None of
/// these claims is of use to any client: the node that finds them has to withdraw them itself.
async fn vanish(node: &str, patience: Duration) -> Result<(), tungstenite::Error> {
    let (mut socket, _) = connect_async(format!("ws://{node}/v1/ws")).await?;
    for id in 0..STRANGERS {
        let options = wire::Acquire { ttl_ms: 100, wait_ms: 60_000, ..wire::Acquire::default() };
        let request = wire::Request { id, op: wire::Op::Acquire { keys: "strange".into(), options, number: None } };
        let mut frame = Vec::new();
        codec::encode_into(&request, &mut frame);
        socket.feed(Message::Binary(frame.into())).await?;
    }
    socket.flush().await?;
    sleep(patience).await;
    Ok(())
}

/// Goal: clients ask and disconnect before they are answered, at every moment in between: the
/// withdrawals that a node makes itself disturb no other client's answer. (They once did: the
/// answers to requests proposed after such a withdrawal went to the wrong requests.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_that_vanish() {
    let (proxies, cluster) = Proxies::before(3, Faults::default()).await;
    let proxies = Arc::new(proxies);
    let vanished = Arc::new(AtomicU64::new(0));
    let trouble = {
        let (nodes, vanished) = (cluster.endpoints(), Arc::clone(&vanished));
        async move {
            let mut random = StdRng::seed_from_u64(SEED);
            for node in nodes.iter().cycle() {
                let patience = Duration::from_micros(random.random_range(0..3_000));
                match vanish(node, patience).await {
                    Ok(()) => vanished.fetch_add(1, Ordering::Relaxed),
                    // It does not lead, and has closed the connection already.
                    Err(_) => continue,
                };
            }
        }
    };
    let manners = Manners { rounds: 40, abandons: 0.3 };
    let tokens = storm(&proxies, &cluster, manners, trouble).await;

    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "a token was seen twice: {tokens:?}");
    assert!(vanished.load(Ordering::Relaxed) > 100, "too few strangers: {vanished:?}");
    for node in cluster.ids() {
        assert!(cluster.status(node).is_some(), "node {node} has stopped");
    }
}
