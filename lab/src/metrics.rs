//! The metrics of every program of the lab, in Prometheus' form: `GET /metrics` at `--metrics`.

use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::event::Event;

/// Media type of `GET /metrics`.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The counters and histograms. Each program uses those that apply to it; the others stay at zero.
#[derive(Debug)]
pub struct Metrics {
    /// Acquires begun.
    pub attempts: Counter,
    /// Acquires that were granted.
    pub acquired: Counter,
    /// Acquires that waited in vain.
    pub timeouts: Counter,
    /// Time from an acquire to its grant.
    pub acquire_seconds: Histogram,
    /// Time from a grant to its release.
    pub held_seconds: Histogram,
    /// Renewals that succeeded.
    pub renewals: Counter,
    /// Releases of a lock that was no longer the releaser's.
    pub not_owner: Counter,
    /// Writes that the resource accepted.
    pub writes: Counter,
    /// Writes that the resource refused because their fencing token was stale.
    pub stale_tokens: Counter,
    registry: Registry,
}

impl Default for Metrics {
    fn default() -> Metrics {
        // From 0.1 ms to 52 s, each twice the one before.
        let seconds = || Histogram::new(exponential_buckets(1e-4, 2.0, 20));
        let mut metrics = Metrics {
            attempts: Counter::default(),
            acquired: Counter::default(),
            timeouts: Counter::default(),
            acquire_seconds: seconds(),
            held_seconds: seconds(),
            renewals: Counter::default(),
            not_owner: Counter::default(),
            writes: Counter::default(),
            stale_tokens: Counter::default(),
            registry: Registry::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        // The text encoder appends `_total` to counters.
        let counters = [
            ("lock_acquire_attempts", "Acquires begun", &self.attempts),
            ("lock_acquire_success", "Acquires that were granted", &self.acquired),
            ("lock_acquire_timeouts", "Acquires that waited in vain", &self.timeouts),
            ("lock_renewals", "Renewals that succeeded", &self.renewals),
            ("release_by_non_owner", "Releases of a lock that was no longer the releaser's", &self.not_owner),
            ("resource_writes", "Writes that the resource accepted", &self.writes),
            ("resource_stale_token_rejections", "Writes refused for a stale fencing token", &self.stale_tokens),
        ];
        for (name, help, counter) in counters {
            self.registry.register(name, help, counter.clone());
        }
        self.registry.register("lock_acquire_seconds", "Time to a grant", self.acquire_seconds.clone());
        self.registry.register("lock_held_seconds", "Time from a grant to its release", self.held_seconds.clone());
    }

    /// Counts what a worker in another process has printed.
    pub fn count(&self, event: &Event) {
        match event {
            Event::Acquiring => self.attempts.inc(),
            Event::Acquired { waited_us, .. } => {
                self.acquire_seconds.observe(*waited_us as f64 / 1e6);
                self.acquired.inc()
            }
            Event::Timeout { .. } => self.timeouts.inc(),
            Event::Written { .. } => self.writes.inc(),
            Event::Refused { .. } => self.stale_tokens.inc(),
            Event::Released { renewals, .. } => self.renewals.inc_by(*renewals),
            Event::NotOwner { renewals, .. } => {
                self.renewals.inc_by(*renewals);
                self.not_owner.inc()
            }
            _ => 0,
        };
    }

    /// All metrics as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// A program's metrics; `GET /metrics` is served in the background, if there is an address for it.
///
/// # Errors
/// The address is not usable.
pub(crate) async fn serve(addr: Option<&str>) -> Result<Arc<Metrics>, String> {
    let metrics = Arc::new(Metrics::default());
    let Some(addr) = addr else { return Ok(metrics) };
    let listener = tokio::net::TcpListener::bind(addr)
        .await
        .map_err(|error| format!("cannot serve the metrics at {addr}: {error}; name another address"))?;
    let served = metrics.clone();
    let text = move || {
        let metrics = served.clone();
        async move { ([(CONTENT_TYPE, OPEN_METRICS)], metrics.text()) }
    };
    let router = axum::Router::new().route("/metrics", axum::routing::get(text));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_workers_are_counted() {
        let metrics = Metrics::default();
        for event in [
            Event::Acquiring,
            Event::Acquired { token: 1, waited_us: 9, ttl_ms: 1 },
            Event::Refused { token: 1, seen: 2 },
            Event::Released { token: 1, renewals: 3 },
            Event::NotOwner { token: 1, renewals: 2 },
        ] {
            metrics.count(&event);
        }
        let counts = [&metrics.attempts, &metrics.acquired, &metrics.stale_tokens, &metrics.renewals, &metrics.writes];
        assert_eq!(counts.map(Counter::get), [1, 1, 1, 5, 0]);
    }

    #[test]
    fn names_are_those_of_the_contract() {
        let metrics = Metrics::default();
        metrics.stale_tokens.inc();
        let text = metrics.text();
        for name in [
            "lock_acquire_attempts_total 0",
            "lock_acquire_success_total 0",
            "lock_acquire_timeouts_total 0",
            "lock_acquire_seconds_count 0",
            "lock_held_seconds_count 0",
            "lock_renewals_total 0",
            "release_by_non_owner_total 0",
            "resource_writes_total 0",
            "resource_stale_token_rejections_total 1",
        ] {
            assert!(text.contains(name), "{name} is missing in\n{text}");
        }
    }
}
