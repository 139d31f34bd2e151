//! Failover keeps the queue: when a leader dies, each waiter keeps its queue position and receives
//! its grant within one call of `lock`. The queue is part of the replicated state, and a request
//! that is repeated at the new leader finds its position in it.

use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use palisade_client::wire::SessionId;
use palisade_client::{Client, Error, Guard, LockOptions, Options};
use serde_json::json;
use tokio::time::timeout;

use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, holder_and_queue, lock, open_session, post_to_leader, release};
use crate::support::metrics;
use crate::support::process::{Running, palisade};
use crate::support::{eventually, http};

/// How many waiters are queued behind the holder.
const WAITERS: usize = 5;
/// When a test gives up. No test expects anything to take so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A queue of Rust clients for one lock, each with a connection of its own. Each calls `lock` once.
struct Line<'a> {
    key: &'a str,
    /// The public number of every client's session so far.
    sessions: Vec<u64>,
    granted: usize,
    last_token: u64,
    grants: Grants,
}

type Grant = (usize, Result<Guard, Error>);
type Grants = (tokio::sync::mpsc::UnboundedSender<Grant>, tokio::sync::mpsc::UnboundedReceiver<Grant>);

impl Line<'_> {
    fn before(key: &str) -> Line<'_> {
        Line { key, sessions: Vec::new(), granted: 0, last_token: 0, grants: tokio::sync::mpsc::unbounded_channel() }
    }

    /// Adds one more client, at the end of the queue.
    async fn join(&mut self, cluster: &Cluster) {
        let number = self.sessions.len();
        let client = Client::connect(&cluster.endpoints(), Options::default()).await.expect("a leader answers");
        let owner = format!("client-{number}");
        let options = LockOptions::default().wait_forever().owner(&owner);
        let (key, grants) = (self.key.to_owned(), self.grants.0.clone());
        tokio::spawn(async move {
            let outcome = client.lock(key, options).await;
            let _ = grants.send((number, outcome));
        });
        let session = eventually("it holds the lock, or stands at the end of the queue", || {
            let lock = lock(cluster, self.key);
            let held = lock.holder.filter(|holder| holder.owner == owner).map(|holder| holder.session);
            held.or(lock.queue.last().filter(|last| last.owner == owner).map(|last| last.session))
        });
        self.sessions.push(session);
    }

    /// The next grant: it must go to the first waiter, for the session that the waiter asked with.
    async fn next(&mut self) -> Guard {
        let grant = timeout(PATIENCE, self.grants.1.recv()).await.expect("a waiter is granted the lock");
        let (number, guard) = grant.expect("the line holds the other end");
        let guard = guard.expect("a client that waits forever is granted the lock");
        assert_eq!(number, self.granted, "granted in the order of arrival");
        assert_eq!(
            guard.session().number(),
            self.sessions[number],
            "the client kept its queue position, and took no new one"
        );
        assert!(guard.token() > self.last_token, "tokens grow: {} came after {}", guard.token(), self.last_token);
        self.granted += 1;
        self.last_token = guard.token();
        guard
    }
}

/// Waits until every waiter has found the new leader and waits there.
fn await_waiters(cluster: &Cluster, leader: u16) {
    let waiters = || metrics::sample(&cluster.client_addr(leader), "palisade_waiters");
    eventually("all waiters are at the new leader", || (waiters() == Some(WAITERS as f64)).then_some(()));
}

