//! The fields of a log line in text: their control characters are escaped.
//!
//! A field may have text of another program: why a peer refuses this node, an address that it
//! announced. A line break in it would begin a forged line. (In JSON logs, JSON's own escapes keep
//! a line a line.)

use std::fmt;

use palisade_client::escaped;
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
