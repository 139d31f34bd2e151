//! A secret key, and the signatures that it makes.
//!
//! Ed25519 is deterministic: every implementation makes the same signature of a message. With the
//! feature `fast-signing`, `graviola` makes it in less than half the time of `ed25519-dalek`, where
//! the processor has the instructions that it needs. Verifiers do without it.

use ed25519_dalek::{Signer as _, SigningKey};

/// A secret key for Ed25519.
pub(crate) struct Secret {
    key: SigningKey,
    /// The same key for `graviola`.
    fast: Option<fast::Key>,
}

impl Secret {
    pub(crate) fn from_seed(seed: [u8; 32]) -> Secret {
        Secret { key: SigningKey::from_bytes(&seed), fast: fast::key(&seed) }
    }

    pub(crate) fn seed(&self) -> [u8; 32] {
        self.key.to_bytes()
    }

    pub(crate) fn public_key(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 64] {
        match &self.fast {
            Some(fast) => fast.sign(message),
            None => self.key.sign(message).to_bytes(),
        }
    }
}

#[cfg(all(feature = "fast-signing", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod fast {
    pub(super) use graviola::signing::eddsa::Ed25519SigningKey as Key;
    use zeroize::Zeroize as _;

    /// What precedes the 32 bytes of a secret in PKCS #8 (RFC 8410, section 7), the only form that the library reads.
    const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

    /// The key, if this processor can compute with it: on another one the library panics.
    pub(super) fn key(seed: &[u8; 32]) -> Option<Key> {
        if !is_supported() {
            return None;
        }
        let mut encoded = [0; PKCS8.len() + 32];
        encoded[..PKCS8.len()].copy_from_slice(&PKCS8);
        encoded[PKCS8.len()..].copy_from_slice(seed);
        let key = Key::from_pkcs8_der(&encoded).ok();
        encoded.zeroize();
        key
    }

    /// Whether the processor has what graviola's documentation asks for.
    #[cfg(target_arch = "x86_64")]
    fn is_supported() -> bool {
        use std::arch::is_x86_feature_detected as has;
        let for_vectors = has!("ssse3") && has!("avx") && has!("avx2");
        for_vectors && has!("aes") && has!("pclmulqdq") && has!("adx") && has!("bmi1") && has!("bmi2")
    }

    #[cfg(target_arch = "aarch64")]
    fn is_supported() -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        has!("neon") && has!("aes") && has!("pmull") && has!("sha2")
    }
}

#[cfg(not(all(feature = "fast-signing", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod fast {
    pub(super) enum Key {}

    impl Key {
        pub(super) fn sign(&self, _: &[u8]) -> [u8; 64] {
            match *self {}
        }
    }

    pub(super) fn key(_: &[u8; 32]) -> Option<Key> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: both implementations make the same signatures, so a node may have either.
    #[test]
    fn fast_and_portable_signatures_are_the_same() {
        if cfg!(feature = "fast-signing") && fast::key(&[1; 32]).is_none() {
            eprintln!("SKIPPED: this processor has not what graviola needs");
            return;
        }
        for seed in [[0; 32], [0xFF; 32], *b"the secret of a node, 32 bytes..", [7; 32]] {
            let secret = Secret::from_seed(seed);
            let portable = Secret { key: SigningKey::from_bytes(&seed), fast: None };
            for length in 0..300 {
                let message: Vec<u8> = (0..=u8::MAX).cycle().skip(length).take(length).collect();
                assert_eq!(secret.sign(&message), portable.sign(&message), "{seed:?}, {length} bytes");
            }
        }
    }
}