/// Goal: with a queue that never empties, twenty leaders in a row are killed; the holder keeps the
/// lock, and every waiter is granted it in turn. Every second leader dies while a release is under
/// way: the release may be done or not, or be done without an answer to any client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_leaders_die_and_the_line_stands() {
    let mut cluster = Cluster::start(3);
    let mut line = Line::before("deploy");
    for _ in 0..=WAITERS {
        line.join(&cluster).await;
    }
    let mut guard = line.next().await;
    for kill in 1..=20 {
        let leader = cluster.wait_ready();
        let before = lock(&cluster, line.key);
        assert_eq!(before.queue.len(), WAITERS);
        if kill % 2 == 0 {
            cluster.kill(leader);
            cluster.wait_ready();
            assert_eq!(holder_and_queue(&lock(&cluster, line.key)), holder_and_queue(&before), "nothing moved");
            assert!(guard.is_valid(), "the holder did not even notice: {guard:?}");
            guard.release().await.expect("the lock is still held");
        } else {
            let release = tokio::spawn(guard.release());
            // Each time another moment of the release, which takes about a millisecond.
            sleep(Duration::from_micros(100 * kill));
            cluster.kill(leader);
            release.await.unwrap().expect("a release that is repeated at the new leader is done once");
        }
        guard = line.next().await;
        line.join(&cluster).await;
        cluster.restart(leader);
        cluster.wait_ready();
    }
    for _ in 0..WAITERS {
        guard.release().await.expect("the lock is still held");
        guard = line.next().await;
    }
    guard.release().await.expect("the lock is still held");
    assert_eq!(holder_and_queue(&lock(&cluster, line.key)), (None, vec![]));
}

/// Goal: a leader that is paused instead of killed loses leadership, but no waiter loses its queue
/// position: neither while the leader's connections hang, nor when it resumes and finds that its
/// clients have gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_leader_costs_no_queue_position() {
    let cluster = Cluster::start(3);
    let mut line = Line::before("deploy");
    for _ in 0..=WAITERS {
        line.join(&cluster).await;
    }
    let mut guard = line.next().await;
    let before = lock(&cluster, line.key);
    let sleeper = cluster.wait_ready();
    cluster.freeze(sleeper);
    let awake = cluster.others(sleeper);
    let leader = eventually("the others agree on another leader", || {
        let leader = cluster.status(awake[0])?.leader?.id;
        (leader != sleeper && cluster.status(awake[1])?.leader?.id == leader).then_some(leader)
    });
    await_waiters(&cluster, leader);
    cluster.thaw(sleeper);
    cluster.wait_ready();
    assert_eq!(holder_and_queue(&lock(&cluster, line.key)), holder_and_queue(&before), "nothing moved");
    assert!(guard.is_valid(), "the holder kept the lock: {guard:?}");
    for _ in 0..WAITERS {
        guard.release().await.expect("the lock is still held");
        guard = line.next().await;
    }
}

/// `palisade lock KEY -- COMMAND`, where the command writes down its token and its name, and ends
/// with its input.
fn process(cluster: &Cluster, key: &str, name: &str, book: &Path, input: Stdio) -> Running {
    let script = r#"echo "$PALISADE_TOKEN $0" >> "$1"; exec cat"#;
    let mut command = palisade();
    command.args(["lock", key, "--owner", name, "--wait", "60s", "--endpoints", &cluster.endpoints().join(",")]);
    command.args(["--", "sh", "-c", script, name]).arg(book);
    let process = Running::start(command.stdin(input));
    eventually("it holds the lock, or stands at the end of the queue", || {
        let lock = lock(cluster, key);
        let last = lock.queue.last().map(|last| &last.owner);
        (last.or(lock.holder.as_ref().map(|holder| &holder.owner))? == name).then_some(())
    });
    process
}

/// Goal: the same for a queue of `palisade lock` processes. The commands run one after the other in
/// queue order, each once, and the command that ran when the leader died keeps running.
#[test]
fn processes_keep_their_queue_positions() {
    let mut cluster = Cluster::start(3);
    let directory = tempfile::tempdir().unwrap();
    let book = directory.path().join("book");
    let mut expected = Vec::new();
    for round in 1..=5 {
        let key = format!("nightly-{round}");
        let name = |number: usize| format!("process-{round}-{number}");
        let mut holder = process(&cluster, &key, &name(0), &book, Stdio::piped());
        let mut waiters: Vec<Running> =
            (1..=WAITERS).map(|number| process(&cluster, &key, &name(number), &book, Stdio::null())).collect();
        let before = lock(&cluster, &key);

        let leader = cluster.wait_ready();
        cluster.kill(leader);
        cluster.wait_ready();
        assert_eq!(holder_and_queue(&lock(&cluster, &key)), holder_and_queue(&before), "nothing moved");
        assert!(holder.runs(), "the holder's command goes on");

        drop(holder.0.stdin.take());
        assert_eq!(holder.exit_code(), 0);
        for waiter in &mut waiters {
            assert_eq!(waiter.exit_code(), 0);
        }
        expected.extend((0..=WAITERS).map(name));
        cluster.restart(leader);
    }
    let book = std::fs::read_to_string(book).unwrap();
    let turns: Vec<(u64, &str)> = book
        .lines()
        .map(|line| line.split_once(' ').expect("a token and a name"))
        .map(|(token, name)| (token.parse().expect("a token"), name))
        .collect();
    assert_eq!(turns.iter().map(|(_, name)| *name).collect::<Vec<_>>(), expected);
    assert!(turns.is_sorted_by(|(earlier, _), (later, _)| earlier < later), "tokens grow: {turns:?}");
}

