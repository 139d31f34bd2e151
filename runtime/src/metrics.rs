//! Counters and histograms, which the parts of the node update as they work. `http::metrics_page` shows
//! them, beside the node's state. docs/monitoring.md explains them.

use palisade_spec::raft::DropReason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

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

/// Defines a struct of metrics by a list that names each of them once: its field and type, then its name and help text
/// on the page. A histogram also has its first bucket's upper bound, in seconds, and its number of buckets; each bound
/// is twice the one before it.
macro_rules! metrics {
    ($(#[$doc:meta])* $shown:vis struct $Metrics:ident { $(
        $visibility:vis $field:ident: $kind:ty = $name:literal, $help:literal $(, $first:literal, $buckets:literal)?;
    )* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        $shown struct $Metrics {
            $(#[doc = $help] $visibility $field: $kind,)*
        }

        impl $Metrics {
            /// Metrics that are all zero.
            $shown fn new() -> std::sync::Arc<$Metrics> {
                std::sync::Arc::new($Metrics { $($field: $crate::metrics::metrics!(@new $($first, $buckets)?),)* })
            }

            /// Adds the metrics to a registry, in the order of the list.
            $shown fn register(&self, r: &mut prometheus_client::registry::Registry) {
                $($crate::metrics::metrics!(@register r, $name, $help, self.$field.clone() $(, $first)?);)*
            }
        }
    };
    (@new) => { Default::default() };
    (@new $first:literal, $buckets:literal) => { Histogram::new(exponential_buckets($first, 2.0, $buckets)) };
    (@register $r:ident, $name:literal, $help:literal, $metric:expr) => { $r.register($name, $help, $metric) };
    (@register $r:ident, $name:literal, $help:literal, $metric:expr, $first:literal) => {
        $r.register_with_unit($name, $help, Unit::Seconds, $metric)
    };
}

pub(crate) use metrics;

metrics! {
    /// The metrics of a node.
    pub struct Metrics {
        pub applied: Counter = "entries_applied", "Entries applied since the start";
        pub acquire_attempts: Counter = "acquire_attempts", "Acquires requested from this node";
        pub grants: Counter = "acquire_grants", "Acquires answered with a grant";
        pub acquire_timeouts: Counter = "acquire_timeouts", "Acquires that timed out";
        // 100 µs to 52 s.
        pub acquire_seconds: Histogram =
            "acquire_latency", "Time from an acquire to its grant, the wait included", 100e-6, 20;
        pub releases_by_non_owner: Counter = "releases_by_non_owner", "Releases by a session that did not hold the lock";
        pub expiries: Counter = "sessions_expired", "Sessions that expired";
        // 50 µs to 1.6 s.
        pub fsync_seconds: Histogram = "fsync", "Time of a log sync; one per iteration of the core at most", 50e-6, 16;
        // 100 µs to 52 s.
        pub commit_seconds: Histogram = "commit_latency", "Time from a proposal to its application", 100e-6, 20;
        pub frames_rejected: Counter =
            "frames_rejected", "Frames and requests that could not be decoded, or that broke the protocol";
        pub peer_messages_dropped: Counter =
            "peer_messages_dropped", "Messages to peers that were dropped: no connection, or a full outbox";
        pub connections: Gauge = "client_connections", "Open connections from clients";
        pub accepted: Counter = "client_connections_accepted", "Connections from clients accepted since the start";
        pub connections_refused: Counter =
            "client_connections_refused", "Connections from clients closed at once: the limit was reached";
        pub peer_connections_refused: Counter =
            "peer_connections_refused", "Connections to the peer port closed at once: the limit was reached";
        pub refused_no_space: Counter = "no_space_refusals", "Requests refused because the disk is nearly full";
        limits_reached: Family<Limit, Counter> =
            "client_limits_reached", "Requests and connections refused because their client has reached this limit";
        pub requests_delayed: Counter =
            "requests_delayed", "Requests that waited because their client had its share of unanswered requests";
        pub forwarded: Counter =
            "requests_forwarded", "Requests and WebSockets that this node has forwarded to the leader";
        pub watchers: Gauge = "watchers", "Watches that are open";
        pub watch_events: Counter = "watch_events", "Events that watches were shown";
        pub watchers_cut_off: Counter =
            "watchers_cut_off", "Watches that ended because their clients read too slowly";
        pub snapshots_taken: Counter = "snapshots_taken", "Snapshots taken of this node's state";
        pub snapshots_sent: Counter = "snapshots_sent", "Snapshots that other nodes received from this one";
        pub snapshots_installed: Counter = "snapshots_installed", "Snapshots received from a leader and installed";
        pub snapshot_bytes_sent: Counter = "snapshot_sent_bytes", "Bytes of snapshots sent";
        // 1 ms to 9 minutes.
        pub snapshot_seconds: Histogram = "snapshot_write", "Time to write a snapshot, on its own thread", 1e-3, 20;
        pub segments_removed: Counter = "log_segments_removed", "Log segments that were removed";
        // 10 µs to 5 s. Its maximum is the longest time that an input waited for the core.
        pub core_iteration_seconds: Histogram = "core_iteration", "Duration of one iteration of the core", 10e-6, 20;
        dropped: Family<Reason, Counter> =
            "peer_messages_rejected", "Messages from peers that this node dropped: stale, malformed, not from a member or not for this node, a vote request while a leader is known, or the core was overloaded";
        pub audit_records: Counter = "audit_records", "Records of the audit log";
        pub audit_dropped: Counter = "audit_dropped", "Records that the audit log could not take";
        // A follower rejects them if its disk is older than its acknowledgements.
        pub followers_lost_entries: Counter =
            "followers_lost_entries", "Times a follower rejected entries that it had acknowledged";
    }
}

impl Metrics {
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
