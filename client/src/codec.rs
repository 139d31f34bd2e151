//! Values as bytes and back: the one place that knows bincode.
//!
//! Both sides of a WebSocket's binary frames, the nodes among themselves and the write-ahead log use these two
//! functions. The bytes of the wire types are pinned by a golden test; a change of theirs is a change of protocol.

use bincode::config::{Configuration, standard};
use bincode::error::{DecodeError, EncodeError};
use serde::Serialize;
use serde::de::DeserializeOwned;

const CONFIG: Configuration = standard();

/// Why bytes could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not an encoding of the type.
    #[error("the bytes do not decode: {0}")]
    Malformed(#[from] DecodeError),
    /// The value ended before the bytes did.
    #[error("{0} bytes follow the end of the value")]
    TrailingBytes(usize),
}

/// Appends the encoding of `value` to `buffer`.
///
/// # Panics
/// If the type has no bincode encoding, which is a mistake in the type, not in the value.
pub fn encode_into<T: Serialize>(value: &T, buffer: &mut Vec<u8>) {
    let encoded: Result<usize, EncodeError> = bincode::serde::encode_into_std_write(value, buffer, CONFIG);
    encoded.expect("every type on the wire and in the log has an encoding, and a Vec takes all bytes");
}

/// Decodes a value that fills `bytes` exactly.
///
/// # Errors
/// If the bytes are not such a value, or more bytes follow it. Nothing is allocated that `bytes` does not back.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (value, used) = bincode::serde::decode_from_slice(bytes, CONFIG)?;
    match bytes.len() - used {
        0 => Ok(value),
        rest => Err(CodecError::TrailingBytes(rest)),
    }
}
