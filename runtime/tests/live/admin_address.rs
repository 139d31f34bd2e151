//! `--admin-addr`: administrative requests are answered at an address of their own, and nowhere else.

use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use palisade_client::Security;
use palisade_client::wire::StatusView;
use serde_json::{Value, json};

use crate::durability::returns::{damage, wait_until_it_votes};
use crate::support::certificates::Certificates;
use crate::support::cluster::{CALM, Cluster};
use crate::support::http::Response;
use crate::support::process::{Running, output, palisade, printed, refusal};
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http, https, ports};

/// Addresses for administration, of nodes 1 and so on.
fn addresses(count: usize) -> Vec<String> {
    ports::free(count).into_iter().map(|port| format!("127.0.0.1:{port}")).collect()
}

/// A cluster whose nodes have admin addresses.
struct Guarded {
    cluster: Cluster,
    admin: Vec<String>,
}

impl Guarded {
    /// Three nodes with admin addresses, and room for one more.
    fn start() -> Guarded {
        Guarded::start_adjusted(|_, _| true)
    }

    /// The same, and a start of a node has its admin address if `has` says so.
    fn start_adjusted(has: impl Fn(u16, &mut Command) -> bool + Send + Sync + 'static) -> Guarded {
        let admin = addresses(4);
        let given = admin.clone();
        let cluster = Cluster::start_adjusted(3, &CALM, move |id, command| {
            if has(id, command) {
                command.args(["--admin-addr", &given[usize::from(id) - 1]]);
            }
        });
        let guarded = Guarded { cluster, admin };
        guarded.wait_known();
        guarded
    }

    fn admin(&self, id: u16) -> &str {
        &self.admin[usize::from(id) - 1]
    }

    /// The leader, and a follower.
    fn roles(&self) -> (u16, u16) {
        self.cluster.roles()
    }

    /// Waits until all nodes have announced their addresses to each other.
    fn wait_known(&self) {
        eventually("all nodes know each other's addresses", || {
            let knows_all = |id: u16| {
                let status = self.cluster.status(id)?;
                status.members.iter().all(|member| member.connected && member.client_addr.is_some()).then_some(())
            };
            self.cluster.running().into_iter().map(knows_all).collect::<Option<Vec<()>>>()
        });
    }
}

/// Runs a command at an address.
fn run(address: &str, arguments: &[&str]) -> Output {
    output(palisade().args(arguments).args(["--endpoints", address]))
}

#[track_caller]
fn succeeds(address: &str, arguments: &[&str]) -> String {
    printed(palisade().args(arguments).args(["--endpoints", address]))
}

/// Every administrative request, as HTTP. `k` is held with this token.
fn administrative(token: u64) -> Vec<(&'static str, &'static str, String)> {
    let replaced = json!({
        "generation": 0,
        "cluster": "00000000000000c1",
        "lost_incarnation": "00000000000000c1",
        "incarnation": "00000000000000c2",
    });
    vec![
        ("POST", "/v1/members", json!({ "id": 9, "peer_addr": "127.0.0.1:9" }).to_string()),
        ("POST", "/v1/members/2/promote", String::new()),
        ("POST", "/v1/members/2/replace", replaced.to_string()),
        ("DELETE", "/v1/members/2", String::new()),
        ("POST", "/v1/leader/transfer", "{}".to_owned()),
        ("POST", "/v1/snapshot", String::new()),
        ("GET", "/v1/snapshot", String::new()),
        ("GET", "/v1/access", String::new()),
        ("PUT", "/v1/access", json!({ "revision": 0, "enabled": false }).to_string()),
        ("GET", "/v1/access/test?principal=other&right=admin", String::new()),
        ("POST", "/v1/locks/k/break", json!({ "token": token, "reason": "a try" }).to_string()),
        ("GET", "/metrics", String::new()),
    ]
}

/// The refusal of a request at the address for clients. It names the option, and no address.
#[track_caller]
fn refused_here(refusal: &Value, admin: &[String]) {
    let text = refusal.to_string();
    assert_eq!(refusal["error"], "wrong_listener", "{text}");
    assert!(text.contains("only at its admin address (--admin-addr)"), "{text}");
    let known = admin.iter().find(|address| text.contains(address.as_str()));
    assert_eq!(known, None, "a client is told an admin address");
}

