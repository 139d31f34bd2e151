//! Access control: what the rules do not permit is refused with a sentence, and changes nothing.

use std::process::Output;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use palisade_client::wire::{Code, Consistency, Failure, StatusView};
use palisade_client::{Client, Error, LockOptions, Options, Security};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::clients::run;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::http::Response;
use crate::support::process::{output, palisade, said};
use crate::support::{eventually, http, https};

/// A client of a cluster.
#[derive(Clone)]
struct Caller {
    address: String,
    security: Security,
}

impl Caller {
    fn at(cluster: &Cluster, id: u16, security: &Security) -> Caller {
        Caller { address: cluster.client_addr(id), security: security.clone() }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Response {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        https::send(&self.address, &self.security, method, path, &body).unwrap()
    }

    fn get(&self, path: &str) -> Response {
        self.send("GET", path, &Value::Null)
    }

    fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, body)
    }

    fn acquire(&self, key: &str, options: &Value) -> Response {
        self.post(&format!("{}/acquire", lock(key)), options)
    }

    /// An acquire that waits.
    fn acquire_later(&self, key: &'static str) -> JoinHandle<Response> {
        let caller = self.clone();
        thread::spawn(move || caller.acquire(key, &json!({ "wait_ms": 60_000, "ttl_ms": 60_000 })))
    }

    fn release(&self, key: &str, grant: &Value) -> Response {
        let body = json!({ "session": grant["session"], "token": grant["token"] });
        self.post(&format!("{}/release", lock(key)), &body)
    }

    /// Replaces the rules of the present revision.
    fn set_rules(&self, rules: &Value) -> Value {
        let revision = self.get("/v1/access").ok()["revision"].clone();
        self.send("PUT", "/v1/access", &json!({ "revision": revision, "rules": rules })).ok()
    }

    /// The keys of all locks that it may read.
    fn locks(&self) -> Vec<String> {
        let page = self.get("/v1/locks").ok();
        page["locks"].as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap().to_owned()).collect()
    }

    fn wait_for_queue(&self, key: &str, length: usize) {
        eventually("they wait", || {
            let lock = self.get(&lock(key)).ok();
            (lock["queue"].as_array()?.len() == length).then_some(())
        });
    }

    /// The command line, at this node.
    fn run(&self, arguments: &[&str]) -> Output {
        run(&self.address, &self.security, arguments)
    }
}

/// The path of a lock.
fn lock(key: &str) -> String {
    format!("/v1/locks/{}", key.replace('/', "%2F"))
}

#[track_caller]
fn denied(response: &Response, sentence: &str) {
    let refused = response.refused(403, "denied");
    assert_eq!(refused["message"], sentence);
}

