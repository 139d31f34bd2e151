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

    /// The value under a key of a map.
    pub fn get(&self, key: &str) -> Option<&Edn> {
        match self {
            Edn::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Parses a text that contains exactly one value.
    ///
    /// # Errors
    /// What was expected, and the byte offset at which it was missing.
    pub fn parse(text: &str) -> Result<Edn, String> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value()?;
        reader.skip();
        if reader.at == text.len() { Ok(value) } else { Err(reader.unexpected("the end at")) }
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

impl From<Edn> for Value {
    fn from(value: Edn) -> Value {
        match value {
            Edn::Nil => Value::Null,
            Edn::Bool(value) => value.into(),
            Edn::Int(number) => number.into(),
            Edn::Text(text) | Edn::Keyword(text) => text.into(),
            Edn::Vector(items) => items.into_iter().map(Value::from).collect(),
            Edn::Map(entries) => entries.into_iter().map(|(name, value)| (name, Value::from(value))).collect(),
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

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// EDN treats commas as white space.
    fn skip(&mut self) {
        let rest = self.rest().trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
        self.at = self.text.len() - rest.len();
    }

    fn unexpected(&self, wanted: &str) -> String {
        format!("expected {wanted} byte {}", self.at)
    }

    fn closes(&mut self, bracket: char) -> bool {
        self.skip();
        let closes = self.rest().starts_with(bracket);
        self.at += usize::from(closes);
        closes
    }

    fn word(&mut self) -> String {
        let ends = |letter: char| letter.is_whitespace() || "{}[]\",".contains(letter);
        let word = self.rest().split(ends).next().unwrap_or_default().to_string();
        self.at += word.len();
        word
    }

    fn value(&mut self) -> Result<Edn, String> {
        self.skip();
        match self.rest().chars().next() {
            Some('[') => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.closes(']') {
                    items.push(self.value()?);
                }
                Ok(Edn::Vector(items))
            }
            Some('{') => {
                self.at += 1;
                let mut entries = Vec::new();
                while !self.closes('}') {
                    let Edn::Keyword(name) = self.value()? else { return Err(self.unexpected("a keyword before")) };
                    entries.push((name, self.value()?));
                }
                Ok(Edn::Map(entries))
            }
            Some('"') => self.string(),
            Some(':') => {
                self.at += 1;
                match self.word() {
                    word if word.is_empty() => Err(self.unexpected("a keyword's name at")),
                    word => Ok(Edn::Keyword(word)),
                }
            }
            _ => match self.word().as_str() {
                "nil" => Ok(Edn::Nil),
                "true" => Ok(Edn::Bool(true)),
                "false" => Ok(Edn::Bool(false)),
                word => word.parse().map(Edn::Int).map_err(|_| self.unexpected("a value before")),
            },
        }
    }

    fn string(&mut self) -> Result<Edn, String> {
        let mut stream = serde_json::Deserializer::from_str(self.rest()).into_iter::<String>();
        match stream.next() {
            Some(Ok(text)) => {
                let length = stream.byte_offset();
                self.at += length;
                Ok(Edn::Text(text))
            }
            _ => Err(self.unexpected("a string at")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_value_parses_back() {
        let text = r#"{:process 0, :type :invoke, :value ["a \"key\" {]" {:wait true, :none nil}], :empty []}"#;
        let value = Edn::parse(text).unwrap();
        assert_eq!(value.to_string(), text);
        assert_eq!(value.get("process"), Some(&Edn::Int(0)));
    }

    #[test]
    fn parse_error_names_the_byte() {
        assert_eq!(Edn::parse("{:a 1} 2").unwrap_err(), "expected the end at byte 7");
        assert_eq!(Edn::parse("{\"a\" 1}").unwrap_err(), "expected a keyword before byte 4");
        assert!(Edn::parse("[1 2").is_err() && Edn::parse("\"open").is_err() && Edn::parse("{:a}").is_err());
    }
}
