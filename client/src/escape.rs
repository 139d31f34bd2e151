//! Text of other programs in messages for people: keys, owners, what other nodes answer.
//!
//! Such text may have control characters. Written as they are, they end a log's line and begin a forged one, move a
//! terminal's cursor, or turn the direction in which text is shown. So a name is escaped where it is *shown*: in a log, in
//! a table on a terminal, in a sentence. Values in JSON and in the state stay what they are.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether the character is never shown as it is: a control character (Unicode's category Cc), a line or paragraph
/// separator, or one that turns the direction of the text after it.
fn is_hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// The text with an escape in place of each control character, line separator and change of the text's direction:
/// `\n`, `\u{1b}`, `\u{202e}`. An escaped text stays as it is.
///
/// ```
/// assert_eq!(palisade_client::escaped("tea\x1b[2J\nERROR forged"), r"tea\u{1b}[2J\nERROR forged");
/// ```
pub fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, |c, shown| shown.extend(c.escape_default()))
}

/// JSON text with a JSON escape in place of each such character that JSON allows to stand in a string: the value is the
/// same, and a terminal shows it.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    replaced(json, |c, shown| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(shown, "\\u{unit:04x}");
        }
    })
}

fn replaced(text: &str, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) { escape(c, &mut shown) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_changes_of_direction_are_escaped() {
        for code in (0..0x20).chain(0x7F..0xA0).chain(0x2028..=0x202E).chain(0x2066..=0x2069) {
            let c = char::from_u32(code).unwrap();
            let shown = escaped(&format!("a{c}b")).into_owned();
            assert!(!shown.contains(c) && shown.starts_with("a\\") && shown.ends_with('b'), "{code:x}: {shown:?}");
            assert_eq!(escaped(&shown), shown, "it is escaped once");
            if code >= 0x7F {
                let json = serde_json::to_string(&format!("a{c}b")).unwrap();
                let shown = escaped_json(&json);
                assert!(!shown.contains(c));
                assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), format!("a{c}b"));
            }
        }
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in ["", "nightly", "größe/名前 🔒", r"C:\n", "\u{A0}\u{200D}\u{FEFF}"] {
            assert!(matches!(escaped(text), Cow::Borrowed(same) if same == text));
            assert!(matches!(escaped_json(text), Cow::Borrowed(same) if same == text));
        }
    }
}
