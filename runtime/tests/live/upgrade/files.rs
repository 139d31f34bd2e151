//! Files that one version has written, read by the other.

use std::process::Command;
use std::time::Duration;

use palisade_client::Security;

use super::{previous, this};
use crate::audit::{keep, verify};
use crate::support::cluster::Cluster;
use crate::support::{http, locks};

const TTL: Duration = Duration::from_secs(3600);

/// Goal: a directory with a log, snapshots and an audit log goes from the version before to this one, back, and here
/// again. Each start finds what all versions before it have written, and writes more, also after `kill -9`.
#[test]
fn directory_goes_to_this_version_and_back() {
    let Some(previous) = previous() else { return };
    // Short segments: each version begins new ones, and reads those of the other.
    let flags = ["--election-timeout", "750ms", "--segment-bytes", "4096"];
    let programs = [previous.clone()];
    let mut cluster = Cluster::start_programs(&flags, &programs, keep, Security::plain());
    let session = locks::open_session(&cluster, "holder", TTL);
    let mut tokens = Vec::new();
    for (round, program) in [this(), previous.clone(), this()].into_iter().enumerate() {
        for number in 0..40 {
            let key = format!("key-{round}-{number}");
            tokens.push((key.clone(), locks::acquire(&cluster, &key, session).token));
            if number == 20 {
                http::post(&cluster.client_addr(1), "/v1/snapshot", "").unwrap().ok();
            }
        }
        if round == 1 {
            cluster.kill(1);
        } else {
            cluster.stop(1);
        }
        let audit = cluster.data(1).with_extension("audit");
        for reader in [&previous, &this()] {
            verify(&mut Command::new(reader), &audit);
        }
        cluster.run_program(1, program);
        cluster.restart(1);
        cluster.wait_ready();
        for (key, token) in &tokens {
            assert_eq!(locks::lock(&cluster, key).holder.map(|holder| holder.token), Some(*token), "{key}");
        }
    }
    assert!(tokens.is_sorted_by(|(_, a), (_, b)| a < b), "the tokens grow");
}
