//! The description of the interface for programs, `docs/openapi.json` and `docs/messages.json`: generated from the
//! types that the handlers read and write, and compared with the router, which knows its routes.
//!
//! `just bless` writes both files down again. The live tests compare the requests and answers that pass through their
//! helpers with the files, and one of them provokes each code of each operation, except those that it names with a
//! reason (decision 0036).

mod operation;
mod operations;
mod schemas;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use palisade_client::wire::{Code, Listing, Request, Response, Watched};
use serde_json::{Map, Value, json};

use self::operation::Operation;
pub(super) use self::operations::keys;
use self::operations::operations;
use self::schemas::Schemas;
use super::hold::{ClientFrame, ServerFrame};
use super::reply;
use super::routes::{of_each_node, of_the_leader};
use super::watch::Compacted;

/// What both documents say of numbers and new fields.
const RULES: &str = "Answers may grow: clients ignore fields that they do not know. Requests have no fields but these: the \
     server refuses others. Integers have up to 64 bits.";

/// `docs/openapi.json`
fn openapi() -> Value {
    let mut schemas = Schemas::new();
    let operations = operations(&mut schemas);
    let codes = schemas.codes();
    let mut responses = Map::new();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for operation in &operations {
        let object = operation.object(&mut schemas, &codes, &mut responses);
        let former = paths.entry(operation.path).or_default().insert(operation.method.to_owned(), object);
        assert!(former.is_none(), "{} {} is described twice", operation.method, operation.path);
    }
    let mut document = json!({
        "openapi": "3.1.1",
        "info": {
            "title": "Palisade",
            "version": crate::peers::PROGRAM,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": format!(
                "A distributed lock service. docs/api.md says what the requests mean; this document is generated, and \
                 describes their form. {RULES}\n\nA node with `--admin-addr` answers the operations with the tag \
                 `administration` at that address only, and all others at both; at both a client may test its own rights. \
                 `HEAD` is answered as `GET`, without the body. Errors of the HTTP layer itself (a broken or oversized \
                 head) have a status and no body. Every answer has the header `X-Content-Type-Options: nosniff`. The \
                 WebSockets and the stream of events are described by `messages.json`, to which the extension \
                 `x-messages` refers."
            ),
        },
        "servers": [{ "url": "http://127.0.0.1:7401", "description": "A node; with TLS, https." }],
        "security": [{}, { "bearer": [] }, { "certificate": [] }],
        "tags": operation::tags(),
        "paths": paths,
        "components": {
            "responses": responses,
            "headers": operation::headers(),
            "parameters": operation::shared_parameters(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token of a client (palisade token), at a node with TLS and tokens.",
                },
                "certificate": {
                    "type": "mutualTLS",
                    "description": "The certificate of a client, of the cluster's CA, at a node with TLS.",
                },
            },
        },
    });
    schemas.finish(&mut document, "/components/schemas");
    schemas::for_generators(&mut document);
    document
}

/// `docs/messages.json`
fn messages() -> Value {
    let mut schemas = Schemas::new();
    let entries = [
        ("Request", schemas.taken::<Request>(), "What a client sends in a text frame of GET /v1/ws."),
        ("Response", schemas.given::<Response>(), "What a node sends in a text frame of GET /v1/ws."),
        ("HoldClientFrame", schemas.taken::<ClientFrame>(), "What a client sends on GET /v1/hold."),
        ("HoldServerFrame", schemas.given::<ServerFrame>(), "What a node sends on GET /v1/hold."),
        ("Watched", schemas.given::<Watched>(), "A message of a watch on GET /v1/ws."),
        ("Listing", schemas.given::<Listing>(), "The data of an event `listing` of GET /v1/watch."),
        (
            "Event",
            schemas.given::<palisade_client::wire::Event>(),
            "The data of every other event of GET /v1/watch but those below.",
        ),
        ("Compacted", schemas.given::<Compacted>(), "The data of an event `compacted` of GET /v1/watch."),
        (
            "Failure",
            schemas.given::<palisade_client::wire::Failure>(),
            "The data of the last event, `end`, of GET /v1/watch.",
        ),
    ];
    let uses: Vec<String> = entries
        .iter()
        .map(|(name, schema, what)| {
            assert_eq!(schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()), Some(*name));
            format!("- `#/$defs/{name}`: {what}")
        })
        .collect();
    let mut document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Messages of Palisade",
        "description": format!(
            "The messages of the WebSockets and the events of the stream, beside openapi.json: docs/api.md says what they \
             mean. {RULES} The binary frames of GET /v1/ws are those of the Rust client, and have no schema.\n\n{}",
            uses.join("\n")
        ),
    });
    schemas.finish(&mut document, "/$defs");
    document
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace")
}

/// The committed files, and what they must have.
fn documents() -> [(PathBuf, String); 2] {
    [("openapi.json", openapi()), ("messages.json", messages())].map(|(name, document)| {
        let text = serde_json::to_string_pretty(&document).expect("a document has a JSON form");
        (workspace().join("docs").join(name), format!("{text}\n"))
    })
}

/// Goal: the committed files say what the types say.
#[test]
fn committed_description_is_that_of_the_types() {
    for (path, text) in documents() {
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = committed.lines().zip(text.lines()).position(|(is, should)| is != should);
        assert!(
            committed == text,
            "{} is not what the types say, from line {:?} on: `just bless` writes it down again",
            path.display(),
            differs.map(|line| line + 1)
        );
    }
}

