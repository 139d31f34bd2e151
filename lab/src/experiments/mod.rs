//! The experiments: `palisade-lab run NAME`. Each asks one question, predicts the answer, measures it
//! on real servers, and renders its page from the results.
//!
//! | module | question |
//! |---|---|
//! | [`pause`] | what a pause longer than the TTL does to the resource |
//! | [`release`] | whether a release can free another owner's lock |
//! | [`ttl`] | how long a killed holder blocks the lock |
//! | [`renew`] | whether renewing closes the window |
//! | [`work`] | what a TTL below the work costs, and what it takes from the jobs |
//! | [`fenced_stores`] | whether a PostgreSQL row and an object check the token themselves |
//! | [`failover`] | what a failover does to locks, tokens and queues |
//! | [`clocks`] | what jumps of the servers' wall clocks do to leases |
//! | [`redlock`] | whether a majority of instances is enough, under a partition, a pause and a crash |
//! | [`prediction`] | whether real servers follow the gallery's traces step by step |
//! | [`contention`] | what more contenders for one key buy |
//! | [`fairness`] | whether locks are granted in the order of arrival |
//! | [`tokens`] | what the sources of fencing tokens cost, and what they leave behind |
//! | [`peers`] | how many pairs of acquire and release Palisade and its peers make |
//! | [`ten_million`] | what ten million short-lived locks take, and what becomes of them when their TTLs have passed |
//! | `findings` | the table of findings, from the kept results of some of these |
//! | `command` | `palisade-lab run`: its flags, and what it starts and writes |
//! | `estimate` | how long experiments take |
//! | `flags` | which flags each experiment takes, and on which lock services it runs |
//! | [`contenders`] | contenders of this process, for `contention` and `fairness` |
//! | [`clients`] | clients of this process, each of which does a step when the experiment says so |
//! | [`judged`] | the histories of many rounds with one resource, for `renew` and `ttl` |
//! | `lanes` | the lanes of clients and workers in timelines |
//! | [`steps`] | clients as processes that do one step at a time |
//! | [`processes`] | the resource and the workers, as processes of their own |

pub mod clients;
pub mod clocks;
mod command;
pub mod contenders;
pub mod contention;
mod estimate;
pub mod failover;
pub mod fairness;
pub mod fenced_stores;
mod findings;
mod flags;
pub mod judged;
mod lanes;
mod name;
pub mod pause;
pub mod peers;
pub mod prediction;
pub mod processes;
pub mod redlock;
pub mod release;
pub mod renew;
pub mod steps;
pub mod ten_million;
pub mod tokens;
pub mod ttl;
pub mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use command::Run;
pub use name::Name;

use crate::dlock::Backend;
use crate::metrics::Metrics;
use crate::report::Prediction;
use crate::resource::rule::Fence;
use crate::servers::{Cluster, Home, Signing};

/// What an experiment runs with.
#[derive(Debug, Clone)]
pub struct Context {
    /// The lock service.
    pub backend: Backend,
    /// Its servers.
    pub endpoints: Vec<String>,
    /// Those servers, for experiments that break them.
    pub cluster: Arc<Cluster>,
    /// The keys with which the servers sign grants; the resource then requires signatures.
    pub signing: Option<Arc<Signing>>,
    /// The resource's rule: each of these.
    pub fences: Vec<Fence>,
    /// How often each case is run, if not as often as the experiment says.
    pub rounds: Option<u64>,
    /// Numbers of contenders, if not those of the experiment.
    pub contenders: Vec<u32>,
    /// Number of keys, if not that of the experiment.
    pub keys: Option<u64>,
    /// The Palisade program, for experiments that start servers of their own.
    pub palisade: Option<PathBuf>,
    /// How long attempts arrive, if not as long as the experiment says.
    pub duration: Option<Duration>,
    /// How long a lock lasts, if not as long as the experiment says.
    pub ttl: Option<Duration>,
    /// How long a lock is held, if not as long as the experiment says.
    pub work: Option<Duration>,
    /// How long a holder is paused, if not as long as the experiment says.
    pub pause: Option<Duration>,
    /// Attempts a second, if not as many as the experiment says.
    pub rate: Option<u32>,
    /// Seed of everything random.
    pub seed: u64,
    /// Counts what the experiment's workers and clients do.
    pub metrics: Arc<Metrics>,
}

/// What an experiment has found on one backend.
pub type Found<T> = (T, Vec<Prediction>);

/// A cluster's product, version and number of servers.
fn servers_of(cluster: &Cluster) -> String {
    match cluster.len() {
        1 => cluster.version().to_owned(),
        count => format!("{} × {count}", cluster.version()),
    }
}

/// A directory on a disk for the files of one case, removed with the value: the resource syncs what it accepts.
fn scratch() -> Result<Home, String> {
    Home::make(None, "case", true, true).map_err(text)
}

fn path_text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not text", path.display()))
}

/// An error as the experiments return it.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
