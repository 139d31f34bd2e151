//! A cluster changes from no TLS to TLS, node by node, while clients work.

use std::process::Command;
use std::sync::Arc;

use palisade_client::Security;
use parking_lot::Mutex;

use super::rotation::Load;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;

/// Goal: the steps of docs/security.md, in their order: every node gets its certificate with
/// `--tls-optional`, then the clients use TLS, then every node is started without the option. No
/// request fails in any step, and at the end nothing without TLS is accepted.
#[test]
fn cluster_changes_to_tls_node_by_node() {
    let ours = Certificates::of("billing", 3);
    let step = Arc::new(Mutex::new([0; 3]));
    let (steps, tls) = (Arc::clone(&step), ours.adjust());
    let adjust = move |id: u16, command: &mut Command| {
        let step = steps.lock()[usize::from(id) - 1];
        command.args(["--cluster", "billing"]);
        if step > 0 {
            tls(id, command);
        }
        if step == 1 {
            command.arg("--tls-optional");
        }
    };
    let mut cluster = Cluster::start_adjusted_secured(3, adjust, Security::plain());
    let restart = |cluster: &mut Cluster, to: i32| {
        for id in cluster.ids() {
            step.lock()[usize::from(id) - 1] = to;
            cluster.stop(id);
            cluster.restart(id);
            cluster.wait_connected();
        }
    };

    let plain = Load::start(cluster.endpoints(), Security::plain());
    plain.go_on(3);
    restart(&mut cluster, 1);
    plain.go_on(3);
    // Every node accepts both now.
    let secured = Load::start(cluster.endpoints(), ours.client("test"));
    secured.go_on(3);
    plain.finish();
    cluster.connect_with(ours.client("test"));
    restart(&mut cluster, 2);
    secured.go_on(3);
    secured.finish();
    for id in cluster.ids() {
        let plain = palisade_client_status(&cluster.client_addr(id));
        assert!(plain.is_none(), "node {id} answers without TLS");
    }
}

fn palisade_client_status(address: &str) -> Option<palisade_client::wire::StatusView> {
    crate::support::https::status(address, &Security::plain())
}
