//! Makes genuine and forged tokens, byte by byte, without the crate's encoder.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer as _, SigningKey};
use sha2::{Digest, Sha256};

pub(crate) const GRANT_DOMAIN: &[u8] = b"palisade fence 1 grant\0";
const CERTIFICATE_DOMAIN: &[u8] = b"palisade fence 1 certificate\0";
/// The window of all certificates that have no other.
pub(crate) const BEGIN: u64 = 1_700_000_000;
pub(crate) const END: u64 = BEGIN + 90 * 86_400;

pub(crate) fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

pub(crate) fn id(public_key: &[u8; 32]) -> [u8; 8] {
    *<[u8; 32]>::from(Sha256::digest(public_key)).first_chunk().unwrap()
}

pub(crate) fn id_of(key: &SigningKey) -> [u8; 8] {
    id(key.verifying_key().as_bytes())
}

pub(crate) fn root_text(key: &SigningKey) -> String {
    format!("fence1root.{}", text(key.verifying_key().as_bytes()))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The fields of a certificate.
#[derive(Clone)]
pub(crate) struct Certificate {
    pub(crate) root_id: [u8; 8],
    pub(crate) cluster: &'static str,
    pub(crate) epoch: u64,
    pub(crate) window: (u64, u64),
    pub(crate) public_key: [u8; 32],
}

impl Certificate {
    /// Of `key`, by `root`, for cluster `billing` in epoch 0.
    pub(crate) fn of(key: &SigningKey, root: &SigningKey) -> Certificate {
        let public_key = key.verifying_key().to_bytes();
        Certificate { root_id: id_of(root), cluster: "billing", epoch: 0, window: (BEGIN, END), public_key }
    }

    pub(crate) fn payload(&self) -> Vec<u8> {
        let mut bytes = self.root_id.to_vec();
        bytes.push(u8::try_from(self.cluster.len()).unwrap());
        bytes.extend(self.cluster.as_bytes());
        for number in [self.epoch, self.window.0, self.window.1] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.public_key);
        bytes
    }

    pub(crate) fn signed_by(&self, root: &SigningKey) -> String {
        text(&signed(CERTIFICATE_DOMAIN, &self.payload(), root))
    }
}

/// The fields of a grant.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) key_id: [u8; 8],
    pub(crate) cluster: &'static str,
    pub(crate) epoch: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) token: u64,
    pub(crate) session: u64,
}

impl Grant {
    /// Of lock `report`, in cluster `billing`, by `key`.
    pub(crate) fn by(key: &SigningKey, token: u64, session: u64) -> Grant {
        Grant { key_id: id_of(key), cluster: "billing", epoch: 0, key: b"report".to_vec(), token, session }
    }

    pub(crate) fn payload(&self) -> Vec<u8> {
        let mut bytes = self.key_id.to_vec();
        bytes.push(u8::try_from(self.cluster.len()).unwrap());
        bytes.extend(self.cluster.as_bytes());
        bytes.extend(self.epoch.to_be_bytes());
        bytes.extend(u16::try_from(self.key.len()).unwrap().to_be_bytes());
        bytes.extend(&self.key);
        bytes.extend(self.token.to_be_bytes());
        bytes.extend(self.session.to_be_bytes());
        bytes
    }

    /// The bytes with a genuine signature.
    pub(crate) fn signed_by(&self, key: &SigningKey) -> Vec<u8> {
        signed(GRANT_DOMAIN, &self.payload(), key)
    }
}

/// A payload and its signature.
pub(crate) fn signed(domain: &[u8], payload: &[u8], key: &SigningKey) -> Vec<u8> {
    let signature = key.sign(&[domain, payload].concat());
    [payload, &signature.to_bytes()].concat()
}

/// The whole text.
pub(crate) fn token(grant: &[u8], certificate: &str) -> String {
    format!("fence1.{}.{certificate}", text(grant))
}

/// The order of the group, 2^252 + 27742317777372353535851937790883648493, little-endian.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

/// The same signature with the order added to its scalar: a lenient verifier accepts both.
pub(crate) fn with_larger_scalar(signed: &[u8]) -> Vec<u8> {
    let mut bytes = signed.to_vec();
    let scalar = bytes.last_chunk_mut::<32>().unwrap();
    let mut carry = 0;
    for (byte, order) in scalar.iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        *byte = u8::try_from(sum & 0xff).unwrap();
        carry = sum >> 8;
    }
    assert_eq!(carry, 0);
    bytes
}

/// The same base64url text with unused bits set in its last character: a lenient decoder reads the
/// same bytes.
pub(crate) fn with_unused_bits(text: &str) -> String {
    assert_ne!(text.len() % 4, 0, "the text has unused bits");
    let (start, last) = text.split_at(text.len() - 1);
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let index = alphabet.find(last).unwrap();
    format!("{start}{}", alphabet.chars().nth(index + 1).unwrap())
}
