//! Counters and histograms, which the parts of the node update as they work. `http::metrics` shows
//! them, beside the node's state. docs/operations.md explains them.

use std::sync::Arc;

use palisade_spec::raft::DropReason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The `reason` label of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    reason: &'static str,
}

/// The `limit` label of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Limit {
    limit: &'static str,
}

/// The metrics of a node.
#[derive(Debug)]
pub struct Metrics {
    /// Entries applied since the start.
    pub applied: Counter,
    /// Acquires requested from this node.
    pub acquire_attempts: Counter,
    /// Acquires answered with a grant.
    pub grants: Counter,
    /// Acquires that timed out.
    pub acquire_timeouts: Counter,
    /// Time from an acquire to its grant.
    pub acquire_seconds: Histogram,
    /// Releases by a session that did not hold the lock.
    pub releases_by_non_owner: Counter,
    /// Sessions that expired.
    pub expiries: Counter,
    /// Time to sync the writes of one iteration of the core.
    pub fsync_seconds: Histogram,
    /// Time from a proposal to its application.
    pub commit_seconds: Histogram,
    /// Frames from clients and nodes that could not be decoded, or that broke the protocol.
    pub frames_rejected: Counter,
    /// Messages to peers that were dropped: no connection, or its outbox was full.
    pub peer_messages_dropped: Counter,
    /// Open connections from clients.
    pub connections: Gauge,
    /// Connections from clients accepted since the start.
    pub accepted: Counter,
    /// Connections from clients closed at once, because the limit was reached.
    pub connections_refused: Counter,
    /// Connections to the peer port closed at once, because the limit was reached.
    pub peer_connections_refused: Counter,
    /// Requests refused because the disk is nearly full.
    pub refused_no_space: Counter,
    /// Snapshots that this node took of its own state.
    pub snapshots_taken: Counter,
    /// Snapshots that other nodes have received from this one.
    pub snapshots_sent: Counter,
    /// Snapshots from a leader that this node installed.
    pub snapshots_installed: Counter,
    /// Bytes of snapshots sent.
    pub snapshot_bytes_sent: Counter,
    /// Time to write a snapshot, on the thread beside the core.
    pub snapshot_seconds: Histogram,
    /// Log segments removed.
    pub segments_removed: Counter,
    /// Times a follower rejected entries that it had acknowledged: its disk is older than its
    /// acknowledgements.
    pub followers_lost_entries: Counter,
    /// Duration of one iteration of the core: its maximum is the longest time that an input waited
    /// for the core.
    pub core_iteration_seconds: Histogram,
    /// Records of the audit log.
    pub audit_records: Counter,
    /// Records of the audit log that were dropped: the disk could not take them.
    pub audit_dropped: Counter,
    /// Requests that waited because their client had its share of unanswered requests.
    pub requests_delayed: Counter,
    /// Requests and WebSockets that this node has forwarded to the leader.
    pub forwarded: Counter,
    /// Watches that are open.
    pub watchers: Gauge,
    /// Events that watches were shown.
    pub watch_events: Counter,
    /// Watches that ended because their clients read too slowly.
    pub watchers_cut_off: Counter,
    dropped: Family<Reason, Counter>,
    limits_reached: Family<Limit, Counter>,
}

