//! The watchers of `palisade bench`: very many clients that watch one key, each over a connection of its
//! own, spread over the nodes. What they cost a node in memory, how long an event takes to the last of
//! them, and how fast other clients acquire and release meanwhile.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use palisade_client::{Client, LockOptions, Options, Security};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::dev::Cluster;
use super::super::{block_on, print_error};
use super::{Bench, Target};

/// The key.
const KEY: &str = "watched";
/// Number of watchers that connect at once.
const AT_ONCE: usize = 100;
/// Number of events whose way is measured, and the pause between two of them.
const EVENTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(500);
/// How long an event may take to the last watcher, and all of them to connect.
const PATIENCE: Duration = Duration::from_secs(60);

/// When the watchers were told of a grant, by its token.
type Arrivals = Arc<Mutex<HashMap<u64, Vec<Instant>>>>;

/// Open watches, on a thread of their own: their work must not delay the clients that are measured.
pub(super) struct Watchers {
    arrivals: Arrivals,
    /// Ends the watches when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    count: usize,
}

impl Watchers {
    /// Opens so many, and waits until all were shown the present state.
    async fn open(target: &Target, count: usize) -> Result<Watchers, String> {
        let (arrivals, listed) = (Arrivals::default(), Arc::new(AtomicUsize::new(0)));
        let (stop, stopped) = oneshot::channel();
        let (endpoints, security) = (target.endpoints.clone(), target.security.clone());
        let (notified, shown) = (Arc::clone(&arrivals), Arc::clone(&listed));
        let thread = std::thread::spawn(move || {
            block_on(async {
                tokio::select! {
                    () = watch_all(&endpoints, &security, count, &notified, &shown) => {}
                    _ = stopped => {}
                }
            });
        });
        let watchers = Watchers { arrivals, stop: Some(stop), thread: Some(thread), count };
        let begin = Instant::now();
        while listed.load(Ordering::Relaxed) < count {
            if begin.elapsed() > PATIENCE {
                let open = listed.load(Ordering::Relaxed);
                return Err(format!("only {open} watchers could be opened: raise the limit of open files (ulimit -n)"));
            }
            sleep(Duration::from_millis(1)).await;
        }
        Ok(watchers)
    }

    /// Grants the lock, and waits until all watchers were told. Returns the times from the answer to the
    /// acquire, in order.
    async fn measure(&self, client: &Client) -> Result<Vec<Duration>, String> {
        let guard = client.lock(KEY, LockOptions::default()).await.map_err(|error| error.to_string())?;
        let (token, granted) = (guard.token(), Instant::now());
        while self.arrivals.lock().get(&token).map_or(0, Vec::len) < self.count {
            if granted.elapsed() > PATIENCE {
                return Err("not all watchers were told of a grant".to_owned());
            }
            sleep(Duration::from_millis(1)).await;
        }
        guard.release().await.map_err(|error| error.to_string())?;
        let mut times: Vec<Duration> = self
            .arrivals
            .lock()
            .remove(&token)
            .unwrap_or_default()
            .into_iter()
            .map(|arrived| arrived.saturating_duration_since(granted))
            .collect();
        times.sort_unstable();
        Ok(times)
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens watches at the nodes in turn, and never ends.
async fn watch_all(
    endpoints: &[String],
    security: &Security,
    count: usize,
    notified: &Arrivals,
    shown: &Arc<AtomicUsize>,
) {
    let mut tasks = JoinSet::new();
    for (number, endpoint) in (0..count).zip(endpoints.iter().cycle()) {
        let (endpoint, security) = (endpoint.clone(), security.clone());
        let (notified, listed) = (Arc::clone(notified), Arc::clone(shown));
        tasks.spawn(async move {
            if let Err(error) = watch(&endpoint, &security, &notified, &listed).await {
                print_error(format!("watcher {number} has ended: {error}"));
            }
        });
        // The nodes accept no more at once.
        while number > shown.load(Ordering::Relaxed) + AT_ONCE {
            sleep(Duration::from_millis(1)).await;
        }
    }
    while tasks.join_next().await.is_some() {}
    pending().await
}

/// Watches the key until the connection ends.
async fn watch(endpoint: &str, security: &Security, notified: &Arrivals, shown: &AtomicUsize) -> std::io::Result<()> {
    let mut stream = security.dial(endpoint).await.map_err(std::io::Error::other)?;
    let request = format!("GET /v1/watch?key={KEY} HTTP/1.1\r\nHost: {endpoint}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let (mut buffer, mut text) = ([0; 4_096], Vec::new());
    let mut is_shown = false;
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Err(std::io::Error::other(String::from_utf8_lossy(&text).into_owned()));
        }
        let now = Instant::now();
        text.extend_from_slice(&buffer[..length]);
        // Whole events: the rest comes with the next read.
        while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
            let event = String::from_utf8_lossy(&text[..end]).into_owned();
            text.drain(..end + 2);
            if event.contains("event: listing") && !is_shown {
                is_shown = true;
                shown.fetch_add(1, Ordering::Relaxed);
            }
            if event.contains("event: granted")
                && let Some(token) = token(&event)
            {
                notified.lock().entry(token).or_default().push(now);
            }
        }
    }
}

fn token(event: &str) -> Option<u64> {
    let (_, rest) = event.split_once("\"token\":")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl Bench {
    /// Opens the watchers, measures what they cost, and the clients beside them.
    pub(super) async fn measure_watchers(
        &self,
        target: &Target,
        clients: usize,
        cluster: Option<&Cluster>,
    ) -> Result<(), String> {
        let memory = || cluster.map(Cluster::memory).unwrap_or_default();
        let before = memory();
        let begin = Instant::now();
        let watchers = Watchers::open(target, self.watchers).await?;
        let (count, nodes) = (watchers.count, target.endpoints.len());
        outln!("{count} watchers of one key at {nodes} nodes, opened in {:.1} s", begin.elapsed().as_secs_f64());
        let more: u64 = before.iter().zip(memory()).map(|(before, now)| now.saturating_sub(*before)).sum();
        if let Some(per_watcher) = more.checked_div(count as u64).filter(|_| !before.is_empty()) {
            outln!("the nodes use {per_watcher} bytes more than before for each watcher");
        }
        self.row("quiet", target, clients, sleep(self.time), cluster).await?;

        let options = Options { security: target.security.clone(), ..Options::default() };
        let client = Client::connect(&target.endpoints, options).await.map_err(|error| error.to_string())?;
        let mut times = Vec::new();
        for _ in 0..EVENTS {
            times.push(watchers.measure(&client).await?);
            sleep(PAUSE).await;
        }
        let percentile = |share: usize| {
            let mut at: Vec<Duration> =
                times.iter().filter_map(|times| times.get((times.len() - 1) * share / 100)).copied().collect();
            at.sort_unstable();
            at.get(at.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
        };
        let [first, median, p99, last] = [0, 50, 99, 100].map(percentile);
        outln!(
            "from a grant's answer to the first watcher {first:.1} ms, to half of them {median:.1} ms, to 99% {p99:.1} ms, to the \
             last {last:.1} ms (medians of {EVENTS} grants)"
        );

        // The watched lock changes all the time.
        let changing = tokio::spawn(async move {
            loop {
                let Ok(guard) = client.lock(KEY, LockOptions::default()).await else { return };
                sleep(Duration::from_millis(50)).await;
                if guard.release().await.is_err() {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        });
        self.row("events", target, clients, sleep(self.time), cluster).await?;
        changing.abort();
        outln!("during the last row the watched lock was granted and released some 10 times a second");
        Ok(())
    }
}
