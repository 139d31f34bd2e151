//! The secret that a client presents for its session, and the proof of it that the replicated state
//! keeps.
//!
//! The server that proposes a session draws a [`Secret`], and gives it to the client once, in the
//! session's credential ([`WireSession`]). The log, the snapshots, the recordings and the table have
//! only the session's number and a [`Proof`]: a hash of the secret and of the **principal**, the
//! authenticated name of the client. So nothing that is stored or shown opens a session; and a
//! session belongs to its principal, because the same secret from another principal makes another
//! proof, with which the table finds no session (docs/decisions/0023).

use std::fmt;

use palisade_client::wire::SessionId as WireSession;
use palisade_spec::lock::{Proof, SessionId};
use sha2::{Digest, Sha256};

/// The principal of a client that was not authenticated.
pub const NO_PRINCIPAL: &str = "";

/// Separates these hashes from all others. A secret has a fixed length, so the principal after it
/// begins at a fixed offset.
const DOMAIN: &[u8] = b"palisade session proof 1\0";

/// Random bytes that only the client of one session knows. Not shown by `Debug`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 10]);

impl Secret {
    /// A new secret: 80 bits from the system's generator of keys.
    pub fn draw() -> Secret {
        Secret(rand::random())
    }

    /// A secret that a test has drawn.
    pub fn from_bytes(bytes: [u8; 10]) -> Secret {
        Secret(bytes)
    }

    /// The secret in a credential.
    pub fn of(credential: WireSession) -> Secret {
        Secret(credential.secret())
    }

    /// The credential of the session of this number.
    ///
    /// # Panics
    /// If the number has more than 48 bits: the leader opens no such session
    /// ([`limits::SESSION_NUMBERS`](crate::limits::SESSION_NUMBERS)).
    pub fn credential(self, number: u64) -> WireSession {
        WireSession::new(number, self.0).expect("the leader opens no session whose number does not fit")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The proof that `principal` knows `secret`: the first 128 bits of a SHA-256.
pub fn session_proof(secret: Secret, principal: &str) -> Proof {
    let hash = Sha256::new().chain_update(DOMAIN).chain_update(secret.0).chain_update(principal).finalize();
    let (first, _) = hash.split_first_chunk().expect("a SHA-256 has 256 bits");
    Proof::from(u128::from_be_bytes(*first))
}

/// The session that `principal` names with a credential.
pub fn session_id(credential: WireSession, principal: &str) -> SessionId {
    SessionId { number: credential.number(), proof: session_proof(Secret::of(credential), principal) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);

    /// The proof is stored: a change of the function would disown every session of a cluster that is
    /// upgraded. The values were computed with `sha256sum`.
    #[test]
    fn proof_is_pinned() {
        assert_eq!(u128::from(session_proof(SECRET, NO_PRINCIPAL)), 0xc56d_1af9_e0f7_c5ce_c831_26a5_e2b6_799e);
        assert_eq!(u128::from(session_proof(SECRET, "worker-7")), 0x612b_3c67_0d16_5968_2f0c_d4f0_d958_7ecb);
    }

    #[test]
    fn session_belongs_to_its_principal() {
        let credential = SECRET.credential(17);
        let own = session_id(credential, "alice");
        assert_eq!(own.number, 17);
        assert_eq!(session_id(credential, "alice"), own);
        for other in ["bob", "", "alice\0", "Alice"] {
            assert_ne!(session_id(credential, other), own, "{other:?}");
        }
        assert_ne!(session_id(Secret([0; 10]).credential(17), "alice"), own);
    }

    #[test]
    fn secrets_differ_and_are_not_shown() {
        assert_ne!(Secret::draw(), Secret::draw());
        assert_eq!(format!("{:?}", SECRET), "Secret");
        assert_eq!(Secret::of(SECRET.credential(1)), SECRET);
    }
}
