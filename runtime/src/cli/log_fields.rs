//! Log lines: the control characters in their fields are escaped.
//!
//! A field may have text of another program: why a peer refuses this node, an address that it
//! announced. A line break in it would begin a forged line. In JSON logs, JSON's own escapes keep a line a line; but
//! JSON lets other control characters stand as they are, which a terminal obeys.

use std::fmt;
use std::io::{self, Write};

use palisade_client::{escaped, escaped_json};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Formats fields as `tracing_subscriber` does by default, and escapes their values.
pub(super) fn escaping() -> impl for<'a> FormatFields<'a> + 'static {
    debug_fn(write_field).delimited(" ")
}

fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = format!("{value:?}");
    let value = escaped(&value);
    match field.name() {
        "message" => writer.write_str(&value),
        name => write!(writer, "{name}={value}"),
    }
}

/// Writes lines of JSON with an escape of JSON for each character that is never shown as it is. Each write must be of
/// whole lines, and `tracing_subscriber` writes one line at a time.
pub(super) struct EscapingJson<W>(pub(super) W);

impl<W: Write> Write for EscapingJson<W> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut shown = String::with_capacity(lines.len());
        for line in String::from_utf8_lossy(lines).split_inclusive('\n') {
            let text = line.strip_suffix('\n').unwrap_or(line);
            shown.push_str(&escaped_json(text));
            shown.push_str(&line[text.len()..]);
        }
        // In one piece, so that lines of different threads do not mix.
        self.0.write_all(shown.as_bytes()).map(|()| lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// What was written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Goal: a peer's text moves no terminal's cursor in a JSON log either, and a program that reads the log finds it.
    #[test]
    fn control_characters_in_json_are_escapes() {
        let hostile = "go away\u{1b}[2J\u{9b}2J\u{7f}\u{202e}\u{2028}\nforged größe";
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer().json().with_writer(move || EscapingJson(writer.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::warn!(address = hostile, "{hostile}");
            tracing::warn!("the next line");
        });
        let log = String::from_utf8(written.0.lock().clone()).unwrap();
        let hidden = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{202e}');
        assert!(!log.lines().any(|line| line.contains(hidden)), "{log:?}");
        let events: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(events.len(), 2, "{log:?}");
        let fields = &events[0]["fields"];
        assert_eq!((&fields["address"], &fields["message"]), (&hostile.into(), &hostile.into()));
    }
}
