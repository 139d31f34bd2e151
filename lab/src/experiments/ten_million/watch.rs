//! Samples of a backend while locks are acquired and expire: how many it has, and what they take.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client as Etcd, GetOptions};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::event::micros;
use crate::servers::{self, Cluster, Kind};

/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_secs(60);

/// What a backend has at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Since the case's beginning.
    pub at_ms: u64,
    /// Locks that it has: keys (`DBSIZE`; of Redlock, those with a TTL), keys below the prefix, ephemeral nodes, locks of the
    /// status. Those that have expired count as long as the backend counts them.
    pub locks: u64,
    /// The resident memory of the process, of the leader where there is one.
    pub resident: u64,
    /// The lengths of the files of its data directory, what is preallocated included.
    pub disk: u64,
    /// Redis: `used_memory`. etcd: the part of its database that is in use.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub used: Option<u64>,
    /// Redis: `expired_keys`. Redlock: `DBSIZE`. etcd: the size of its database. ZooKeeper: `zk_znode_count`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub other: Option<u64>,
}

/// Looks at one server, with a connection of its own.
#[derive(Debug, Clone)]
pub struct Watch {
    kind: Kind,
    address: String,
    pid: u32,
    data: PathBuf,
    prefix: String,
    begin: Instant,
}

impl Watch {
    /// Looks at the leader, or the only server, from now on.
    ///
    /// # Errors
    /// No server leads, or it does not run.
    pub async fn new(cluster: &Cluster, prefix: &str) -> Result<Watch, String> {
        // The instances of Redlock are alike.
        let node = match cluster.kind() {
            Kind::Redlock => 0,
            _ => cluster.leader().await.map_err(|error| error.to_string())?,
        };
        Ok(Watch {
            kind: cluster.kind(),
            address: cluster.address(node).to_owned(),
            pid: cluster.pid(node).ok_or_else(|| format!("{} does not run", cluster.name(node)))?,
            data: cluster.data_dir(node).to_owned(),
            prefix: prefix.to_owned(),
            begin: Instant::now(),
        })
    }

    /// Since the beginning, in milliseconds.
    #[must_use]
    pub fn elapsed_ms(&self) -> u64 {
        micros(self.begin.elapsed()) / 1_000
    }

    /// Takes a sample.
    ///
    /// # Errors
    /// The server does not answer in time.
    pub async fn sample(&self) -> Result<Sample, String> {
        let late = || format!("{} sent no answer to a sample within {} s", self.address, ANSWER.as_secs());
        tokio::time::timeout(ANSWER, self.ask()).await.map_err(|_| late())?
    }

    async fn ask(&self) -> Result<Sample, String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let mut sample = Sample { resident: resident(&status), disk: size(&self.data), ..Sample::default() };
        match self.kind {
            Kind::Redis | Kind::Redlock => {
                let client = redis::Client::open(format!("redis://{}/", self.address)).map_err(text)?;
                let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
                let connection = client.get_multiplexed_async_connection_with_config(&config).await;
                let mut connection = connection.map_err(text)?;
                let info: String = redis::cmd("INFO").query_async(&mut connection).await.map_err(text)?;
                sample.locks = redis::cmd("DBSIZE").query_async(&mut connection).await.map_err(text)?;
                sample.used = field(&info, "used_memory");
                sample.other = field(&info, "expired_keys");
                if self.kind == Kind::Redlock {
                    // Counters of tokens are keys without a TTL.
                    sample.other = Some(sample.locks);
                    sample.locks = keys_with_ttl(&info);
                }
            }
            Kind::Etcd => {
                let mut client = Etcd::connect([&self.address], None).await.map_err(text)?;
                let count = GetOptions::new().with_prefix().with_count_only();
                let keys = client.get(format!("{}/", self.prefix), Some(count)).await.map_err(text)?;
                let status = client.status().await.map_err(text)?;
                sample.locks = u64::try_from(keys.count()).unwrap_or(0);
                sample.used = u64::try_from(status.raft_used_db_size()).ok();
                sample.other = u64::try_from(status.db_size()).ok();
            }
            Kind::Zookeeper => {
                let state = servers::zookeeper_state(&self.address).await?;
                let value = |name: &str| state.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
                sample.locks = value("zk_ephemerals_count").ok_or("`mntr` states no zk_ephemerals_count")?;
                sample.other = value("zk_znode_count");
            }
            _ => {
                let status = palisade_client::Security::plain()
                    .status(&self.address, Duration::from_secs(30))
                    .await
                    .map_err(text)?;
                sample.locks = status.locks;
            }
        }
        sample.at_ms = self.elapsed_ms();
        Ok(sample)
    }

    /// Takes samples in the background until the recording is ended. A server that does not answer in time leaves a gap.
    #[must_use]
    pub fn record(&self, interval: Duration) -> Recording {
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let (watch, into) = (self.clone(), samples.clone());
        let task = tokio::spawn(async move {
            loop {
                if let Ok(sample) = watch.sample().await {
                    into.lock().push(sample);
                }
                tokio::time::sleep(interval).await;
            }
        });
        Recording { samples, task }
    }

    /// Waits until no more than so many locks are left, or the time is over. Returns when that was. A sample that fails is
    /// taken again.
    pub async fn until_left(&self, locks: u64, at_most: Duration) -> Option<u64> {
        let begin = Instant::now();
        while begin.elapsed() < at_most {
            match self.sample().await {
                Ok(sample) if sample.locks <= locks => return Some(sample.at_ms),
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        None
    }
}

/// Samples that are being taken.
#[derive(Debug)]
pub struct Recording {
    samples: Arc<Mutex<Vec<Sample>>>,
    task: JoinHandle<()>,
}

impl Recording {
    /// Ends it.
    #[must_use]
    pub fn end(self) -> Vec<Sample> {
        self.task.abort();
        std::mem::take(&mut *self.samples.lock())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `VmRSS` of /proc/PID/status, in bytes.
fn resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// A number of Redis's INFO.
fn field(info: &str, name: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
}

/// The keys with a TTL in Redis's INFO: `db0:keys=2,expires=1,avg_ttl=0`. No line: no keys.
fn keys_with_ttl(info: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix("db0:"));
    let field = line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix("expires=")?.parse().ok()));
    field.unwrap_or(0)
}

/// The size of all files below a directory. Files that vanish meanwhile do not count.
fn size(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_system_and_from_redis() {
        assert_eq!(resident("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t  12 kB\n"), 12 * 1024);
        assert_eq!(resident(""), 0);
        let keyspace = "# Keyspace\r\ndb0:keys=20,expires=7,avg_ttl=900\r\n";
        assert_eq!((keys_with_ttl(keyspace), keys_with_ttl("# Keyspace\r\n")), (7, 0));
        let info = "# Memory\r\nused_memory:1000\r\nused_memory_rss:2000\r\n";
        assert_eq!((field(info, "used_memory"), field(info, "expired_keys")), (Some(1000), None));
    }

    #[test]
    fn the_size_of_a_directory_is_that_of_all_its_files() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("a"), [0; 10]).unwrap();
        std::fs::write(directory.path().join("below/b"), [0; 5]).unwrap();
        assert_eq!(size(directory.path()), 15);
    }
}
