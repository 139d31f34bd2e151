//! A session belongs to the principal that opened it: its credential is of no use to another one.

use std::collections::BTreeSet;

use palisade_client::Security;
use serde_json::{Value, json};

use super::clients::token;
use super::hold::Secured;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::{eventually, https};

/// Each request over HTTP that has a credential: the method, the path of the description, the path, and the body. The
/// session holds `k` with this token, and waits for `q`.
fn requests(session: &Value, token: &Value) -> Vec<(&'static str, &'static str, String, Value)> {
    let id = session.as_str().unwrap();
    let (acquire, none) = ("/v1/locks/{key}/acquire", Value::Null);
    let grant = json!({ "session": session, "token": token });
    let with = |fields: Value| {
        let mut body = fields;
        body["session"] = session.clone();
        body
    };
    let at = |key: &str| format!("/v1/locks/{key}/acquire");
    vec![
        ("get", "/v1/sessions/{id}", format!("/v1/sessions/{id}"), none.clone()),
        ("post", "/v1/sessions/{id}/keepalive", format!("/v1/sessions/{id}/keepalive"), none.clone()),
        ("post", acquire, at("k"), with(json!({}))),
        ("post", acquire, at("k"), with(json!({ "reentrant": true }))),
        ("post", acquire, at("q"), with(json!({ "wait_ms": 600_000 }))),
        ("post", acquire, at("q"), with(json!({ "wait_ms": 0 }))),
        ("post", acquire, at("free"), with(json!({ "value": "mine" }))),
        ("post", acquire, at("shared"), with(json!({ "mode": "shared" }))),
        ("post", acquire, at("permits"), with(json!({ "permits": 1, "of": 3 }))),
        ("post", "/v1/acquire", "/v1/acquire".into(), with(json!({ "keys": ["free", "other"] }))),
        (
            "post",
            "/v1/locks/{key}/proclaim",
            "/v1/locks/k/proclaim".into(),
            json!({
                "session": session, "token": token, "value": "stolen",
            }),
        ),
        ("post", "/v1/locks/{key}/release", "/v1/locks/k/release".into(), grant),
        ("post", "/v1/release", "/v1/release".into(), with(json!({ "keys": ["k"], "token": token }))),
        ("post", "/v1/kv", "/v1/kv".into(), with(json!({ "changes": [{ "put": { "key": "r", "value": "stolen" } }] }))),
        ("delete", "/v1/sessions/{id}", format!("/v1/sessions/{id}"), none),
    ]
}

/// The same for the requests of a WebSocket.
fn operations(session: &Value, token: &Value) -> Vec<(&'static str, Value)> {
    let grant = json!({ "session": session, "token": token });
    let proclamation = json!({ "session": session, "token": token, "value": "stolen" });
    let transaction = json!({ "session": session, "changes": [{ "put": { "key": "r", "value": "stolen" } }] });
    let mut operations =
        vec![("show_session", json!({ "session": session })), ("keep_alive", json!({ "session": session }))];
    for number in [Value::Null, json!(1)] {
        let options = |wait_ms: u64| json!({ "session": session, "wait_ms": wait_ms });
        operations.extend([
            ("acquire", json!({ "key": "k", "options": options(0), "number": number })),
            ("acquire", json!({ "key": "q", "options": options(600_000), "number": number })),
            ("acquire", json!({ "keys": ["free", "other"], "options": options(0), "number": number })),
            ("proclaim", json!({ "key": "k", "proclamation": proclamation, "number": number })),
            ("withdraw", json!({ "key": "q", "session": session, "number": number })),
            ("withdraw", json!({ "key": "k", "session": session, "number": number })),
            ("release", json!({ "key": "k", "grant": grant, "number": number })),
            ("transact", json!({ "transaction": transaction, "number": number })),
        ]);
    }
    operations.push(("close_session", json!({ "session": session })));
    operations
}

/// Whether a schema has a property `session`, itself or in what it refers to.
fn takes_session(schema: &Value, document: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(name, value)| match (name.as_str(), value) {
            ("$ref", Value::String(path)) => {
                let pointer = path.strip_prefix('#').expect("a reference within the document");
                takes_session(document.pointer(pointer).expect("it refers to a schema"), document)
            }
            ("properties", Value::Object(properties)) if properties.contains_key("session") => true,
            (_, value) => takes_session(value, document),
        }),
        Value::Array(schemas) => schemas.iter().any(|schema| takes_session(schema, document)),
        _ => false,
    }
}

/// The methods and paths that take a credential, and the operations of a WebSocket, by the node's own description.
fn described(address: &str, security: &Security) -> (BTreeSet<(String, String)>, BTreeSet<String>) {
    let document = |path: &str| https::get(address, security, path).unwrap().ok();
    let (interface, messages) = (document("/v1/openapi.json"), document("/v1/messages.json"));
    let mut paths = BTreeSet::new();
    for (path, methods) in interface["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let has_session = takes_session(&operation["requestBody"], &interface);
            if has_session || path.starts_with("/v1/sessions/{id}") {
                paths.insert((method.clone(), path.clone()));
            }
        }
    }
    let operations = messages["$defs"]["Op"]["oneOf"].as_array().unwrap();
    let with_session = operations.iter().filter(|operation| takes_session(operation, &messages));
    let name = |operation: &Value| operation["properties"].as_object().unwrap().keys().next().unwrap().clone();
    (paths, with_session.map(name).collect())
}

