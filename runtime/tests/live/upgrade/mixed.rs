//! Nodes of both versions in one cluster, for as long as it takes: leaders of both, and snapshots from each to the other.

use std::path::Path;
use std::process::Command;

use palisade_client::Security;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::{PROTOCOLS, check_journal, make_leader, previous, spoken, this};
use crate::snapshots::OFTEN;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::load::Clients;
use crate::support::process::printed;
use crate::support::{eventually, https, metrics};

const SEED: u64 = 73;
/// In these clusters the second node runs this version, and the other two the version before.
const OLD: u16 = 1;
const NEW: u16 = 2;

/// Goal: the leadership goes to and fro between nodes of both versions while clients work, and nothing that was
/// acknowledged is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_goes_to_and_fro_between_versions() {
    let Some(previous) = previous() else { return };
    let programs = [previous.clone(), this(), previous];
    let flags = ["--election-timeout", "750ms"];
    let cluster = block_in_place(|| Cluster::start_programs(&flags, &programs, |_, _| {}, Security::plain()));
    let clients = Clients::start(&cluster, SEED).await;
    for _ in 0..5 {
        for id in [NEW, OLD] {
            block_in_place(|| make_leader(&cluster, id));
            clients.get_on(50).await;
        }
    }
    block_in_place(|| cluster.wait_connected());
    let journal = clients.finish().await;
    block_in_place(|| check_journal(&cluster, &journal));
}

/// Goal: a follower of either version that lacks what the leader's log has lost receives the snapshot of a leader of the
/// other version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_are_sent_between_versions() {
    let Some(previous) = previous() else { return };
    let programs = [previous.clone(), this(), previous];
    let mut cluster = block_in_place(|| Cluster::start_programs(&OFTEN, &programs, |_, _| {}, Security::plain()));
    let clients = Clients::start(&cluster, SEED).await;
    for (from, to) in [(OLD, NEW), (NEW, OLD)] {
        // The third node may become the leader at any moment; then it sends the snapshot.
        let received = |cluster: &Cluster| {
            let log = cluster.log(to);
            let lines = log.lines().filter(|line| line.contains("received the leader's snapshot"));
            lines.filter(|line| line.contains(&format!("peer={from} "))).count()
        };
        let mut attempts = 0..10;
        while block_in_place(|| received(&cluster)) == 0 {
            assert!(attempts.next().is_some(), "node {to} received no snapshot from node {from}");
            let had = block_in_place(|| {
                make_leader(&cluster, from);
                let had = cluster.status(to).expect("the node answers").applied;
                cluster.kill(to);
                f64::from(u32::try_from(had).expect("a short log"))
            });
            clients.get_on(400).await;
            block_in_place(|| {
                let leader = cluster.wait_ready();
                eventually("the leader's log has lost what the node lacks", || {
                    let value = |name| metrics::value(&cluster.client_addr(leader), name);
                    (value("palisade_snapshot_index") > had
                        && value("palisade_last_index") - value("palisade_log_entries") > had)
                        .then_some(())
                });
                cluster.restart(to);
                let leader = cluster.wait_connected();
                let goal = cluster.status(leader).expect("the leader answers").applied;
                eventually("the node has caught up", || {
                    cluster.status(to).filter(|status| status.applied >= goal).map(drop)
                });
            });
        }
    }
    let journal = clients.finish().await;
    block_in_place(|| check_journal(&cluster, &journal));
}

/// Goal: the commands of both versions show a cluster of both, and change it; this version's list says what each member
/// runs, and its log in which version the nodes speak.
#[test]
fn commands_of_both_versions_ask_nodes_of_both() {
    let Some(previous) = previous() else { return };
    let programs = [previous.clone(), this(), previous.clone()];
    let flags = ["--election-timeout", "750ms"];
    let cluster = Cluster::start_programs(&flags, &programs, |_, _| {}, Security::plain());
    cluster.wait_connected();
    make_leader(&cluster, NEW);
    cluster.wait_connected();
    let asked = cluster.endpoints().join(",");
    let said = |program: &Path, args: &[&str]| printed(Command::new(program).args(args).args(["--endpoints", &asked]));
    // Whichever node leads, an operator sees which ones are upgraded.
    let ours = env!("CARGO_PKG_VERSION");
    let status = said(&this(), &["status"]);
    assert!(status.contains("versions differ: ") && status.contains(&format!("{ours} on node {NEW};")), "{status}");
    for program in [&this(), &previous] {
        let status = said(program, &["status"]);
        for endpoint in cluster.endpoints() {
            assert!(
                status.lines().any(|line| line.starts_with(&endpoint) && !line.contains("unreachable")),
                "{status}"
            );
        }
        let members = said(program, &["members", "list"]);
        assert_eq!(members.lines().filter(|line| line.contains("voter")).count(), 3, "{members}");
        said(program, &["transfer", "--to", &OLD.to_string()]);
        cluster.wait_ready();
        said(program, &["transfer", "--to", &NEW.to_string()]);
        cluster.wait_ready();
    }
    make_leader(&cluster, NEW);
    let members = said(&this(), &["members", "list"]);
    let ends = |id: u16| {
        let line = members.lines().find(|line| line.trim_start().starts_with(&id.to_string())).expect("a member");
        line.split_whitespace().rev().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ends(OLD), ["10", "-"], "{members}");
    assert_eq!(ends(NEW), ["11", ours], "{members}");
    let log = cluster.log(NEW);
    assert!(log.lines().any(|line| line.contains("connected to a node") && line.contains("protocol=10")), "{log}");
}

/// Goal: with TLS, nodes of both versions dial one another and forward requests to one another.
#[test]
fn versions_meet_with_tls() {
    let Some(previous) = previous() else { return };
    let ours = Certificates::of("billing", 3);
    let (programs, adjust) = ([previous.clone(), this(), previous], ours.adjust());
    let flags = ["--election-timeout", "750ms"];
    let cluster = Cluster::start_programs(&flags, &programs, adjust, ours.client("test"));
    cluster.wait_connected();
    assert_eq!(spoken(&cluster, NEW, OLD), Some((PROTOCOLS[0], None)));
    let post = |id: u16, path: &str, body: &Value| {
        eventually(&format!("node {id} serves a POST to {path}"), || {
            let body = body.to_string();
            let sent = https::send(&cluster.client_addr(id), &ours.client("test"), "POST", path, &body).ok()?;
            (sent.status == 200).then(|| sent.ok())
        })
    };
    // With a session, a request that is repeated finds its own grant.
    let session = post(NEW, "/v1/sessions", &json!({ "ttl_ms": 3_600_000, "owner": "o" }))["session"].clone();
    for (number, id) in cluster.ids().into_iter().enumerate() {
        let grant = post(id, &format!("/v1/locks/key-{id}/acquire"), &json!({ "session": session }));
        assert_eq!(grant["token"], number + 1);
    }
}
