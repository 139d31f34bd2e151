//! `palisade serve`: one node.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use palisade::core::{SnapshotPolicy, Timing};
use palisade::descriptors;
use palisade::limits;
use palisade::recording;
use palisade::server::{self, Recording, ServerConfig};
use palisade::storage::DEFAULT_SEGMENT_BYTES;
use palisade_spec::raft::NodeId;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::complain;

/// Run one node.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// This node's number, one of --peers
    #[arg(long, value_name = "N")]
    id: u16,
    /// The node's directory; made at the first start
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// HOST:PORT to serve clients on
    #[arg(long, value_name = "ADDR")]
    client_addr: String,
    /// HOST:PORT where clients reach this node, if that is not --client-addr; other nodes send clients there
    #[arg(long, value_name = "ADDR")]
    advertise_client_addr: Option<String>,
    /// HOST:PORT to listen on for other nodes
    #[arg(long, value_name = "ADDR")]
    peer_addr: String,
    /// HOST:PORT where other nodes reach this one, if that is not --peer-addr or what --peers says
    #[arg(long, value_name = "ADDR")]
    advertise_peer_addr: Option<String>,
    /// To found a cluster, at the first start of its nodes: all of them, this one too: 1=HOST:PORT,2=HOST:PORT,… Later it may be
    /// left out, or say where a member is now that has moved
    #[arg(long, value_name = "PEERS", value_parser = parse_peers)]
    peers: Option<Peers>,
    /// To join a cluster, at the first start: HOST:PORT where any of its nodes serves clients
    #[arg(long, value_name = "ADDR", conflicts_with = "peers")]
    join: Option<String>,
    /// To found a cluster from a backup: the same snapshot at the first start of each founder
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    restore: Option<PathBuf>,
    /// The cluster's name; nodes of another cluster are refused
    #[arg(long, value_name = "NAME", default_value = "palisade")]
    cluster: String,
    /// A follower that hears nothing for this long, or up to twice as long, asks for an election
    #[arg(long, value_name = "TIME", default_value = "150ms", value_parser = election_timeout)]
    election_timeout: Duration,
    /// Take a snapshot when this much was written to the log since the last one
    #[arg(long, value_name = "BYTES", default_value_t = limits::SNAPSHOT_LOG_BYTES)]
    snapshot_log_bytes: u64,
    /// Take a snapshot when the last one is this old, and something has changed
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    snapshot_interval: Duration,
    /// Entries that stay in the log although a snapshot includes them: for tests
    #[arg(long, hide = true, default_value_t = limits::SNAPSHOT_MARGIN)]
    snapshot_margin: u64,
    /// The length of a segment of the log: for tests
    #[arg(long, hide = true, default_value_t = DEFAULT_SEGMENT_BYTES)]
    segment_bytes: u64,
    /// How many sessions there may be at once; the leader's number counts
    #[arg(long, value_name = "N", default_value_t = limits::SESSIONS)]
    max_sessions: usize,
    /// Refuse new sessions and acquires, as the leader, when less than this is free on the file system of --data; by default
    /// room for two segments of the log and two snapshots as large as the newest
    #[arg(long, value_name = "BYTES")]
    min_free_bytes: Option<u64>,
    /// Write down everything the node does, one file for each run: for palisade-conformance validate
    #[arg(long, value_name = "DIR", env = "PALISADE_RECORD")]
    record: Option<PathBuf>,
    /// With --record: also what the node asks for, in words
    #[arg(long, requires = "record")]
    record_verbose: bool,
    /// With --record: the greatest length of a file; what follows is left out, and validate says so
    #[arg(long, value_name = "BYTES", requires = "record", default_value_t = recording::LENGTH)]
    record_limit: u64,
    /// The form of the log on standard error
    #[arg(long, value_name = "FORM", default_value = "text")]
    log_format: LogFormat,
    /// What to log: error, warn, info, debug or trace, also per module (palisade::peers=debug)
    #[arg(long, value_name = "FILTER", default_value = "info", env = "PALISADE_LOG")]
    log: Targets,
    /// Stop when standard input ends: for a parent process that must not leave anything behind
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

type Peers = BTreeMap<NodeId, String>;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl Serve {
    pub(super) fn run(self) -> ExitCode {
        self.start_log();
        let open_files = descriptors::raise_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                complain(format!("cannot start the event loop: {error}"));
                return ExitCode::from(71);
            }
        };
        let result = runtime.block_on(server::serve(self.config(open_files), stop(self.stop_with_stdin)));
        // A blocked read of standard input must not keep the process.
        runtime.shutdown_background();
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&error);
                ExitCode::from(error.exit_code())
            }
        }
    }

    fn config(&self, open_files: usize) -> ServerConfig {
        ServerConfig {
            node: NodeId(self.id),
            cluster: self.cluster.clone(),
            data: self.data.clone(),
            client_addr: self.client_addr.clone(),
            advertised_client_addr: self.advertise_client_addr.as_ref().unwrap_or(&self.client_addr).clone(),
            peer_addr: self.peer_addr.clone(),
            advertised_peer_addr: self.advertise_peer_addr.clone(),
            peers: self.peers.clone().unwrap_or_default(),
            join: self.join.clone(),
            restore: self.restore.clone(),
            timing: Timing::with_election_timeout(self.election_timeout),
            snapshots: SnapshotPolicy {
                log_bytes: self.snapshot_log_bytes,
                interval: self.snapshot_interval,
                margin: self.snapshot_margin,
            },
            segment_bytes: self.segment_bytes,
            max_sessions: self.max_sessions,
            min_free_bytes: self.min_free_bytes,
            open_files,
            record: self.record.clone().map(|directory| Recording {
                directory,
                verbose: self.record_verbose,
                length: self.record_limit,
            }),
        }
    }

    fn start_log(&self) {
        let log = tracing_subscriber::registry().with(self.log.clone());
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => log.with(lines.with_ansi(std::io::stderr().is_terminal())).init(),
            LogFormat::Json => log.with(lines.json()).init(),
        }
    }
}

/// Resolves when the process is asked to stop.
async fn stop(with_stdin: bool) {
    let (terminate, interrupt) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = (terminate, interrupt) else {
        complain("cannot listen for signals; stopping");
        return;
    };
    let stdin_ends = async {
        if !with_stdin {
            return std::future::pending().await;
        }
        let mut byte = [0];
        while matches!(tokio::io::stdin().read(&mut byte).await, Ok(1..)) {}
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = stdin_ends => {}
    }
}

fn parse_peers(text: &str) -> Result<Peers, String> {
    let mut peers = Peers::new();
    for item in text.split(',') {
        let Some((id, address)) = item.split_once('=') else {
            return Err(format!("`{item}` is not N=HOST:PORT"));
        };
        let id: u16 = id.trim().parse().map_err(|_| format!("`{id}` is not a node's number"))?;
        if peers.insert(NodeId(id), address.trim().to_string()).is_some() {
            return Err(format!("node {id} is named twice"));
        }
    }
    Ok(peers)
}

fn election_timeout(text: &str) -> Result<Duration, String> {
    let timeout = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if timeout < Duration::from_millis(20) { Err("it must be 20ms at least".into()) } else { Ok(timeout) }
}
