//! Support for tests that need installed servers: without the servers a test says so and is skipped; with
//! `LAB_REQUIRE=all` it fails.

use std::fmt::Display;
use std::io::Write;

use palisade_lab::servers::{self, Error, Kind, Options};

/// Says that a test is skipped.
pub(crate) fn skip(what: &str, reason: &dyn Display) {
    assert!(std::env::var("LAB_REQUIRE").as_deref() != Ok("all"), "{what}: {reason}");
    // Written past the test harness, which shows the output of `eprintln` for failed tests only.
    std::io::stderr().write_all(format!("SKIPPED a test of {what}: {reason}\n").as_bytes()).unwrap();
}

/// What was started; none if its servers are not installed here, which is said.
#[allow(dead_code, reason = "some tests ask `is_missing` before")]
pub(crate) fn installed<T>(what: &str, started: Result<T, Error>) -> Option<T> {
    let reason = match started {
        Ok(started) => return Some(started),
        Err(error @ Error::Missing(_)) => error,
        // The object store's packages come from PyPI at the first use.
        Err(error @ Error::Setup { .. }) if what == Kind::Objects.name() => error,
        Err(error) => panic!("{what}: {error}"),
    };
    skip(what, &reason);
    None
}

/// Whether servers for a test of this are not installed, which is said.
#[allow(dead_code, reason = "some tests learn it when they start the servers")]
pub(crate) fn is_missing(what: &str, kinds: &[Kind]) -> bool {
    let missing = servers::missing(kinds, &Options::default());
    missing.first().inspect(|first| skip(what, first)).is_some()
}