/// Goal: at its address for clients a node refuses every administrative request, over HTTP and over a
/// WebSocket, leader or not, and changes nothing. It serves clients there as ever, and names no admin
/// address.
#[test]
fn client_address_refuses_administration() {
    let guarded = Guarded::start();
    let (leader, follower) = guarded.roles();
    let address = |id| guarded.cluster.client_addr(id);
    let grant = http::post(&address(leader), "/v1/locks/k/acquire", r#"{"ttl_ms":3600000}"#).unwrap().ok();
    let token = grant["token"].as_u64().unwrap();
    let before = guarded.cluster.status(leader).unwrap();

    for id in [leader, follower] {
        for (method, path, body) in administrative(token) {
            let response = http::send(&address(id), method, path, &body).unwrap();
            refused_here(&response.refused(421, "wrong_listener"), &guarded.admin);
            assert_eq!(response.header("location"), None, "{method} {path}");
        }
        let mut socket = WebSocket::open(&address(id));
        let ops = [
            json!({ "change_members": { "remove": { "id": 2 } } }),
            json!({ "transfer": {} }),
            json!({ "break": { "key": "k", "order": { "token": token, "reason": "a try" } } }),
            json!("show_access"),
            json!({ "set_access": { "revision": 0, "enabled": false } }),
            json!({ "test_access": { "principal": "other", "right": "admin" } }),
        ];
        for (number, op) in (1..).zip(ops) {
            refused_here(&socket.ask(number, &op)["error"], &guarded.admin);
        }
        let status = socket.ask(100, &json!("status"))["ok"]["status"].to_string();
        assert!(!guarded.admin.iter().any(|address| status.contains(address.as_str())), "{status}");
    }
    for arguments in [
        &["members", "remove", "2"][..],
        &["transfer"],
        &["acl", "get"],
        &["unlock", "k", "--force", "--reason", "a try"],
        &["snapshot", "save", "/dev/null/nowhere"],
    ] {
        let refused = run(&address(leader), arguments);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("send it to the admin address"), "{arguments:?}: {said}");
    }

    let after = guarded.cluster.status(leader).unwrap();
    let known =
        |status: &StatusView| (status.term, status.leader.clone(), status.members.len(), status.snapshot.clone());
    assert_eq!(known(&after), known(&before));
    let lock = http::get(&address(leader), "/v1/locks/k").unwrap().ok();
    assert_eq!(lock["holder"]["token"], token);
    for path in ["/v1/status", "/v1/members", "/v1/locks?consistency=stale", "/healthz", "/readyz"] {
        assert_eq!(http::get(&address(follower), path).unwrap().status, 200, "{path}");
    }
    let elsewhere = http::send_unforwarded(&address(follower), "GET", "/v1/locks/k", "").unwrap();
    let there = format!("http://{}/v1/locks/k", address(leader));
    assert_eq!((elsewhere.status, elsewhere.header("location")), (307, Some(there.as_str())));
    eventually("the operator reads it", || {
        let log = guarded.cluster.log(leader);
        log.contains("the node accepts changes of the members only at its admin address").then_some(())
    });
}

