//! Grants that the nodes sign, and resources that believe nothing else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use palisade_client::wire::Acquired;
use palisade_fence::{Fence, KeyId, Root, Signed, Verifier};
use serde_json::json;
use tempfile::TempDir;

use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, open_session, post_to_leader, release};
use crate::support::process::{output, palisade};
use crate::support::{eventually, http, ports};

const TTL: Duration = Duration::from_secs(600);

/// A root, and the keys that it certified, in a directory of their own.
struct Keys {
    directory: TempDir,
    root: String,
}

impl Keys {
    fn new() -> Keys {
        let directory = tempfile::tempdir().unwrap();
        let made = output(palisade().args(["fence", "root"]).arg(directory.path().join("root")));
        assert!(made.status.success(), "{}", said(&made));
        Keys { root: String::from_utf8(made.stdout).unwrap().trim().to_owned(), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a signing key for cluster `palisade`, the name of a cluster that was given none.
    fn issue(&self, name: &str, terms: &[&str]) -> PathBuf {
        let file = self.path(name);
        let mut command = palisade();
        command.args(["fence", "issue", "--cluster", "palisade", "--root"]).arg(self.path("root"));
        let issued = output(command.args(terms).arg(&file));
        assert!(issued.status.success(), "{}", said(&issued));
        file
    }

    fn verifier(&self) -> Verifier {
        Verifier::new("palisade", [self.root.parse::<Root>().unwrap()])
    }

    /// What a resource says to this token, which it may have to remember.
    fn resource(&self, key: &str, signed: &str, flags: &[&str]) -> Output {
        let mut command = palisade();
        command.args(["fence", "verify", "--cluster", "palisade", "--root", &self.root, "--key", key]);
        output(command.arg("--state").arg(self.path("state")).args(flags).arg(signed))
    }

    /// A cluster whose node `id` signs with the file `node-ID`.
    fn cluster(&self, size: u16) -> Cluster {
        let directory = self.directory.path().to_owned();
        Cluster::start_adjusted(size, &["--election-timeout", "750ms"], move |id, command| {
            command.arg("--sign-grants").arg(directory.join(format!("node-{id}")));
        })
    }
}

/// Starts a node that is expected to end by itself.
fn serve(data: &Path, key: &Path, flags: &[&str]) -> Output {
    let [clients, peers] = ports::free(2)[..] else { unreachable!() };
    let (clients, peers) = (format!("127.0.0.1:{clients}"), format!("127.0.0.1:{peers}"));
    let mut command = palisade();
    command.args([
        "serve",
        "--id",
        "1",
        "--peers",
        &format!("1={peers}"),
        "--client-addr",
        &clients,
        "--peer-addr",
        &peers,
    ]);
    output(command.arg("--data").arg(data).arg("--sign-grants").arg(key).args(flags))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn key_id(signed: &str) -> KeyId {
    Signed::parse(signed).unwrap().key_id
}

/// Goal: what each leader signs, a resource verifies without the cluster, with the public key of
/// the root alone; and a token that a client made up is worth nothing.
#[test]
fn grants_of_every_leader_are_verified_offline() {
    let keys = Keys::new();
    (1..=3).for_each(|id| drop(keys.issue(&format!("node-{id}"), &[])));
    let cluster = keys.cluster(3);
    let session = open_session(&cluster, "first", TTL);
    let first = acquire(&cluster, "report", session);
    let signed = first.signed.first().cloned().expect("the grant is signed");
    let grant = keys.verifier().verify("report", &signed).unwrap();
    let number = session.number();
    assert_eq!((grant.token, grant.session, grant.epoch), (first.token, number, 0));
    // A repeated acquire is answered with the same signed token.
    assert_eq!(acquire(&cluster, "report", session).signed, [signed.as_str()]);

    let missing = keys.resource("report", &signed, &[]);
    assert_eq!(missing.status.code(), Some(74), "{}", said(&missing));
    assert!(said(&missing).contains("does not exist"), "{}", said(&missing));
    assert!(keys.resource("report", &signed, &["--new"]).status.success());
    assert!(keys.resource("report", &signed, &[]).status.success(), "the holder writes again");
    let other_process = Fence::open(keys.path("state"), keys.verifier()).unwrap();
    let in_use = keys.resource("report", &signed, &[]);
    assert!(in_use.status.code() == Some(74) && said(&in_use).contains("is in use"), "{}", said(&in_use));
    drop(other_process);
    release(&cluster, "report", session, first.token);

    let leader = cluster.wait_ready();
    let to = leader % 3 + 1;
    let transfer = http::post(&cluster.client_addr(leader), "/v1/leader/transfer", &json!({ "to": to }).to_string());
    transfer.unwrap().ok();
    let script = r#"printf '%s %s' "$PALISADE_TOKEN" "$PALISADE_SIGNED_TOKEN""#;
    let mut lock = palisade();
    lock.args(["lock", "report", "--endpoints", &cluster.endpoints().join(","), "--", "sh", "-c", script]);
    let locked = output(&mut lock);
    let text = String::from_utf8(locked.stdout.clone()).unwrap();
    let (token, second) = text.split_once(' ').unwrap_or_else(|| panic!("{text}; {}", said(&locked)));
    assert_eq!(keys.verifier().verify("report", second).unwrap().token.to_string(), token);
    assert_ne!(key_id(second), key_id(&signed), "each node has a key of its own");

    let refused = |output: Output, code: &str| {
        assert_eq!(output.status.code(), Some(77), "{}", said(&output));
        assert!(said(&output).contains(&format!("refused ({code})")), "{}", said(&output));
    };
    assert!(keys.resource("report", second, &[]).status.success());
    refused(keys.resource("report", &signed, &[]), "stale_token");
    refused(keys.resource("other", second, &[]), "wrong_key");
    refused(keys.resource("report", &u64::MAX.to_string(), &[]), "malformed");
    let thief = key_id(second).to_string();
    refused(keys.resource("report", second, &["--refuse", &thief]), "refused_key");
}

/// Goal: a grant of several keys has one token, and for each of its keys a signed token that counts for that key alone.
#[test]
fn each_key_of_a_claim_has_a_signed_token_of_its_own() {
    let keys = Keys::new();
    keys.issue("node-1", &[]);
    let cluster = keys.cluster(1);
    let asked = json!({ "keys": ["stock/b", "stock/a"], "ttl_ms": 600_000 });
    let answer = post_to_leader(&cluster.endpoints(), "/v1/acquire", &asked).ok();
    let grant: Acquired = serde_json::from_value(answer).unwrap();
    assert_eq!((grant.keys.as_slice().len(), grant.signed.len()), (2, 2));
    for key in grant.keys.iter() {
        for (of, signed) in grant.keys.iter().zip(&grant.signed) {
            match keys.verifier().verify(key, signed) {
                Ok(verified) => assert_eq!((key, verified.token), (of, grant.token)),
                Err(refusal) => assert_eq!((key != of, refusal.code()), (true, "wrong_key")),
            }
        }
    }
}

/// Goal: without the option, answers are as before; and a command under a lock finds no signed token
/// of another lock in its environment.
#[test]
fn without_the_option_nothing_is_signed() {
    let cluster = Cluster::start_calm(1);
    let session = open_session(&cluster, "holder", TTL);
    let answer = post_to_leader(&cluster.endpoints(), "/v1/locks/report/acquire", &json!({ "session": session })).ok();
    assert_eq!(answer.as_object().unwrap().keys().collect::<Vec<_>>(), ["key", "session", "token", "ttl_ms"]);
    let mut lock = palisade();
    lock.args(["lock", "k", "--endpoints", &cluster.client_addr(1), "--", "sh", "-c"]);
    lock.arg("echo ${PALISADE_SIGNED_TOKEN-unset}").env("PALISADE_SIGNED_TOKEN", "of another lock");
    assert_eq!(String::from_utf8_lossy(&output(&mut lock).stdout), "unset\n");
}

/// Goal: a node does not start with a key that others can read, or that resources would refuse.
#[test]
fn unusable_keys_are_refused_at_the_start() {
    let keys = Keys::new();
    let expect = |file: &Path, sentence: &str| {
        let data = tempfile::tempdir().unwrap();
        let served = serve(&data.path().join("node"), file, &[]);
        assert_eq!(served.status.code(), Some(78), "{}", said(&served));
        assert!(said(&served).contains(sentence), "{}", said(&served));
    };
    let key = keys.issue("key", &[]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    expect(&key, "has mode 0640: others can read or change the secret key");
    expect(&keys.path("absent"), "cannot read");
    expect(&keys.path("root"), "is not a signing key file");
    let mut other = palisade();
    other.args(["fence", "issue", "--cluster", "billing", "--root"]).arg(keys.path("root"));
    assert!(output(other.arg(keys.path("billing"))).status.success());
    expect(&keys.path("billing"), "is certified for cluster `billing`, and this node belongs to cluster `palisade`");
}

/// Goal: a new key takes over while the node runs, and a file that cannot be used changes nothing.
#[test]
fn new_key_takes_over_without_a_restart() {
    let keys = Keys::new();
    let file = keys.issue("node-1", &[]);
    let cluster = keys.cluster(1);
    let session = open_session(&cluster, "holder", TTL);
    let signed = |key: &str| acquire(&cluster, key, session).signed.pop().expect("the grant is signed");
    let before = key_id(&signed("first"));

    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    eventually("the node reports the file", || {
        cluster.log(1).contains("the file of the signing key cannot be used").then_some(())
    });
    assert_eq!(key_id(&signed("second")), before);

    let next = keys.issue("next", &[]);
    fs::rename(&next, &file).unwrap();
    let after = eventually("the new key signs", || {
        let signed = signed("third");
        (key_id(&signed) != before).then_some(signed)
    });
    keys.verifier().verify("third", &after).unwrap();
}

/// Goal: the grants of a restored cluster end those of the old one, at every resource; and a node of
/// a restored cluster does not sign with a key of the first epoch.
#[test]
fn restored_cluster_signs_in_a_higher_epoch() {
    let keys = Keys::new();
    let file = keys.issue("node-1", &[]);
    let old = keys.cluster(1);
    let session = open_session(&old, "holder", TTL);
    let backup = keys.path("backup");
    let mut save = palisade();
    assert!(output(save.args(["snapshot", "save", "--endpoints", &old.client_addr(1)]).arg(&backup)).status.success());
    let before = acquire(&old, "report", session).signed.pop().unwrap();
    assert!(keys.resource("report", &before, &["--new"]).status.success());
    drop(old);

    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("node");
    let served = serve(&data, &file, &["--restore", backup.to_str().unwrap()]);
    assert_eq!(served.status.code(), Some(78), "{}", said(&served));
    assert!(said(&served).contains("is certified for restore epoch 0"), "{}", said(&served));
    assert!(!data.exists(), "the refused start has claimed a directory");

    fs::remove_file(&file).unwrap();
    keys.issue("node-1", &["--epoch", "1"]);
    let restored = {
        let flags = ["--election-timeout", "750ms", "--restore", backup.to_str().unwrap()];
        let file = file.clone();
        Cluster::start_adjusted(1, &flags, move |_, command| {
            command.arg("--sign-grants").arg(&file);
        })
    };
    let session = open_session(&restored, "holder", TTL);
    let after = acquire(&restored, "other", session).signed.pop().unwrap();
    assert_eq!(keys.verifier().verify("other", &after).unwrap().epoch, 1);
    assert!(keys.resource("other", &after, &[]).status.success());
    let stale = keys.resource("report", &before, &[]);
    assert!(stale.status.code() == Some(77) && said(&stale).contains("stale_epoch"), "{}", said(&stale));

    // An operator puts the key of the first epoch back: its grants would be stale everywhere.
    fs::remove_file(&file).unwrap();
    keys.issue("node-1", &[]);
    eventually("the node reports the file", || {
        restored.log(1).contains("is certified for restore epoch 0").then_some(())
    });
    let again = acquire(&restored, "third", session).signed.pop().unwrap();
    assert_eq!(keys.verifier().verify("third", &again).unwrap().epoch, 1);
}
