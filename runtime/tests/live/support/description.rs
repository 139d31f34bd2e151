//! The description of the interface, docs/openapi.json and docs/messages.json, against which all requests, answers and
//! messages of these tests are checked.
//!
//! An answer must be one that is described, with this status, these headers, and no field beside those of its schema:
//! the tests are stricter than a client may be. A request that was done must be one that is described. What the
//! server refuses may be anything.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use jsonschema::Validator;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::http::Response;

/// Codes of a path or a method that is not described.
const OF_NO_OPERATION: [&str; 5] = ["not_found", "method_not_allowed", "wrong_host", "wrong_origin", "unauthenticated"];
/// Statuses that the HTTP layer answers by itself, without a body.
const OF_THE_LAYER: [u16; 4] = [400, 408, 414, 431];

/// What was seen of the description.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// The ID of the operation.
    pub operation: String,
    /// The status of the answer.
    pub status: u16,
    /// The code of a refusal.
    pub code: Option<String>,
}

/// A request as it was sent. `body` is `None` if the test sent it in another way.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    /// The path and the query.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
}

impl Request {
    /// A request from its bytes; `None` if they are none that an honest client would send.
    pub fn parse(bytes: &[u8]) -> Option<Request> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let mut first = lines.next()?.split(' ');
        let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
        if !target.starts_with('/') || first.next() != Some("HTTP/1.1") {
            return None;
        }
        let header =
            |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
        let headers: Vec<_> = lines.filter_map(header).collect();
        let is_plain = !headers.iter().any(|(name, _)| name == "transfer-encoding");
        let body = is_plain.then(|| bytes[end + 4..].to_vec());
        Some(Request { method, target, headers, body })
    }
}

/// The description, and validators that were made of it.
pub struct Description {
    openapi: Value,
    messages: Value,
    /// The schemas, as a client that knows every field of an answer would have them.
    strict: [Value; 2],
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

/// Which of the documents a schema is in.
#[derive(Clone, Copy, Debug)]
enum Part {
    Operations,
    Messages,
}

/// The committed description.
pub fn description() -> &'static Description {
    static DESCRIPTION: OnceLock<Description> = OnceLock::new();
    DESCRIPTION.get_or_init(|| {
        let parse = |text: &str| serde_json::from_str(text).expect("the description is JSON");
        Description::new(
            parse(include_str!("../../../../docs/openapi.json")),
            parse(include_str!("../../../../docs/messages.json")),
        )
    })
}

/// Fails if an exchange is not as described.
#[track_caller]
pub fn check(request: Option<Request>, response: &Response) -> Option<Seen> {
    // A browser's question before a request (CORS) is none of the operations.
    let request = request.filter(|request| request.method != "OPTIONS" || response.status != 204)?;
    description().exchange(&request, response).unwrap_or_else(|problem| {
        panic!("{problem}\n{} {}\n{}\n{}", request.method, request.target, response.head, response.body)
    })
}

impl Description {
    pub fn new(openapi: Value, messages: Value) -> Description {
        let strict = [&openapi["components"]["schemas"], &messages["$defs"]].map(|schemas| {
            let mut schemas = schemas.clone();
            schemas.as_object_mut().expect("schemas").values_mut().for_each(|schema| forbid_unknown(schema, false));
            schemas
        });
        Description { openapi, messages, strict, validators: Mutex::default() }
    }

    /// Each operation that is described.
    pub fn operations(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        let paths = self.openapi["paths"].as_object().expect("paths").iter();
        paths.flat_map(|(path, methods)| {
            let methods = methods.as_object().expect("methods").iter();
            methods.map(|(method, operation)| (method.as_str(), path.as_str(), operation))
        })
    }

    /// The schema of messages with this name.
    pub fn messages(&self, name: &str) -> &Value {
        &self.messages["$defs"][name]
    }

