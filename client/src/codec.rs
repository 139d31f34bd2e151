//! Values as bytes and back: the one place that knows bincode.
//!
//! Both sides of a WebSocket's binary frames, the nodes among themselves and the write-ahead log use these two
//! functions. The bytes of the wire types are pinned by a golden test; a change of theirs is a change of protocol.

use bincode::config::{Configuration, standard};
use bincode::error::{DecodeError, EncodeError};
use bincode::serde::decode_from_slice;
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
/// A few bytes can claim a length that they do not back, and bincode allocates for a string before it reads it. So it
/// decodes within a limit: no byte of an encoding stands for more than 16 bytes of a number, and no value may claim
/// more than that for the greatest input of its size class. So an input of up to 64 KiB makes at most a few MiB be
/// allocated in vain. The limit ends at 256 MiB of input, where only the log's own, checksummed files are.
///
/// # Errors
/// If the bytes are not such a value, or more bytes follow it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (value, used) = match bytes.len() {
        0..=0x400 => decode_from_slice(bytes, CONFIG.with_limit::<0x4000>()),
        0x401..=0x1_0000 => decode_from_slice(bytes, CONFIG.with_limit::<0x10_0000>()),
        0x1_0001..=0x40_0000 => decode_from_slice(bytes, CONFIG.with_limit::<0x400_0000>()),
        0x40_0001..=0x1000_0000 => decode_from_slice(bytes, CONFIG.with_limit::<0x1_0000_0000>()),
        _ => decode_from_slice(bytes, CONFIG),
    }?;
    match bytes.len() - used {
        0 => Ok(value),
        rest => Err(CodecError::TrailingBytes(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::{decode, encode_into};

    #[test]
    fn a_length_that_nothing_backs_is_an_error() {
        for length in [u64::MAX, u64::MAX / 4, 1 << 40] {
            let mut bytes = vec![253];
            bytes.extend(length.to_le_bytes());
            assert!(decode::<String>(&bytes).is_err());
            assert!(decode::<Vec<u64>>(&bytes).is_err());
            assert!(decode::<uuid::Uuid>(&bytes).is_err());
        }
    }

    /// The densest values there are: many numbers of one byte each, which stand for many more in memory.
    #[test]
    fn no_honest_value_meets_the_limit() {
        for count in [1_020, 65_000, 4_000_000] {
            for values in [vec![0_u128; count], vec![200_u128; count]] {
                let mut bytes = Vec::new();
                encode_into(&values, &mut bytes);
                assert_eq!(decode::<Vec<u128>>(&bytes).unwrap(), values);
            }
            let text = "x".repeat(count);
            let mut bytes = Vec::new();
            encode_into(&text, &mut bytes);
            assert_eq!(decode::<String>(&bytes).unwrap(), text);
        }
    }
}
