//! Schemas of what the server takes and of what it gives, in one document.
//!
//! A type may have two: a field that a request may leave out is always in an answer, and an answer may have fields
//! that a client does not know. The schema of what the server takes has `Input` behind its name then.

use std::collections::{BTreeMap, BTreeSet};

use palisade_client::wire::Code;
use palisade_spec::lock::{Mode, Transaction};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::limits;

const TAKEN: &str = "#/taken/";
const GIVEN: &str = "#/given/";

/// Bounds of requests that the types do not have: of which schema, which field, which keyword, and its value.
pub(super) fn bounds() -> Vec<(&'static str, &'static str, &'static str, u64)> {
    let bytes = |bytes: usize| bytes as u64;
    let mut bounds = vec![
        ("OpenSession", "ttl_ms", "minimum", limits::TTL_MIN_MS),
        ("OpenSession", "ttl_ms", "maximum", limits::TTL_MAX_MS),
        ("OpenSession", "owner", "maxLength", bytes(limits::OWNER_BYTES)),
        ("Proclaim", "value", "maxLength", bytes(limits::VALUE_BYTES)),
        ("Transaction", "changes", "minItems", 1),
        ("Transaction", "changes", "maxItems", bytes(Transaction::OPERATIONS)),
        ("Transaction", "conditions", "maxItems", bytes(Transaction::OPERATIONS)),
        ("Break", "reason", "minLength", 1),
        ("Break", "reason", "maxLength", bytes(limits::REASON_BYTES)),
    ];
    for acquire in ["Acquire", "AcquireKeys", "HoldClaim", "HoldResume"] {
        bounds.extend([
            (acquire, "wait_ms", "maximum", limits::WAIT_MAX_MS),
            (acquire, "value", "maxLength", bytes(limits::VALUE_BYTES)),
            (acquire, "permits", "minimum", 1),
            (acquire, "of", "minimum", 1),
            (acquire, "of", "maximum", u64::from(Mode::MAX_PERMITS)),
        ]);
    }
    for claim in ["HoldClaim", "HoldResume"] {
        bounds.push((claim, "key", "minLength", 1));
        bounds.push((claim, "key", "maxLength", bytes(limits::KEY_BYTES)));
    }
    bounds
}

pub(super) struct Schemas {
    taken: SchemaGenerator,
    given: SchemaGenerator,
}

impl Schemas {
    pub(super) fn new() -> Schemas {
        let settings = |path: &'static str| SchemaSettings::draft2020_12().with(|it| it.definitions_path = path.into());
        Schemas {
            taken: settings("/taken").for_deserialize().into_generator(),
            given: settings("/given").for_serialize().into_generator(),
        }
    }

    /// What the server reads.
    pub(super) fn taken<T: JsonSchema>(&mut self) -> Value {
        self.taken.subschema_for::<T>().to_value()
    }

    /// What the server writes.
    pub(super) fn given<T: JsonSchema>(&mut self) -> Value {
        self.given.subschema_for::<T>().to_value()
    }

    /// The fields of a query: name, schema, and whether it must be there.
    pub(super) fn query<T: JsonSchema>(&mut self) -> Vec<(String, Value, bool)> {
        let mut schema = T::json_schema(&mut self.taken).to_value();
        let required = schema["required"].take();
        let is_required = |name: &str| required.as_array().is_some_and(|names| names.iter().any(|it| it == name));
        let Value::Object(fields) = schema["properties"].take() else { panic!("a query has fields") };
        let field = |(name, mut schema): (String, Value)| {
            without_null(&mut schema);
            describe_default(schema.as_object_mut().expect("an object"));
            let is_required = is_required(&name);
            (name, schema, is_required)
        };
        fields.into_iter().map(field).collect()
    }

    /// What the codes of failures mean.
    pub(super) fn codes(&mut self) -> BTreeMap<String, String> {
        let schema = Code::json_schema(&mut self.given).to_value();
        let variants = schema["oneOf"].as_array().expect("each code has a description");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        variants.iter().map(|code| (text(&code["const"]), prose(&text(&code["description"])))).collect()
    }

