//! The real servers: each starts, serves, survives what experiments do to it, and leaves nothing.
//!
//! | module | contents |
//! |---|---|
//! | this file | `servers::start`, kind by kind |
//! | `up` | the commands `up` and `down`, as processes |
//!
//! A test whose server is not installed is skipped, and says so; with `LAB_REQUIRE=all` it fails.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use palisade_lab::servers::{self, Cluster, Durability, Error, Identity, Kind, Options, Stopped};

use self::support::installed;

mod support;
#[path = "servers/up.rs"]
mod up;

/// More than a machine that other programs keep busy may stand still.
const MINUTE: Duration = Duration::from_secs(60);

/// Starts the servers; none if they are not installed here.
async fn started(kind: Kind, options: &Options) -> Option<Cluster> {
    installed(kind.name(), servers::start(kind, options).await)
}

fn processes(cluster: &Cluster) -> Vec<Identity> {
    (0..cluster.len()).flat_map(|node| cluster.identity(node).unwrap().tree()).collect()
}

async fn redis(address: &str, command: &[&str]) -> Result<redis::Value, String> {
    let ask = async {
        let client = redis::Client::open(format!("redis://{address}/"))?;
        let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::Cmd::new().arg(command).query_async::<redis::Value>(&mut connection).await
    };
    let answer = tokio::time::timeout(MINUTE, ask).await.map_err(|_| "no answer".to_owned())?;
    answer.map_err(|error| error.to_string())
}

fn bulk(text: &str) -> Result<redis::Value, String> {
    Ok(redis::Value::BulkString(text.into()))
}

/// What every kind does: serve, be paused and killed and restarted node by node, and leave nothing.
async fn lives_and_leaves_nothing(kind: Kind, nodes: usize, product: &str) {
    let options = Options { stop_timeout: MINUTE, ..Options::default() };
    let Some(cluster) = started(kind, &options).await else { return };
    assert_eq!((cluster.len(), cluster.endpoints().len()), (nodes, nodes));
    assert!(cluster.version().starts_with(product), "{}", cluster.version());
    let dir = cluster.dir().to_owned();
    assert!(dir.is_dir() && cluster.data_dir(nodes - 1).starts_with(&dir));

    let first = processes(&cluster);
    cluster.pause(0).unwrap();
    let paused = cluster.identity(0).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", paused.pid)).unwrap();
    assert!(stat.contains(") T "), "a paused process runs: {stat}");
    cluster.resume(0).unwrap();
    cluster.wait_ready(0).await.unwrap();

    let last = nodes - 1;
    let killed = cluster.identity(last).unwrap();
    cluster.kill(last).await.unwrap();
    assert!(!killed.is_running() && cluster.pid(last).is_none());
    assert!(matches!(cluster.pause(last), Err(Error::State { .. })), "a killed node was paused");
    assert!(tokio::net::TcpStream::connect(cluster.address(last)).await.is_err(), "a killed node listens");
    cluster.restart(last).await.unwrap();
    assert!(matches!(cluster.launch(last), Err(Error::State { .. })), "a running node was launched again");

    cluster.pause(0).unwrap();
    assert_eq!(cluster.stop(0).await.unwrap(), Stopped::Gracefully, "a paused node does not end by itself");
    cluster.restart(0).await.unwrap();

    let all: Vec<Identity> = first.into_iter().chain(processes(&cluster)).collect();
    assert!(all.len() > nodes);
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    drop(cluster);
    let alive: Vec<&Identity> = all.iter().filter(|process| process.is_running()).collect();
    assert!(alive.is_empty(), "processes are left: {alive:?}");
    assert!(!dir.exists(), "{} is left", dir.display());
    let left = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    // Column 5 is the process that has made the segment.
    let makers = |text: &str| -> HashSet<u32> {
        text.lines().filter_map(|line| line.split_ascii_whitespace().nth(4)?.parse().ok()).collect()
    };
    let ours: HashSet<u32> = all.iter().map(|process| process.pid).collect();
    assert!(kind != Kind::Postgres || !makers(&segments).is_disjoint(&ours), "the look at shared memory sees nothing");
    assert!(makers(&left).is_disjoint(&ours), "shared memory is left");
}

#[tokio::test]
async fn redis_lives_and_leaves_nothing() {
    lives_and_leaves_nothing(Kind::Redis, 1, "Redis 7.").await;
}

#[tokio::test]
async fn redlock_lives_and_leaves_nothing() {
    lives_and_leaves_nothing(Kind::Redlock, 5, "Redis 7.").await;
}

#[tokio::test]
async fn etcd_lives_and_leaves_nothing() {
    lives_and_leaves_nothing(Kind::Etcd, 3, "etcd 3.").await;
}

#[tokio::test]
async fn zookeeper_lives_and_leaves_nothing() {
    lives_and_leaves_nothing(Kind::Zookeeper, 3, "ZooKeeper 3.").await;
}

