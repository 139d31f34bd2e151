//! The operations: what each takes, what it answers, and by which codes it may be refused.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use palisade_client::wire::{
    AccessRules, AccessVerdict, Acquire, Acquired, AddMember, Break, Broken, Code, ListLocks, ListRecords, LockPage,
    LockView, MembersView, OpenSession, Proclaim, RecordPage, Release, SessionLease, SessionView, SnapshotView,
    StatusView, Transaction, Transfer, Watch, with_fields,
};
use palisade_spec::lock::RECORD_BYTES;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::schemas::Schemas;
use super::{name, status};
use crate::http::reply::{Aged, Closed, Proclaimed, Released, Transferred, Written};
use crate::http::{access, kv, locks, members, node, ui};
use crate::limits;

/// Codes by which every request may be refused.
const ANY: [Code; 2] = [Code::WrongHost, Code::WrongOrigin];
/// Of what the leader answers.
const LEADER: [Code; 5] = [Code::NotLeader, Code::NoLeader, Code::LeadershipLost, Code::Overloaded, Code::ShuttingDown];
/// Of administrative acts.
const ADMINISTRATION: [Code; 3] = [Code::WrongListener, Code::Denied, Code::AuditUnavailable];
const ACQUIRE: [Code; 8] = [
    Code::Invalid,
    Code::TooLarge,
    Code::Held,
    Code::Timeout,
    Code::Withdrawn,
    Code::NoSession,
    Code::Limit,
    Code::NoSpace,
];
const CHANGE_RECORD: [Code; 5] = [Code::Invalid, Code::TooLarge, Code::StaleToken, Code::OtherVersion, Code::Denied];
/// Of a change that may make a record larger.
const ENLARGE_RECORD: [Code; 2] = [Code::NoSpace, Code::StoreFull];
/// A method of a path.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    tag: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    body: Option<Value>,
    answers: Vec<(u16, Value)>,
    pub(super) codes: Vec<Code>,
    is_open: bool,
    more: Map<String, Value>,
}

/// The body of `POST /v1/acquire`, as `body::with_keys` reads it.
struct AcquireKeys;

/// The body of `POST /v1/release`.
struct ReleaseKeys;

pub(in crate::http) fn keys() -> (&'static str, Schema) {
    let keys = json_schema!({
        "description": "The keys of the locks, each once, together of at most 2 KiB.",
        "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 32, "uniqueItems": true,
    });
    ("keys", keys)
}

impl JsonSchema for AcquireKeys {
    fn schema_name() -> Cow<'static, str> {
        "AcquireKeys".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = with_fields::<Acquire>(generator, &[], [keys()]);
        schema.insert("description".to_owned(), "The body of `POST /v1/acquire`.".into());
        schema
    }
}

impl JsonSchema for ReleaseKeys {
    fn schema_name() -> Cow<'static, str> {
        "ReleaseKeys".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = with_fields::<Release>(generator, &[], [keys()]);
        schema.insert("description".to_owned(), "The body of `POST /v1/release`.".into());
        schema
    }
}

fn operation(method: &'static str, path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    let tag = match path.split('/').nth(2) {
        Some("acquire" | "release" | "locks") => "locks",
        Some("kv") => "records",
        Some("sessions") => "sessions",
        Some("ws" | "hold" | "watch") => "messages",
        _ if path.starts_with("/v1/") || !path.contains("ui") && path != "/" => "node",
        _ => "page",
    };
    let parameters = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters = parameters.map(|parameter| json!({ "$ref": in_path(path, parameter) })).collect();
    let (body, answers, codes, more) = (None, Vec::new(), ANY.to_vec(), Map::new());
    Operation { method, path, id, tag, summary, parameters, body, answers, codes, is_open: false, more }
}

fn in_path(path: &str, parameter: &str) -> String {
    let name = match (path.split('/').nth(2), parameter) {
        (Some("sessions"), "id") => "Session",
        (Some("members"), "id") => "Member",
        (Some("kv"), "key") => "RecordKey",
        (_, "key") => "LockKey",
        _ => panic!("{path} has the unknown parameter {parameter}"),
    };
    format!("#/components/parameters/{name}")
}