    /// Puts all schemas that were asked for into the document, and makes the references to them lead there.
    pub(super) fn finish(mut self, document: &mut Value, path: &str) {
        let mut taken = self.taken.take_definitions(true);
        let mut given = self.given.take_definitions(true);
        given.values_mut().for_each(allow_growth);
        for (schema, field, keyword, value) in bounds() {
            let Some(schema) = taken.get_mut(schema) else { continue };
            let bounded = schema["properties"].get_mut(field).unwrap_or_else(|| panic!("there is no field {field}"));
            bounded[keyword] = value.into();
            // The server reads an empty list where there is none, and refuses it.
            if keyword == "minItems" {
                bounded.as_object_mut().expect("a field").remove("default");
                let required =
                    schema.as_object_mut().expect("an object").entry("required").or_insert_with(|| json!([]));
                required.as_array_mut().expect("names").push(field.into());
            }
        }
        let differing = differing(&taken, &given);
        let mut all = Map::new();
        for (name, schema) in taken {
            let name = if differing.contains(&name) { format!("{name}Input") } else { name };
            all.insert(name, schema);
        }
        // Of two equal ones, either.
        all.extend(given);
        all.iter_mut().for_each(|(name, schema)| name_kinds(name, schema));
        let components = path.rsplit_once('/').expect("a path").0;
        let last = path.rsplit('/').next().expect("a path");
        let parent = document.pointer_mut(components).expect("the document has a place for schemas");
        parent[last] = all.into();
        let final_name = |reference: &str| {
            let (name, is_taken) = match (reference.strip_prefix(TAKEN), reference.strip_prefix(GIVEN)) {
                (Some(name), _) => (name, true),
                (_, Some(name)) => (name, false),
                _ => return reference.to_owned(),
            };
            let input = if is_taken && differing.contains(name) { "Input" } else { "" };
            format!("#{path}/{name}{input}")
        };
        settle(document, &final_name);
    }
}

/// Writes a schema for generators of clients. They read no choice beside `properties`, so the description of a grant says
/// which fields it has; and of the formats of integers they know `int32` and `int64`.
pub(super) fn for_generators(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let is_integer = match object.get("type") {
                Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "integer"),
                kind => kind.is_some_and(|kind| kind == "integer"),
            };
            if is_integer {
                let is_small = object.get("format").is_some_and(|format| format == "uint8" || format == "uint16");
                object.insert("format".to_owned(), if is_small { "int32" } else { "int64" }.into());
            }
            if object.get("properties").is_some_and(Value::is_object)
                && let Some(choices) = object.remove("oneOf")
            {
                assert_eq!(
                    choices,
                    json!([{ "required": ["key"] }, { "required": ["keys"] }]),
                    "no other rule is lost"
                );
            }
            object.values_mut().for_each(for_generators);
        }
        Value::Array(list) => list.iter_mut().for_each(for_generators),
        _ => {}
    }
}

/// Says a default in the description, where no generator makes a required field of it.
fn describe_default(schema: &mut Map<String, Value>) {
    let is_schema = schema.get("type").is_some_and(|kind| kind.is_string() || kind.is_array())
        || schema.get("$ref").is_some_and(Value::is_string)
        || schema.get("anyOf").is_some_and(Value::is_array);
    let Some(default) = is_schema.then(|| schema.remove("default")).flatten() else { return };
    // The default of an object is that of its fields.
    if !default.is_null() && !default.is_object() {
        let description = schema.get("description").and_then(Value::as_str).expect("a field has a description");
        schema.insert("description".to_owned(), format!("{description} Default: `{default}`.").into());
    }
}

/// The names of schemas that are not the same in both, or refer to such.
fn differing(taken: &Map<String, Value>, given: &Map<String, Value>) -> BTreeSet<String> {
    let alike = |schema: &Value| schema.to_string().replace(TAKEN, "#/").replace(GIVEN, "#/");
    let both = || taken.iter().filter_map(|(name, taken)| Some((name, alike(taken), alike(given.get(name)?))));
    let mut differing: BTreeSet<String> =
        both().filter(|(_, taken, given)| taken != given).map(|(name, ..)| name.clone()).collect();
    loop {
        let refers = |schema: &str| differing.iter().any(|name| schema.contains(&format!("\"#/{name}\"")));
        let more: Vec<String> = both().filter(|(_, schema, _)| refers(schema)).map(|(name, ..)| name.clone()).collect();
        let before = differing.len();
        differing.extend(more);
        if differing.len() == before {
            return differing;
        }
    }
}