/// Calls `visit` with each object of a document.
fn each_object(value: &Value, visit: &mut impl FnMut(&Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            visit(object);
            object.values().for_each(|value| each_object(value, visit));
        }
        Value::Array(list) => list.iter().for_each(|value| each_object(value, visit)),
        _ => {}
    }
}

/// Goal: generators of clients understand the description: an integer has all its bits, a field with a default is
/// optional, and no field is lost in a choice.
#[test]
fn generators_understand_the_description() {
    let (mut integers, mut objects) = (0, 0);
    each_object(&openapi(), &mut |object| {
        let kinds = object.get("type").map(|kind| kind.as_array().cloned().unwrap_or_else(|| vec![kind.clone()]));
        if kinds.is_some_and(|kinds| kinds.contains(&"integer".into())) {
            integers += 1;
            let format = object.get("format").and_then(Value::as_str);
            assert!(matches!(format, Some("int32" | "int64")), "{object:?}");
        }
        if object.get("properties").is_some_and(Value::is_object) {
            objects += 1;
            assert!(!object.contains_key("oneOf") && !object.contains_key("anyOf"), "{object:?}");
        }
        assert!(!object.contains_key("default"), "{object:?}");
        let choices = object.get("anyOf").and_then(Value::as_array).into_iter().flatten();
        let refers = |choice: &&Value| choice["$ref"].is_string();
        assert!(choices.filter(refers).count() < 2, "a generator reads the first of two objects: {object:?}");
    });
    assert!(integers > 50 && objects > 30, "{integers} integers and {objects} objects were seen");
}

/// Goal: the documents are for programs in all languages.
#[test]
fn description_has_no_words_of_rust() {
    for (path, text) in documents() {
        for word in ["`None`", "`Some`", "`Debug`", "`Display`", "Option<", "Vec<", "::"] {
            let line = text.lines().find(|line| line.contains(word));
            assert_eq!(line, None, "{} has {word:?}", path.display());
        }
    }
}

/// Goal: each bound of a request is in the description.
#[test]
fn each_bound_is_described() {
    let documents = [openapi()["components"]["schemas"].take(), messages()["$defs"].take()];
    for (schema, field, keyword, value) in schemas::bounds() {
        let names = [schema.to_owned(), format!("{schema}Input")];
        let found = documents.iter().flat_map(|schemas| names.iter().filter_map(|name| schemas.get(name)));
        let is: Vec<&Value> = found.map(|schema| &schema["properties"][field][keyword]).collect();
        assert!(!is.is_empty(), "{schema} is in none of the documents");
        assert!(is.iter().all(|is| **is == value), "{schema}.{field} has {is:?} and not the {keyword} of {value}");
    }
}

/// The routes that the description must have, from those that the router has.
fn described(routes: &[(&'static str, &'static str)]) -> BTreeSet<(&'static str, &'static str)> {
    // A path with an empty key is that path with an invalid key.
    let described = routes.iter().filter(|(_, path)| path.starts_with("/ui") || !path.contains("//"));
    let described = described.filter(|(method, path)| !(*method == "*" && path.ends_with('/')));
    // The paths of WebSockets say of every other method what is wrong with it.
    described.map(|(method, path)| (if *method == "*" { "get" } else { method }, *path)).collect()
}

/// Goal: the description has the routes of the router, and no others.
#[test]
fn description_has_the_routes_of_the_router() {
    let routes = [of_the_leader().listed(), of_each_node().listed()].concat();
    let all = operations(&mut Schemas::new());
    let is: BTreeSet<(&str, &str)> = all.iter().map(|operation| (operation.method, operation.path)).collect();
    assert_eq!(is, described(&routes));
    let asks_leader = |operation: &&Operation| operation.codes.contains(&Code::NotLeader);
    let of_leader: BTreeSet<_> = all.iter().filter(asks_leader).map(|it| (it.method, it.path)).collect();
    let expected = described(of_the_leader().listed());
    // A WebSocket for many requests is opened at every node.
    let expected: BTreeSet<_> = expected.into_iter().filter(|(_, path)| *path != "/v1/ws").collect();
    assert_eq!(of_leader, expected, "the leader's routes are described as such");
    let mut ids: Vec<&str> = all.iter().map(|operation| operation.id).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "each operation has an ID of its own: {ids:?}");
}

/// Goal: each code has a status in the description, except those that only a message can have.
#[test]
fn each_code_is_described() {
    let mut schemas = Schemas::new();
    let mut used: BTreeSet<String> = operations(&mut schemas).iter().flat_map(Operation::code_names).collect();
    // Of numbered operations, of a hold, and of a watch.
    used.extend(["gone", "taken_over", "too_slow", "not_found", "method_not_allowed"].map(str::to_owned));
    let all: BTreeSet<String> = schemas.codes().into_keys().collect();
    assert_eq!(used, all);
}

/// A code as JSON has it.
fn name(code: Code) -> String {
    serde_json::to_value(code).ok().and_then(|name| name.as_str().map(str::to_owned)).expect("a code is a text")
}

/// The status of a code.
fn status(code: Code) -> u16 {
    reply::status(code).as_u16()
}