/// Goal: the admin address answers administrative requests, and those of clients.
#[test]
fn admin_address_answers_everything() {
    let guarded = Guarded::start();
    let (leader, _) = guarded.roles();
    let send = |method: &str, path: &str, body: &str| http::send(guarded.admin(leader), method, path, body).unwrap();
    let grant = send("POST", "/v1/locks/k/acquire", r#"{"ttl_ms":3600000}"#).ok();
    for path in ["/v1/status", "/v1/members", "/v1/locks", "/v1/locks/k", "/v1/access", "/healthz", "/readyz"] {
        assert_eq!(send("GET", path, "").status, 200, "{path}");
    }
    assert!(send("GET", "/metrics", "").body.contains("palisade_leader 1"));
    send("POST", "/v1/snapshot", "").ok();
    assert_eq!(send("GET", "/v1/snapshot", "").status, 200);
    let order = json!({ "token": grant["token"], "reason": "it hangs" }).to_string();
    assert_eq!(send("POST", "/v1/locks/k/break", &order).ok()["token"], grant["token"]);
    let added = send("POST", "/v1/members", &json!({ "id": 9, "peer_addr": "127.0.0.1:9" }).to_string()).ok();
    assert_eq!(added["members"].as_array().unwrap().len(), 4);
    assert_eq!(added["leader"]["client_addr"], guarded.admin(leader));
    assert_eq!(send("DELETE", "/v1/members/9", "").ok()["members"].as_array().unwrap().len(), 3);
    let rebound = b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    http::raw(guarded.admin(leader), rebound).unwrap().refused(421, "wrong_host");
    let moved = send("POST", "/v1/leader/transfer", "{}").ok();
    let now = u16::try_from(moved["leader"]["id"].as_u64().unwrap()).unwrap();
    assert_ne!(now, leader);
    assert_eq!(moved["leader"]["client_addr"], guarded.admin(now));
}

/// Goal: one admin address is enough for an operator. A follower names the leader's admin address in
/// redirects and in its status, also after a change of the leader, and the commands find the leader.
#[test]
fn follower_redirects_to_the_leaders_admin_address() {
    let guarded = Guarded::start();
    for _ in 0..2 {
        let (leader, follower) = guarded.roles();
        let at = guarded.admin(follower);
        let status = http::get(at, "/v1/status").unwrap().ok();
        assert_eq!(status["leader"]["client_addr"], guarded.admin(leader));
        for member in status["members"].as_array().unwrap() {
            let id = u16::try_from(member["id"].as_u64().unwrap()).unwrap();
            assert_eq!(member["client_addr"], guarded.admin(id));
        }
        for (method, path, body) in [
            ("POST", "/v1/members", json!({ "id": 9, "peer_addr": "127.0.0.1:9" })),
            ("POST", "/v1/leader/transfer", json!({})),
            ("POST", "/v1/locks/k/break", json!({ "token": 7, "reason": "a try" })),
            ("GET", "/v1/access", Value::Null),
            ("GET", "/v1/locks/k", Value::Null),
        ] {
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let response = http::send_unforwarded(at, method, path, &body).unwrap();
            let refused = response.refused(307, "not_leader");
            let there = format!("http://{}{path}", guarded.admin(leader));
            assert_eq!(response.header("location"), Some(there.as_str()));
            assert_eq!(refused["leader"]["client_addr"], guarded.admin(leader));
            assert!(refused["message"].as_str().unwrap().ends_with(guarded.admin(leader)), "{refused}");
        }
        let mut socket = WebSocket::open(at);
        let elsewhere = socket.ask(1, &json!("show_access"));
        assert_eq!(elsewhere["error"]["leader"]["client_addr"], guarded.admin(leader));

        let asked: Value = serde_json::from_str(&succeeds(at, &["status", "--json"])).unwrap();
        let asked = asked.as_array().unwrap().iter().map(|node| node["endpoint"].as_str().unwrap().to_owned());
        let mut asked: Vec<String> = asked.collect();
        asked.sort();
        let mut all = guarded.admin[..3].to_vec();
        all.sort();
        assert_eq!(asked, all);
        assert!(succeeds(at, &["members", "list"]).contains(guarded.admin(leader)));
        succeeds(at, &["acl", "get"]);
        let key = format!("k-{leader}");
        let path = format!("/v1/locks/{key}/acquire");
        http::post(guarded.admin(leader), &path, r#"{"ttl_ms":3600000}"#).unwrap().ok();
        succeeds(at, &["unlock", &key, "--force", "--reason", "it hangs"]);
        let directory = tempfile::tempdir().unwrap();
        succeeds(at, &["snapshot", "save", directory.path().join("saved").to_str().unwrap()]);
        let moved = succeeds(at, &["transfer", "--to", &follower.to_string()]);
        assert!(moved.contains(guarded.admin(follower)), "{moved}");
    }
}

/// Goal: a leader without an admin address answers administrative requests at its client address, and
/// followers with one redirect there. The setting may change with a restart of the node.
#[test]
fn leader_without_an_admin_address_is_redirected_to() {
    let has = Arc::new(AtomicBool::new(false));
    let given = Arc::clone(&has);
    let mut guarded = Guarded::start_adjusted(move |id, _| id != 1 || given.load(Ordering::Relaxed));
    let (leader, _) = guarded.roles();
    if leader != 1 {
        succeeds(guarded.admin(leader), &["transfer", "--to", "1"]);
        assert_eq!(guarded.cluster.wait_ready(), 1);
    }
    let redirected_to = |guarded: &Guarded, leader: &str| {
        let redirect = http::send_unforwarded(guarded.admin(2), "GET", "/v1/access", "").unwrap();
        redirect.refused(307, "not_leader");
        assert_eq!(redirect.header("location"), Some(format!("http://{leader}/v1/access").as_str()));
    };
    redirected_to(&guarded, &guarded.cluster.client_addr(1));
    succeeds(guarded.admin(2), &["acl", "get"]);
    assert_eq!(http::get(&guarded.cluster.client_addr(1), "/metrics").unwrap().status, 200);

    has.store(true, Ordering::Relaxed);
    guarded.cluster.stop(1);
    guarded.cluster.restart(1);
    let leader = guarded.cluster.wait_ready();
    guarded.wait_known();
    if leader != 1 {
        succeeds(guarded.admin(leader), &["transfer", "--to", "1"]);
        assert_eq!(guarded.cluster.wait_ready(), 1);
    }
    redirected_to(&guarded, guarded.admin(1));
    assert_eq!(http::get(&guarded.cluster.client_addr(1), "/metrics").unwrap().status, 421);
}

/// Goal: a server joins through any node's admin address. At a client address it is refused for good,
/// with the sentence that says where to ask. A node that has lost its log finds the leader's admin
/// address by itself.
#[test]
fn node_joins_and_returns_through_admin_addresses() {
    let mut guarded = Guarded::start();
    let (leader, follower) = guarded.roles();
    let directory = tempfile::tempdir().unwrap();
    let [clients, peers] = &addresses(2)[..] else { unreachable!() };
    let mut command = palisade();
    command
        .args(["serve", "--id", "4", "--client-addr", clients, "--peer-addr", peers])
        .args(["--join", &guarded.cluster.client_addr(follower), "--data"])
        .arg(directory.path().join("node"));
    let said = refusal(&mut command, 69);
    assert!(said.contains("only at its admin address (--admin-addr)"), "{said}");
    assert_eq!(guarded.cluster.status(leader).unwrap().members.len(), 3);

    let contact = guarded.admin(follower).to_owned();
    let joined = guarded.cluster.join_at(contact);
    eventually("the node has joined", || {
        guarded.cluster.status(leader)?.members.iter().find(|member| member.id == joined && member.connected).cloned()
    });
    assert_eq!(http::get(guarded.admin(joined), "/metrics").unwrap().status, 200);
    succeeds(guarded.admin(follower), &["members", "remove", &joined.to_string()]);
    guarded.cluster.kill(joined);

    guarded.cluster.kill(follower);
    damage(&guarded.cluster, follower);
    guarded.cluster.restart(follower);
    wait_until_it_votes(&guarded.cluster, follower, 1);
}

/// Goal: with TLS, an identity alone is not enough: an administrator is refused at the client address,
/// and a client without rights at both. Redirects keep to TLS. A client may still ask at the client
/// address what itself may do.
#[test]
fn identities_are_checked_at_the_admin_address_too() {
    let ours = Certificates::of("billing", 3);
    ours.issue_client("worker-7", &[]);
    let (alice, worker) = (ours.administrator("alice"), ours.client("worker-7"));
    let (admin, with_certificates) = (addresses(3), ours.adjust());
    let (given, audit) = (admin.clone(), tempfile::tempdir().unwrap());
    let audits = audit.path().to_owned();
    let adjust = move |id: u16, command: &mut Command| {
        with_certificates(id, command);
        command.args(["--admin-addr", &given[usize::from(id) - 1]]);
        command.arg("--audit").arg(audits.join(id.to_string()));
    };
    let cluster = Cluster::start_adjusted_secured(3, adjust, ours.client("test"));
    let guarded = Guarded { cluster, admin };
    guarded.wait_known();
    let (leader, follower) = guarded.roles();
    let get =
        |address: &str, security: &Security, path: &str| -> Response { https::get(address, security, path).unwrap() };
    let clients = guarded.cluster.client_addr(leader);

    let rules = ours.beside("rules.json");
    let document = json!({ "rules": [{ "subject": "*", "prefix": "", "rights": ["acquire"] }] });
    std::fs::write(&rules, document.to_string()).unwrap();
    let secured = |address: &str, arguments: &[&str]| crate::tls::clients::run(address, &alice, arguments);
    let set = ["acl", "set", rules.to_str().unwrap()];
    let refused = secured(&clients, &set);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(65) && said.contains("send it to the admin address"), "{said}");
    let done = secured(guarded.admin(follower), &set);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let listed = secured(guarded.admin(follower), &["members", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains(guarded.admin(leader)));

    for (method, path, body) in administrative(7) {
        let refused = https::send(&clients, &alice, method, path, &body).unwrap();
        refused_here(&refused.refused(421, "wrong_listener"), &guarded.admin);
        let refused = https::send(&clients, &worker, method, path, &body).unwrap();
        refused_here(&refused.refused(421, "wrong_listener"), &guarded.admin);
    }
    for path in ["/v1/access", "/v1/snapshot"] {
        get(guarded.admin(leader), &worker, path).refused(403, "denied");
    }
    get(guarded.admin(leader), &ours.anonymous(), "/metrics").refused(401, "unauthenticated");
    assert_eq!(get(guarded.admin(leader), &ours.anonymous(), "/healthz").status, 200);
    assert_eq!(get(guarded.admin(leader), &worker, "/metrics").status, 200);
    let redirect = https::get_unforwarded(guarded.admin(follower), &alice, "/v1/access").unwrap();
    let there = format!("https://{}/v1/access", guarded.admin(leader));
    assert_eq!((redirect.status, redirect.header("location")), (307, Some(there.as_str())));
    let own = "/v1/access/test?principal=worker-7&right=acquire&key=x";
    assert_eq!(get(&clients, &worker, own).ok()["permitted"], true);

    // What was refused at the client address is recorded as refused, and not as an intent.
    let records = eventually("it is recorded", || {
        let file = audit.path().join(leader.to_string()).join("audit-00000001.jsonl");
        let records = std::fs::read_to_string(file).ok()?;
        records.contains("only at its admin address").then_some(records)
    });
    let acts: Vec<&str> = records.lines().filter(|line| line.contains(r#""event":"intent""#)).collect();
    assert!(acts.iter().all(|line| line.contains("set_access")), "{acts:?}");
}

/// Goal: an admin address that is another address of the node, that no operator can reach, or that
/// other machines reach without TLS, is refused before the node founds anything.
#[test]
fn unusable_admin_address_is_refused() {
    let [clients, peers, admin] = &addresses(3)[..] else { unreachable!() };
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("node");
    let command = |flags: &[&str]| {
        let mut command = palisade();
        command
            .args(["serve", "--id", "1", "--client-addr", clients, "--peer-addr", peers])
            .args(["--peers", &format!("1={peers}")])
            .args(flags)
            .arg("--data")
            .arg(&data);
        command
    };
    let port = |address: &str| address.rsplit_once(':').unwrap().1.to_owned();
    let wildcard = format!("0.0.0.0:{}", port(admin));
    let everywhere = format!("0.0.0.0:{}", port(clients));
    let advertised = ["--insecure", "--advertise-admin-addr", admin];
    for (code, flags, sentence) in [
        (
            78,
            vec!["--admin-addr", clients],
            format!("is the address on which this node listens for clients ({clients})"),
        ),
        (78, vec!["--admin-addr", peers], format!("is the address on which this node listens for nodes ({peers})")),
        (78, [&["--admin-addr", &everywhere], &advertised[..]].concat(), "a port of its own".to_owned()),
        (78, vec!["--admin-addr", &wildcard], "--advertise-admin-addr HOST:PORT".to_owned()),
        (
            78,
            vec!["--admin-addr", &wildcard, "--advertise-admin-addr", admin],
            "listen for operators on 127.0.0.1".into(),
        ),
        (2, vec!["--advertise-admin-addr", admin], "--admin-addr".to_owned()),
    ] {
        let said = refusal(&mut command(&flags), code);
        assert!(said.contains(&sentence), "{flags:?}: {said}");
        assert!(!data.join("identity.json").exists(), "{flags:?}");
    }
    let advertised = [&["--admin-addr", &wildcard], &advertised[..]].concat();
    let running = Running::start(command(&advertised).stderr(Stdio::null()));
    eventually("the admin address answers", || (http::get(admin, "/metrics").ok()?.status == 200).then_some(()));
    let leader = eventually("the node leads", || {
        let status = http::get(admin, "/v1/status").ok()?.ok();
        status["leader"]["client_addr"].as_str().map(str::to_owned)
    });
    assert_eq!(leader, *admin);
    drop(running);
}