    /// What a reference leads to.
    pub fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(reference) => self.openapi.pointer(&reference[1..]).expect("a reference leads somewhere"),
            None => value,
        }
    }

    /// Compares an exchange with the operation that it should be of.
    pub fn exchange(&self, request: &Request, response: &Response) -> Result<Option<Seen>, String> {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let kind = response.header("content-type").map(|kind| kind.split(';').next().unwrap_or(kind).trim().to_owned());
        if kind.is_none() && OF_THE_LAYER.contains(&response.status) && response.body.is_empty() {
            return Ok(None);
        }
        let is_head = request.method == "HEAD";
        let method = if is_head { "get".to_owned() } else { request.method.to_lowercase() };
        let Some((template, parameters, operation)) = self.operation(&method, path) else {
            let code = response.json()["error"].as_str().unwrap_or_default().to_owned();
            let has_key = !path.contains("//") && !path.ends_with('/') && !["/v1/ws", "/v1/hold"].contains(&path);
            let is_known = OF_NO_OPERATION.contains(&&*code) || (!has_key && ["invalid", "too_soon"].contains(&&*code));
            return if is_known || is_head { Ok(None) } else { Err("the operation is not described".into()) };
        };
        let id = operation["operationId"].as_str().expect("an operation has an ID").to_owned();
        let described = &operation["responses"][response.status.to_string()];
        if described.is_null() {
            return Err(format!("{id} is described without the status {}", response.status));
        }
        let described = self.resolve(described);
        self.headers(described, response)?;
        let mut code = None;
        match (kind, described["content"].as_object()) {
            (None, None) => {}
            (Some(kind), Some(content)) => {
                let media = content.get(&kind).ok_or_else(|| format!("{id} is described without content of {kind}"))?;
                if kind.ends_with("json") && !is_head {
                    let body: Value = serde_json::from_str(&response.body).map_err(|error| error.to_string())?;
                    self.validate(Part::Operations, &media["schema"], &body, true)?;
                    code = body["error"].as_str().map(str::to_owned);
                }
            }
            (kind, _) => return Err(format!("{id}: the content type is {kind:?}, which is not described")),
        }
        if response.status < 300 {
            self.request(operation, request, query, &template, &parameters)
                .map_err(|problem| format!("{id} was done, but: {problem}"))?;
        }
        Ok(Some(Seen { operation: id, status: response.status, code }))
    }

    /// The operation of a path: its template, the values of the template's parameters, and what is described.
    fn operation(&self, method: &str, path: &str) -> Option<(String, BTreeMap<String, String>, &Value)> {
        let paths = self.openapi["paths"].as_object().expect("paths");
        let found = paths.iter().filter_map(|(template, methods)| {
            let operation = methods.get(method)?;
            Some((template.clone(), parameters(template, path)?, operation))
        });
        // A path without parameters comes first.
        found.min_by_key(|(_, parameters, _)| parameters.len())
    }

    fn headers(&self, described: &Value, response: &Response) -> Result<(), String> {
        for (name, header) in described["headers"].as_object().into_iter().flatten() {
            let header = self.resolve(header);
            match response.header(name) {
                Some(value) => self.text(&header["schema"], value).map_err(|problem| format!("{name}: {problem}"))?,
                None if header["required"] == true => return Err(format!("the header {name} is missing")),
                None => {}
            }
        }
        Ok(())
    }

    /// What was done must be described.
    fn request(
        &self,
        operation: &Value,
        request: &Request,
        query: &str,
        template: &str,
        in_path: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let described: Vec<&Value> =
            operation["parameters"].as_array().into_iter().flatten().map(|it| self.resolve(it)).collect();
        let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let in_query: Vec<(String, String)> = pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decode(name), decode(value)))
            .collect();
        for (name, _) in &in_query {
            let is_described = described.iter().any(|it| it["in"] == "query" && it["name"] == name.as_str());
            if !is_described {
                return Err(format!("the parameter {name} of the query is not described"));
            }
        }
        for parameter in &described {
            let name = parameter["name"].as_str().expect("a parameter has a name");
            let value = match parameter["in"].as_str() {
                Some("query") => in_query.iter().find(|(it, _)| it == name).map(|(_, value)| value.clone()),
                Some("path") => in_path.get(name).cloned(),
                _ => request.headers.iter().find(|(it, _)| it.eq_ignore_ascii_case(name)).map(|(_, it)| it.clone()),
            };
            match value {
                Some(value) => {
                    self.text(&parameter["schema"], &value).map_err(|problem| format!("{name}: {problem}"))?;
                }
                None if parameter["required"] == true => return Err(format!("{name} is missing in {template}")),
                None => {}
            }
        }
        let (described, Some(body)) = (&operation["requestBody"], &request.body) else { return Ok(()) };
        let schema = &described["content"]["application/json"]["schema"];
        if schema.is_null() {
            return Ok(());
        }
        if body.is_empty() && described["required"] == true {
            return Err("the body is missing".into());
        }
        let body =
            if body.is_empty() { json!({}) } else { serde_json::from_slice(body).map_err(|it| it.to_string())? };
        self.validate(Part::Operations, schema, &body, false)
    }

    /// A value that stands in a path, a query or a header.
    fn text(&self, schema: &Value, text: &str) -> Result<(), String> {
        let value = match text.parse::<u64>() {
            Ok(number) if schema["type"] == "integer" => number.into(),
            _ => text.into(),
        };
        self.validate(Part::Operations, schema, &value, false)
    }

    /// Checks a message that a server has sent.
    pub fn message(&self, name: &str, message: &Value) -> Result<(), String> {
        self.validate(Part::Messages, &json!({ "$ref": format!("#/$defs/{name}") }), message, true)
    }

    /// Checks a message that a client has sent.
    pub fn client_message(&self, name: &str, message: &Value) -> Result<(), String> {
        self.validate(Part::Messages, &json!({ "$ref": format!("#/$defs/{name}") }), message, false)
    }

    fn validate(&self, part: Part, schema: &Value, value: &Value, is_strict: bool) -> Result<(), String> {
        let validator = self.validator(part, schema, is_strict);
        match validator.iter_errors(value).next() {
            None => Ok(()),
            Some(error) => Err(format!("{} at {:?} in {value}", error, error.instance_path().to_string())),
        }
    }

    fn validator(&self, part: Part, schema: &Value, is_strict: bool) -> Arc<Validator> {
        let name = format!("{part:?} {is_strict} {schema}");
        let mut validators = self.validators.lock();
        let made = validators.entry(name).or_insert_with(|| {
            let mut schema = schema.clone();
            if is_strict {
                forbid_unknown(&mut schema, false);
            }
            let (of_operations, of_messages) = (&self.openapi["components"]["schemas"], &self.messages["$defs"]);
            let whole = match (part, is_strict) {
                (Part::Operations, false) => json!({ "allOf": [schema], "components": { "schemas": of_operations } }),
                (Part::Operations, true) => json!({ "allOf": [schema], "components": { "schemas": self.strict[0] } }),
                (Part::Messages, false) => json!({ "allOf": [schema], "$defs": of_messages }),
                (Part::Messages, true) => json!({ "allOf": [schema], "$defs": self.strict[1] }),
            };
            let options = jsonschema::draft202012::options().should_validate_formats(true);
            Arc::new(options.build(&whole).expect("the description has valid schemas"))
        });
        Arc::clone(made)
    }
}

