//! What a test does when the servers that it needs are not installed: it says so, and is skipped; with
//! `LAB_REQUIRE=all` it fails.

use std::fmt::Display;
use std::io::Write;

use palisade_lab::servers::{self, Kind, Options};

/// Says that a test is skipped.
pub(crate) fn skip(what: &str, reason: &dyn Display) {
    assert!(std::env::var("LAB_REQUIRE").as_deref() != Ok("all"), "{what}: {reason}");
    // Written past the test harness, which shows the output of `eprintln` for failed tests only.
    std::io::stderr().write_all(format!("SKIPPED a test of {what}: {reason}\n").as_bytes()).unwrap();
}

/// Whether servers for a test of this are not installed, which is said.
#[allow(dead_code, reason = "some tests learn it when they start the servers")]
pub(crate) fn is_missing(what: &str, kinds: &[Kind]) -> bool {
    let missing = servers::missing(kinds, &Options::default());
    missing.first().inspect(|first| skip(what, first)).is_some()
}
