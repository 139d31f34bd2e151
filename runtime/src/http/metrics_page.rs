//! The page for `GET /metrics`: the node's metrics, and gauges of its state and of its process at the moment.

mod process;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::process::ProcessMetrics;
use crate::core::View;
use crate::metrics::{Metrics, metrics};
use crate::peers::{self, PROGRAM, Peers};
use crate::storage::{SnapshotInfo, Space};

/// The page, in the Prometheus text format.
#[derive(Debug)]
pub(super) struct MetricsPage {
    registry: Registry,
    gauges: Arc<Gauges>,
    /// One page at a time is written: it reads `/proc`, which takes a file descriptor, and that many are set aside.
    turn: Arc<Semaphore>,
}

metrics! {
    /// The node's state, as of the page. What is unknown or absent is 0.
    struct Gauges {
        leader: Gauge = "leader", "1 if this node leads";
        leader_known: Gauge = "leader_known", "1 if this node knows a leader";
        term: Gauge = "term", "The current term";
        commit: Gauge = "commit_index", "The last committed and applied log index";
        last: Gauge =
            "last_index", "The last log index; minus the commit index: the entries that are not committed yet";
        sessions: Gauge = "sessions", "Live sessions";
        locks: Gauge = "locks_held", "Held locks";
        claimed_bytes: Gauge =
            "claimed_bytes", "Bytes of all claims, which --max-claim-bytes limits: keys, values, and 64 for each";
        waiters: Gauge = "waiters", "Clients of this node that wait in a queue";
        lag: Family<Peer, Gauge> =
            "replication_lag_entries", "Entries that a peer has not acknowledged, on a leader";
        protocol: Family<Peer, Gauge> =
            "peer_protocol_version", "The version of the protocol in which this node and a peer speak, as of their last handshake";
        certificate_end: Gauge =
            "certificate_end_timestamp_seconds", "When the certificate of --tls-cert ends, in seconds of Unix time; 0 without TLS";
        disk_free: Gauge = "disk_free_bytes", "Bytes that the log may still allocate, its next segment included";
        disk_mark: Gauge =
            "disk_low_water_bytes", "With fewer bytes free, a leader refuses new sessions and acquires";
        disk_low: Gauge = "disk_low", "1 if a leader would refuse new sessions and acquires";
        entries: Gauge = "log_entries", "Entries of the log in memory";
        snapshot_index: Gauge = "snapshot_index", "The last entry that the newest snapshot includes";
        snapshot_bytes: Gauge = "snapshot_bytes", "Size of the newest snapshot, in bytes";
        log_bytes: Gauge =
            "log_since_snapshot_bytes", "Bytes written to the log since the last snapshot was taken";
        preparation_failures: Counter =
            "segment_preparation_failures", "Failed attempts to prepare the log's next segment";
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Peer {
    peer: u64,
}

/// The labels of `palisade_build_info`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    /// The newest version of the protocol between nodes that it speaks.
    peer_protocol: u16,
}

impl Build {
    /// A gauge, and not the type `info` of OpenMetrics: readers of the older text format do not know that type, and would
    /// refuse the whole page.
    fn gauge() -> Family<Build, Gauge> {
        let family = Family::<Build, Gauge>::default();
        let build = Build { version: PROGRAM, peer_protocol: peers::protocol_version() };
        family.get_or_create(&build).set(1);
        family
    }
}

impl MetricsPage {
    /// A page with these metrics.
    pub(super) fn new(metrics: &Metrics) -> MetricsPage {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessMetrics::new()));
        let ours = registry.sub_registry_with_prefix("palisade");
        let gauges = Gauges::new();
        let help =
            "Always 1: the program that runs, and the newest version of the protocol between nodes that it speaks";
        ours.register("build_info", help, Build::gauge());
        gauges.register(ours);
        metrics.register(ours);
        MetricsPage { registry, gauges, turn: Arc::new(Semaphore::new(1)) }
    }

    /// Waits for the turn to write the page.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.turn).acquire_owned().await.ok()
    }

    /// The text, with the gauges as of `view`.
    ///
    /// # Errors
    /// Never in practice: writing to a `String` does not fail.
    pub(super) fn text(
        &self,
        view: &View,
        newest: Option<SnapshotInfo>,
        space: &Space,
        peers: &Peers,
    ) -> Result<String, std::fmt::Error> {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (g, node) = (&self.gauges, peers.roster().node);
        g.leader.set(i64::from(view.leader == Some(node)));
        g.leader_known.set(i64::from(view.leader.is_some()));
        g.term.set(number(view.term));
        g.commit.set(number(view.commit));
        g.last.set(number(view.last));
        g.sessions.set(number(view.sessions));
        g.locks.set(number(view.locks));
        g.claimed_bytes.set(number(view.claimed_bytes));
        g.waiters.set(number(view.waits));
        g.entries.set(number(view.entries));
        g.log_bytes.set(number(view.log_bytes));
        g.snapshot_index.set(number(newest.map_or(0, |newest| newest.last.index.0)));
        g.snapshot_bytes.set(number(newest.map_or(0, |newest| newest.bytes)));
        let disk = space.view();
        g.disk_free.set(number(disk.free.unwrap_or(0)));
        g.disk_mark.set(number(disk.mark));
        g.disk_low.set(i64::from(disk.is_low));
        g.preparation_failures.inner().store(space.preparation_failures(), Ordering::Relaxed);
        g.lag.clear();
        for &(peer, matched) in &view.matched {
            g.lag.get_or_create(&Peer { peer: u64::from(peer.0) }).set(number(view.last.saturating_sub(matched)));
        }
        g.certificate_end.set(number(peers.roster().tls.as_ref().and_then(|tls| tls.certificate_end()).unwrap_or(0)));

        g.protocol.clear();

        for (peer, _) in view.members.iter().filter(|(peer, _)| *peer != node) {
            if let Some(program) = peers.program(peer) {
                g.protocol.get_or_create(&Peer { peer: u64::from(peer.0) }).set(i64::from(program.protocol));
            }
        }
        let mut page = String::new();
        text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}