/// Goal: the rules limit a client to what they permit. Each refusal names the client, the right, and
/// the rule, to the client and in the log, and nothing is changed.
#[test]
fn client_may_do_what_the_rules_permit_and_nothing_else() {
    let ours = Certificates::of("billing", 3);
    ours.issue_client("worker-7", &[]);
    let cluster = Cluster::start_secured(3, &[], &ours);
    let (leader, follower) = cluster.roles();
    let alice = ours.administrator("alice");
    let worker = Caller::at(&cluster, leader, &ours.client("worker-7"));
    let (alice, through_follower) = (Caller::at(&cluster, leader, &alice), Caller::at(&cluster, follower, &alice));

    // Without rules every client may do everything, but turn access control on.
    let grant = worker.acquire("hr/payroll", &json!({ "ttl_ms": 3_600_000 })).ok();
    let first = json!({ "revision": 0, "rules": [{ "subject": "worker-7", "prefix": "", "rights": ["admin"] }] });
    denied(
        &worker.send("PUT", "/v1/access", &first),
        "worker-7 may not turn on access control: that needs the certificate of an administrator (palisade cert client \
         CA --name NAME --admin)",
    );
    let file = ours.beside("rules.json");
    std::fs::write(
        &file,
        json!({
            "roles": { "workers": ["worker-7"] },
            "rules": [
                { "subject": "role:workers", "prefix": "billing/", "rights": ["acquire"] },
                { "subject": "worker-7", "prefix": "billing/eu/", "rights": ["read"] },
                { "subject": "test", "prefix": "", "rights": ["read", "admin"] },
            ]
        })
        .to_string(),
    )
    .unwrap();
    let set = through_follower.run(&["acl", "set", file.to_str().unwrap()]);
    assert_eq!(said(&set), "access control is on with 3 rules (revision 1)\n");

    let (before, members) = (alice.locks(), cluster.status(leader).unwrap());
    let held = worker.acquire("billing/nightly", &json!({ "ttl_ms": 3_600_000 })).ok();
    worker.get(&lock("billing/eu/x")).ok();
    denied(
        &worker.acquire("billing/eu/x", &json!({})),
        "worker-7 may not acquire billing/eu/x: the rule for prefix billing/eu/ gives it read",
    );
    let none = "no rule for this key applies to it";
    denied(&worker.acquire("hr/payroll", &json!({})), &format!("worker-7 may not acquire hr/payroll: {none}"));
    denied(&worker.get(&lock("hr/payroll")), &format!("worker-7 may not read hr/payroll: {none}"));
    let stale = worker.get(&format!("{}?consistency=stale", lock("hr/payroll")));
    denied(&stale, &format!("worker-7 may not read hr/payroll: {none}"));
    let order = json!({ "token": held["token"], "reason": "a try" });
    denied(
        &worker.post(&format!("{}/break", lock("billing/nightly")), &order),
        "worker-7 may not break billing/nightly: the rule for prefix billing/ gives it acquire",
    );
    let administer = "worker-7 may not administer the cluster: no rule for every key applies to it";
    for (method, path, body) in [
        ("POST", "/v1/members", json!({ "id": 9, "peer_addr": "127.0.0.1:9" })),
        ("POST", "/v1/members/2/promote", Value::Null),
        // Two removals in a row would leave one of three voters.
        ("DELETE", "/v1/members/2", Value::Null),
        ("DELETE", "/v1/members/3", Value::Null),
        ("POST", "/v1/leader/transfer", json!({})),
        ("POST", "/v1/snapshot", Value::Null),
        ("GET", "/v1/snapshot", Value::Null),
        ("GET", "/v1/access", Value::Null),
        ("PUT", "/v1/access", json!({ "revision": 1, "enabled": false })),
        ("GET", "/v1/access/test?principal=test&right=admin", Value::Null),
    ] {
        denied(&worker.send(method, path, &body), administer);
    }
    let node = Caller::at(&cluster, leader, &ours.with(&ours, "node-2"));
    denied(&node.get("/v1/locks/k"), "node/2 may not read k: a node has no right of a client");
    let removal = node.send("DELETE", "/v1/members/3", &Value::Null);
    denied(&removal, "node/2 may not administer the cluster: a node has no right of a client");

    // Nothing has changed, and a list has what its reader may read.
    assert_eq!(alice.locks(), [&["billing/nightly".to_owned()], &before[..]].concat());
    assert_eq!(worker.locks(), ["billing/nightly"]);
    let worker_there = Caller::at(&cluster, follower, &worker.security);
    eventually("a follower filters its own list", || {
        let stale = worker_there.get("/v1/locks?consistency=stale").ok();
        (stale["locks"].as_array().unwrap().len() == 1).then_some(())
    });
    let known = |status: StatusView| (status.term, status.snapshot, status.members.len());
    assert_eq!(known(cluster.status(leader).unwrap()), known(members));
    assert_eq!(alice.get("/v1/access").ok()["revision"], 1);
    eventually("the operator reads it", || {
        let log = cluster.log(leader);
        (log.contains("denied a client's request") && log.contains("worker-7 may not acquire billing/eu/x"))
            .then_some(())
    });
    // What it has, it may give back.
    worker.release("hr/payroll", &grant).ok();

    // The Rust client and the command line say the same.
    let options = Options { security: worker.security.clone(), ..Options::default() };
    let error = https::block_on(async {
        let client = Client::connect(&[&worker.address], options).await.unwrap();
        let read = client.show_lock("hr/payroll", Consistency::Linearizable).await.unwrap_err();
        assert!(matches!(read, Error::Refused(Failure { error: Code::Denied, .. })), "{read}");
        client.lock("hr/payroll", LockOptions::default().wait(Duration::from_secs(60))).await.unwrap_err()
    });
    let sentence = format!("worker-7 may not acquire hr/payroll: {none}");
    assert!(matches!(&error, Error::Refused(failure) if failure.message == sentence), "{error}");
    let locked = worker.run(&["lock", "hr/payroll", "--", "true"]);
    assert!(locked.status.code() == Some(77) && said(&locked).contains(&sentence), "{}", said(&locked));
    let saved = worker.run(&["snapshot", "save", ours.beside("snapshot").to_str().unwrap()]);
    assert!(saved.status.code() == Some(77) && said(&saved).contains(administer), "{}", said(&saved));
    assert!(!ours.beside("snapshot").exists());

    // Those who may, may.
    let test = Caller::at(&cluster, follower, &ours.client("test"));
    let saved = test.run(&["snapshot", "save", ours.beside("snapshot").to_str().unwrap()]);
    assert!(saved.status.success(), "{}", said(&saved));
    alice.post(&format!("{}/break", lock("billing/nightly")), &order).ok();
    let asked = |caller: &Caller, arguments: &[&str]| {
        let asked = caller.run(&[&["acl", "test"], arguments].concat());
        (asked.status.code(), said(&asked))
    };
    let (code, answer) = asked(&test, &["worker-7", "acquire", "billing/x"]);
    let expected = "yes: worker-7 may acquire billing/x: the rule for prefix billing/ gives it acquire\n";
    assert_eq!((code, answer.as_str()), (Some(0), expected));
    let (code, answer) = asked(&worker, &["worker-7", "break", "billing/x"]);
    let expected = "no: worker-7 may not break billing/x: the rule for prefix billing/ gives it acquire\n";
    assert_eq!((code, answer.as_str()), (Some(1), expected));
    assert_eq!(asked(&worker, &["test", "admin"]).0, Some(77));
    assert_eq!(asked(&worker, &["worker-7", "read"]).0, Some(2), "which key?");
}

