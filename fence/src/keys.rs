//! Public keys and their IDs, and the verification of one signature.
//!
//! Ed25519 has corners in which implementations disagree: keys and points of small order, encodings
//! that are not canonical, scalars beyond the group's order. All of them are refused here, so that
//! the verifiers of this folder, in three languages and over two libraries, give the same answer.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature, VerifyingKey};
use sha2::{Digest, Sha256};

use crate::text::{decode_text, encode_text};

/// What the text of a root's public key begins with.
const ROOT_PREFIX: &str = "fence1root.";
/// Length of a signature in bytes.
pub(crate) const SIGNATURE: usize = 64;

/// The ID of a public key: the first 8 bytes of its SHA-256. It finds a key among several; a
/// signature proves it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 8]);

impl KeyId {
    pub(crate) fn of(public_key: &[u8; 32]) -> KeyId {
        let digest: [u8; 32] = Sha256::digest(public_key).into();
        KeyId(*digest.first_chunk().expect("a digest has 32 bytes"))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl FromStr for KeyId {
    type Err = RootTextError;

    fn from_str(text: &str) -> Result<KeyId, RootTextError> {
        let is_whole = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_whole);
        number.map(|number| KeyId(number.to_be_bytes())).ok_or(RootTextError::KeyId)
    }
}

/// A public key whose encoding is canonical and whose order is not small.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublicKey(VerifyingKey);

impl PublicKey {
    /// `None` if the bytes are no such key.
    pub(crate) fn new(bytes: &[u8; 32]) -> Option<PublicKey> {
        let key = VerifyingKey::from_bytes(bytes).ok()?;
        (is_canonical(bytes) && !key.is_weak()).then_some(PublicKey(key))
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// Whether the signature of `domain` followed by `payload` is this key's.
    pub(crate) fn verifies(&self, domain: &[u8], payload: &[u8], signature: &[u8; SIGNATURE]) -> bool {
        let message = [domain, payload].concat();
        self.0.verify_strict(&message, &Signature::from_bytes(signature)).is_ok()
    }
}

/// Whether the y coordinate is below the field's prime, 2^255 - 19.
fn is_canonical(bytes: &[u8; 32]) -> bool {
    let high_bits_set = bytes[31] & 0x7f == 0x7f && bytes[1..31].iter().all(|&byte| byte == 0xff);
    !(high_bits_set && bytes[0] >= 0xed)
}

/// The public key of a root. Its text is `fence1root.` and the key in base64url.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Root(PublicKey);

impl Root {
    pub(crate) fn from_key(key: PublicKey) -> Root {
        Root(key)
    }

    pub(crate) fn key(&self) -> &PublicKey {
        &self.0
    }

    /// The root's ID.
    pub fn id(&self) -> KeyId {
        KeyId::of(self.0.bytes())
    }
}

/// Why a text is no public key of a root, or no key ID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootTextError {
    /// The text does not begin as the text of a root does.
    #[error("a root's public key begins with `fence1root.`; give the line that `palisade fence root` prints")]
    Prefix,
    /// The rest is no key.
    #[error(
        "the text after `fence1root.` is not an Ed25519 public key; copy the whole line that `palisade fence root` prints"
    )]
    Key,
    /// The text of a key ID is something else.
    #[error("a key ID has 16 hexadecimal digits")]
    KeyId,
}

impl FromStr for Root {
    type Err = RootTextError;

    fn from_str(text: &str) -> Result<Root, RootTextError> {
        let key = text.strip_prefix(ROOT_PREFIX).ok_or(RootTextError::Prefix)?;
        let bytes = decode_text("key", key).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        bytes.and_then(|bytes| PublicKey::new(&bytes)).map(Root).ok_or(RootTextError::Key)
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ROOT_PREFIX}{}", encode_text(self.0.bytes()))
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Root({})", self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: with a key of small order, a signature exists that fits every message.
    #[test]
    fn keys_of_small_order_and_other_encodings_are_refused() {
        let mut identity = [0; 32];
        identity[0] = 1;
        // y = 2^255 - 18, which stands for 1 in encodings that are not canonical.
        let mut not_reduced = [0xff; 32];
        (not_reduced[0], not_reduced[31]) = (0xee, 0x7f);
        for bytes in [[0; 32], identity, not_reduced] {
            assert!(PublicKey::new(&bytes).is_none(), "{bytes:02x?}");
        }
        let honest = ed25519_dalek::SigningKey::from_bytes(&[7; 32]).verifying_key();
        assert!(PublicKey::new(honest.as_bytes()).is_some());
    }

    #[test]
    fn text_of_a_root_reads_back() {
        let honest = ed25519_dalek::SigningKey::from_bytes(&[7; 32]).verifying_key();
        let root = Root(PublicKey::new(honest.as_bytes()).unwrap());
        assert_eq!(root.to_string().parse::<Root>(), Ok(root));
        assert_eq!("fence1.AAAA".parse::<Root>(), Err(RootTextError::Prefix));
        assert_eq!("fence1root.AAAA".parse::<Root>(), Err(RootTextError::Key));
        assert_eq!(root.id().to_string().parse::<KeyId>(), Ok(root.id()));
        assert_eq!("12".parse::<KeyId>(), Err(RootTextError::KeyId));
    }
}
