//! Describes one operation: a builder, from which the document takes its path item, and parts that
//! operations share.

use std::collections::{BTreeMap, BTreeSet};

use palisade_client::wire::Code;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::schemas::Schemas;
use super::{name, status};
use crate::http::reply::Aged;
use crate::limits;

/// Codes by which every request may be refused.
const ANY: [Code; 2] = [Code::WrongHost, Code::WrongOrigin];
/// Of what the leader answers.
const LEADER: [Code; 5] = [Code::NotLeader, Code::NoLeader, Code::LeadershipLost, Code::Overloaded, Code::ShuttingDown];
/// Of administrative acts.
const ADMINISTRATION: [Code; 3] = [Code::WrongListener, Code::Denied, Code::AuditUnavailable];

/// A method of a path.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    tag: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    pub(super) body: Option<Value>,
    answers: Vec<(u16, Value)>,
    pub(super) codes: Vec<Code>,
    is_open: bool,
    more: Map<String, Value>,
}

/// A method of a path, of which nothing more is said yet.
pub(super) fn operation(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
) -> Operation {
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
    pub(super) fn at_leader(mut self) -> Operation {
        self.parameters.push(json!({ "$ref": "#/components/parameters/XForward" }));
        self.or(&LEADER).authenticated()
    }

    /// The client needs an identity, at a node with TLS.
    pub(super) fn authenticated(self) -> Operation {
        self.or(&[Code::Unauthenticated])
    }

    /// It counts towards the requests that a client may send.
    pub(super) fn limited(self) -> Operation {
        self.or(&[Code::TooSoon])
    }

    pub(super) fn administrative(mut self) -> Operation {
        self.tag = "administration";
        self.or(&ADMINISTRATION)
    }

    /// The operation needs no identity.
    pub(super) fn open(mut self) -> Operation {
        self.is_open = true;
        self
    }

    /// It may be refused by these codes, too.
    pub(super) fn or(mut self, codes: &[Code]) -> Operation {
        self.codes.extend(codes);
        self
    }

    pub(super) fn query<T: JsonSchema>(mut self, schemas: &mut Schemas) -> Operation {
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

    pub(super) fn header(mut self, name: &str) -> Operation {
        self.parameters.push(json!({ "$ref": format!("#/components/parameters/{name}") }));
        self
    }

    /// A JSON body, which may be left out if `{}` is one.
    pub(super) fn takes<T: JsonSchema>(mut self, schemas: &mut Schemas, required: bool) -> Operation {
        let schema = schemas.taken::<T>();
        self.body = Some(json!({ "required": required, "content": { "application/json": { "schema": schema } } }));
        self.or(&[Code::Invalid, Code::TooLarge])
    }

    pub(super) fn answers<T: JsonSchema>(self, schemas: &mut Schemas, what: &str) -> Operation {
        let schema = schemas.given::<T>();
        self.answers_with(200, what, json!({ "content": { "application/json": { "schema": schema } } }))
    }

    pub(super) fn answers_with(mut self, status: u16, what: &str, mut rest: Value) -> Operation {
        rest["description"] = what.into();
        self.answers.push((status, rest));
        self
    }

    pub(super) fn answers_text(self, kind: &str, what: &str) -> Operation {
        self.answers_with(200, what, json!({ "content": { kind: { "schema": { "type": "string" } } } }))
    }

    pub(super) fn messages(mut self, messages: Value) -> Operation {
        self.more.insert("x-messages".to_owned(), messages);
        self
    }

    /// What a linearizable read answers, or a stale one, which has an age, too.
    pub(super) fn answers_either<T: JsonSchema>(self, schemas: &mut Schemas, what: &str) -> Operation {
        self.answers::<Aged<T>>(schemas, &format!("{what} With `consistency=stale` it has its age, too."))
    }

    pub(super) fn tagged(mut self, tag: &'static str) -> Operation {
        self.tag = tag;
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
        "SecWebSocketProtocol": {
            "name": "Sec-WebSocket-Protocol", "in": "header",
            "description": "What a page in a browser offers, which can send no other header: `palisade`, which the node \
                            accepts, and with TLS `bearer.TOKEN`, which counts as `Authorization: Bearer TOKEN`.",
            "schema": { "type": "string" },
            "example": "palisade, bearer.2f8d1c",
        },
    })
}
