//! First starts and restarts: what the command line needs, and what a refusal leaves behind.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::process::{Running, output, palisade, refusal};
use crate::support::{eventually, http, ports};

/// A node that is the only founder of its cluster.
struct Lone {
    data: tempfile::TempDir,
    clients: String,
    nodes: String,
}

impl Lone {
    fn new() -> Lone {
        let [clients, nodes] = ports::free(2)[..] else { unreachable!() };
        let address = |port| format!("127.0.0.1:{port}");
        Lone { data: tempfile::tempdir().unwrap(), clients: address(clients), nodes: address(nodes) }
    }

    fn command(&self) -> Command {
        let mut command = palisade();
        command
            .args(["serve", "--id", "1", "--client-addr", &self.clients, "--peer-addr", &self.nodes])
            .args(["--peers", &format!("1={}", self.nodes)])
            .arg("--data")
            .arg(self.data.path().join("node"));
        command
    }

    fn has_an_owner(&self) -> bool {
        self.data.path().join("node/identity.json").exists()
    }

    /// Starts the node, and waits until it leads.
    fn start(&self, command: &mut Command) -> Running {
        let running = Running::start(command.stderr(Stdio::null()));
        eventually("the node leads", || (http::get(&self.clients, "/readyz").ok()?.status == 200).then_some(()));
        running
    }
}

/// Goal: a first start with an address that cannot be used leaves a directory that no node owns, so
/// that the operator corrects the address and starts again. The address is part of the cluster's
/// identity: a directory that was founded with the wrong one would be refused by the other founders.
#[test]
fn first_start_with_an_unusable_address_founds_nothing() {
    let mut node = Lone::new();
    let taken = TcpListener::bind(&node.nodes).unwrap();
    let said = refusal(&mut node.command(), 71);
    assert!(said.contains(&format!("cannot listen on {} for nodes", node.nodes)), "{said}");
    assert!(!node.has_an_owner());
    node.clients = "192.0.2.1:7400".into();
    node.nodes = format!("127.0.0.1:{}", ports::free(1)[0]);
    let said = refusal(node.command().arg("--insecure"), 71);
    assert!(said.contains("cannot listen on 192.0.2.1:7400 for clients"), "{said}");
    assert!(said.contains("this machine has no such address"), "{said}");
    assert!(!node.has_an_owner());
    node.clients = node.nodes.clone();
    let said = refusal(&mut node.command(), 78);
    assert!(said.contains("give --peer-addr a port of its own"), "{said}");
    assert!(!node.has_an_owner());
    node.clients = format!("127.0.0.1:{}", ports::free(1)[0]);
    drop(node.start(&mut node.command()));
    assert!(node.has_an_owner());
    drop(taken);
}

/// Goal: a server that cannot listen is not added to the cluster: its node ID stays free.
#[test]
fn server_that_cannot_listen_does_not_join() {
    let cluster = Cluster::start(1);
    let node = Lone::new();
    let taken = TcpListener::bind(&node.clients).unwrap();
    let mut command = palisade();
    command
        .args(["serve", "--id", "2", "--client-addr", &node.clients, "--peer-addr", &node.nodes])
        .args(["--join", &cluster.client_addr(1)])
        .arg("--data")
        .arg(node.data.path());
    refusal(&mut command, 71);
    assert_eq!(cluster.status(1).unwrap().members.len(), 1);
    drop(taken);
}