/// Goal: the credential of a session, presented by another principal, is refused wherever a client can present one, at
/// the leader and through a follower, and nothing changes: neither what the session holds and waits for, nor its
/// deadline, nor the numbers of its operations. It does not matter what the principal proves itself by, nor that it is
/// an administrator's.
#[test]
fn credential_of_another_principal_is_refused_everywhere() {
    let ours = Certificates::of("billing", 3);
    ["worker", "other"].iter().for_each(|name| ours.issue_client(name, &[]));
    let (ci, line) = token(&ours, "ci");
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, line).unwrap();
    let cluster = Cluster::start_secured(3, &["--client-tokens", tokens.to_str().unwrap()], &ours);
    let (leader, follower) = cluster.roles();
    let (leader, follower) = (cluster.client_addr(leader), cluster.client_addr(follower));
    let (worker, test) = (ours.client("worker"), ours.client("test"));
    let post = |security: &Security, path: &str, body: &Value| {
        https::post(&leader, security, path, &body.to_string()).unwrap()
    };

    let long = json!({ "ttl_ms": 3_600_000 });
    let blocking = post(&test, "/v1/locks/q/acquire", &long).ok();
    let session = post(&worker, "/v1/sessions", &long).ok()["session"].clone();
    let mut owner = Secured::open(&leader, &worker, "/v1/ws");
    let options = |wait_ms: u64| json!({ "session": session, "wait_ms": wait_ms });
    let granted = owner.ask(1, &json!({ "acquire": { "key": "k", "options": options(0) } }));
    let token = granted["ok"]["acquired"]["token"].clone();
    owner.request(2, &json!({ "acquire": { "key": "q", "options": options(3_600_000) } }));
    let lock = |key: &str| https::get(&leader, &test, &format!("/v1/locks/{key}")).unwrap().ok();
    eventually("the session waits", || (lock("q")["queue"].as_array()?.len() == 1).then_some(()));

    let (paths, names) = described(&leader, &test);
    let own = requests(&session, &token);
    assert_eq!(paths, own.iter().map(|(method, path, ..)| ((*method).to_owned(), (*path).to_owned())).collect());
    assert_eq!(names, operations(&session, &token).iter().map(|(name, _)| (*name).to_owned()).collect());

    let whose = {
        let number = lock("k")["holder"]["session"].clone();
        format!("session {number} is another client's")
    };
    let is_refusal = |failure: &Value, what: &str| {
        let message = failure["message"].as_str().unwrap_or_default();
        assert!(failure["error"] == "no_session" && message.starts_with(&whose), "{what}: {failure}");
    };
    let strangers = [
        ("another client", ours.client("other")),
        ("a client with a token", ci.clone()),
        // A request with both counts for the token's name.
        ("the certificate of the session's own client, and a token", {
            let (cert, key) = ours.pair("client-worker");
            ci.clone().with_certificate(cert, key)
        }),
        ("an administrator", ours.administrator("alice")),
        ("a node", ours.with(&ours, "node-2")),
    ];
    let state = || {
        let locks = ["k", "q", "free", "other", "shared", "permits"].map(lock);
        let left = locks[0]["holder"]["expires_in_ms"].as_u64().unwrap();
        let timeless = |lock: &Value| {
            let queue = lock["queue"].as_array().unwrap().iter().map(|waiter| waiter["session"].clone());
            let holder = ["session", "token", "holds", "value"].map(|field| lock["holder"][field].clone());
            (holder, queue.collect::<Vec<Value>>())
        };
        (locks.each_ref().map(timeless), left)
    };
    let before = state();
    for (who, security) in &strangers {
        for address in [&leader, &follower] {
            for (method, _, path, body) in &own {
                let body = if body.is_null() { String::new() } else { body.to_string() };
                let answer = https::send(address, security, &method.to_uppercase(), path, &body).unwrap();
                is_refusal(&answer.refused(404, "no_session"), &format!("{who}, {method} {path} {body}"));
            }
            let mut socket = Secured::open(address, security, "/v1/ws");
            for (id, (name, fields)) in (1..).zip(operations(&session, &token)) {
                let op = json!({ name: fields });
                is_refusal(&socket.ask(id, &op)["error"], &format!("{who}, {op}"));
            }
        }
        let resume = json!({ "key": "k", "session": session, "token": token });
        let mut thief = Secured::begin(&leader, security, &json!({ "resume": resume }));
        is_refusal(&thief.receive()["lost"], &format!("{who} resumes a grant"));
        let resume = json!({ "key": "q", "session": session, "wait_ms": 600_000 });
        let mut thief = Secured::begin(&leader, security, &json!({ "resume": resume }));
        is_refusal(&thief.receive()["error"], &format!("{who} resumes a wait"));

        let now = state();
        assert_eq!(now.0, before.0, "{who} has changed something");
        assert!(now.1 <= before.1, "{who} has renewed the session");
        https::get(&leader, &test, "/v1/kv/r").unwrap().refused(404, "no_record");
    }

    // Its own client's operations are as new as they were, and its wait goes on.
    let proclamation = json!({ "session": session, "token": token, "value": "own" });
    let proclaimed = owner.ask(3, &json!({ "proclaim": { "key": "k", "proclamation": proclamation, "number": 1 } }));
    assert_eq!(proclaimed["ok"], "proclaimed", "{proclaimed}");
    let release = json!({ "session": blocking["session"], "token": blocking["token"] });
    post(&test, "/v1/locks/q/release", &release).ok();
    assert_eq!(owner.result(2)["ok"]["acquired"]["session"], session);
    let (_, _, close, _) = own.last().unwrap();
    https::send(&follower, &worker, "DELETE", close, "").unwrap().ok();
}
