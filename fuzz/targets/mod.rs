//! The fuzz targets: each gives any bytes to one decoder, and checks the result.
//!
//! A decoder may refuse its input. It must not panic, must not take memory without bound, and what
//! it accepts must survive being encoded and decoded again. libFuzzer calls the targets from
//! `fuzz/src/main.rs`; `conformance/tests/fuzz_corpora.rs` runs them over the kept corpora and over
//! the seeds.

mod files;
mod network;
mod signed;

/// A target.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Its name, and that of its corpus.
    pub(crate) name: &'static str,
    /// Gives the bytes to the decoder; returns whether it accepts them.
    ///
    /// # Panics
    /// If the decoder is wrong.
    pub(crate) run: fn(&[u8]) -> bool,
    /// Inputs that the decoder accepts, from which the fuzzer starts.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub(crate) const TARGETS: [Target; 15] = [
    Target { name: "handshake", run: network::handshake, seeds: network::handshake_seeds },
    Target { name: "messages", run: network::messages, seeds: network::message_seeds },
    Target { name: "request-json", run: network::request_json, seeds: network::request_json_seeds },
    Target { name: "request-binary", run: network::request_binary, seeds: network::request_binary_seeds },
    Target { name: "hold", run: network::hold, seeds: network::hold_seeds },
    Target { name: "origin", run: network::origin, seeds: network::origin_seeds },
    Target { name: "request-target", run: network::request_target, seeds: network::request_target_seeds },
    Target { name: "access", run: network::access, seeds: network::access_seeds },
    Target { name: "signed", run: signed::signed, seeds: signed::signed_seeds },
    Target { name: "log", run: files::log, seeds: files::log_seeds },
    Target { name: "snapshot", run: files::snapshot, seeds: files::snapshot_seeds },
    Target { name: "configuration", run: files::configuration, seeds: files::configuration_seeds },
    Target { name: "tokens", run: files::tokens, seeds: files::tokens_seeds },
    Target { name: "audit", run: files::audit, seeds: files::audit_seeds },
    Target { name: "recording", run: files::recording, seeds: files::recording_seeds },
];