/// A client ignores fields that it does not know. An answer has every field that has a default in a request.
fn allow_growth(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.remove("default");
            if object.get("additionalProperties") == Some(&json!(false)) {
                object.remove("additionalProperties");
            }
            object.values_mut().for_each(allow_growth);
        }
        Value::Array(list) => list.iter_mut().for_each(allow_growth),
        _ => {}
    }
}

/// A query leaves a field out.
fn without_null(schema: &mut Value) {
    if let Some(Value::Array(kinds)) = schema.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        schema["type"] = kinds.remove(0);
    }
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
        if let [choice] = &choices[..] {
            let (choice, object) = (choice.clone(), schema.as_object_mut().expect("an object"));
            object.remove("anyOf");
            object.extend(choice.as_object().expect("an object").clone());
        }
    }
}

/// Rewrites references, descriptions, and enumerations of texts, in the whole document.
fn settle(value: &mut Value, final_name: &impl Fn(&str) -> String) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(reference)) = object.get_mut("$ref") {
                *reference = final_name(reference);
            }
            if let Some(Value::String(description)) = object.get_mut("description") {
                *description = prose(description);
            }
            describe_default(object);
            as_enumeration(object);
            object.values_mut().for_each(|value| settle(value, final_name));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| settle(value, final_name)),
        _ => {}
    }
}

/// A title for each kind of a message: generators of clients make names of them.
fn name_kinds(of: &str, schema: &mut Value) {
    for kind in schema.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
        let field = kind["required"].get(0).and_then(Value::as_str).filter(|_| kind["type"] == "object");
        let Some(name) = kind.pointer("/properties/event/const").and_then(Value::as_str).or(field) else { continue };
        let name: String = name.split('_').map(capitalised).collect();
        kind["title"] = format!("{of}{name}").into();
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A choice between texts as `enum`, which every generator of clients understands. What they mean goes into the description.
fn as_enumeration(object: &mut Map<String, Value>) {
    let Some(choices) = object.get("oneOf").and_then(Value::as_array) else { return };
    if !choices.iter().all(|choice| choice["const"].is_string()) {
        return;
    }
    let names: Vec<Value> = choices.iter().map(|choice| choice["const"].clone()).collect();
    let lines = choices.iter().map(|choice| {
        let what = prose(choice["description"].as_str().unwrap_or_default());
        format!("- `{}`: {what}", choice["const"].as_str().unwrap_or_default())
    });
    let what = object.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    let description = format!("{what}\n\n{}", lines.collect::<Vec<_>>().join("\n"));
    object.remove("oneOf");
    object.insert("type".to_owned(), "string".into());
    object.insert("enum".to_owned(), names.into());
    object.insert("description".to_owned(), description.into());
}

/// A documentation comment without its links to Rust: a variant has the name that JSON has for it.
fn prose(text: &str) -> String {
    let joined = |paragraph: &str| {
        if paragraph.contains("\n- ") || paragraph.starts_with("- ") {
            paragraph.to_owned()
        } else {
            paragraph.replace('\n', " ")
        }
    };
    let mut rest = text.split("\n\n").map(joined).collect::<Vec<_>>().join("\n\n");
    let mut prose = String::new();
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((link, after)) = after.split_once("`]") else { break };
        let name = link.rsplit("::").next().unwrap_or(link);
        let name = if link.contains("::") { snake_case(name) } else { name.to_owned() };
        let after = match after.strip_prefix('(') {
            Some(target) => target.split_once(')').map_or("", |(_, after)| after),
            None => after,
        };
        prose += &format!("{before}`{name}`");
        rest = after.to_owned();
    }
    prose + &rest
}

fn snake_case(name: &str) -> String {
    if name == "StaleToken" {
        return super::name(Code::StaleToken);
    }
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
