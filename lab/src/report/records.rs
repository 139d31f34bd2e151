//! The form of results.json: one record a line, so that the files stay short and their differences readable.
//!
//! A record is an element of an array of a run's figures or predictions. Runs, their set-ups and their figures have a line
//! for each field.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// Arrays around a record: the runs, and one within the run.
const ARRAYS: usize = 2;

/// Encodes results.
pub(super) fn encode<T: Serialize>(results: &T) -> Result<String, String> {
    let mut text = Vec::new();
    results
        .serialize(&mut Serializer::with_formatter(&mut text, Records::default()))
        .map_err(|error| error.to_string())?;
    text.push(b'\n');
    String::from_utf8(text).map_err(|error| error.to_string())
}

/// An array or an object that is being written.
struct Open {
    is_array: bool,
    /// Its elements or fields have lines of their own.
    spread: bool,
    has_lines: bool,
}

#[derive(Default)]
struct Records(Vec<Open>);

impl Records {
    fn line(&mut self, writer: &mut (impl Write + ?Sized)) -> io::Result<()> {
        if let Some(open) = self.0.last_mut() {
            open.has_lines = true;
        }
        write!(writer, "\n{}", " ".repeat(self.0.len()))
    }

    /// Begins an array or an object. In a spread array it has a line of its own; numbers and texts share one.
    fn begin(&mut self, writer: &mut (impl Write + ?Sized), is_array: bool) -> io::Result<()> {
        if self.0.last().is_some_and(|open| open.is_array && open.spread) {
            self.line(writer)?;
        }
        let arrays = self.0.iter().filter(|open| open.is_array).count();
        self.0.push(Open { is_array, spread: arrays < ARRAYS, has_lines: false });
        writer.write_all(if is_array { b"[" } else { b"{" })
    }

    fn end(&mut self, writer: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        if self.0.pop().is_some_and(|open| open.has_lines) {
            write!(writer, "\n{}", " ".repeat(self.0.len()))?;
        }
        writer.write_all(bracket)
    }
}

impl Formatter for Records {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, true)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, false)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        CompactFormatter.begin_object_key(writer, first)?;
        if self.0.last().is_some_and(|open| open.spread) { self.line(writer) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_record_has_one_line() {
        let results = json!({"runs": [
            {"backend": "redis", "figures": {"empty": [], "numbers": [1, 2], "rounds": [{"a": [{"b": 1}]}, {"a": []}]}},
            {"backend": "etcd"},
        ]});
        let text = encode(&results).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), results);
        let expected = r#"{
 "runs":[
  {
   "backend":"redis",
   "figures":{
    "empty":[],
    "numbers":[1,2],
    "rounds":[
     {"a":[{"b":1}]},
     {"a":[]}
    ]
   }
  },
  {
   "backend":"etcd"
  }
 ]
}
"#;
        assert_eq!(text, expected);
    }
}
