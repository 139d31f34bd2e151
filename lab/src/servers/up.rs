//! `palisade-lab up`: starts real servers that outlive the command.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use super::cluster::Cluster;
use super::error::{Error, file};
use super::home::Home;
use super::options::{Durability, Kind, Options};
use super::state::State;
use super::{find, kinds, objects};
use crate::signals::shutdown;

/// Start real servers with pinned configurations: Redis, Redlock's five Redis, etcd, ZooKeeper,
/// PostgreSQL, an object store, Palisade
#[derive(Debug, clap::Args)]
pub struct Up {
    /// Which servers to start
    #[arg(required = true, value_name = "SERVERS")]
    pub servers: Vec<Target>,
    /// Directory of the data, the configurations and the logs; by default a new one among the temporary files
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Stay until ^C or SIGTERM, and end the servers then
    #[arg(long)]
    pub foreground: bool,
    /// First of consecutive ports; by default each server gets a free one
    #[arg(long, value_name = "PORT")]
    pub first_port: Option<u16>,
    /// Redis and Redlock: when to force writes to the disk
    #[arg(long, value_enum, default_value_t = Durability::Always)]
    pub durability: Durability,
    /// Redis: number of asynchronous replicas
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub replicas: usize,
    /// etcd program; by default PALISADE_LAB_ETCD, or the installed `etcd`
    #[arg(long, value_name = "FILE")]
    pub etcd: Option<PathBuf>,
    /// Palisade program; by default PALISADE_LAB_PALISADE, or `palisade` beside palisade-lab
    #[arg(long, value_name = "FILE")]
    pub palisade: Option<PathBuf>,
    /// Replace a setting of the pinned configuration, in that configuration's words (for one kind of servers)
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    pub settings: Vec<(String, String)>,
    /// Serve the metrics at this address as long as the command stays. They count nothing: `up` takes no lock
    #[arg(long, value_name = "HOST:PORT", requires = "foreground")]
    pub metrics: Option<String>,
    /// Accept a directory in memory (tmpfs), where a write to the disk costs nothing
    #[arg(long)]
    pub allow_tmpfs: bool,
}

/// What `up` starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One kind.
    One(Kind),
    /// All kinds.
    All,
}

