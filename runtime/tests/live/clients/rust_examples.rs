//! The examples of the Rust client that end by themselves, on a cluster: each says what it shows.

use std::process::Command;

use super::program::rust_example;
use super::unless_missing;
use crate::support::cluster::Cluster;

/// The examples, and what each prints, in order.
const EXAMPLES: [(&str, &[&str]); 6] = [
    ("lock_and_release", &["examples/simple is mine, with token "]),
    ("fencing", &["quick writes: Ok", "slow writes:  Err", "the resource says: by quick"]),
    (
        "readers_and_permits",
        &[
            "two readers hold examples/index",
            "the writer holds examples/index alone",
            "all three permits of examples/exports",
        ],
    ),
    ("several_keys", &["10 of 100 are moved: 90 and 110 are left"]),
    (
        "election",
        &[
            "host-1 leads, at 10.0.0.1:8080",
            "host-1 was elected, at 10.0.0.1:8080",
            "it is at 10.0.0.2:8080 now",
            "it has resigned",
        ],
    ),
    ("cancellation", &["0 waiting", "held after the guard was dropped: false"]),
];

#[test]
fn examples_of_the_rust_client_say_what_they_show() {
    let cluster = Cluster::start(3);
    cluster.wait_ready();
    for (name, expected) in EXAMPLES {
        unless_missing(rust_example(name), |program| {
            // The tool `timeout`: an example that waits for ever fails.
            let mut command = Command::new("timeout");
            command.arg("60").arg(program).env("PALISADE_ENDPOINTS", cluster.endpoints().join(","));
            let output = command.output().expect("the example runs");
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{name}: {printed}{}", String::from_utf8_lossy(&output.stderr));
            let lines: Vec<&str> = printed.lines().collect();
            assert_eq!(lines.len(), expected.len(), "{name}: {printed}");
            for (line, start) in lines.iter().zip(expected) {
                assert!(line.starts_with(start), "{name}: {line:?} instead of {start:?}");
            }
        });
    }
}