#[tokio::test]
async fn postgres_lives_and_leaves_nothing() {
    lives_and_leaves_nothing(Kind::Postgres, 1, "PostgreSQL 1").await;
}

#[tokio::test]
async fn objects_live_and_leave_nothing() {
    lives_and_leaves_nothing(Kind::Objects, 1, "moto 5.2.").await;
}

#[tokio::test]
async fn palisade_lives_and_leaves_nothing() {
    lives_and_leaves_nothing(Kind::Palisade, 3, "Palisade 0.").await;
}

#[tokio::test]
async fn paused_redis_answers_nothing() {
    let Some(cluster) = started(Kind::Redis, &Options::default()).await else { return };
    redis(cluster.address(0), &["SET", "key", "value"]).await.unwrap();
    cluster.pause(0).unwrap();
    let paused = tokio::time::timeout(Duration::from_secs(1), redis(cluster.address(0), &["GET", "key"])).await;
    assert!(paused.is_err(), "a paused server answers");
    cluster.resume(0).unwrap();
    assert_eq!(redis(cluster.address(0), &["GET", "key"]).await, bulk("value"));
}

#[tokio::test]
async fn killed_redis_keeps_its_data_unless_volatile() {
    for (durability, kept) in [(Durability::Always, true), (Durability::Volatile, false)] {
        let options = Options { durability, ..Options::default() };
        let Some(cluster) = started(Kind::Redis, &options).await else { return };
        redis(cluster.address(0), &["SET", "key", "value"]).await.unwrap();
        cluster.kill(0).await.unwrap();
        cluster.restart(0).await.unwrap();
        let expected = if kept { bulk("value") } else { Ok(redis::Value::Nil) };
        assert_eq!(redis(cluster.address(0), &["GET", "key"]).await, expected, "{durability:?}");
    }
}

