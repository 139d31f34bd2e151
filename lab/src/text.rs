//! Errors and keys as text.

/// An error with its causes: clients keep the reason below a general text.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Percent-encodes all bytes but ASCII letters, digits and those of `plain`.
pub(crate) fn percent_encoded(key: &str, plain: &[u8]) -> String {
    let mut text = String::new();
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// A key as a segment of a URL's path.
pub(crate) fn path_segment(key: &str) -> String {
    percent_encoded(key, b"-_.~")
}
