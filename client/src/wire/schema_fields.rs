//! JSON Schemas of objects whose fields are not those of one type.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// An object that has its keys as `key` or as `keys`, and not as both.
pub fn key_or_keys(schema: &mut Schema) {
    let schema = match schema.get("required").and_then(|names| names.get(0)).and_then(Value::as_str) {
        // A variant of an enum: the object is that of its only field.
        Some(name) if schema.pointer(&format!("/properties/{name}/properties/key")).is_some() => {
            let name = name.to_owned();
            schema.pointer_mut(&format!("/properties/{name}")).and_then(Value::as_object_mut)
        }
        _ => schema.as_object_mut(),
    };
    let Some(object) = schema else { return };
    if let Some(Value::Array(required)) = object.get_mut("required") {
        required.retain(|name| name != "key" && name != "keys");
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties")
        && !properties.contains_key("keys")
        && let Some(key) = properties.get("key").cloned()
    {
        properties.insert("keys".to_owned(), key);
    }
    object.insert("oneOf".to_owned(), json!([{ "required": ["key"] }, { "required": ["keys"] }]));
}

/// An object with the fields of `T` but `without` these, and with these `more`, all of which are required.
pub fn with_fields<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    without: &[&str],
    more: impl IntoIterator<Item = (&'static str, Schema)>,
) -> Schema {
    let mut schema = T::json_schema(generator);
    let object = schema.ensure_object();
    let mut properties = match object.remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    let mut required = match object.remove("required") {
        Some(Value::Array(required)) => required,
        _ => Vec::new(),
    };
    for name in without {
        properties.remove(*name).unwrap_or_else(|| panic!("there is no field {name}"));
        required.retain(|required| required != name);
    }
    for (name, field) in more {
        required.push(name.into());
        properties.insert(name.to_owned(), field.to_value());
    }
    object.insert("properties".to_owned(), properties.into());
    object.insert("required".to_owned(), required.into());
    schema
}