/// Goal: who may not write a record changes none, not even by a transaction that may change others; and a refusal says
/// nothing of a lock to a client that may not read it.
#[test]
fn records_need_a_right_of_their_own() {
    let ours = Certificates::of("billing", 1);
    ours.issue_client("worker-7", &[]);
    let cluster = Cluster::start_secured(1, &[], &ours);
    let alice = Caller::at(&cluster, cluster.wait_ready(), &ours.administrator("alice"));
    let worker = Caller { security: ours.client("worker-7"), ..alice.clone() };
    let put = |key: &str| json!({ "put": { "key": key, "value": "v" } });
    alice.post("/v1/kv", &json!({ "changes": [put("hr/a")] })).ok();
    let grant = alice.acquire("hr/payroll", &json!({ "ttl_ms": 3_600_000 })).ok();
    alice.set_rules(&json!([
        { "subject": "worker-7", "prefix": "billing/", "rights": ["write"] },
        { "subject": "worker-7", "prefix": "billing/eu/", "rights": ["acquire"] },
    ]));
    worker.post("/v1/kv", &json!({ "changes": [put("billing/a")] })).ok();
    worker.get("/v1/kv/billing%2Fa").ok();
    let sentence = "worker-7 may not write billing/eu/a: the rule for prefix billing/eu/ gives it acquire";
    let changes = [put("billing/b"), put("billing/eu/a")];
    denied(&worker.post("/v1/kv", &json!({ "changes": changes })), sentence);
    worker.get("/v1/kv/billing%2Fb").refused(404, "no_record");
    let none = "no rule for this key applies to it";
    denied(&worker.send("DELETE", "/v1/kv/hr%2Fa", &Value::Null), &format!("worker-7 may not write hr/a: {none}"));
    denied(&worker.get("/v1/kv/hr%2Fa"), &format!("worker-7 may not read hr/a: {none}"));
    let compared =
        json!({ "conditions": [{ "version": { "key": "hr/a", "version": 1 } }], "changes": [put("billing/b")] });
    denied(&worker.post("/v1/kv", &compared), &format!("worker-7 may not read hr/a: {none}"));
    let listed = worker.get("/v1/kv").ok();
    assert_eq!((&listed["records"][0]["key"], listed["records"].as_array().unwrap().len()), (&json!("billing/a"), 1));

    let guess = |caller: &Caller, key: &str| {
        let held = json!({ "held": { "lock": "hr/payroll", "token": 99 } });
        let refused = caller.post("/v1/kv", &json!({ "conditions": [held], "changes": [put(key)] }));
        let refused = refused.refused(409, "stale fencing token");
        (refused["seen"].clone(), refused["message"].as_str().unwrap().to_owned())
    };
    let sentence = "hr/payroll is not held with token 99; nothing was changed".to_owned();
    assert_eq!(guess(&worker, "billing/b"), (Value::Null, sentence));
    assert_eq!(guess(&alice, "hr/a").0, grant["token"]);
    // Who was given the token of a lock need not have a right to the lock.
    let held = json!({ "held": { "lock": "hr/payroll", "token": grant["token"] } });
    worker.post("/v1/kv", &json!({ "conditions": [held], "changes": [put("billing/b")] })).ok();
    assert_eq!(alice.get("/v1/kv/hr%2Fa").body, "v");
}

