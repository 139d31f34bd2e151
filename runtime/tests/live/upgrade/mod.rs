//! Clusters of this version and the version before it, with the programs of both. `PALISADE_PREVIOUS`
//! names the program of the version before (`just previous` builds it); without it, these tests say
//! that they were skipped.

mod files;
mod forwarding;
mod mixed;
mod rolling;

use std::path::PathBuf;

use palisade_client::wire::{LockPage, StatusView};

use crate::support::cluster::Cluster;
use crate::support::journal::Journal;
use crate::support::locks::read;
use crate::support::{eventually, http};

/// Names the program of the version before.
const PREVIOUS: &str = "PALISADE_PREVIOUS";
/// The version of the protocol between nodes that only that version speaks, and the newest one that this version speaks.
const PROTOCOLS: [u16; 2] = [10, 11];

/// The program of the version before; without it, the test says that it is skipped.
fn previous() -> Option<PathBuf> {
    let Some(program) = std::env::var_os(PREVIOUS).map(PathBuf::from) else {
        eprintln!("SKIPPED: {PREVIOUS} does not name the program of the version before (just previous builds it)");
        return None;
    };
    assert!(program.is_file(), "{PREVIOUS} names {}, which is no file", program.display());
    Some(program)
}

/// The program that this test was built with.
fn this() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_palisade"))
}

/// Stops node `id`, and starts it with this program on its data.
fn change_program(cluster: &mut Cluster, id: u16, program: PathBuf) {
    cluster.stop(id);
    cluster.run_program(id, program);
    cluster.restart(id);
    cluster.wait_connected();
}

/// Transfers leadership to node `id`, however often other nodes take it.
fn make_leader(cluster: &Cluster, id: u16) {
    eventually("leadership is transferred", || {
        if cluster.agreed_leader() == Some(id) {
            return Some(());
        }
        let leader = cluster.agreed_leader()?;
        let order = format!("{{\"to\":{id}}}");
        drop(http::post(&cluster.client_addr(leader), "/v1/leader/transfer", &order));
        None
    });
}

/// The version of the protocol in which node `id` and `other` speak, and the program that `other` has announced.
fn spoken(cluster: &Cluster, id: u16, other: u16) -> Option<(u16, Option<String>)> {
    let StatusView { members, .. } = cluster.status(id)?;
    let member = members.into_iter().find(|member| member.id == other)?;
    Some((member.protocol?, member.version))
}

/// What the clients were told is what each node has.
fn check_journal(cluster: &Cluster, journal: &Journal) {
    for id in cluster.ids() {
        let page = read(&[cluster.client_addr(id)], "/v1/locks?limit=1000");
        let page: LockPage = serde_json::from_str(&page).expect("a page of locks");
        journal.check(&page.locks);
    }
}
