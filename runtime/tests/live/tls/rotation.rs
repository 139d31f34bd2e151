//! Certificates, the CA and tokens are replaced on all nodes while clients work.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use palisade_client::tls::Stream;
use palisade_client::{Client, LockOptions, Options, Security};
use serde_json::{Value, json};

use super::hold::Secured;
use crate::abuse::peers::{Hello, welcome};
use crate::support::certificates::{Certificates, cert};
use crate::support::cluster::Cluster;
use crate::support::{eventually, https};

/// Clients that take and give back locks, one after the other, over a connection each and over new
/// ones.
pub(super) struct Load {
    ends: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<Result<(), String>>>,
}

impl Load {
    pub(super) fn start(endpoints: Vec<String>, security: Security) -> Load {
        let (ends, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, count) = (Arc::clone(&ends), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            let options = Options { security, ..Options::default() };
            https::block_on(async {
                let text = |error: palisade_client::Error| error.to_string();
                let kept = Client::connect(&endpoints, options.clone()).await.map_err(text)?;
                while !over.load(Ordering::Relaxed) {
                    let fresh = Client::connect(&endpoints, options.clone()).await.map_err(text)?;
                    for client in [&kept, &fresh] {
                        let wait = LockOptions::default().wait(Duration::from_secs(30));
                        let guard = client.lock("rotated", wait).await.map_err(text)?;
                        guard.release().await.map_err(text)?;
                    }
                    fresh.close().await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                kept.close().await;
                Ok(())
            })
        });
        Load { ends, done, thread: Some(thread) }
    }

    /// Waits until so many more rounds are done.
    pub(super) fn go_on(&self, rounds: u64) {
        let until = self.done.load(Ordering::Relaxed) + rounds;
        let thread = self.thread.as_ref().unwrap();
        eventually("the clients go on", || {
            (thread.is_finished() || self.done.load(Ordering::Relaxed) >= until).then_some(())
        });
    }

    /// Ends the clients: none of their requests has failed.
    pub(super) fn finish(mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let result = self.thread.take().unwrap().join().unwrap();
        assert_eq!(result, Ok(()));
    }
}

/// Replaces a file at once, as `mv` does.
fn replace(file: &Path, by: &Path) {
    let aside = file.with_extension("new");
    std::fs::copy(by, &aside).unwrap();
    std::fs::rename(&aside, file).unwrap();
}

/// The certificate that a node presents to its clients now.
fn presented(address: &str, security: &Security) -> Option<Vec<u8>> {
    let stream: Stream = https::block_on(security.dial(address)).ok()?;
    stream.certificate().map(|certificate| certificate.to_vec())
}

/// Goal: a new CA, new certificates of all nodes and a new token are in use within seconds, and no
/// request of a client fails meanwhile.
#[test]
fn rotation_under_load_fails_no_request() {
    let (ours, next) = (Certificates::of("billing", 3), Certificates::of("billing", 3));
    let tokens = ours.beside("tokens");
    let (token_file, printed) = (ours.beside("token"), cert(&["token", "--name", "worker"]));
    let (token, line) = printed.trim().split_once('\n').unwrap();
    std::fs::write(&token_file, token).unwrap();
    std::fs::write(&tokens, line).unwrap();
    let cluster = Cluster::start_secured(3, &["--client-tokens", tokens.to_str().unwrap()], &ours);
    let (client, trusted) = (ours.client("test"), ours.trusted().to_owned());
    // The clients trust what the nodes trust.
    let by_token = Security::tls(&trusted).with_token_file(&token_file);
    let certified = Load::start(
        cluster.endpoints(),
        Security::tls(&trusted).with_certificate(ours.pair("client-test").0, ours.pair("client-test").1),
    );
    let loads = [certified, Load::start(cluster.endpoints(), by_token.clone())];
    let go_on = |rounds| loads.iter().for_each(|load| load.go_on(rounds));
    go_on(3);

    // First every node and every client trusts both CAs, then the certificates change.
    ours.trust(&next);
    for id in cluster.ids() {
        eventually("the node trusts the new CA", || {
            cluster.log(id).contains("new connections use the changed files for TLS").then_some(())
        });
    }
    go_on(3);
    let before: Vec<_> = cluster.endpoints().iter().map(|address| presented(address, &client).unwrap()).collect();
    for id in cluster.ids() {
        let ((cert, key), (new_cert, new_key)) = (ours.pair(&format!("node-{id}")), next.pair(&format!("node-{id}")));
        // The pair does not match for a moment: the old one stays in use.
        replace(&cert, &new_cert);
        replace(&key, &new_key);
    }
    let both = Security::tls(&trusted).with_certificate(next.pair("client-test").0, next.pair("client-test").1);
    for (address, before) in cluster.endpoints().iter().zip(&before) {
        eventually("the node presents its new certificate", || {
            presented(address, &both).filter(|now| now != before).map(drop)
        });
    }
    go_on(3);

    // A new token beside the old one; the clients change; the old one goes.
    let printed = cert(&["token", "--name", "worker"]);
    let (token, new_line) = printed.trim().split_once('\n').unwrap();
    std::fs::write(&tokens, format!("{line}\n{new_line}\n")).unwrap();
    let new_file = ours.beside("token.new");
    std::fs::write(&new_file, token).unwrap();
    let new_token = Security::tls(&trusted).with_token_file(&new_file);
    for address in cluster.endpoints() {
        eventually("the node knows the new token", || {
            let asked = https::get(&address, &new_token, "/v1/status").ok()?;
            (asked.status == 200).then_some(())
        });
    }
    std::fs::rename(&new_file, &token_file).unwrap();
    go_on(3);
    std::fs::write(&tokens, new_line).unwrap();
    go_on(3);
    loads.into_iter().for_each(Load::finish);
}