impl Operation {
    /// The leader answers it, and a follower forwards it.
    fn at_leader(mut self) -> Operation {
        self.parameters.push(json!({ "$ref": "#/components/parameters/XForward" }));
        self.or(&LEADER).authenticated()
    }

    /// The client needs an identity, at a node with TLS.
    fn authenticated(self) -> Operation {
        self.or(&[Code::Unauthenticated])
    }

    /// It counts towards the requests that a client may send.
    fn limited(self) -> Operation {
        self.or(&[Code::TooSoon])
    }

    fn administrative(mut self) -> Operation {
        self.tag = "administration";
        self.or(&ADMINISTRATION)
    }

    /// The operation needs no identity.
    fn open(mut self) -> Operation {
        self.is_open = true;
        self
    }

    /// It may be refused by these codes, too.
    fn or(mut self, codes: &[Code]) -> Operation {
        self.codes.extend(codes);
        self
    }

    fn query<T: JsonSchema>(mut self, schemas: &mut Schemas) -> Operation {
        for (name, mut schema, required) in schemas.query::<T>() {
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            let mut parameter = json!({ "name": name, "in": "query", "description": description, "schema": schema });
            if required {
                parameter["required"] = true.into();
            }
            let bounds: &[(&str, &str, u64)] = match (&*name, self.path) {
                ("limit", _) => &[("minimum", "limit", 1), ("maximum", "limit", limits::PAGE as u64)],
                ("key", "/v1/watch") => &[("minLength", "key", 1), ("maxLength", "key", limits::KEY_BYTES as u64)],
                ("leader", _) => &[("maximum", "leader", u8::MAX as u64)],
                _ => &[],
            };
            bounds.iter().for_each(|(keyword, _, value)| parameter["schema"][*keyword] = (*value).into());
            self.parameters.push(parameter);
        }
        self
    }

    fn header(mut self, name: &str) -> Operation {
        self.parameters.push(json!({ "$ref": format!("#/components/parameters/{name}") }));
        self
    }

    /// A JSON body, which may be left out if `{}` is one.
    fn takes<T: JsonSchema>(mut self, schemas: &mut Schemas, required: bool) -> Operation {
        let schema = schemas.taken::<T>();
        self.body = Some(json!({ "required": required, "content": { "application/json": { "schema": schema } } }));
        self.or(&[Code::Invalid, Code::TooLarge])
    }

    fn answers<T: JsonSchema>(self, schemas: &mut Schemas, what: &str) -> Operation {
        let schema = schemas.given::<T>();
        self.answers_with(200, what, json!({ "content": { "application/json": { "schema": schema } } }))
    }

    fn answers_with(mut self, status: u16, what: &str, mut rest: Value) -> Operation {
        rest["description"] = what.into();
        self.answers.push((status, rest));
        self
    }

    fn answers_text(self, kind: &str, what: &str) -> Operation {
        self.answers_with(200, what, json!({ "content": { kind: { "schema": { "type": "string" } } } }))
    }

    fn messages(mut self, messages: Value) -> Operation {
        self.more.insert("x-messages".to_owned(), messages);
        self
    }

    pub(super) fn code_names(&self) -> Vec<String> {
        self.codes.iter().copied().map(name).collect()
    }

