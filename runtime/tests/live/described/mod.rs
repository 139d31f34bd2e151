//! The interface is the one that docs/openapi.json and docs/messages.json describe: each operation, each status and each
//! kind of message is provoked on live nodes, and compared. `support::description` compares what all other tests
//! send and receive.

mod messages;
mod operations;
mod refusals;

use std::collections::BTreeSet;

use palisade_client::Security;
use serde_json::{Value, json};

use crate::support::description::{self, Request, Seen, description};
use crate::support::events::Events;
use crate::support::http::{self, Response};
use crate::support::https;

/// The ID of a cluster to which no node of the test belongs.
const OTHER_CLUSTER: &str = "0000000000000001";
const UNKNOWN_SESSION: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// An operation, a status, and the code of a refusal.
type Case = (String, u16, Option<String>);

/// Requests, and what was seen of the description in their answers.
#[derive(Default)]
struct Walk {
    /// Operation, status, and the code of a refusal.
    seen: BTreeSet<Case>,
}

impl Walk {
    fn send(&mut self, address: &str, method: &str, path: &str, headers: &str, body: &str) -> Response {
        let length = body.len();
        let host = if headers.contains("Host:") { "" } else { "Host: localhost\r\n" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        let response = http::raw(address, request.as_bytes()).expect("the node answers");
        self.note(description::check(Request::parse(request.as_bytes()), &response));
        response
    }

    fn post(&mut self, address: &str, path: &str, body: &Value) -> Response {
        self.send(address, "POST", path, "", &body.to_string())
    }

    /// Sends the example of a watch. Returns the refusal, if it is refused.
    fn refused_watch(&mut self, address: &str, example: &Example) -> Option<Response> {
        let (_, query) = example.path.split_once('?').expect("a watch has a query");
        match Events::try_open(address, query) {
            Ok(events) => {
                self.note(events.seen);
                None
            }
            Err(refusal) => {
                let (method, target) = (example.method.clone(), example.path.clone());
                self.note(description::check(Some(Request { method, target, ..Request::default() }), &refusal));
                Some(refusal)
            }
        }
    }

    fn note(&mut self, seen: Option<Seen>) {
        self.seen.extend(seen.map(|seen| (seen.operation, seen.status, seen.code)));
    }

    /// Sends a request over TLS.
    fn send_as(&mut self, security: &Security, address: &str, example: &Example, headers: &str) -> Response {
        let Example { method, path, body, .. } = example;
        let response = https::send_with(address, security, method, path, headers, body).expect("the node answers");
        let (method, target, body) = (method.clone(), path.clone(), Some(body.clone().into_bytes()));
        self.note(description::check(Some(Request { method, target, headers: vec![], body }), &response));
        response
    }

    /// Sends the example of an operation.
    fn example(&mut self, address: &str, example: &Example, headers: &str) -> Response {
        self.send(address, &example.method, &example.path, headers, &example.body)
    }
}

/// A request of an operation: one that the server can parse.
struct Example {
    id: String,
    method: String,
    path: String,
    body: String,
    /// The statuses that are described, each with each of its codes.
    cases: BTreeSet<(u16, Option<String>)>,
}

impl Example {
    fn has(&self, code: &str) -> bool {
        self.cases.iter().any(|(_, it)| it.as_deref() == Some(code))
    }
}

/// An example of each operation that is described.
fn examples() -> Vec<Example> {
    let examples = description().operations().map(|(method, template, operation)| {
        let id = operation["operationId"].as_str().unwrap().to_owned();
        let query = match id.as_str() {
            "testAccess" => "?right=read&key=k",
            "watch" => "?key=k",
            _ => "",
        };
        let path = template.replace("{key}", "k");
        let path =
            if path.contains("/members/") { path.replace("{id}", "9") } else { path.replace("{id}", UNKNOWN_SESSION) };
        let mut cases = BTreeSet::new();
        let responses = operation["responses"].as_object().unwrap();
        for (status, response) in responses {
            let response = description().resolve(response);
            let names = response.pointer("/content/application~1json/schema/allOf/1/properties/error/enum");
            let status = status.parse().unwrap();
            match names.and_then(Value::as_array) {
                Some(names) => cases.extend(names.iter().map(|name| (status, Some(name.as_str().unwrap().to_owned())))),
                None => drop(cases.insert((status, None))),
            }
        }
        Example {
            body: body(&id).map_or_else(String::new, |body| body.to_string()),
            method: method.to_uppercase(),
            path: path + query,
            id,
            cases,
        }
    });
    examples.collect()
}

fn body(id: &str) -> Option<Value> {
    Some(match id {
        "acquire" | "openSession" | "transferLeadership" => json!({}),
        "acquireKeys" => json!({ "keys": ["a", "b"] }),
        "release" => json!({ "session": UNKNOWN_SESSION, "token": 1 }),
        "releaseKeys" => json!({ "keys": ["a", "b"], "session": UNKNOWN_SESSION, "token": 1 }),
        "proclaim" => json!({ "session": UNKNOWN_SESSION, "token": 1, "value": "v" }),
        "breakGrant" => json!({ "token": 1, "reason": "a test" }),
        "transact" => json!({ "changes": [{ "put": { "key": "k", "value": "v" } }] }),
        "addMember" => json!({ "id": 9, "peer_addr": "127.0.0.1:1" }),
        "replaceMember" => json!({
            "generation": 0, "cluster": OTHER_CLUSTER, "lost_incarnation": "0000000000000002",
            "incarnation": "0000000000000003",
        }),
        "setAccess" => json!({ "revision": 0 }),
        _ => return None,
    })
}

/// Goal: an answer that a server did not finish is an error, and is compared with nothing.
#[test]
fn truncated_answers_are_errors() {
    let whole = |method: &str, answer: &str| {
        let request = format!("{method} /v1/status HTTP/1.1\r\n\r\n");
        http::whole(request.as_bytes(), answer.as_bytes())
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n";
    assert_eq!(whole("GET", &format!("{head}\r\n{{\"node\":1}}")).unwrap().body, r#"{"node":1}"#);
    for truncated in [format!("{head}\r\n{{\"node\":"), format!("{head}\r\n"), head.to_owned()] {
        let error = whole("GET", &truncated).expect_err(&truncated);
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
    }
    assert_eq!(whole("HEAD", &format!("{head}\r\n")).unwrap().status, 200);
}

/// Goal: the check itself sees what is wrong. Each change of an exchange that is as described is found.
#[test]
fn exchanges_that_are_not_described_are_found() {
    let exchange = |target: &str, body: &str, status: u16, head: &str, answer: &str| {
        let (method, target) = target.split_once(' ').unwrap();
        let (method, target, body) = (method.to_owned(), target.to_owned(), Some(body.into()));
        let request = Request { method, target, headers: vec![], body };
        let head = format!("HTTP/1.1 {status} x\r\n{head}");
        description().exchange(&request, &Response { status, head, body: answer.to_owned() })
    };
    let kind = "content-type: application/json";
    let granted = json!({ "key": "k", "session": UNKNOWN_SESSION, "token": 1, "ttl_ms": 30_000 }).to_string();
    let seen = exchange("POST /v1/locks/k/acquire", "{}", 200, kind, &granted).unwrap().unwrap();
    assert_eq!((seen.operation.as_str(), seen.status, seen.code), ("acquire", 200, None));

    let held = r#"{"error":"held","message":"it is held","queue":0}"#;
    let seen = exchange("POST /v1/locks/k/acquire", "{}", 409, kind, held).unwrap().unwrap();
    assert_eq!((seen.status, seen.code.as_deref()), (409, Some("held")));

    let found = |target: &str, body: &str, status: u16, head: &str, answer: &str, expected: &str| {
        let problem = exchange(target, body, status, head, answer).expect_err(answer);
        assert!(problem.contains(expected), "{problem}");
    };
    let acquire = "POST /v1/locks/k/acquire";
    found(acquire, "{}", 410, kind, held, "without the status 410");
    found(acquire, "{}", 409, kind, &held.replace("held", "timeout"), "timeout");
    found(acquire, "{}", 200, kind, &granted.replace("token", "tokens"), "token");
    found(acquire, "{}", 200, kind, &granted.replace('{', r#"{"colour":"red","#), "colour");
    found(acquire, "{}", 200, kind, &granted.replace("30000", "\"30 s\""), "30 s");
    found(acquire, "{}", 200, "content-type: text/plain", &granted, "without content of text/plain");
    found(acquire, r#"{"colour":"red"}"#, 200, kind, &granted, "was done, but");
    found(acquire, r#"{"wait_ms":86400001}"#, 200, kind, &granted, "was done, but");
    let page = r#"{"locks":[],"next_after":null}"#;
    assert!(exchange("GET /v1/locks?limit=5&prefix=%C3%A4", "", 200, kind, page).unwrap().is_some());
    found("GET /v1/locks?limit=0", "", 200, kind, page, "limit");
    found("GET /v1/locks?limits=5", "", 200, kind, page, "limits");
    found(
        "GET /v1/locks",
        "",
        503,
        kind,
        r#"{"error":"no_leader","message":"no leader"}"#,
        "header Retry-After is missing",
    );
    found("GET /v1/lock", "", 200, kind, page, "not described");
    found("PATCH /v1/locks", "", 200, kind, page, "not described");
    assert_eq!(exchange("GET /v1/lock", "", 404, kind, r#"{"error":"not_found","message":"no path"}"#), Ok(None));
}