#[tokio::test]
async fn replica_follows_and_can_be_promoted() {
    let options = Options { replicas: 1, ..Options::default() };
    let Some(cluster) = started(Kind::Redis, &options).await else { return };
    assert_eq!((cluster.len(), cluster.endpoints()), (2, &[cluster.address(0).to_owned()][..]));
    redis(cluster.address(0), &["SET", "key", "value"]).await.unwrap();
    let start = Instant::now();
    // Replication is asynchronous.
    while redis(cluster.address(1), &["GET", "key"]).await != bulk("value") {
        assert!(start.elapsed() < MINUTE, "the replica has not received the value");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(redis(cluster.address(1), &["SET", "key", "other"]).await.unwrap_err().contains("read only"));
    cluster.kill(0).await.unwrap();
    redis(cluster.address(1), &["REPLICAOF", "NO", "ONE"]).await.unwrap();
    redis(cluster.address(1), &["SET", "key", "other"]).await.unwrap();
}

#[tokio::test]
async fn killed_postgres_keeps_its_rows() {
    let Some(cluster) = started(Kind::Postgres, &Options::default()).await else { return };
    let url = cluster.url();
    let connect = || async {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let client = connect().await;
    client.batch_execute("CREATE TABLE fence (token bigint); INSERT INTO fence VALUES (34)").await.unwrap();
    let tree = cluster.identity(0).unwrap().tree();
    assert!(tree.len() > 2, "PostgreSQL is several processes: {tree:?}");
    // A connection's process is paused with the server: the query is not answered.
    cluster.pause(0).unwrap();
    let query = client.query_one("SELECT token FROM fence", &[]);
    assert!(tokio::time::timeout(Duration::from_millis(300), query).await.is_err(), "a paused server answers");
    cluster.kill(0).await.unwrap();
    cluster.restart(0).await.unwrap();
    let row = connect().await.query_one("SELECT token FROM fence", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 34);
}

#[tokio::test]
async fn two_clusters_at_once_share_no_port() {
    let options = Options { durability: Durability::Volatile, ..Options::default() };
    let (first, second) = tokio::join!(started(Kind::Redlock, &options), started(Kind::Redlock, &options));
    let (Some(first), Some(second)) = (first, second) else { return };
    let addresses: HashSet<&String> = first.endpoints().iter().chain(second.endpoints()).collect();
    assert_eq!(addresses.len(), 10);
}

#[tokio::test]
async fn port_in_use_is_an_error_that_names_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let parent = tempfile::tempdir().unwrap();
    let dir = Some(parent.path().to_owned());
    let options = Options { first_port: Some(port), dir, allow_tmpfs: true, ..Options::default() };
    match servers::start(Kind::Redis, &options).await {
        Err(Error::Missing(_)) => drop(started(Kind::Redis, &options).await),
        Err(Error::Port(reason)) => assert!(reason.contains(&format!("127.0.0.1:{port} is in use")), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0, "a directory is left");
}

#[tokio::test]
async fn broken_configuration_shows_the_end_of_the_log() {
    let broken = [
        (Kind::Redis, "appendfsync", "sometimes", "must be one of the following"),
        (Kind::Etcd, "election-timeout", "100000", "is too long"),
        (Kind::Zookeeper, "tickTime", "soon", "NumberFormatException"),
        (Kind::Postgres, "max_connections", "none", "invalid value for parameter"),
        (Kind::Palisade, "--election-timeout", "never", "never"),
        (Kind::Objects, "--port", "none", "invalid int value"),
    ];
    for (kind, name, value, said) in broken {
        let parent = tempfile::tempdir_in("/var/tmp").unwrap();
        let settings = vec![(name.to_owned(), value.to_owned())];
        let options =
            Options { settings, dir: Some(parent.path().to_owned()), allow_tmpfs: true, ..Options::default() };
        // A directory of mode 0700 is closed to the user that PostgreSQL runs as.
        open(parent.path());
        match servers::start(kind, &options).await {
            Err(Error::Missing(_) | Error::Setup { .. }) => drop(started(kind, &options).await),
            Err(error @ Error::Died { .. }) => {
                let error = error.to_string();
                assert!(error.contains("ended before it served") && error.contains(said), "{error}");
            }
            other => panic!("{kind}: {other:?}"),
        }
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0, "a directory of {kind} is left");
    }
}

fn open(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn environment_of_a_server_is_only_what_was_asked_for() {
    let env = vec![("LAB_TEST".to_owned(), "yes".to_owned())];
    let prefix = ["nice", "-n", "3"].map(str::to_owned).to_vec();
    let options = Options { env, prefix, ..Options::default() };
    // Redis would not do: it writes its title over its environment. etcd takes settings from its own.
    let Some(cluster) = started(Kind::Etcd, &options).await else { return };
    let pid = cluster.pid(0).unwrap();
    let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let mut names: Vec<&str> = environment.split('\0').filter_map(|variable| variable.split('=').next()).collect();
    names.retain(|name| !name.is_empty() && *name != "HOME");
    names.sort_unstable();
    assert_eq!(names, ["LAB_TEST", "LANG", "PATH"]);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let nice = stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(16).unwrap();
    assert!(nice.parse::<i32>().unwrap() >= 3, "the prefix did not start the server: nice {nice}");
    assert!(PathBuf::from(format!("/proc/{pid}/exe")).read_link().unwrap().to_string_lossy().contains("etcd"));
}

#[tokio::test]
async fn wall_clock_of_one_node_is_set() {
    let options = Options { fake_clock: true, ..Options::default() };
    let Some(cluster) = started(Kind::Redlock, &options).await else { return };
    let now = async |node: usize| match redis(cluster.address(node), &["TIME"]).await.unwrap() {
        redis::Value::Array(time) => match time.first() {
            Some(redis::Value::BulkString(seconds)) => String::from_utf8_lossy(seconds).parse::<i64>().unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert!((now(0).await - now(1).await).abs() <= 60);
    redis(cluster.address(0), &["SET", "key", "value", "PX", "60000"]).await.unwrap();
    cluster.set_clock(0, "+3600s").unwrap();
    let ahead = now(0).await - now(1).await;
    assert!((3540..=3660).contains(&ahead), "{ahead} s");
    assert_eq!(redis(cluster.address(0), &["GET", "key"]).await, Ok(redis::Value::Nil), "the key outlived the jump");
    cluster.set_clock(1, "+300s").unwrap();
    assert!(cluster.clock_offset(1).await.unwrap().abs_diff(300_000) < 60_000);
    assert!(cluster.clock_offset(2).await.unwrap().abs_diff(0) < 60_000);
    cluster.set_clock(1, "+0").unwrap();
    cluster.set_clock(0, "-3600s").unwrap();
    let behind = now(1).await - now(0).await;
    assert!((3540..=3660).contains(&behind), "{behind} s");
}

/// etcd is written in Go, which reads the clock without the C library.
#[tokio::test]
async fn libfaketime_reaches_zookeeper_and_not_etcd() {
    for (kind, seen) in [(Kind::Zookeeper, 300_000), (Kind::Etcd, 0)] {
        let Some(cluster) = started(kind, &Options { fake_clock: true, ..Options::default() }).await else { continue };
        cluster.set_clock(1, "+300s").unwrap();
        for (node, expected) in [(0, 0), (1, seen)] {
            let offset = cluster.clock_offset(node).await.unwrap();
            assert!(offset.abs_diff(expected) < 60_000, "{kind}, node {node}: {offset} ms");
        }
    }
}

#[tokio::test]
async fn clock_of_the_machine_cannot_be_set() {
    let Some(cluster) = started(Kind::Redis, &Options::default()).await else { return };
    assert!(matches!(cluster.set_clock(0, "+1s"), Err(Error::State { .. })));
}
