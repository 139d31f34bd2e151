//! Frames between nodes: length (u32, little-endian), CRC-32C of the payload (u32), payload
//! (bincode).
//!
//! TCP's checksum is weak, and a flipped bit that still decodes could break safety: every frame has
//! a checksum of its own.
//!
//! Public for programs between two nodes that decode their messages, such as the proxy of the
//! conformance tests.

use palisade_client::codec::{self, CodecError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::limits;

/// Length of what precedes the payload of a frame, in bytes.
pub(super) const HEADER: usize = 8;

/// Why a frame was rejected. The connection ends with it.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The frame exceeds the limit.
    #[error("a frame of {0} bytes is over the limit of {1} bytes")]
    TooLong(usize, usize),
    /// The bytes are the beginning of another protocol.
    #[error("{0}")]
    OtherProtocol(&'static str),
    /// The frame was corrupted on the way.
    #[error("a frame's checksum does not match its content: it was corrupted on the way")]
    Checksum,
    /// The frame does not decode as the expected type.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Appends `value` to `buffer` as one frame.
pub fn encode<T: Serialize>(value: &T, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; HEADER]);
    codec::encode_into(value, buffer);
    let payload = &buffer[start + HEADER..];
    let length = u32::try_from(payload.len()).expect("no message comes near 4 GiB: limits.rs bounds its parts");
    let crc = crc32c::crc32c(payload);
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
    buffer[start + 4..start + HEADER].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the frame at the beginning of `bytes`, if it is complete, and returns its length too.
///
/// # Errors
/// If the frame is not of this type, or longer than `limit`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<Option<(T, usize)>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (length, crc) = (word(0) as usize, word(4));
    if length > limit {
        return Err(other_protocol(header).unwrap_or(FrameError::TooLong(length, limit)));
    }
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    if crc32c::crc32c(payload) != crc {
        return Err(FrameError::Checksum);
    }
    Ok(Some((codec::decode(payload)?, HEADER + length)))
}

/// What an operator reads of a program that connects to the port for nodes, and does not speak the nodes' protocol.
fn other_protocol(beginning: &[u8; HEADER]) -> Option<FrameError> {
    Some(FrameError::OtherProtocol(match beginning {
        // The record of a handshake, which has a version that begins with 3, and the hello of a client in it.
        [0x16, 3, _, _, _, 1, ..] => {
            "the other side speaks TLS, and this node was started without it: give --tls-ca, --tls-cert and --tls-key to all \
             nodes, or to none"
        }
        [b'G', b'E', b'T', b' ', ..] | [b'P', b'O', b'S', b'T', b' ', ..] | [b'P', b'U', b'T', b' ', ..] => {
            "the other side speaks HTTP, and this is the port for nodes: give it the address for clients (--client-addr)"
        }
        _ => return None,
    }))
}

/// Reads until one frame is complete, and leaves the bytes after it in `bytes`. `None` if the
/// stream ends before.
pub(super) async fn read<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
    limit: usize,
) -> Result<Option<T>, ReadError> {
    loop {
        if let Some((value, used)) = decode(bytes, limit)? {
            bytes.drain(..used);
            return Ok(Some(value));
        }
        if stream.read_buf(bytes).await? == 0 {
            return Ok(None);
        }
    }
}

/// Capacity in bytes to which an empty buffer is shrunk.
pub(super) const BUFFER_KEPT: usize = 1 << 20;
/// Maximum size of a frame in the handshake, in bytes.
pub const HELLO_BYTES: usize = 4096;
/// Maximum size of a frame after the handshake, in bytes.
pub const MESSAGE_BYTES: usize = limits::PEER_FRAME_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_with_their_lengths() {
        let mut buffer = Vec::new();
        encode(&"first".to_string(), &mut buffer);
        let length = buffer.len();
        encode(&"second".to_string(), &mut buffer);
        let (value, used) = decode::<String>(&buffer, 100).unwrap().unwrap();
        assert_eq!((value.as_str(), used), ("first", length));
        assert_eq!(decode::<String>(&buffer[length..], 100).unwrap().unwrap().0, "second");
    }

    #[test]
    fn partial_frames_are_incomplete_and_flipped_bits_are_rejected() {
        let mut frame = Vec::new();
        encode(&"content".to_string(), &mut frame);
        for cut in 0..frame.len() {
            assert!(decode::<String>(&frame[..cut], 100).unwrap().is_none(), "cut at {cut}");
        }
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let decoded = decode::<String>(&damaged, 100);
            assert!(!matches!(decoded, Ok(Some(_))), "bit {bit} went unnoticed");
        }
    }

    #[test]
    fn frame_over_the_limit_is_rejected_by_its_header() {
        let mut frame = Vec::new();
        encode(&"x".repeat(200), &mut frame);
        assert!(matches!(decode::<String>(&frame[..8], 100), Err(FrameError::TooLong(_, 100))));
    }

    /// Goal: an operator who gives TLS to some nodes only, or the wrong port to a client, reads that, and not the length
    /// of a frame.
    #[test]
    fn other_protocols_are_named() {
        for (bytes, name) in [
            (&[0x16, 3, 1, 1, 0x2c, 1, 0, 1][..], "speaks TLS"),
            (b"GET /v1/ws HTTP/1.1\r\n", "speaks HTTP"),
            (b"POST /v1/locks/a/acquire HTTP/1.1\r\n", "speaks HTTP"),
        ] {
            let error = decode::<String>(bytes, HELLO_BYTES).unwrap_err().to_string();
            assert!(error.contains(name), "{bytes:?}: {error}");
        }
    }
}
