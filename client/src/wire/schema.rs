//! JSON Schemas of the types that have a JSON form of their own: each derives from the type that serde writes or reads for
//! it. The others derive theirs.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::answers::AcquiredText;
use super::failure::FailureText;
use super::records::ContentText;
use super::{Acquired, Change, Content, Event, EventId, Failure, Keys};

/// The schema of one type is that of another one.
macro_rules! schema_is_of {
    ($($of:ty => $is:ty),+ $(,)?) => {$(
        impl JsonSchema for $of {
            fn schema_name() -> Cow<'static, str> {
                <$is>::schema_name()
            }

            fn schema_id() -> Cow<'static, str> {
                <$is>::schema_id()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                <$is>::json_schema(generator)
            }
        }
    )+};
}

schema_is_of!(Acquired => AcquiredText, Failure => FailureText, Content => ContentText);

impl JsonSchema for Keys {
    fn schema_name() -> Cow<'static, str> {
        "Keys".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "One key, or a list of keys.",
            "anyOf": [generator.subschema_for::<String>(), generator.subschema_for::<Vec<String>>()],
        })
    }
}

impl JsonSchema for EventId {
    fn schema_name() -> Cow<'static, str> {
        "EventId".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema =
            json_schema!({ "type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$", "examples": ["47", "47.1"] });
        // A client may name the end of an entry by its index.
        if generator.contract().is_deserialize() {
            let index = json_schema!({ "type": "integer", "minimum": 0, "maximum": u64::MAX });
            schema = json_schema!({ "anyOf": [schema, index] });
        }
        let description = "The ID of an event: the index of its log entry; and behind a point its number among the events \
                           of that entry, if it is not the last of them.";
        schema.insert("description".to_owned(), description.into());
        schema
    }
}

/// One object for each kind of [`Change`]: with its name and what all events have beside its fields, and without fields
/// that have nothing to say, as [`Event`] writes it.
impl JsonSchema for Event {
    fn schema_name() -> Cow<'static, str> {
        "Event".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let changes = Change::json_schema(generator);
        let id = generator.subschema_for::<EventId>();
        let kinds = changes.get("oneOf").and_then(Value::as_array).expect("a change has several kinds");
        let kinds: Vec<Value> = kinds.iter().map(|kind| event_of(kind, &id)).collect();
        json_schema!({ "description": "Something that has happened to a lock or a record.", "oneOf": kinds })
    }
}

fn event_of(kind: &Value, id: &Schema) -> Value {
    let (name, fields) = kind["properties"].as_object().and_then(|named| named.iter().next()).expect("a named variant");
    let mut properties = fields["properties"].as_object().expect("a variant with named fields").clone();
    let has_content = |name: &Value| {
        let type_of = &fields["properties"][name.as_str().unwrap_or_default()]["type"];
        type_of != "array" && !type_of.as_array().is_some_and(|types| types.contains(&"null".into()))
    };
    let required = fields["required"].as_array().into_iter().flatten().filter(|name| has_content(name)).cloned();
    let required: Vec<Value> =
        ["event", "id", "revision", "key"].map(Value::from).into_iter().chain(required).collect();
    for field in properties.values_mut() {
        // Left out in place of `null`.
        if let Some(Value::Array(types)) = field.get_mut("type") {
            types.retain(|kind| kind != "null");
            field["type"] = types.remove(0);
        }
    }
    for (name, schema) in [
        ("event", json!({ "description": "The kind of event.", "const": name })),
        ("id", id.clone().to_value()),
        ("revision", json!({ "description": "The index of its log entry.", "type": "integer", "minimum": 0 })),
        ("key", json!({ "description": "The key of the lock or the record.", "type": "string" })),
    ] {
        properties.insert(name.to_owned(), schema);
    }
    json!({ "description": kind["description"], "type": "object", "properties": properties, "required": required })
}
