//! `palisade serve`: one node.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use palisade::accounts::ClientLimits;
use palisade::addresses::{host_name, listen_address, reachable_address};
use palisade::core::{Quotas, SnapshotPolicy, Timing};
use palisade::descriptors;
use palisade::http::origin;
use palisade::limits;
use palisade::recording;
use palisade::server::{self, Recording, ServeError, ServerConfig};
use palisade::storage::DEFAULT_SEGMENT_BYTES;
use palisade::tls::TlsFiles;
use palisade_spec::raft::NodeId;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, warn};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::log_fields::EscapingJson;
use super::{config, log_fields, print_error};

/// Run one node
///
/// Each option may also stand in the file of --config, as `client-addr = "HOST:PORT"`, or in the
/// environment, as PALISADE_CLIENT_ADDR. The command line goes before the environment, and the
/// environment before the file, also where two options exclude one another: --join overrules the
/// `peers` of a file. `palisade config check FILE` checks a file.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Read options from this TOML file; keys are the names of options, without dashes in front
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the options in effect and where each is given, as a file for --config, and exit
    #[arg(long)]
    print_config: bool,
    /// This node's ID; to found a cluster, one of --peers
    #[arg(long, value_name = "N", value_parser = parse_id)]
    id: u16,
    /// The node's data directory; created at the first start
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// HOST:PORT to listen on for clients
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    client_addr: String,
    /// HOST:PORT at which clients reach this node: other nodes redirect clients there. By default
    /// --client-addr; needed if that is a wildcard address such as 0.0.0.0:PORT
    #[arg(long, value_name = "ADDR", value_parser = reachable_address)]
    advertise_client_addr: Option<String>,
    /// HOST:PORT of a further listener, for administration: changes of the members, transfers of
    /// leadership, snapshots, access rules, breaks of grants and the metrics. The node then answers
    /// those only there, and refuses them at --client-addr. Other requests are answered at both
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    admin_addr: Option<String>,
    /// HOST:PORT at which operators reach --admin-addr: other nodes redirect them there. By default
    /// --admin-addr; needed if that is a wildcard address such as 0.0.0.0:PORT
    #[arg(long, value_name = "ADDR", value_parser = reachable_address, requires = "admin_addr")]
    advertise_admin_addr: Option<String>,
    /// A further host name under which clients may address this node (in the Host header), for
    /// example that of a proxy; repeatable. IP addresses, localhost and the hosts of --client-addr,
    /// --admin-addr and of what they are advertised as are always allowed
    #[arg(long = "allow-host", value_name = "NAME", value_parser = host_name)]
    allowed_hosts: Vec<String>,
    /// The origin of web pages that may use this node from a browser, as https://app.example, with
    /// :PORT if it is not the usual one; repeatable. The node's own page is always allowed, and
    /// requests of all other pages are refused
    #[arg(long = "allow-origin", value_name = "ORIGIN", value_parser = origin)]
    allowed_origins: Vec<String>,
    /// HOST:PORT to listen on for other nodes
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    peer_addr: String,
    /// HOST:PORT at which other nodes reach this node. By default its address in --peers, or
    /// --peer-addr; needed with --join if --peer-addr is a wildcard address such as 0.0.0.0:PORT
    #[arg(long, value_name = "ADDR", value_parser = reachable_address)]
    advertise_peer_addr: Option<String>,
    /// Found a cluster: at the first start of every founder, all founders with this node included,
    /// as 1=HOST:PORT,2=HOST:PORT,… At later starts it is optional, and gives the new address of a
    /// member that has moved
    #[arg(long, value_name = "PEERS", value_parser = parse_peers)]
    peers: Option<Peers>,
    /// Join a cluster, at the first start: HOST:PORT at which one of its nodes serves clients, or its
    /// --admin-addr if it has one
    #[arg(long, value_name = "ADDR", value_parser = endpoint, conflicts_with = "peers")]
    join: Option<String>,
    /// Found a cluster from a backup: the same snapshot file at the first start of every founder
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    restore: Option<PathBuf>,
    /// The cluster's name, at the first start of every founder: nodes refuse connections from nodes
    /// of another cluster [default: palisade]. The data directory keeps it; if it is given at other
    /// starts, it must be the same
    #[arg(long, value_name = "NAME", value_parser = cluster_name)]
    cluster: Option<String>,
    /// Minimum election timeout: a follower that hears from no leader for this long, or up to twice
    /// as long, starts an election
    #[arg(long, value_name = "TIME", default_value = "150ms", value_parser = election_timeout)]
    election_timeout: Duration,
    /// Take a snapshot after this many bytes were written to the log since the last snapshot
    #[arg(long, value_name = "BYTES", default_value_t = limits::SNAPSHOT_LOG_BYTES)]
    snapshot_log_bytes: u64,
    /// Take a snapshot when the last one is this old and entries were applied since
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    snapshot_interval: Duration,
    /// Number of entries that stay in the log although a snapshot includes them: for tests
    #[arg(long, hide = true, default_value_t = limits::SNAPSHOT_MARGIN)]
    snapshot_margin: u64,
    /// Length of a log segment, in bytes: for tests
    #[arg(long, hide = true, default_value_t = DEFAULT_SEGMENT_BYTES)]
    segment_bytes: u64,
    /// Maximum number of sessions in the cluster; the leader's setting applies
    #[arg(long, value_name = "N", default_value_t = limits::SESSIONS)]
    max_sessions: usize,
    /// Maximum number of live sessions of one client, as far as the leader knows them; 0 for no limit. A
    /// client is a principal, or without TLS an address (for IPv6: a network of 64 bits). By default a
    /// tenth of --max-sessions, and half of it for loopback addresses
    #[arg(long, value_name = "N")]
    max_sessions_per_client: Option<usize>,
    /// Maximum number of acquires of one client that wait in queues while this node leads; 0 for no
    /// limit. By default as many as by default it may have sessions
    #[arg(long, value_name = "N")]
    max_waiters_per_client: Option<usize>,
    /// Maximum number of bytes of all records of the key-value store: keys, contents, and 64 bytes for
    /// each. They are in memory on every node; the leader's setting applies
    #[arg(long, value_name = "BYTES", default_value_t = limits::STORE_BYTES)]
    max_store_bytes: u64,
    /// Maximum number of bytes of all claims: at each key of a claim, that key, all keys of a claim on several,
    /// its value, and 64 bytes. They are in memory on every node, and short ones take three to five times as much; the
    /// leader's setting applies
    #[arg(long, value_name = "BYTES", default_value_t = limits::CLAIM_BYTES)]
    max_claim_bytes: u64,
    /// Maximum number of connections of one client to this node; 0 for no limit. By default an eighth
    /// of all that the node accepts, and half of it for loopback addresses
    #[arg(long, value_name = "N")]
    max_connections_per_client: Option<usize>,
    /// Maximum number of watches of one client at this node; 0 for no limit. By default an eighth of all
    /// that the node accepts (20,000), and half of it for loopback addresses
    #[arg(long, value_name = "N")]
    max_watches_per_client: Option<usize>,
    /// Memory for the newest events, which watches show: a client that reconnects resumes its watch if the
    /// events since then are still there
    #[arg(long, value_name = "BYTES", default_value_t = limits::WATCH_HISTORY_BYTES)]
    watch_history: usize,
    /// Maximum number of requests a second of one client at this node, and of requests at once after a
    /// second without any; 0 for no limit. Releases, withdrawals, keepalives and closes are never
    /// refused
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_requests_per_second: u32,
    /// Maximum number of unanswered requests of one client at this node while other clients send
    /// requests, too: its further requests wait. It may have as many as all others have together, up to
    /// this number, and always an eighth of it. 0 for no limit
    #[arg(long, value_name = "N", default_value_t = limits::UNANSWERED_REQUESTS)]
    max_unanswered_requests: usize,
    /// Pause between two transfers of leadership that clients request: for tests
    #[arg(long, hide = true, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    transfer_pause: Duration,
    /// As the leader, refuse new sessions, acquires, values and writes of records while fewer bytes than this are
    /// free on the file system of --data; by default the size of two log segments and two snapshots as large as
    /// the newest
    #[arg(long, value_name = "BYTES")]
    min_free_bytes: Option<u64>,
    /// Sign grants with the key in this file (`palisade fence issue`), so that resources need not
    /// believe a client's token. A new file in its place is used within a second
    #[arg(long, value_name = "FILE")]
    sign_grants: Option<PathBuf>,
    /// Keep an audit log in this directory: who was granted, released or broke which lock, and changed
    /// members or access rules. Administrative requests are refused while it cannot be written
    #[arg(long, value_name = "DIR")]
    audit: Option<PathBuf>,
    /// Speak TLS on all ports, and trust the certificates of nodes and clients that this CA issued
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"], help_heading = "TLS")]
    tls_ca: Option<PathBuf>,
    /// This node's certificate, from `palisade cert node`
    #[arg(long, value_name = "FILE", requires = "tls_ca", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_ca", help_heading = "TLS")]
    tls_key: Option<PathBuf>,
    /// Accept the bearer tokens of this file from clients without a certificate: a line NAME:SHA256
    /// for each, from `palisade cert token`
    #[arg(long, value_name = "FILE", requires = "tls_ca", help_heading = "TLS")]
    client_tokens: Option<PathBuf>,
    /// Also accept and make connections without TLS, and accept requests without an identity: while
    /// a cluster changes to TLS
    #[arg(long, requires = "tls_ca", help_heading = "TLS")]
    tls_optional: bool,
    /// Listen on addresses that other machines reach although there is no TLS: on a network that you
    /// trust
    #[arg(long, help_heading = "TLS")]
    insecure: bool,
    /// What to do when the data directory is damaged: `return` asks the cluster to replace this
    /// node by a new member with an empty directory, `stop` ends the process with exit code 74
    #[arg(long, value_name = "WHAT", default_value = "return")]
    on_damage: OnDamage,
    /// Record every input of the node in this directory, one file for each run, for
    /// palisade-conformance validate
    #[arg(long, hide = true, value_name = "DIR")]
    record: Option<PathBuf>,
    /// With --record: record the node's outputs in full, not only their digest
    #[arg(long, hide = true, requires = "record")]
    record_verbose: bool,
    /// With --record: maximum length of a recording; later records are dropped and the recording is
    /// marked as cut
    #[arg(long, hide = true, value_name = "BYTES", requires = "record", default_value_t = recording::LENGTH)]
    record_limit: u64,
    /// Format of the log on standard error
    #[arg(long, value_name = "FORM", default_value = "text")]
    log_format: LogFormat,
    /// Log level: error, warn, info, debug or trace, also per module (palisade::peers=debug)
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: Targets,
    /// Stop when standard input ends, so that the node does not outlive its parent process
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

