//! The credential of a session.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// How many bits a session's public number has in its credential.
const NUMBER_BITS: u32 = 48;
/// In bytes.
const SECRET_BYTES: usize = 10;

/// A session's credential: its public number and its secret. The server gives it out once, to the client that opens the
/// session; a client that presents it is that client. On the wire it is a UUID: 48 bits of the number, then 80 bits of the
/// secret.
///
/// Lists and queues show the number alone, which opens nothing. A client finds its own session in them by the number.
// `Debug` shows the number alone, too. `Display` has the secret, for requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct SessionId(Uuid);

impl SessionId {
    /// The credential of session `number`; `None` if the number has more than 48 bits.
    pub fn new(number: u64, secret: [u8; SECRET_BYTES]) -> Option<SessionId> {
        let mut bytes = [0; 16];
        bytes[6..].copy_from_slice(&secret);
        let secret = u128::from_be_bytes(bytes);
        (number >> NUMBER_BITS == 0)
            .then(|| SessionId(Uuid::from_u128(u128::from(number) << (8 * SECRET_BYTES) | secret)))
    }

    /// The session's public number.
    pub fn number(self) -> u64 {
        self.0.as_u64_pair().0 >> (64 - NUMBER_BITS)
    }

    /// What only the client that opened the session knows.
    pub fn secret(self) -> [u8; SECRET_BYTES] {
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(&self.0.as_bytes()[6..]);
        secret
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({}, with its secret)", self.number())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for SessionId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<SessionId, uuid::Error> {
        text.parse().map(SessionId)
    }
}

#[cfg(test)]
mod tests {
    use super::SessionId;

    const SECRET: [u8; 10] = [0xa1, 0xb2, 0xc3, 0xd4, 0xe5, 0xf6, 0x07, 0x18, 0x29, 0x3a];

    #[test]
    fn credential_is_a_uuid_of_number_and_secret() {
        let session = SessionId::new(0x1234, SECRET).unwrap();
        assert_eq!(session.to_string(), "00000000-1234-a1b2-c3d4-e5f60718293a");
        assert_eq!("00000000-1234-a1b2-c3d4-e5f60718293a".parse(), Ok(session));
        assert_eq!((session.number(), session.secret()), (0x1234, SECRET));
    }

    #[test]
    fn number_has_48_bits() {
        let last = (1 << 48) - 1;
        assert_eq!(SessionId::new(last, SECRET).map(SessionId::number), Some(last));
        assert_eq!(SessionId::new(last + 1, SECRET), None);
    }

    /// A program that prints what it holds, or panics with it, must not print the secret.
    #[test]
    fn debug_output_has_no_secret() {
        let session = SessionId::new(17, SECRET).unwrap();
        assert_eq!(format!("{session:?}"), "SessionId(17, with its secret)");
    }
}