/// Waits until so many changes of the files of TLS are in use at node `id`.
fn wait_used(cluster: &Cluster, id: u16, changes: usize) {
    let line = "new connections use the changed files for TLS";
    eventually("the node uses the changed files", || (cluster.log(id).matches(line).count() >= changes).then_some(()));
}

/// Goal: the rotation of a CA to its end. When the old CA is taken away, clients and nodes with its certificates are
/// refused, and those of the new CA go on. No connection of a client is interrupted from the beginning to the end,
/// neither at the leader nor through a follower: a lock stays held, and a waiting acquire is granted on its first
/// connection.
#[test]
fn old_ca_is_refused_at_the_end_and_no_connection_was_lost() {
    let (ours, next) = (Certificates::of("billing", 3), Certificates::of("billing", 3));
    let mut cluster = Cluster::start_secured(3, &[], &ours);
    let leader = cluster.wait_connected();
    let [follower, third] = cluster.others(leader)[..] else { unreachable!() };
    let trusted = ours.trusted().to_owned();
    // What clients trust, and what they present.
    let with = |ca: &Path, of: &Certificates, stem: &str| {
        let (cert, key) = of.pair(stem);
        Security::tls(ca).with_certificate(cert, key)
    };
    let stolen = ["node.pem", "node-key.pem"].map(|name| ours.beside(name));
    let (cert, key) = ours.pair(&format!("node-{third}"));
    std::fs::copy(cert, &stolen[0]).unwrap();
    std::fs::copy(key, &stolen[1]).unwrap();
    let introduction = Hello { purpose: 2, ..Hello::between(&cluster.data(third), third, leader) };
    let introduce = |ca: &Path| {
        let security = Security::tls(ca).with_certificate(&stolen[0], &stolen[1]);
        let answer = https::exchange(&cluster.peer_addr(leader), &security, &introduction.frame());
        answer.map_err(|error| error.to_string()).map(|answer| welcome(&answer).is_ok())
    };
    let old = with(&trusted, &ours, "client-test");
    let load = Load::start(cluster.endpoints(), old.clone());

    let mut connections = [leader, follower].map(|id| Secured::open(&cluster.client_addr(id), &old, "/v1/ws"));
    let acquire =
        |wait_ms: u64| json!({ "acquire": { "key": "k", "options": { "ttl_ms": 3_600_000, "wait_ms": wait_ms } } });
    let held = connections[0].ask(1, &acquire(0))["ok"]["acquired"].clone();
    let open = json!({ "open_session": { "ttl_ms": 3_600_000 } });
    let waiting = connections[1].ask(1, &open)["ok"]["session"]["session"].clone();
    let options = json!({ "session": waiting, "wait_ms": 3_600_000 });
    connections[1].request(2, &json!({ "acquire": { "key": "k", "options": options } }));
    let show = json!({ "show_lock": { "key": "k" } });
    let mut asked = 10;
    eventually("the acquire waits", || {
        asked += 1;
        let lock = connections[0].ask(asked, &show)["ok"]["lock"].clone();
        (lock["queue"].as_array().map(Vec::len) == Some(1)).then_some(())
    });
    let mut expect_open = |connections: &mut [Secured; 2], waiters: usize| {
        for connection in connections {
            asked += 1;
            let lock = connection.ask(asked, &show)["ok"]["lock"].clone();
            assert_eq!(lock["holder"]["token"], held["token"], "{lock}");
            assert_eq!(lock["queue"].as_array().map(Vec::len), Some(waiters), "{lock}");
        }
    };
    expect_open(&mut connections, 1);
    load.go_on(2);

    // (1) Both CAs are trusted.
    ours.trust(&next);
    cluster.ids().into_iter().for_each(|id| wait_used(&cluster, id, 1));
    expect_open(&mut connections, 1);
    load.go_on(2);
    // (2) All certificates are those of the new CA; the clients' are replaced as the nodes' are.
    let before: Vec<_> = cluster.endpoints().iter().map(|address| presented(address, &old).unwrap()).collect();
    for id in cluster.ids() {
        let (old, new) = (ours.pair(&format!("node-{id}")), next.pair(&format!("node-{id}")));
        replace(&old.0, &new.0);
        replace(&old.1, &new.1);
    }
    let new = with(&trusted, &next, "client-test");
    for (address, before) in cluster.endpoints().iter().zip(&before) {
        eventually("the node presents its new certificate", || {
            presented(address, &new).filter(|now| now != before).map(drop)
        });
    }
    load.go_on(2);
    load.finish();
    let load = Load::start(cluster.endpoints(), new.clone());
    load.go_on(2);
    expect_open(&mut connections, 1);
    for address in cluster.endpoints() {
        https::get(&address, &old, "/v1/status").unwrap().ok();
    }
    assert_eq!(introduce(&trusted), Ok(true), "the old CA is still trusted");

    // (3) The old CA is taken away.
    replace(&trusted, &next.ca());
    cluster.ids().into_iter().for_each(|id| wait_used(&cluster, id, 3));
    let other_ca = "it refuses this side's certificate: another CA issued it";
    for address in cluster.endpoints() {
        let refused = https::get(&address, &old, "/v1/status").unwrap_err().to_string();
        assert!(refused.contains(other_ca), "{refused}");
        https::get(&address, &new, "/v1/status").unwrap().ok();
    }
    let refused = introduce(&trusted).unwrap_err();
    assert!(refused.contains(other_ca), "{refused}");
    expect_open(&mut connections, 1);
    load.go_on(2);

    // A node with a certificate of the old CA is kept out, and comes in with one of the new CA.
    cluster.connect_with(new);
    cluster.kill(third);
    let (cert, key) = ours.pair(&format!("node-{third}"));
    for (file, by) in [&cert, &key].into_iter().zip(&stolen) {
        replace(file, by);
    }
    cluster.restart(third);
    eventually("the node is refused", || cluster.log(third).contains(other_ca).then_some(()));
    let connected = |id: u16| {
        let members = cluster.status(leader).unwrap().members;
        members.iter().any(|member| member.id == id && member.connected)
    };
    assert!(connected(follower) && !connected(third));
    let (new_cert, new_key) = next.pair(&format!("node-{third}"));
    replace(&cert, &new_cert);
    replace(&key, &new_key);
    cluster.wait_connected();
    load.go_on(2);
    load.finish();

    // The connections of the beginning, which were opened with a certificate of the old CA.
    expect_open(&mut connections, 1);
    let [holder, waiter] = &mut connections;
    let grant = json!({ "session": held["session"], "token": held["token"] });
    assert_eq!(holder.ask(2, &json!({ "release": { "key": "k", "grant": grant } }))["ok"], "released");
    let granted: Value = waiter.result(2)["ok"]["acquired"].clone();
    assert_eq!(granted["session"], waiting);
    assert!(granted["token"].as_u64() > held["token"].as_u64(), "{granted}");
}