/// The values of a template's parameters, if this is a path of it.
fn parameters(template: &str, path: &str) -> Option<BTreeMap<String, String>> {
    let (template, path): (Vec<&str>, Vec<&str>) = (template.split('/').collect(), path.split('/').collect());
    if template.len() != path.len() {
        return None;
    }
    let mut parameters = BTreeMap::new();
    for (part, is) in template.into_iter().zip(path) {
        match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) if !is.is_empty() => {
                parameters.insert(name.to_owned(), percent_decode_str(is).decode_utf8_lossy().into_owned());
            }
            Some(_) => return None,
            None if part == is => {}
            None => return None,
        }
    }
    Some(parameters)
}

/// Forbids fields that are not described. A part of an `allOf` says nothing of the fields of the other parts.
fn forbid_unknown(schema: &mut Value, is_part: bool) {
    match schema {
        Value::Object(object) => {
            for (keyword, value) in object.iter_mut() {
                match (keyword.as_str(), value) {
                    ("allOf", Value::Array(parts)) => parts.iter_mut().for_each(|part| forbid_unknown(part, true)),
                    ("properties", Value::Object(fields)) => {
                        fields.values_mut().for_each(|field| forbid_unknown(field, false));
                    }
                    ("default" | "examples" | "enum" | "const", _) => {}
                    (_, value) => forbid_unknown(value, false),
                }
            }
            if object.get("properties").is_some_and(Value::is_object) && !is_part {
                object.insert("unevaluatedProperties".to_owned(), false.into());
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|schema| forbid_unknown(schema, false)),
        _ => {}
    }
}

/// The messages of a WebSocket.
pub struct Conversation {
    is_hold: bool,
    /// What the client has sent that is not described, and why it is not: by what an answer names.
    undescribed: HashMap<String, String>,
}

impl Conversation {
    /// The conversation on a WebSocket at this path.
    pub fn at(path: &str) -> Conversation {
        Conversation { is_hold: path.starts_with("/v1/hold"), undescribed: HashMap::new() }
    }

    /// The client sends a text.
    pub fn sent(&mut self, text: &str) {
        let message = serde_json::from_str::<Value>(text).unwrap_or_default();
        let (name, of) = if self.is_hold {
            let kind = only_field(&message).map_or("", |(kind, _)| kind);
            ("HoldClientFrame", kind.to_owned())
        } else {
            ("Request", message["id"].to_string())
        };
        match description().client_message(name, &message) {
            Ok(()) => drop(self.undescribed.remove(&of)),
            Err(problem) => drop(self.undescribed.insert(of, problem)),
        }
    }

    /// The server has sent a message.
    #[track_caller]
    pub fn received(&self, message: &Value) {
        let name = if self.is_hold { "HoldServerFrame" } else { "Response" };
        description().message(name, message).unwrap_or_else(|problem| panic!("{problem}"));
        let done = if self.is_hold {
            match only_field(message).map_or("", |(kind, _)| kind) {
                "waiting" | "granted" => vec!["acquire".to_owned(), "resume".to_owned()],
                "renewed" => vec!["here".to_owned()],
                "proclaimed" => vec!["value".to_owned()],
                "released" => vec!["release".to_owned()],
                _ => vec![],
            }
        } else if message["result"]["ok"].is_null() {
            vec![]
        } else {
            vec![message["id"].to_string()]
        };
        for of in done {
            if let Some(problem) = self.undescribed.get(&of) {
                panic!("a request was done that is not described: {problem}; {message}");
            }
        }
    }
}

/// The name and the value of an object's only field.
pub fn only_field(value: &Value) -> Option<(&str, &Value)> {
    let fields: &Map<String, Value> = value.as_object()?;
    fields.iter().next().filter(|_| fields.len() == 1).map(|(name, value)| (name.as_str(), value))
}
