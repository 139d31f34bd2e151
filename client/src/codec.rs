//! Values as bytes and back: the one place that knows bincode.
//!
//! Both sides of a WebSocket's binary frames, the nodes among themselves and the write-ahead log use [`encode_into`] and
//! [`decode`]; snapshots, which must not be in memory a second time as bytes, the two that stream. The bytes of the wire
//! types are pinned by a golden test; a change of theirs is a change of protocol.

use std::io::{self, Read, Write};

use bincode::config::{Configuration, standard};
use bincode::error::{DecodeError, EncodeError};
use bincode::serde::{decode_from_slice, decode_from_std_read, encode_into_std_write};
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
    let encoded: Result<usize, EncodeError> = encode_into_std_write(value, buffer, CONFIG);
    encoded.expect("every type on the wire and in the log has an encoding, and a Vec takes all bytes");
}

/// The number of bytes of the encoding of `value`.
///
/// # Panics
/// If the type has no bincode encoding.
pub fn encoded_length<T: Serialize>(value: &T) -> usize {
    let length: Result<usize, EncodeError> = encode_into_std_write(value, &mut io::sink(), CONFIG);
    length.expect("every type on the wire has an encoding, and a sink takes all bytes")
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

/// Writes the encoding of `value` to `writer` piece by piece: the same bytes as [`encode_into`], never all at once.
///
/// # Errors
/// What the writer says.
///
/// # Panics
/// If the type has no bincode encoding.
pub fn encode_to<T: Serialize>(value: &T, writer: &mut impl Write) -> io::Result<()> {
    match encode_into_std_write(value, writer, CONFIG) {
        Ok(_) => Ok(()),
        Err(EncodeError::Io { inner, .. }) => Err(inner),
        Err(error) => panic!("every type that is streamed has an encoding: {error}"),
    }
}

/// Reads a value piece by piece, and nothing behind it. There is no limit to what a length may claim: only for bytes
/// whose checksums were compared before they come out of `reader`.
///
/// # Errors
/// If the bytes are not such a value, or the reader refuses to give them.
pub fn decode_from<T: DeserializeOwned>(reader: &mut impl Read) -> Result<T, CodecError> {
    Ok(decode_from_std_read(reader, CONFIG)?)
}

#[cfg(test)]
mod tests {
    use super::{decode, decode_from, encode_into, encode_to, encoded_length};

    #[test]
    fn a_stream_has_the_same_bytes_and_ends_where_the_value_does() {
        let value = (7_u64, "text".to_string(), vec![Some(1_u8), None]);
        let (mut whole, mut streamed) = (Vec::new(), Vec::new());
        encode_into(&value, &mut whole);
        encode_to(&value, &mut streamed).unwrap();
        assert_eq!(streamed, whole);
        assert_eq!(encoded_length(&value), whole.len());
        streamed.push(99);
        let mut rest = streamed.as_slice();
        assert_eq!(decode_from::<(u64, String, Vec<Option<u8>>)>(&mut rest).unwrap(), value);
        assert_eq!(rest, [99]);
        assert!(decode_from::<(u64, String, Vec<Option<u8>>)>(&mut &whole[..whole.len() - 1]).is_err());
    }

    #[test]
    fn a_writer_that_fails_is_an_error() {
        let mut full: &mut [u8] = &mut [0; 3];
        assert_eq!(encode_to(&"longer than that", &mut full).unwrap_err().kind(), std::io::ErrorKind::WriteZero);
    }

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
