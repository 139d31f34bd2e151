//! Reads a node's counters from its `/metrics`.

use super::http;

/// The value of the sample with this name and these labels, as it stands on the page:
/// `palisade_term`, `palisade_frames_rejected_total`, `palisade_fsync_seconds_count`. `None` if the
/// page has no such line.
pub fn sample(address: &str, name: &str) -> Option<f64> {
    let page = http::get(address, "/metrics").expect("the node answers").body;
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// The same, of a sample that must be there.
pub fn value(address: &str, name: &str) -> f64 {
    sample(address, name).unwrap_or_else(|| panic!("there is no {name} in /metrics"))
}