    /// How OpenAPI has it. Refusals that several operations have in common are in `responses`.
    pub(super) fn object(
        &self,
        schemas: &mut Schemas,
        codes: &BTreeMap<String, String>,
        responses: &mut Map<String, Value>,
    ) -> Value {
        let mut object = json!({ "operationId": self.id, "tags": [self.tag], "summary": self.summary });
        let mut answers: Map<String, Value> =
            self.answers.iter().map(|(status, answer)| (status.to_string(), answer.clone())).collect();
        let mut by_status: BTreeMap<u16, BTreeSet<String>> = BTreeMap::new();
        for code in &self.codes {
            by_status.entry(status(*code)).or_default().insert(name(*code));
        }
        for (status, names) in by_status {
            let shared =
                format!("{status}_{}", names.iter().map(|name| name.replace(' ', "_")).collect::<Vec<_>>().join("."));
            responses.entry(shared.clone()).or_insert_with(|| refusal(status, &names, codes, schemas));
            let former =
                answers.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/{shared}") }));
            assert!(former.is_none(), "{} has two answers with the status {status}", self.id);
        }
        object["responses"] = answers.into();
        if !self.parameters.is_empty() {
            object["parameters"] = self.parameters.clone().into();
        }
        if let Some(body) = &self.body {
            object["requestBody"] = body.clone();
        }
        if self.is_open {
            object["security"] = json!([]);
        }
        object.as_object_mut().expect("an object").extend(self.more.clone());
        object
    }
}

fn refusal(status: u16, names: &BTreeSet<String>, codes: &BTreeMap<String, String>, schemas: &mut Schemas) -> Value {
    let failure = schemas.given::<palisade_client::wire::Failure>();
    let lines: Vec<String> = names.iter().map(|name| format!("- `{name}`: {}", codes[name])).collect();
    let mut response = json!({
        "description": lines.join("\n"),
        "content": { "application/json": { "schema": {
            "allOf": [failure, { "type": "object", "properties": { "error": { "enum": names } } }],
        } } },
    });
    let header = |name: &str| json!({ "$ref": format!("#/components/headers/{name}") });
    match status {
        307 => response["headers"] = json!({ "Location": header("Location") }),
        401 => response["headers"] = json!({ "WWW-Authenticate": header("WWW-Authenticate") }),
        429 if names.len() == 1 && names.contains("too_soon") => {
            response["headers"] = json!({ "Retry-After": header("Retry-After") });
        }
        429 if names.contains("too_soon") => {
            // The other code has no time.
            response["headers"] = json!({ "Retry-After": header("Retry-After-If-Too-Soon") });
        }
        503 => response["headers"] = json!({ "Retry-After": header("Retry-After") }),
        _ => {}
    }
    response
}

pub(super) fn tags() -> Value {
    json!([
        { "name": "locks", "description": "Acquire, release and read locks." },
        { "name": "sessions", "description": "Leases that several locks can share." },
        { "name": "records", "description": "A key-value store beside the locks, guarded by their tokens." },
        { "name": "messages", "description": "WebSockets, and the stream of events: messages.json has their messages." },
        { "name": "node", "description": "The node itself, which answers these without another one." },
        {
            "name": "administration",
            "description": "Answered only at the address for administration, by a node that has one (`--admin-addr`). At both \
                            addresses a client may test its own rights.",
        },
        { "name": "page", "description": "The page for operators." },
    ])
}

pub(super) fn headers() -> Value {
    let number = |what: &str| json!({ "description": what, "schema": { "type": "integer", "minimum": 0 } });
    let required = |mut header: Value| {
        header["required"] = true.into();
        header
    };
    let text = |what: &str| json!({ "description": what, "schema": { "type": "string" } });
    json!({
        "Location": required(text("The same request at the leader.")),
        "Page": required(text("The page.")),
        "Retry-After": required(number("When to try again, in seconds.")),
        "Retry-After-If-Too-Soon": number("With `too_soon`: when to try again, in seconds."),
        "WWW-Authenticate": required(json!({ "description": "How to prove an identity.", "schema": { "const": "Bearer" } })),
        "X-Version": required(number("The record's version.")),
        "X-Max-Fence": number("The greatest token that the record's last transaction had to hold, if it had to hold one."),
        "X-Age-Ms": number("Of a stale read: the age of the answer, in milliseconds, if it is known."),
    })
}