/// Goal: the same for a client that speaks plain HTTP. Five requests wait; whenever their leader
/// dies, each is repeated with its session, and finds its queue position at the new leader. The
/// holder that asks again finds its grant.
#[test]
fn plain_requests_find_their_queue_positions_again() {
    const KEY: &str = "import";
    const TTL: Duration = Duration::from_secs(600);
    let mut cluster = Cluster::start(3);
    let holder = open_session(&cluster, "holder", TTL);
    let held = acquire(&cluster, KEY, holder);
    let (sender, grants) = mpsc::channel();
    let mut sessions = Vec::new();
    for number in 1..=WAITERS {
        let session = open_session(&cluster, &format!("waiter-{number}"), TTL);
        sessions.push(session);
        let (endpoints, sender) = (cluster.endpoints(), sender.clone());
        std::thread::spawn(move || {
            let body = json!({"session": session, "wait_ms": 60_000});
            let response = post_to_leader(&endpoints, &format!("/v1/locks/{KEY}/acquire"), &body);
            let _ = sender.send((session, response));
        });
        eventually("it stands in the queue", || (lock(&cluster, KEY).queue.len() == number).then_some(()));
    }
    for _ in 0..5 {
        let leader = cluster.wait_ready();
        cluster.kill(leader);
        let leader_now = cluster.wait_ready();
        await_waiters(&cluster, leader_now);
        let now = holder_and_queue(&lock(&cluster, KEY));
        let numbers = sessions.iter().map(|session: &SessionId| session.number()).collect();
        assert_eq!(now, (Some((holder.number(), held.token)), numbers), "each waiter found its own queue position");
        assert_eq!(acquire(&cluster, KEY, holder), held, "the holder finds its grant");
        cluster.restart(leader);
    }
    cluster.wait_ready();
    let (mut session, mut token) = (holder, held.token);
    for expected in sessions {
        release(&cluster, KEY, session, token);
        let (granted, response) = grants.recv_timeout(PATIENCE).expect("a waiter is granted the lock");
        assert_eq!(granted, expected, "granted in the order of arrival");
        let next = response.ok()["token"].as_u64().expect("a token");
        assert!(next > token, "tokens grow: {next} came after {token}");
        (session, token) = (granted, next);
    }
}

/// Goal: every follower forwards to the current leader, or redirects to it, with the same path and query.
#[test]
fn followers_send_to_the_leader() {
    let mut cluster = Cluster::start(3);
    for _ in 0..3 {
        let leader = cluster.wait_ready();
        let leader_addr = cluster.client_addr(leader);
        let path = "/v1/locks/a%20key%2Fwith%20signs?consistency=linearizable";
        for follower in cluster.others(leader) {
            // The address travels from node to node on their own connections; it may be a moment
            // behind the election.
            let response = eventually("the follower knows where the leader is", || {
                let response = http::send_unforwarded(&cluster.client_addr(follower), "GET", path, "");
                response.ok().filter(|response| response.status != 503)
            });
            let body = response.refused(307, "not_leader");
            assert_eq!(body["leader"], json!({"id": leader, "client_addr": leader_addr}));
            assert_eq!(response.header("location"), Some(format!("http://{leader_addr}{path}").as_str()));
            assert_eq!(http::get(&cluster.client_addr(follower), path).unwrap().ok()["key"], "a key/with signs");
        }
        assert_eq!(http::get(&leader_addr, path).unwrap().ok()["key"], "a key/with signs");
        cluster.kill(leader);
        cluster.wait_ready();
        cluster.restart(leader);
    }
}
