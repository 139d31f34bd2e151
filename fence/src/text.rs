//! base64url, as which the text form has bytes, and the error of what is not in the format.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Bytes or a text that are not in the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Malformed {
    reason: String,
}

impl Malformed {
    pub(crate) fn new(reason: impl Into<String>) -> Malformed {
        Malformed { reason: reason.into() }
    }
}

/// base64url without padding.
pub(crate) fn encode_text(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The bytes of a base64url text. Refuses padding, other characters, and unused bits that are set.
pub(crate) fn decode_text(what: &str, text: &str) -> Result<Vec<u8>, Malformed> {
    URL_SAFE_NO_PAD
        .decode(text)
        .map_err(|error| Malformed::new(format!("the {what} is not canonical base64url: {error}")))
}