type Peers = BTreeMap<NodeId, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnDamage {
    Return,
    Stop,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl Serve {
    /// Whether the options are to be printed, instead of a node run with them.
    pub(super) fn prints_config(&self) -> bool {
        self.print_config
    }

    /// Checks that a node could start with these options, as far as they and the files that they name
    /// tell.
    pub(super) async fn check(&self) -> Result<(), ServeError> {
        server::check(self.config(descriptors::raise_limit())).await
    }

    pub(super) fn run(self) -> ExitCode {
        self.start_log();
        config::unknown_variables(std::env::vars_os()).iter().for_each(|unknown| warn!("{unknown}"));
        let open_files = descriptors::raise_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return self.fail(71, &format!("cannot start the event loop: {error}")),
        };
        let result = runtime.block_on(server::serve(self.config(open_files), stop(self.stop_with_stdin)));
        // A blocked read of standard input must not keep the process alive.
        runtime.shutdown_background();
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => self.fail(error.exit_code(), &error.to_string()),
        }
    }

    /// Reports why the node ends: in the log's format, if that is for programs.
    fn fail(&self, exit_code: u8, why: &str) -> ExitCode {
        match self.log_format {
            LogFormat::Json if tracing::enabled!(tracing::Level::ERROR) => error!(exit_code, "{why}"),
            _ => print_error(why),
        }
        ExitCode::from(exit_code)
    }

    fn config(&self, open_files: usize) -> ServerConfig {
        ServerConfig {
            node: NodeId::new(self.id, 0),
            cluster: self.cluster.clone(),
            data: self.data.clone(),
            client_addr: self.client_addr.clone(),
            advertised_client_addr: self.advertise_client_addr.as_ref().unwrap_or(&self.client_addr).clone(),
            admin_addr: self.admin_addr.clone(),
            advertised_admin_addr: self.advertise_admin_addr.as_ref().or(self.admin_addr.as_ref()).cloned(),
            allowed_hosts: self.allowed_hosts.clone(),
            allowed_origins: self.allowed_origins.clone(),
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
            sign_grants: self.sign_grants.clone(),
            returns: self.on_damage == OnDamage::Return,
            quotas: Quotas {
                max_sessions: self.max_sessions,
                max_sessions_per_client: self.max_sessions_per_client,
                max_waiters_per_client: self.max_waiters_per_client,
                max_store_bytes: self.max_store_bytes,
                max_claim_bytes: self.max_claim_bytes,
                transfer_pause: self.transfer_pause,
            },
            client_limits: ClientLimits {
                requests_per_second: self.max_requests_per_second,
                unanswered_requests: self.max_unanswered_requests,
                connections: self.max_connections_per_client,
                watches: self.max_watches_per_client,
            },
            min_free_bytes: self.min_free_bytes,
            watch_history: self.watch_history,
            open_files,
            tls: self.tls_files(),
            insecure: self.insecure,
            audit: self.audit.clone(),
            record: self.record.clone().map(|directory| Recording {
                directory,
                verbose: self.record_verbose,
                length: self.record_limit,
            }),
        }
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        let (Some(ca), Some(cert), Some(key)) = (&self.tls_ca, &self.tls_cert, &self.tls_key) else { return None };
        Some(TlsFiles {
            ca: ca.clone(),
            cert: cert.clone(),
            key: key.clone(),
            tokens: self.client_tokens.clone(),
            optional: self.tls_optional,
        })
    }

    fn start_log(&self) {
        let log = tracing_subscriber::registry().with(self.log.clone());
        let lines = tracing_subscriber::fmt::layer();
        match self.log_format {
            LogFormat::Text => {
                let lines = lines.with_writer(std::io::stderr).fmt_fields(log_fields::escaping());
                log.with(lines.with_ansi(std::io::stderr().is_terminal())).init();
            }
            LogFormat::Json => {
                log.with(lines.json().with_writer(|| EscapingJson(std::io::stderr()))).init();
                std::panic::set_hook(Box::new(|panic| {
                    let location = panic.location().map(ToString::to_string);
                    let reason = panic.payload_as_str().unwrap_or("no message");
                    let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
                    error!(thread, location, "a thread panicked: {reason}");
                }));
            }
        }
    }
}

