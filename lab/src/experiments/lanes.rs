//! Lanes of timelines: that of a client in `failover` and `clocks`, those of workers in `pause` and `fenced_stores`.

use plotters::style::RGBColor;

use super::clients::Job;
use crate::event::{Event, Line};
use crate::report::plot::{BAD, COLOURS, GOOD, GREY, Lane, timeline};

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

/// A round in which worker a is paused.
pub(super) struct PausedRound<'a> {
    /// The name of its lanes.
    pub(super) name: String,
    /// What worker a printed, and what worker b did.
    pub(super) lines: [&'a [Line]; 2],
    /// Whether a's write was stale, if its answer does not say so.
    pub(super) stale: bool,
}

/// The timeline of such rounds, with a lane for each worker.
pub(super) fn paused_rounds<'a>(backend: &str, rounds: impl Iterator<Item = PausedRound<'a>>) -> String {
    let (mut lanes, mut end) = (Vec::new(), 1.0_f64);
    for PausedRound { name, lines: [a, b], stale } in rounds {
        let origin_us = a.first().map_or(0, |line| line.clock_us);
        for (owner, lines, stale) in [("a", a, stale), ("b", b, false)] {
            let lane = worker_lane(format!("{name}: {owner}"), lines, origin_us, stale);
            end = lane.spans.iter().map(|span| span.1).chain(lane.marks.iter().map(|mark| mark.0)).fold(end, f64::max);
            lanes.push(lane);
        }
    }
    let legend = [("waits", GREY), ("lease", COLOURS[0]), ("is paused", COLOURS[1])];
    timeline(&format!("seconds since worker a asked for the lock ({backend})"), end * 1.15, &lanes, &legend)
}

/// A worker that waits, holds the lock, may be paused, and writes.
fn worker_lane(name: String, lines: &[Line], origin_us: u64, stale: bool) -> Lane {
    let mut lane = Lane { name, spans: Vec::new(), marks: Vec::new() };
    let (mut asked, mut paused, mut lease) = (0.0, 0.0, (0.0, 0.0));
    for line in lines {
        let now = seconds(line.clock_us.saturating_sub(origin_us));
        match &line.event {
            Event::Acquiring => asked = now,
            Event::Acquired { ttl_ms, .. } => {
                lane.spans.push((asked, now, GREY));
                lease = (now, now + *ttl_ms as f64 / 1e3);
            }
            Event::Paused { .. } => paused = now,
            Event::Resumed { .. } => lane.spans.push((paused, now, COLOURS[1])),
            Event::Written { token, max_fence } => {
                let colour = if stale || token < max_fence { BAD } else { GOOD };
                lane.marks.push((now, format!("token {token} accepted"), colour));
            }
            Event::Refused { token, .. } => lane.marks.push((now, format!("token {token} refused"), GOOD)),
            Event::Released { .. } => lease.1 = now,
            _ => {}
        }
    }
    // The lease is drawn over the pause: what is left of the pause is the window.
    lane.spans.push((lease.0, lease.1, COLOURS[0]));
    lane
}