pub(super) fn shared_parameters() -> Value {
    let key = |what: &str| {
        json!({
            "name": "key", "in": "path", "required": true, "description": what,
            "schema": { "type": "string", "minLength": 1, "maxLength": limits::KEY_BYTES },
        })
    };
    json!({
        "LockKey": key("The key of the lock: 1 to 512 bytes of UTF-8, percent-encoded."),
        "RecordKey": key("The key of the record: 1 to 512 bytes of UTF-8, percent-encoded."),
        "Session": {
            "name": "id", "in": "path", "required": true, "description": "The credential of the session.",
            "schema": { "type": "string", "format": "uuid" },
        },
        "Member": {
            "name": "id", "in": "path", "required": true, "description": "The node ID of the member.",
            "schema": { "type": "integer", "format": "uint16", "minimum": 0, "maximum": u16::MAX },
        },
        "XForward": {
            "name": "X-Forward", "in": "header",
            "description": "`never`: a follower does not forward the request to the leader, and answers 307.",
            "schema": { "type": "string" },
        },
        "XFenceToken": {
            "name": "X-Fence-Token", "in": "header",
            "description": "The change is made only if the lock of this key, or that of `lock`, is held with this token.",
            "schema": { "type": "integer", "minimum": 0 },
        },
        "LastEventID": {
            "name": "Last-Event-ID", "in": "header",
            "description": "As `after`, and counts more: browsers send it when they reconnect.",
            "schema": { "type": "string" },
        },
    })
}

pub(super) fn operations(schemas: &mut Schemas) -> Vec<Operation> {
    [
        of_locks(schemas),
        of_records(schemas),
        of_sessions(schemas),
        of_the_node(schemas),
        of_members(schemas),
        of_messages(schemas),
    ]
    .into_iter()
    .flatten()
    .chain(of_the_page())
    .collect()
}

fn of_locks(schemas: &mut Schemas) -> Vec<Operation> {
    let given_back = [Code::Invalid, Code::TooLarge, Code::NotHolder, Code::NoSession];
    vec![
        operation("post", "/v1/locks/{key}/acquire", "acquire", "Acquires a lock, or waits for it.")
            .at_leader()
            .limited()
            .takes::<Acquire>(schemas, false)
            .answers::<Acquired>(schemas, "The lock is held.")
            .or(&ACQUIRE)
            .or(&[Code::Denied]),
        operation("post", "/v1/acquire", "acquireKeys", "Acquires several locks, all or none.")
            .at_leader()
            .limited()
            .takes::<AcquireKeys>(schemas, true)
            .answers::<Acquired>(schemas, "The locks are held.")
            .or(&ACQUIRE)
            .or(&[Code::Denied]),
        operation("post", "/v1/locks/{key}/release", "release", "Releases a lock.")
            .at_leader()
            .takes::<Release>(schemas, true)
            .answers::<Released>(schemas, "The lock was released, or one of several holds of it.")
            .or(&given_back),
        operation("post", "/v1/release", "releaseKeys", "Releases all locks of a grant.")
            .at_leader()
            .takes::<ReleaseKeys>(schemas, true)
            .answers::<Released>(schemas, "The locks were released, or one of several holds of them.")
            .or(&given_back),
        operation("post", "/v1/locks/{key}/proclaim", "proclaim", "Replaces the value of a grant.")
            .at_leader()
            .limited()
            .takes::<Proclaim>(schemas, true)
            .answers::<Proclaimed>(schemas, "The grant has the value.")
            .or(&given_back)
            .or(&[Code::NoSpace]),
        operation("post", "/v1/locks/{key}/break", "breakGrant", "Takes a lock from its holder.")
            .at_leader()
            .limited()
            .administrative()
            .takes::<Break>(schemas, true)
            .answers::<Broken>(schemas, "The grant was broken.")
            .or(&[Code::NotHolder]),
        operation("get", "/v1/locks/{key}", "showLock", "Reads a lock, which may be free.")
            .at_leader()
            .limited()
            .query::<locks::ShowQuery>(schemas)
            .answers_either::<LockView>(schemas, "The lock.")
            .or(&[Code::Invalid, Code::Denied]),
        operation("get", "/v1/locks", "listLocks", "Lists the locks that are held or waited for.")
            .at_leader()
            .limited()
            .query::<ListLocks>(schemas)
            .answers_either::<LockPage>(schemas, "A page of locks.")
            .or(&[Code::Invalid]),
    ]
}