/// Goal: a change of the rules takes nothing from a holder. A waiter is denied at its turn, and the
/// next one gets the lock. A holder whose grant is broken is told at once, whatever it may read.
#[test]
fn waiter_is_denied_at_its_turn_and_a_holder_keeps_its_lock() {
    let ours = Certificates::of("billing", 1);
    ours.issue_client("worker-7", &[]);
    let cluster = Cluster::start_secured(1, &[], &ours);
    let alice = Caller::at(&cluster, 1, &ours.administrator("alice"));
    let [worker, test] = ["worker-7", "test"].map(|name| Caller::at(&cluster, 1, &ours.client(name)));
    alice.set_rules(&json!([{ "subject": "*", "prefix": "", "rights": ["acquire"] }]));

    let long = json!({ "ttl_ms": 3_600_000 });
    let (own, other) = (worker.acquire("own", &long).ok(), test.acquire("k", &long).ok());
    let waits = worker.acquire_later("k");
    alice.wait_for_queue("k", 1);
    let waits_behind = test.acquire_later("k");
    alice.wait_for_queue("k", 2);
    let options = Options { security: worker.security.clone(), ..Options::default() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let guard = runtime.block_on(async {
        let client = Client::connect(&[&worker.address], options).await.unwrap();
        client.lock("broken", LockOptions::default().ttl(Duration::from_secs(600))).await.unwrap()
    });

    alice.set_rules(&json!([{ "subject": "test", "prefix": "", "rights": ["acquire"] }]));
    assert_eq!(alice.get(&lock("k")).ok()["queue"].as_array().unwrap().len(), 2, "its turn has not come");
    test.release("k", &other).ok();
    denied(&waits.join().unwrap(), "worker-7 may not acquire k: no rule for this key applies to it");
    let next = waits_behind.join().unwrap().ok();
    assert!(next["token"].as_u64() > other["token"].as_u64());
    assert_eq!(alice.get(&lock("k")).ok()["queue"], json!([]));

    let session = own["session"].as_str().unwrap();
    worker.post(&format!("/v1/sessions/{session}/keepalive"), &json!({})).ok();
    assert_eq!(alice.get(&lock("own")).ok()["holder"]["token"], own["token"]);
    denied(&worker.acquire("own", &long), "worker-7 may not acquire own: no rule for this key applies to it");
    worker.release("own", &own).ok();

    let order = json!({ "token": guard.token(), "reason": "its rights are gone" });
    let broken = alice.post("/v1/locks/broken/break", &order).ok();
    assert_eq!(broken["principal"], "worker-7");
    // Its next keepalive would be later.
    runtime.block_on(async { timeout(Duration::from_secs(60), guard.lost()).await.expect("the holder is told") });
}

/// Goal: the rules are as durable as the locks. Of two operators who change the same rules, one is
/// told. Nodes join and come back while there are rules. An operator who has lost all administrators'
/// certificates issues another one.
#[test]
fn rules_survive_crashes_and_the_loss_of_their_administrators() {
    let ours = Certificates::of("billing", 4);
    let mut cluster = Cluster::start_secured(3, &[], &ours);
    let leader = cluster.wait_ready();
    let alice = Caller::at(&cluster, leader, &ours.administrator("alice"));
    alice.set_rules(&json!([
        { "subject": "gone", "prefix": "", "rights": ["admin"] },
        { "subject": "test", "prefix": "t/", "rights": ["acquire"] },
    ]));
    // One has the rules in its snapshot, the others in their logs.
    alice.post("/v1/snapshot", &Value::Null).ok();
    for id in cluster.ids() {
        cluster.kill(id);
    }
    cluster.ids().into_iter().for_each(|id| cluster.restart(id));
    let leader = cluster.wait_ready();
    let test = Caller::at(&cluster, leader, &ours.client("test"));
    denied(&test.acquire("k", &json!({})), "test may not acquire k: no rule for this key applies to it");
    let grant = test.acquire("t/1", &json!({ "ttl_ms": 3_600_000 })).ok();
    for id in cluster.ids() {
        let node = Caller::at(&cluster, id, &test.security);
        let read = || node.get("/v1/locks/k?consistency=stale");
        eventually("each node has the rules", || (read().status == 403).then_some(()));
    }
    denied(&test.get("/v1/access"), "test may not administer the cluster: no rule for every key applies to it");

    let joined = cluster.join(leader);
    eventually("a node joins by its own certificate", || {
        let members = cluster.status(leader)?.members;
        members.iter().any(|member| member.id == joined).then_some(())
    });

    // No client has the certificate of `gone` or of an administrator any more: the CA's holder issues one.
    let eve = Caller::at(&cluster, leader, &ours.administrator("eve"));
    let found: Value = serde_json::from_str(&said(&eve.run(&["acl", "get"]))).unwrap();
    assert_eq!((&found["revision"], &found["rules"][0]["subject"]), (&json!(1), &json!("gone")));
    let change = |name: &str| {
        let rules = json!([{ "subject": name, "prefix": "", "rights": ["admin", "acquire"] }]);
        let (caller, body) = (eve.clone(), json!({ "revision": 1, "rules": rules }));
        thread::spawn(move || caller.send("PUT", "/v1/access", &body))
    };
    let answers = ["test", "other"].map(change).map(|answer| answer.join().unwrap());
    let (done, refused): (Vec<&Response>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((done.len(), refused.len()), (1, 1), "{answers:?}");
    let message = refused[0].refused(409, "access_changed")["message"].to_string();
    assert!(message.contains("they have revision 2 now"), "{message}");
    assert_eq!(eve.get("/v1/access").ok()["rules"], done[0].ok()["rules"]);

    eve.set_rules(&json!([{ "subject": "test", "prefix": "", "rights": ["admin"] }]));
    let lost = json!({ "revision": 3, "rules": [] });
    let message = test.send("PUT", "/v1/access", &lost).refused(403, "denied")["message"].to_string();
    assert!(message.contains("test would not administer the cluster under these rules"), "{message}");
    let off = test.run(&["acl", "set", "--off"]);
    assert_eq!(said(&off), "access control is off (revision 4): each client may do everything\n");
    test.release("t/1", &grant).ok();
    test.acquire("k", &json!({})).ok();
}

/// Goal: without TLS no client has a name, so access control cannot be turned on; and where TLS is
/// optional, a request without it has no rights once there are rules.
#[test]
fn access_control_needs_names() {
    let without = "access control is about the names of clients, and this request has none";
    let rules = json!({ "revision": 0, "rules": [{ "subject": "*", "prefix": "", "rights": ["read", "admin"] }] });
    let cluster = Cluster::start_calm(1);
    let refused = http::send(&cluster.client_addr(1), "PUT", "/v1/access", &rules.to_string()).unwrap();
    let message = refused.refused(403, "denied")["message"].to_string();
    assert!(message.contains(without), "{message}");
    let mut command = palisade();
    let set = output(command.args(["acl", "set", "--off", "--endpoints", &cluster.client_addr(1)]));
    assert!(set.status.code() == Some(77) && said(&set).contains(without), "{}", said(&set));
    assert_eq!(http::get(&cluster.client_addr(1), "/v1/access").unwrap().ok()["revision"], 0);

    let ours = Certificates::of("billing", 1);
    let cluster = Cluster::start_secured(1, &["--tls-optional"], &ours);
    let address = cluster.client_addr(1);
    http::send(&address, "PUT", "/v1/access", &rules.to_string()).unwrap().refused(403, "denied");
    http::get(&address, "/v1/locks/k").unwrap().ok();
    let alice = Caller::at(&cluster, 1, &ours.administrator("alice"));
    alice.send("PUT", "/v1/access", &rules).ok();
    let nameless = "a client without a name may not";
    for path in ["/v1/locks/k", "/v1/access", "/v1/snapshot"] {
        let message = http::get(&address, path).unwrap().refused(403, "denied")["message"].to_string();
        assert!(message.contains(nameless), "{message}");
    }
    Caller::at(&cluster, 1, &ours.client("test")).get("/v1/locks/k").ok();
}