impl ValueEnum for Target {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Target; Kind::ALL.len() + 1] = {
            let mut all = [Target::All; Kind::ALL.len() + 1];
            let mut index = 0;
            while index < Kind::ALL.len() {
                all[index] = Target::One(Kind::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        match self {
            Self::One(kind) => kind.to_possible_value(),
            Self::All => Some(clap::builder::PossibleValue::new("all").help("All of them")),
        }
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Up {
    /// Runs the command.
    ///
    /// # Errors
    /// What a server needs is missing, or a server does not start. What was started is ended.
    pub async fn run(self) -> Result<ExitCode, String> {
        let mut kinds = Vec::new();
        for target in &self.servers {
            match target {
                Target::One(kind) => kinds.push(*kind),
                Target::All => kinds.extend(Kind::ALL),
            }
        }
        kinds.sort();
        kinds.dedup();
        if kinds.len() > 1 && !self.settings.is_empty() {
            return Err("--set is for one kind of servers: each has settings of its own; start one kind".to_owned());
        }
        crate::metrics::serve(self.metrics.as_deref()).await?;
        let mut stopped = std::pin::pin!(shutdown()?);
        // An interrupted start drops the clusters, which ends their servers.
        tokio::select! {
            started = self.up(&kinds) => {
                let Started { clusters, directory, .. } = started.map_err(|error| error.to_string())?;
                if self.foreground {
                    println!("The servers end with ^C or SIGTERM.");
                    stopped.await;
                    // In this order: each cluster removes its own part of the directory.
                    drop(clusters);
                    drop(directory);
                } else {
                    let path = directory.detach();
                    clusters.into_iter().for_each(Cluster::detach);
                    println!("End them with: palisade-lab down --dir {}", path.display());
                }
                Ok(ExitCode::SUCCESS)
            }
            () = &mut stopped => {
                Err("interrupted; the servers that had been started are ended".to_owned())
            }
        }
    }

    async fn up(&self, kinds: &[Kind]) -> Result<Started, Error> {
        let mut options = self.options();
        let missing = find::missing(kinds, &options);
        if !missing.is_empty() {
            return Err(Error::Missing(missing));
        }
        let directory = Directory::make(self, kinds, &options)?;
        options.dir = Some(directory.path.clone());
        println!("Directory: {}", directory.path.display());
        let state = State::new(directory.made.is_some());
        let mut started = Started { clusters: Vec::new(), state, directory };
        for &kind in kinds {
            let cluster = super::start(kind, &options).await?;
            print(&cluster);
            started.state.add(&cluster);
            started.clusters.push(cluster);
            if !self.foreground {
                // After each kind, so that `down` finds the servers also if this command is killed.
                started.state.write(&started.directory.path)?;
            }
            options.first_port = match options.first_port {
                Some(first) => Some(kinds::next_port(kind, &options, first)?),
                None => None,
            };
        }
        Ok(started)
    }

    fn options(&self) -> Options {
        Options {
            dir: self.dir.clone(),
            first_port: self.first_port,
            durability: self.durability,
            replicas: self.replicas,
            etcd: self.etcd.clone(),
            palisade: self.palisade.clone(),
            settings: self.settings.clone(),
            allow_tmpfs: self.allow_tmpfs,
            outlive: !self.foreground,
            ..Options::default()
        }
    }
}

/// Servers that serve. Dropped in this order: the servers, then their directory.
struct Started {
    clusters: Vec<Cluster>,
    state: State,
    directory: Directory,
}

/// The directory of all servers, and the file of their state. Dropped, unless it was detached, it is as
/// before: removed if this command has made it, without the file if it was there.
struct Directory {
    path: PathBuf,
    made: Option<Home>,
    is_detached: bool,
}

impl Directory {
    fn make(up: &Up, kinds: &[Kind], options: &Options) -> Result<Self, Error> {
        let durable = kinds.iter().any(|kind| kinds::is_durable(*kind, options)) && !options.allow_tmpfs;
        let made = |home: Home| Self { path: home.path().to_owned(), made: Some(home), is_detached: false };
        let Some(path) = &up.dir else { return Home::make(None, "up", durable, up.foreground).map(made) };
        if State::path(path).exists() {
            let reason = "has servers of an earlier `up`; end them first with `palisade-lab down --dir DIR`";
            return Err(Error::Directory { path: path.clone(), reason: reason.to_owned() });
        }
        let path = std::path::absolute(path).map_err(file("cannot find", path))?;
        match (path.is_dir(), path.parent(), path.file_name().and_then(|name| name.to_str())) {
            (false, Some(parent), Some(name)) => Home::make(Some(parent), name, durable, up.foreground).map(made),
            _ => {
                let path = fs::canonicalize(&path).map_err(file("cannot find", &path))?;
                Ok(Self { path, made: None, is_detached: false })
            }
        }
    }

    fn detach(mut self) -> PathBuf {
        self.is_detached = true;
        if let Some(home) = &mut self.made {
            home.keep();
        }
        self.path.clone()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.is_detached {
            // It is not there if no server was started, or if the servers were not to outlive the command.
            drop(fs::remove_file(State::path(&self.path)));
        }
    }
}

fn print(cluster: &Cluster) {
    println!("\n{}: {}", cluster.kind(), cluster.version());
    for node in 0..cluster.len() {
        let pid = cluster.pid(node).map_or_else(|| "ended".to_owned(), |pid| pid.to_string());
        let user = cluster.user(node).map(|user| format!(", as user {user}")).unwrap_or_default();
        let (name, address) = (cluster.name(node), cluster.address(node));
        println!("  {name:<13} {address:<16} pid {pid:<8} {}{user}", cluster.data_dir(node).display());
    }
    println!("  {}", paste(cluster));
}

/// The line to paste into a command.
fn paste(cluster: &Cluster) -> String {
    let url = cluster.url();
    match cluster.kind() {
        Kind::Postgres => format!("psql {url}"),
        Kind::Objects => format!(
            "AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={} AWS_DEFAULT_REGION={} aws --endpoint-url {url} s3 ls s3://{}",
            objects::ACCESS_KEY,
            objects::SECRET_KEY,
            objects::REGION,
            objects::BUCKET
        ),
        kind => format!("--backend {kind} --endpoints {url}"),
    }
}
