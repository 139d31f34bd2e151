//! The operations: what each takes, what it answers, and by which codes it may be refused.

use std::borrow::Cow;

use palisade_client::wire::{
    AccessRules, AccessVerdict, Acquire, Acquired, AddMember, Break, Broken, Code, ListLocks, ListRecords, LockPage,
    LockView, MembersView, OpenSession, Proclaim, RecordPage, Release, SessionLease, SessionView, SnapshotView,
    StatusView, Transaction, Transfer, Watch, with_fields,
};
use palisade_spec::lock::RECORD_BYTES;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::operation::{Operation, operation};
use super::schemas::Schemas;
use crate::http::body::ReadQuery;
use crate::http::reply::{Closed, Proclaimed, Released, Transferred, Written};
use crate::http::{access, kv, members, node, ui};

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
            .query::<ReadQuery>(schemas)
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
        .query::<ReadQuery>(schemas)
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
            .query::<node::StatusQuery>(schemas)
            .authenticated()
            .limited()
            .answers::<StatusView>(schemas, "The node's view.")
            .or(&[Code::Invalid]),
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
            .open()
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
            .header("SecWebSocketProtocol")
            .answers_with(
                101,
                "The WebSocket is open. Text frames are JSON, binary frames are those of the Rust client.",
                opened(),
            )
            .messages(json!({ "client": message("Request"), "server": message("Response") }))
            .or(&[Code::Invalid, Code::NoLeader, Code::LeadershipLost, Code::Overloaded]),
        operation("get", "/v1/hold", "hold", "A WebSocket that holds a lock for one process.")
            .at_leader()
            .header("SecWebSocketProtocol")
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