fn of_records(schemas: &mut Schemas) -> Vec<Operation> {
    let content = json!({ "application/octet-stream": { "schema": {} } });
    let body = |what: &str| json!({ "required": false, "description": format!("{what}: any bytes, at most {RECORD_BYTES}."), "content": content.clone() });
    let header = |name: &str| json!({ "$ref": format!("#/components/headers/{name}") });
    let read = json!({
        "headers": { "X-Version": header("X-Version"), "X-Max-Fence": header("X-Max-Fence"), "X-Age-Ms": header("X-Age-Ms") },
        "content": content,
    });
    let mut change = |operation: Operation| {
        operation
            .at_leader()
            .limited()
            .query::<kv::ChangeQuery>(schemas)
            .header("XFenceToken")
            .answers::<Written>(schemas, "The change is made.")
            .or(&CHANGE_RECORD)
    };
    let mut put = change(operation("put", "/v1/kv/{key}", "putRecord", "Writes a record.")).or(&ENLARGE_RECORD);
    put.body = Some(body("The content"));
    let mut append =
        change(operation("post", "/v1/kv/{key}/append", "appendRecord", "Adds to a record.")).or(&ENLARGE_RECORD);
    append.body = Some(body("What is added"));
    let delete = change(operation("delete", "/v1/kv/{key}", "deleteRecord", "Deletes a record, if there is one."));
    let transact = operation("post", "/v1/kv", "transact", "Changes records together, or none of them.")
        .at_leader()
        .limited()
        .takes::<Transaction>(schemas, true)
        .answers::<Written>(schemas, "The changes are made.")
        .or(&CHANGE_RECORD)
        .or(&ENLARGE_RECORD)
        .or(&[Code::NoSession]);
    let show = operation("get", "/v1/kv/{key}", "showRecord", "Reads a record.")
        .at_leader()
        .limited()
        .query::<kv::ReadQuery>(schemas)
        .answers_with(200, "The record's content.", read)
        .or(&[Code::Invalid, Code::Denied, Code::NoRecord]);
    let list = operation("get", "/v1/kv", "listRecords", "Lists the records, without their contents.")
        .at_leader()
        .limited()
        .query::<ListRecords>(schemas)
        .answers_either::<RecordPage>(schemas, "A page of records.")
        .or(&[Code::Invalid]);
    vec![put, append, delete, transact, show, list]
}

fn of_sessions(schemas: &mut Schemas) -> Vec<Operation> {
    vec![
        operation("post", "/v1/sessions", "openSession", "Opens a session.")
            .at_leader()
            .limited()
            .takes::<OpenSession>(schemas, false)
            .answers::<SessionLease>(schemas, "The session is open.")
            .or(&[Code::Limit, Code::NoSpace]),
        operation("get", "/v1/sessions/{id}", "showSession", "Reads a session.")
            .at_leader()
            .limited()
            .answers::<SessionView>(schemas, "The session.")
            .or(&[Code::Invalid, Code::NoSession]),
        operation("delete", "/v1/sessions/{id}", "closeSession", "Closes a session, if there is one.")
            .at_leader()
            .answers::<Closed>(schemas, "There is no such session any more.")
            .or(&[Code::Invalid, Code::NoSession]),
        operation("post", "/v1/sessions/{id}/keepalive", "keepAlive", "Renews a session.")
            .at_leader()
            .answers::<SessionLease>(schemas, "The session has a full TTL from now.")
            .or(&[Code::Invalid, Code::NoSession]),
    ]
}