impl Metrics {
    /// Metrics that are all zero.
    pub fn new() -> Arc<Metrics> {
        // 50 µs to 1.6 s, and 100 µs to 52 s.
        let fsync_seconds = Histogram::new(exponential_buckets(50e-6, 2.0, 16));
        let commit_seconds = Histogram::new(exponential_buckets(100e-6, 2.0, 20));
        let acquire_seconds = Histogram::new(exponential_buckets(100e-6, 2.0, 20));
        Arc::new(Metrics {
            applied: Counter::default(),
            acquire_attempts: Counter::default(),
            grants: Counter::default(),
            acquire_timeouts: Counter::default(),
            acquire_seconds,
            releases_by_non_owner: Counter::default(),
            expiries: Counter::default(),
            fsync_seconds,
            commit_seconds,
            frames_rejected: Counter::default(),
            peer_messages_dropped: Counter::default(),
            connections: Gauge::default(),
            accepted: Counter::default(),
            connections_refused: Counter::default(),
            peer_connections_refused: Counter::default(),
            refused_no_space: Counter::default(),
            snapshots_taken: Counter::default(),
            snapshots_sent: Counter::default(),
            snapshots_installed: Counter::default(),
            snapshot_bytes_sent: Counter::default(),
            // 1 ms to 9 minutes.
            snapshot_seconds: Histogram::new(exponential_buckets(1e-3, 2.0, 20)),
            segments_removed: Counter::default(),
            followers_lost_entries: Counter::default(),
            // 10 µs to 5 s.
            core_iteration_seconds: Histogram::new(exponential_buckets(10e-6, 2.0, 20)),
            audit_records: Counter::default(),
            audit_dropped: Counter::default(),
            requests_delayed: Counter::default(),
            forwarded: Counter::default(),
            watchers: Gauge::default(),
            watch_events: Counter::default(),
            watchers_cut_off: Counter::default(),
            dropped: Family::default(),
            limits_reached: Family::default(),
        })
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, r: &mut Registry) {
        r.register("entries_applied", "Entries applied since the start", self.applied.clone());
        r.register("acquire_attempts", "Acquires requested from this node", self.acquire_attempts.clone());
        r.register("acquire_grants", "Acquires answered with a grant", self.grants.clone());
        r.register("acquire_timeouts", "Acquires that timed out", self.acquire_timeouts.clone());
        let acquire = self.acquire_seconds.clone();
        r.register_with_unit(
            "acquire_latency",
            "Time from an acquire to its grant, the wait included",
            Unit::Seconds,
            acquire,
        );
        r.register(
            "releases_by_non_owner",
            "Releases by a session that did not hold the lock",
            self.releases_by_non_owner.clone(),
        );
        r.register("sessions_expired", "Sessions that expired", self.expiries.clone());
        r.register_with_unit(
            "fsync",
            "Time of a log sync; one per iteration of the core at most",
            Unit::Seconds,
            self.fsync_seconds.clone(),
        );
        let commit = self.commit_seconds.clone();
        r.register_with_unit("commit_latency", "Time from a proposal to its application", Unit::Seconds, commit);
        r.register(
            "frames_rejected",
            "Frames and requests that could not be decoded, or that broke the protocol",
            self.frames_rejected.clone(),
        );
        r.register(
            "peer_messages_dropped",
            "Messages to peers that were dropped: no connection, or a full outbox",
            self.peer_messages_dropped.clone(),
        );
        r.register("client_connections", "Open connections from clients", self.connections.clone());
        let accepted = self.accepted.clone();
        r.register("client_connections_accepted", "Connections from clients accepted since the start", accepted);
        let refused = self.connections_refused.clone();
        r.register(
            "client_connections_refused",
            "Connections from clients closed at once: the limit was reached",
            refused,
        );
        let refused = self.peer_connections_refused.clone();
        r.register(
            "peer_connections_refused",
            "Connections to the peer port closed at once: the limit was reached",
            refused,
        );
        let refused = self.refused_no_space.clone();
        r.register("no_space_refusals", "Requests refused because the disk is nearly full", refused);
        r.register(
            "client_limits_reached",
            "Requests and connections refused because their client has reached this limit",
            self.limits_reached.clone(),
        );
        r.register(
            "requests_delayed",
            "Requests that waited because their client had its share of unanswered requests",
            self.requests_delayed.clone(),
        );
        r.register(
            "requests_forwarded",
            "Requests and WebSockets that this node has forwarded to the leader",
            self.forwarded.clone(),
        );
        r.register("watchers", "Watches that are open", self.watchers.clone());
        r.register("watch_events", "Events that watches were shown", self.watch_events.clone());
        r.register(
            "watchers_cut_off",
            "Watches that ended because their clients read too slowly",
            self.watchers_cut_off.clone(),
        );
        self.register_snapshots(r);
        r.register(
            "peer_messages_rejected",
            "Messages from peers that this node dropped: stale, malformed, not from a member or not for this node, a vote request while a leader is known, or the core was overloaded",
            self.dropped.clone(),
        );
        r.register("audit_records", "Records of the audit log", self.audit_records.clone());
        r.register("audit_dropped", "Records that the audit log could not take", self.audit_dropped.clone());
        let lost = self.followers_lost_entries.clone();
        r.register("followers_lost_entries", "Times a follower rejected entries that it had acknowledged", lost);
    }

    fn register_snapshots(&self, r: &mut Registry) {
        r.register("snapshots_taken", "Snapshots taken of this node's state", self.snapshots_taken.clone());
        r.register("snapshots_sent", "Snapshots that other nodes received from this one", self.snapshots_sent.clone());
        let installed = self.snapshots_installed.clone();
        r.register("snapshots_installed", "Snapshots received from a leader and installed", installed);
        r.register("snapshot_sent_bytes", "Bytes of snapshots sent", self.snapshot_bytes_sent.clone());
        let seconds = self.snapshot_seconds.clone();
        r.register_with_unit("snapshot_write", "Time to write a snapshot, on its own thread", Unit::Seconds, seconds);
        r.register("log_segments_removed", "Log segments that were removed", self.segments_removed.clone());
        r.register_with_unit(
            "core_iteration",
            "Duration of one iteration of the core",
            Unit::Seconds,
            self.core_iteration_seconds.clone(),
        );
    }

    /// Counts a request or a connection that was refused because its client has reached this limit.
    pub fn limit_reached(&self, limit: &'static str) {
        self.limits_reached.get_or_create(&Limit { limit }).inc();
    }

    /// Counts a dropped message.
    pub fn dropped(&self, reason: DropReason) {
        self.dropped.get_or_create(&Reason { reason: reason.name() }).inc();
    }

    /// Counts messages from peers that were dropped because the core's channel was full.
    pub fn overloaded(&self, messages: u64) {
        self.dropped.get_or_create(&Reason { reason: "overloaded" }).inc_by(messages);
    }
}