/// Resolves on SIGTERM or SIGINT, and at the end of standard input if `with_stdin`.
async fn stop(with_stdin: bool) {
    let (terminate, interrupt) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = (terminate, interrupt) else {
        error!("cannot install the handlers of SIGTERM and SIGINT: the node stops; start it again");
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

fn parse_id(text: &str) -> Result<u16, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a node ID (an integer from 0 to 65535)"))
}

fn parse_peers(text: &str) -> Result<Peers, String> {
    let mut peers = Peers::new();
    for item in text.split(',') {
        let Some((id, address)) = item.split_once('=') else {
            return Err(format!("`{item}` does not have the form N=HOST:PORT"));
        };
        let id = parse_id(id)?;
        let address = reachable_address(address)?;
        if let Some((other, _)) = peers.iter().find(|(other, at)| other.number() != id && **at == address) {
            return Err(format!(
                "nodes {} and {id} have the same address, {address}: give each its own",
                other.number()
            ));
        }
        if peers.insert(NodeId::new(id, 0), address).is_some() {
            return Err(format!("node {id} appears twice"));
        }
    }
    Ok(peers)
}

fn cluster_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > limits::CLUSTER_NAME_BYTES || text.chars().any(char::is_control) {
        return Err(format!(
            "a cluster's name has 1 to {} bytes and no control characters",
            limits::CLUSTER_NAME_BYTES
        ));
    }
    Ok(text.to_owned())
}

fn endpoint(text: &str) -> Result<String, String> {
    let endpoints = palisade_client::parse_endpoints(text).map_err(|error| error.to_string())?;
    <[String; 1]>::try_from(endpoints).map(|[endpoint]| endpoint).map_err(|_| "give one node, not several".to_owned())
}

fn election_timeout(text: &str) -> Result<Duration, String> {
    let timeout = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if timeout < Duration::from_millis(20) {
        Err("the election timeout must be at least 20ms".into())
    } else {
        Ok(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a mistake in `--id` or `--peers` is refused in words, before a cluster is founded with it.
    #[test]
    fn wrong_peers_are_refused() {
        for (text, reason) in [
            ("1=h:1,2=h:1", "nodes 1 and 2 have the same address, h:1"),
            ("1=h:1,1=h:2", "node 1 appears twice"),
            ("one=h:1", "`one` is not a node ID (an integer from 0 to 65535)"),
            ("1:h:1", "`1:h:1` does not have the form N=HOST:PORT"),
        ] {
            let refused = parse_peers(text).unwrap_err();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
        assert_eq!(parse_peers("1=h:1,2=h:2").unwrap().len(), 2);
    }
}