fn of_the_node(schemas: &mut Schemas) -> Vec<Operation> {
    let file = json!({
        "headers": {
            "Content-Disposition": { "required": true, "description": "The file's name.", "schema": { "type": "string" } },
        },
        "content": { "application/octet-stream": { "schema": {} } },
    });
    vec![
        operation("get", "/v1/status", "status", "The node's own view of the cluster.")
            .authenticated()
            .limited()
            .answers::<StatusView>(schemas, "The node's view."),
        operation("get", "/v1/members", "listMembers", "The members, according to this node.")
            .authenticated()
            .limited()
            .answers::<MembersView>(schemas, "The members."),
        operation("get", "/v1/openapi.json", "openapi", "This document.").authenticated().limited().answers_with(
            200,
            "This document.",
            json!({ "content": { "application/json": { "schema": { "type": "object" } } } }),
        ),
        operation("get", "/v1/messages.json", "messages", "The schemas of the messages.")
            .authenticated()
            .limited()
            .answers_with(
                200,
                "A JSON Schema of the messages of WebSockets, and of the events of the stream.",
                json!({ "content": { "application/schema+json": { "schema": { "type": "object" } } } }),
            ),
        operation("get", "/v1/snapshot", "readSnapshot", "The file of the node's newest snapshot.")
            .authenticated()
            .limited()
            .administrative()
            .answers_with(200, "The file.", file)
            .or(&[Code::NotFound, Code::Limit, Code::Overloaded]),
        operation("post", "/v1/snapshot", "takeSnapshot", "Takes a snapshot of the node's state.")
            .authenticated()
            .limited()
            .administrative()
            .answers::<SnapshotView>(schemas, "The newest snapshot, which is durable.")
            .or(&[Code::NoLeader, Code::Overloaded, Code::ShuttingDown]),
        operation("get", "/metrics", "metrics", "The node's metrics, for Prometheus.")
            .authenticated()
            .answers_text("application/openmetrics-text", "The metrics.")
            .or(&[Code::WrongListener])
            .tagged("administration"),
        operation("get", "/readyz", "ready", "Whether the node can serve clients.")
            .authenticated()
            .query::<node::Ready>(schemas)
            .answers_text("text/plain", "It can: `ok`, and a second line while its disk is nearly full.")
            .or(&[Code::Invalid, Code::NoLeader]),
        operation("get", "/healthz", "health", "Whether the process serves requests.")
            .open()
            .answers_text("text/plain", "It does: `ok`."),
    ]
}

fn of_members(schemas: &mut Schemas) -> Vec<Operation> {
    let mut change = |operation: Operation| {
        operation
            .at_leader()
            .limited()
            .administrative()
            .answers::<MembersView>(schemas, "The members after the change, which is committed.")
            .or(&[Code::Invalid, Code::ChangeNotReady])
    };
    let add = change(operation("post", "/v1/members", "addMember", "Adds a server as a learner."));
    let promote = change(operation("post", "/v1/members/{id}/promote", "promoteMember", "Makes a learner a voter."));
    let replace = change(operation(
        "post",
        "/v1/members/{id}/replace",
        "replaceMember",
        "Takes back a member that has lost its data directory.",
    ));
    let remove = change(operation("delete", "/v1/members/{id}", "removeMember", "Removes a member."));
    vec![
        add.takes::<AddMember>(schemas, true).or(&[Code::NodeIdInUse, Code::Limit]),
        promote.or(&[Code::NotCaughtUp, Code::NoMember, Code::NoMajority]),
        replace.takes::<members::Replacement>(schemas, true).or(&[Code::NodeIdInUse, Code::NoMajority]),
        remove.or(&[Code::LastVoter, Code::NoMember, Code::NoMajority]),
        operation("post", "/v1/leader/transfer", "transferLeadership", "Lets another voter lead.")
            .at_leader()
            .limited()
            .administrative()
            .takes::<Transfer>(schemas, false)
            .answers::<Transferred>(schemas, "Another node leads.")
            .or(&[Code::NoMember, Code::NotTransferred]),
        operation("get", "/v1/access", "showAccess", "The access rules in force.")
            .at_leader()
            .limited()
            .tagged("administration")
            .answers::<AccessRules>(schemas, "The rules.")
            .or(&[Code::WrongListener, Code::Denied]),
        operation("put", "/v1/access", "setAccess", "Replaces the access rules.")
            .at_leader()
            .limited()
            .administrative()
            .takes::<AccessRules>(schemas, true)
            .answers::<AccessRules>(schemas, "The rules in force, with their new revision.")
            .or(&[Code::AccessChanged]),
        operation("get", "/v1/access/test", "testAccess", "Whether the access rules permit something.")
            .at_leader()
            .limited()
            .tagged("administration")
            .query::<access::TestQuery>(schemas)
            .answers::<AccessVerdict>(schemas, "Whether a client has a right, and why.")
            .or(&[Code::Invalid, Code::WrongListener, Code::Denied]),
    ]
}