/// Goal: a node never tells clients or other nodes to connect to `0.0.0.0`, which is their own
/// machine. It names the flag that it needs instead.
#[test]
fn wildcard_address_needs_an_advertised_one() {
    let mut node = Lone::new();
    let (_, port) = node.clients.rsplit_once(':').unwrap();
    let (port, reachable) = (port.to_owned(), node.clients.clone());
    for wildcard in ["0.0.0.0", "[::]"] {
        node.clients = format!("{wildcard}:{port}");
        let said = refusal(&mut node.command(), 78);
        assert!(said.contains("--advertise-client-addr HOST:PORT"), "{said}");
        let said = refusal(node.command().args(["--advertise-client-addr", &node.clients]), 2);
        assert!(said.contains("give the node's own address"), "{said}");
        assert!(!node.has_an_owner());
    }
    node.clients = format!("0.0.0.0:{port}");
    let mut command = node.command();
    node.clients = reachable.clone();
    let running = node.start(command.args(["--advertise-client-addr", &reachable, "--insecure"]));
    let status = http::get(&reachable, "/v1/status").unwrap().ok();
    assert_eq!(status["leader"]["client_addr"], reachable.as_str());

    // The address for nodes: in --peers, in `members add`, and of a server that joins.
    let members = [
        output(palisade().args(["members", "add", "2=0.0.0.0:7500", "--endpoints", &reachable])),
        output(Lone { nodes: "0.0.0.0:7500".into(), ..Lone::new() }.command().args(["--cluster", "other"])),
    ];
    for refused in members {
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && said.contains("give the node's own address"), "{said}");
    }
    let body = json!({"id": 2, "peer_addr": "[::]:7500"}).to_string();
    http::post(&reachable, "/v1/members", &body).unwrap().refused(400, "invalid");
    let joining = Lone::new();
    let mut command = palisade();
    let (_, port) = joining.nodes.rsplit_once(':').unwrap();
    command
        .args(["serve", "--id", "2", "--client-addr", &joining.clients, "--peer-addr", &format!("0.0.0.0:{port}")])
        .args(["--join", &reachable, "--insecure"])
        .arg("--data")
        .arg(joining.data.path().join("node"));
    let said = refusal(&mut command, 78);
    assert!(said.contains("--advertise-peer-addr HOST:PORT"), "{said}");
    assert_eq!(http::get(&reachable, "/v1/members").unwrap().ok()["members"].as_array().unwrap().len(), 1);
    drop(running);
}

/// Goal: the cluster's name is needed once. Later starts work without it, and a wrong one is
/// refused with both names, at a restart and before a server joins.
#[test]
fn cluster_name_is_needed_at_the_first_start_only() {
    let named = Arc::new(AtomicBool::new(true));
    let names = Arc::clone(&named);
    let mut cluster = Cluster::start_adjusted(3, &[], move |_, command: &mut Command| {
        if names.load(Ordering::Relaxed) {
            command.args(["--cluster", "billing"]);
        }
    });
    assert_eq!(cluster.status(1).unwrap().cluster_name, "billing");
    named.store(false, Ordering::Relaxed);
    cluster.kill(2);
    cluster.restart(2);
    cluster.wait_ready();
    cluster.kill(3);
    let said = refusal(cluster.command(3).args(["--cluster", "bling"]), 74);
    let expected = "identity.json belongs to cluster `billing`, but --cluster names `bling`";
    assert!(said.contains(expected) && said.contains("leave out --cluster"), "{said}");
    cluster.restart(3);
    cluster.wait_ready();

    let joining = Lone::new();
    let join = |name: &str, data: &Path| {
        let mut command = palisade();
        command
            .args(["serve", "--id", "4", "--client-addr", &joining.clients, "--peer-addr", &joining.nodes])
            .args(["--join", &cluster.client_addr(1), "--cluster", name, "--data"])
            .arg(data);
        command
    };
    let data = joining.data.path().join("node");
    let said = refusal(&mut join("bling", &data), 69);
    assert!(said.contains("the node belongs to cluster `billing`, but --cluster names `bling`"), "{said}");
    assert_eq!(cluster.status(cluster.wait_ready()).unwrap().members.len(), 3);
    let mut command = join("billing", &data);
    let running = Running::start(command.stderr(Stdio::null()));
    let status = eventually("it serves clients", || Some(http::get(&joining.clients, "/v1/status").ok()?.ok()));
    assert_eq!(status["cluster_name"], "billing");
    drop(running);
}

/// Goal: founders with different names refuse one another, and each log has the other's name.
#[test]
fn founders_of_different_clusters_name_them() {
    let [one, two] = [Lone::new(), Lone::new()];
    let peers = format!("1={},2={}", one.nodes, two.nodes);
    let start = |node: &Lone, id: &str, name: &str| {
        let log = std::fs::File::create(node.data.path().join("log")).unwrap();
        let mut command = palisade();
        command
            .args(["serve", "--id", id, "--client-addr", &node.clients, "--peer-addr", &node.nodes])
            .args(["--peers", &peers, "--cluster", name, "--data"])
            .arg(node.data.path().join("node"));
        Running::start(command.stderr(log))
    };
    let running = [start(&one, "1", "billing"), start(&two, "2", "bling")];
    for (node, other) in [(&one, "bling"), (&two, "billing")] {
        eventually("the log names the other's cluster", || {
            let log = std::fs::read_to_string(node.data.path().join("log")).unwrap();
            log.contains(&format!("which belongs to cluster `{other}`")).then_some(())
        });
    }
    drop(running);
}
