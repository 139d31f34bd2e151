//! A node refuses to start with addresses that others reach without TLS, and with files that do not
//! fit.

use std::process::Command;

use crate::support::certificates::{Certificates, cert};
use crate::support::ports;
use crate::support::process::{palisade, refusal};

struct Start {
    data: tempfile::TempDir,
    ports: Vec<u16>,
}

impl Start {
    fn new() -> Start {
        Start { data: tempfile::tempdir().unwrap(), ports: ports::free(2) }
    }

    /// A node on these hosts that runs only until its standard input ends: at once.
    fn command(&self, clients: &str, nodes: &str) -> Command {
        let (client, peer) = (self.ports[0], self.ports[1]);
        let mut command = palisade();
        command
            .args(["serve", "--id", "1", "--stop-with-stdin", "--client-addr", &format!("{clients}:{client}")])
            .args(["--advertise-client-addr", &format!("127.0.0.1:{client}")])
            .args(["--peer-addr", &format!("{nodes}:{peer}"), "--peers", &format!("1=127.0.0.1:{peer}"), "--data"])
            .arg(self.data.path().join("node"));
        command
    }
}

/// Goal: a node without TLS is not reached from other machines by accident.
#[test]
fn node_without_tls_listens_on_loopback_only() {
    let start = Start::new();
    for (clients, nodes, whom) in [("0.0.0.0", "127.0.0.1", "clients"), ("127.0.0.1", "[::]", "nodes")] {
        let said = refusal(&mut start.command(clients, nodes), 78);
        let remedy = format!("listen for {whom} on 127.0.0.1, or give --insecure");
        assert!(said.contains("without TLS") && said.contains(&remedy), "{said}");
        assert!(!start.data.path().join("node/identity.json").exists(), "nothing was founded");
        refusal(start.command(clients, nodes).arg("--insecure"), 0);
        std::fs::remove_dir_all(start.data.path().join("node")).unwrap();
    }
    let ours = Certificates::of("billing", 1);
    refusal(start.command("0.0.0.0", "0.0.0.0").args(ours.flags(1)), 0);
}

/// Goal: a certificate that does not fit the node is refused before anything is written.
#[test]
fn certificate_must_be_that_of_the_node() {
    let start = Start::new();
    let ours = Certificates::of("billing", 2);
    let with = |flags: Vec<String>, more: &[&str]| {
        let mut command = start.command("127.0.0.1", "127.0.0.1");
        command.args(flags).args(more);
        command
    };
    let said = refusal(&mut with(ours.flags(2), &[]), 78);
    assert!(said.contains("is that of node 2, and --id says 1"), "{said}");
    let said = refusal(&mut with(ours.flags(1), &["--cluster", "other"]), 78);
    assert!(said.contains("is of cluster `billing`, and --cluster names `other`"), "{said}");
    let said = refusal(&mut with(ours.flags_with(&ours, "client-test"), &[]), 78);
    assert!(said.contains("is not a node's: issue one with `palisade cert node`"), "{said}");
    let said = refusal(&mut with(ours.flags(1), &["--client-tokens", "/nowhere"]), 78);
    assert!(said.contains("cannot read /nowhere"), "{said}");
    assert!(!start.data.path().join("node").exists(), "nothing was written");

    // The certificate names the cluster, which is kept; another cluster's does not fit later.
    refusal(&mut with(ours.flags(1), &[]), 0);
    let others = Certificates::of("other", 1);
    let said = refusal(&mut with(others.flags(1), &[]), 78);
    assert!(said.contains("is of cluster `other`") && said.contains("belongs to cluster `billing`"), "{said}");
}

/// Goal: keys are readable for their owner only, and nothing is overwritten.
#[test]
fn keys_are_private_and_stay() {
    use std::os::unix::fs::PermissionsExt;
    let ours = Certificates::of("billing", 1);
    for key in ["ca-key.pem", "node-1-key.pem", "client-test-key.pem"] {
        let mode = std::fs::metadata(ours.file(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    let directory = ours.file("").display().to_string();
    let before = std::fs::read(ours.file("node-1-key.pem")).unwrap();
    for arguments in [
        &["init", &directory, "--cluster", "billing"][..],
        &["node", &directory, "--id", "1", "--host", "127.0.0.1"],
        &["client", &directory, "--name", "test"],
    ] {
        let said = refusal(palisade().arg("cert").args(arguments), 74);
        assert!(said.contains("exists, and is not overwritten"), "{said}");
    }
    assert_eq!(std::fs::read(ours.file("node-1-key.pem")).unwrap(), before);
    let said = refusal(palisade().args(["cert", "client", &directory, "--name", "a/b"]), 2);
    assert!(said.contains("is not a client's name"), "{said}");
    let said = refusal(palisade().args(["cert", "node", &directory, "--id", "9", "--host", "a:1"]), 74);
    assert!(said.contains("`a:1` is neither a host name nor an IP address"), "{said}");
    assert!(cert(&["client", &directory, "--name", "later"]).contains("--cert "));
}
