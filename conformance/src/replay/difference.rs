//! Finds and prints the first difference between two states.

use std::fmt;

use serde_json::Value;

/// An expected and a seen value that differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The subject: the path to the value.
    pub what: String,
    /// The expected value.
    pub expected: String,
    /// The value that was seen.
    pub seen: String,
}

impl Difference {
    /// A difference between two descriptions.
    pub fn new(what: impl Into<String>, expected: impl Into<String>, seen: impl Into<String>) -> Difference {
        Difference { what: what.into(), expected: expected.into(), seen: seen.into() }
    }

    /// The first place at which two values differ, if any.
    pub fn between(what: &str, expected: &Value, seen: &Value) -> Option<Difference> {
        if expected == seen {
            return None;
        }
        let inner = match (expected, seen) {
            (Value::Object(one), Value::Object(other)) => {
                let mut keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
                let field = |fields: &serde_json::Map<String, Value>, key| fields.get(key).cloned().unwrap_or_default();
                keys.find_map(|key| {
                    Difference::between(
                        &format!("{what}.{key}"),
                        &field(one, key.as_str()),
                        &field(other, key.as_str()),
                    )
                })
            }
            (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
                let mut pairs = one.iter().zip(other).enumerate();
                pairs.find_map(|(at, (one, other))| Difference::between(&format!("{what}[{at}]"), one, other))
            }
            _ => None,
        };
        Some(inner.unwrap_or_else(|| Difference::new(what, expected.to_string(), seen.to_string())))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { what, expected, seen } = self;
        write!(f, "{what}: expected {expected}, seen {seen}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_difference_is_named_by_its_path() {
        let one = json!({ "role": { "Leader": { "progress": [1, 2] } }, "term": 3 });
        let mut other = one.clone();
        assert_eq!(Difference::between("node", &one, &other), None);
        other["role"]["Leader"]["progress"][1] = json!(7);
        let found = Difference::between("node", &one, &other).unwrap();
        assert_eq!(found.to_string(), "node.role.Leader.progress[1]: expected 2, seen 7");
        let found = Difference::between("node", &one, &json!({ "role": one["role"], "vote": 1, "term": 3 })).unwrap();
        assert_eq!(found.to_string(), "node.vote: expected null, seen 1");
        let found = Difference::between("log", &json!([1]), &json!([1, 2])).unwrap();
        assert_eq!(found.to_string(), "log: expected [1], seen [1,2]");
    }
}
