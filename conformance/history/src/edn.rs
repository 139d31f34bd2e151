//! The part of EDN, Clojure's notation, that histories need: nil, booleans, integers, strings,
//! keywords, vectors and maps.

use std::fmt;

use serde_json::Value;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edn {
    /// `nil`.
    Nil,
    /// `true`, `false`.
    Bool(bool),
    /// An integer.
    Int(u64),
    /// `"text"`.
    Text(String),
    /// `:word`.
    Keyword(String),
    /// `[a b]`.
    Vector(Vec<Edn>),
    /// `{:word a, :other b}`. Keys are keywords.
    Map(Vec<(String, Edn)>),
}

impl Edn {
    /// A keyword.
    pub fn keyword(word: &str) -> Edn {
        Edn::Keyword(word.to_string())
    }
}

/// Field names of JSON objects become keywords; everything else is unchanged.
impl From<Value> for Edn {
    fn from(value: Value) -> Edn {
        match value {
            Value::Null => Edn::Nil,
            Value::Bool(value) => Edn::Bool(value),
            Value::Number(number) => Edn::Int(number.as_u64().expect("histories have natural numbers")),
            Value::String(text) => Edn::Text(text),
            Value::Array(items) => Edn::Vector(items.into_iter().map(Edn::from).collect()),
            Value::Object(fields) => Edn::Map(fields.into_iter().map(|(name, value)| (name, value.into())).collect()),
        }
    }
}

impl fmt::Display for Edn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Edn::Nil => f.write_str("nil"),
            Edn::Bool(value) => write!(f, "{value}"),
            Edn::Int(number) => write!(f, "{number}"),
            // JSON's string escapes are valid in EDN too.
            Edn::Text(text) => write!(f, "{}", Value::from(text.as_str())),
            Edn::Keyword(word) => write!(f, ":{word}"),
            Edn::Vector(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "" } else { " " })?;
                }
                f.write_str("]")
            }
            Edn::Map(entries) => {
                f.write_str("{")?;
                for (index, (name, value)) in entries.iter().enumerate() {
                    write!(f, "{}:{name} {value}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}
