//! What the timelines of `failover` and `clocks` share: the lane of a client.

use plotters::style::RGBColor;

use super::clients::Job;
use crate::report::plot::{GREY, Lane};

/// The width at which a span can be seen, in seconds.
const VISIBLE_S: f64 = 0.02;

/// Microseconds as seconds of a plot.
pub(super) fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// The end of what a job shows: its release, else its grant, else its request.
pub(super) fn end_us(job: &Job) -> u64 {
    job.release_us.or(job.granted.map(|grant| grant.at_us)).unwrap_or(job.asked_us)
}

/// A client that waits, until `to_s` if it is not granted the lock, and then holds the lock.
pub(super) fn lane(job: &Job, to_s: f64, colour: RGBColor) -> Lane {
    let granted = job.granted.map_or(to_s, |grant| seconds(grant.at_us));
    let mut spans = vec![(seconds(job.asked_us), granted, GREY)];
    spans.extend(job.granted.map(|_| (granted, seconds(end_us(job)).max(granted + VISIBLE_S), colour)));
    let marks = job.granted.map(|grant| (granted, format!("token {}", grant.token), colour));
    Lane { name: job.owner.clone(), spans, marks: marks.into_iter().collect() }
}
