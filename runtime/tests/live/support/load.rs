//! Clients that are busy, and write down the answers that they receive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade_client::wire::Consistency;
use palisade_client::{Client, Guard, LockOptions, Options};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::cluster::Cluster;
use crate::support::journal::Journal;

/// No session expires in these tests.
const TTL: Duration = Duration::from_secs(3600);
/// How many hold and wait in a line at the most.
const LINE: usize = 6;
/// How many locks a collector holds at the most.
const COLLECTION: usize = 20;

/// When a test gives up.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(180);

/// Clients stay through crashes and restarts: nothing is ever given up.
pub(crate) fn options() -> Options {
    Options {
        request_timeout: Duration::from_secs(120),
        // A connection to a living node is not given up because the machine is busy: that would
        // withdraw the waits.
        attempt_timeout: Duration::from_secs(20),
        probe_after: Duration::from_secs(60),
        ..Options::default()
    }
}

/// What every task has.
#[derive(Clone)]
pub(crate) struct Load {
    client: Client,
    journal: Arc<Mutex<Journal>>,
    ends: Arc<AtomicBool>,
    /// How long each task pauses after an operation.
    pause: watch::Receiver<Duration>,
    seed: u64,
}

impl Load {
    /// A load that never pauses.
    pub(crate) fn new(client: Client, journal: &Arc<Mutex<Journal>>, ends: &Arc<AtomicBool>, seed: u64) -> Load {
        let (_, pause) = watch::channel(Duration::ZERO);
        Load { client, journal: Arc::clone(journal), ends: Arc::clone(ends), pause, seed }
    }

    fn random(&self) -> StdRng {
        StdRng::seed_from_u64(self.seed)
    }

    fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::Relaxed)
    }

    async fn rest(&mut self) {
        let pause = *self.pause.borrow_and_update();
        if pause.is_zero() {
            return;
        }
        // Ends early if another pause is set.
        let _ = timeout(pause, self.pause.changed()).await;
    }

    async fn lock(&self, key: &str, owner: &str) -> Guard {
        let options = LockOptions::default().ttl(TTL).owner(owner).wait_forever();
        self.client.lock(key, options).await.expect("a client that waits for ever is granted the lock in the end")
    }

    async fn take(&self, key: &str) -> Guard {
        let guard = self.lock(key, "").await;
        self.journal.lock().granted(key, &guard);
        guard
    }

    async fn give_back(&self, guard: Guard) {
        let token = guard.token();
        self.journal.lock().releasing(&guard);
        guard.release().await.expect("no session expires here, so what is released was held");
        self.journal.lock().released(token);
    }

    /// Takes and gives back a few keys, as others do.
    pub(crate) async fn churn(mut self) {
        let mut random = self.random();
        while self.goes_on() {
            let key = format!("churn-{}", random.random_range(0..3));
            let guard = self.take(&key).await;
            sleep(Duration::from_millis(random.random_range(0..3))).await;
            self.give_back(guard).await;
            self.rest().await;
        }
    }

    /// Takes locks that no other client wants and holds them for long.
    pub(crate) async fn collect(mut self) {
        let mut random = self.random();
        let mut guards = Vec::new();
        for number in 0.. {
            if !self.goes_on() {
                break;
            }
            guards.push(self.take(&format!("collected-{}-{number}", self.seed)).await);
            if guards.len() > COLLECTION {
                let oldest = guards.swap_remove(random.random_range(0..guards.len()));
                self.give_back(oldest).await;
            }
            sleep(Duration::from_millis(random.random_range(0..10))).await;
            self.rest().await;
        }
        for guard in guards {
            self.give_back(guard).await;
        }
    }

    /// Stands in line for one key under many names; the first leaves, another joins at the end.
    pub(crate) async fn line(mut self) {
        let mut random = self.random();
        let key = format!("line-{}", self.seed);
        let mut first: Option<Guard> = None;
        let mut waiting: VecDeque<JoinHandle<Guard>> = VecDeque::new();
        for number in 0.. {
            let length = self.journal.lock().length(&key);
            if self.goes_on() && (length < 2 || (length < LINE && random.random())) {
                waiting.push_back(self.join(&key, format!("{key}/{number}")).await);
            } else if let Some(guard) = first.take() {
                self.journal.lock().leaving(&key);
                guard.release().await.expect("no session expires here, so what is released was held");
                self.journal.lock().left(&key);
            }
            if first.is_none() {
                let Some(next) = waiting.pop_front() else { break };
                let guard = next.await.expect("the wait ends with a grant");
                self.journal.lock().leads(&key, &guard);
                first = Some(guard);
            }
            self.rest().await;
        }
    }

    /// Joins the line, and returns when a read has shown that this is so.
    async fn join(&self, key: &str, name: String) -> JoinHandle<Guard> {
        self.journal.lock().joining(key, &name);
        let (load, own_key) = (self.clone(), key.to_string());
        let wait = tokio::spawn(async move { load.lock(&own_key, &name).await });
        loop {
            let read = self.client.show_lock(key, Consistency::Linearizable).await.expect("the cluster comes back");
            if self.journal.lock().joined(key, &read) {
                return wait;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The clients of a test, which continue through every failure.
pub(crate) struct Clients {
    pub(crate) journal: Arc<Mutex<Journal>>,
    ends: Arc<AtomicBool>,
    pause: watch::Sender<Duration>,
    clients: Vec<Client>,
    tasks: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(crate) async fn start(cluster: &Cluster, seed: u64) -> Clients {
        let (journal, ends) = (Arc::new(Mutex::new(Journal::default())), Arc::new(AtomicBool::new(false)));
        let (mut clients, mut tasks) = (Vec::new(), Vec::new());
        let (pause, pauses) = watch::channel(Duration::ZERO);
        for seed in seed..seed + 6 {
            let client = Client::connect(&cluster.endpoints(), options()).await.expect("the cluster serves");
            clients.push(client.clone());
            let load = Load { pause: pauses.clone(), ..Load::new(client, &journal, &ends, seed) };
            tasks.push(match seed % 3 {
                0 => tokio::spawn(load.collect()),
                1 => tokio::spawn(load.line()),
                _ => tokio::spawn(load.churn()),
            });
        }
        Clients { journal, ends, pause, clients, tasks }
    }

    /// Each task pauses so long after an operation from now on.
    pub(crate) fn pause(&self, pause: Duration) {
        self.pause.send_replace(pause);
    }

    /// Waits until so many more operations were acknowledged.
    pub(crate) async fn get_on(&self, acknowledgements: usize) {
        let enough = self.journal.lock().acknowledgements() + acknowledgements;
        let busy = async {
            while self.journal.lock().acknowledgements() < enough {
                assert!(self.tasks.iter().all(|task| !task.is_finished()), "a task has failed");
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(GIVE_UP, busy).await.expect("the clients get on");
    }

    /// Every client finishes its current operation.
    pub(crate) async fn finish(self) -> Journal {
        self.ends.store(true, Ordering::Relaxed);
        for task in self.tasks {
            timeout(GIVE_UP, task).await.expect("the clients come to an end").expect("nothing went wrong for them");
        }
        for client in self.clients {
            client.close().await;
        }
        Arc::try_unwrap(self.journal).map(Mutex::into_inner).unwrap_or_else(|journal| journal.lock().clone())
    }
}