fn of_messages(schemas: &mut Schemas) -> Vec<Operation> {
    let message = |name: &str| Value::from(format!("messages.json#/$defs/{name}"));
    let opened = || json!({});
    let stream = json!({
        "headers": { "Cache-Control": { "required": true, "description": "No copy is kept.", "schema": { "const": "no-store" } } },
        "content": { "text/event-stream": { "schema": { "type": "string" } } },
    });
    let mut events: Map<String, Value> = [("listing", "Listing"), ("compacted", "Compacted"), ("end", "Failure")]
        .map(|(event, name)| (event.to_owned(), message(name)))
        .into_iter()
        .collect();
    events.insert("*".to_owned(), message("Event"));
    vec![
        operation("get", "/v1/ws", "requests", "A WebSocket for many requests.")
            .authenticated()
            .header("XForward")
            .answers_with(
                101,
                "The WebSocket is open. Text frames are JSON, binary frames are those of the Rust client.",
                opened(),
            )
            .messages(json!({ "client": message("Request"), "server": message("Response") }))
            .or(&[Code::Invalid, Code::NoLeader, Code::LeadershipLost, Code::Overloaded]),
        operation("get", "/v1/hold", "hold", "A WebSocket that holds a lock for one process.")
            .at_leader()
            .answers_with(101, "The WebSocket is open.", opened())
            .messages(json!({ "client": message("HoldClientFrame"), "server": message("HoldServerFrame") }))
            .or(&[Code::Invalid]),
        operation("get", "/v1/watch", "watch", "The events of a key or a prefix, as a stream.")
            .authenticated()
            .limited()
            .query::<Watch>(schemas)
            .header("LastEventID")
            .answers_with(200, "The stream, in which `x-messages` has the schema of the data of each event.", stream)
            .messages(events.into())
            .or(&[Code::Invalid, Code::Denied, Code::Limit, Code::NoLeader]),
    ]
}

fn of_the_page() -> Vec<Operation> {
    let ids = ["page", "pageStyle", "pageScript", "pageViews", "pageElements", "pageTable", "pageNode"];
    assert_eq!(ids.len(), ui::FILES.len(), "each file of the page has an ID here");
    let files = ui::FILES.iter().zip(ids).map(|(file, id)| {
        let kind = file.kind.split(';').next().expect("a kind");
        operation("get", file.path, id, "A file of the page for operators.").open().answers_text(kind, "The file.")
    });
    let redirects = ui::SHORT.iter().zip(["root", "ui"]).map(|(path, id)| {
        let location = json!({ "headers": { "Location": { "$ref": "#/components/headers/Page" } } });
        operation("get", path, id, "Leads to the page for operators.").open().answers_with(307, "The page.", location)
    });
    files.chain(redirects).collect()
}

impl Operation {
    /// What a linearizable read answers, or a stale one, which has an age, too.
    fn answers_either<T: JsonSchema>(self, schemas: &mut Schemas, what: &str) -> Operation {
        self.answers::<Aged<T>>(schemas, &format!("{what} With `consistency=stale` it has its age, too."))
    }

    fn tagged(mut self, tag: &'static str) -> Operation {
        self.tag = tag;
        self
    }
}
