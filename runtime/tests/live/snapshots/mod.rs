//! Snapshots of real nodes: the same on all of them, enough to bring back one that was away for
//! long, and no more on the disk than they have to be.

mod behind;
mod files;
mod limits;

/// A snapshot for every 40 kB of log, segments of 32 KiB, and a log that ends soon behind the
/// snapshot.
pub(crate) const OFTEN: [&str; 8] = [
    "--snapshot-log-bytes",
    "40000",
    "--segment-bytes",
    "32768",
    "--snapshot-margin",
    "20",
    "--election-timeout",
    "750ms",
];