/// Goal: a file that cannot be used is reported with its name, and the node goes on with the one
/// before.
#[test]
fn broken_file_is_reported_and_the_old_one_stays() {
    let ours = Certificates::of("billing", 1);
    let cluster = Cluster::start_secured(1, &[], &ours);
    let (address, client) = (cluster.client_addr(1), ours.client("test"));
    let before = presented(&address, &client).unwrap();
    let (cert, key) = ours.pair("node-1");
    let good = std::fs::read(&cert).unwrap();
    std::fs::write(&cert, "no certificate").unwrap();
    eventually("the node reports the broken file", || {
        let log = cluster.log(1);
        let complaint = format!("{} has no certificate in PEM form", cert.display());
        (log.contains("a new file for TLS cannot be used") && log.contains(&complaint)).then_some(())
    });
    assert_eq!(presented(&address, &client), Some(before.clone()));
    std::fs::write(&cert, &good).unwrap();

    // The certificate of another node is none for this one.
    ours.issue_node(2, &[]);
    replace(&key, &ours.pair("node-2").1);
    replace(&cert, &ours.pair("node-2").0);
    eventually("the node refuses another node's certificate", || {
        cluster.log(1).contains("is of node 2 of cluster `billing`, and this is node 1").then_some(())
    });
    assert_eq!(presented(&address, &client), Some(before));
}

/// Goal: a node that waits until its cluster takes it back uses new files, too: the old ones may have
/// expired when a majority is there again.
#[test]
fn node_that_waits_to_return_reads_its_files_again() {
    let ours = Certificates::of("billing", 3);
    let mut cluster = Cluster::start_unrecorded_secured(3, &ours);
    cluster.ids().into_iter().for_each(|id| cluster.stop(id));
    for entry in std::fs::read_dir(cluster.data(3)).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("wal-") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    cluster.restart(3);
    eventually("it waits", || cluster.log(3).contains("not taken back yet").then_some(()));
    ours.issue_node(3, &[]);
    eventually("it uses the new certificate", || {
        cluster.log(3).contains("new connections use the changed files for TLS").then_some(())
    });
}
