//! Verifies a signed token: from a trusted root down to the grant, for this cluster and this key.

use std::collections::BTreeSet;

use crate::clock::Clock;
use crate::format::{CERTIFICATE_DOMAIN, Certificate, GRANT_DOMAIN, Grant, Signed};
use crate::keys::{KeyId, PublicKey, Root};
use crate::refusal::Refusal;
use crate::text::Malformed;

/// How many verified certificates are remembered, so that each grant costs one signature. A cluster
/// has one for each node, and in a rotation two.
const REMEMBERED: usize = 64;

/// Verifies signed tokens of one cluster. It has no state that counts: [`Fence`](crate::Fence)
/// remembers tokens.
#[derive(Clone, Debug)]
pub struct Verifier {
    cluster: String,
    roots: Vec<Root>,
    refused: BTreeSet<KeyId>,
    clock: Clock,
    /// Certificates with a valid signature of a trusted root, and their keys.
    verified: Vec<VerifiedCertificate>,
}

#[derive(Clone)]
struct VerifiedCertificate {
    payload: Vec<u8>,
    signature: [u8; 64],
    key: PublicKey,
}

impl std::fmt::Debug for VerifiedCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerifiedCertificate({})", KeyId::of(self.key.bytes()))
    }
}

impl Verifier {
    /// A verifier of tokens of the cluster with this name. Several roots count at once while one
    /// follows another.
    pub fn new(cluster: impl Into<String>, roots: impl IntoIterator<Item = Root>) -> Verifier {
        Verifier {
            cluster: cluster.into(),
            roots: roots.into_iter().collect(),
            refused: BTreeSet::new(),
            clock: Clock::System,
            verified: Vec::new(),
        }
    }

    /// Refuses this signing key, whatever its certificate says: it is stolen.
    #[must_use]
    pub fn refusing(mut self, key: KeyId) -> Verifier {
        self.refused.insert(key);
        self
    }

    /// Takes the time from this clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Verifier {
        self.clock = clock;
        self
    }

    /// Takes the time from this clock from now on.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The grant of a signed token, if the token is genuine and of the lock `key`.
    ///
    /// # Errors
    /// See [`Refusal`]. What a refusal says of a grant after [`Refusal::Forged`] in the order of
    /// the checks is authenticated.
    pub fn verify(&mut self, key: &str, signed: &str) -> Result<Grant, Refusal> {
        let signed = parse(signed)?;
        let signing_key = self.certified(&signed)?;
        let (grant, certificate) = (signed.grant, &signed.certificate);
        let key_id = KeyId::of(signing_key.bytes());
        if signed.key_id != key_id {
            return Err(Refusal::OtherKey { grant: signed.key_id, certificate: key_id });
        }
        if !signing_key.verifies(GRANT_DOMAIN, &signed.grant_payload, &signed.grant_signature) {
            return Err(Refusal::Forged(key_id));
        }
        if grant.cluster != certificate.cluster {
            let certificate = certificate.cluster.clone();
            return Err(Refusal::CertificateOfAnotherCluster { grant: grant.cluster, certificate });
        }
        if grant.epoch != certificate.epoch {
            return Err(Refusal::CertificateOfAnotherEpoch { grant: grant.epoch, certificate: certificate.epoch });
        }
        if grant.key != key {
            return Err(Refusal::WrongKey { expected: key.to_owned(), got: grant.key });
        }
        Ok(grant)
    }

    /// The key of the certificate, if a trusted root has certified it for this cluster and now.
    fn certified(&mut self, signed: &Signed) -> Result<PublicKey, Refusal> {
        let key = self.verified_key(signed)?;
        let Certificate { cluster, not_before, not_after, .. } = &signed.certificate;
        let (key_id, not_before, not_after) = (KeyId::of(key.bytes()), *not_before, *not_after);
        if *cluster != self.cluster {
            return Err(Refusal::WrongCluster { expected: self.cluster.clone(), got: cluster.clone() });
        }
        if self.refused.contains(&key_id) {
            return Err(Refusal::RefusedKey(key_id));
        }
        match self.clock.now() {
            Some(now) if now < not_before => Err(Refusal::NotYetValid { key_id, not_before, now }),
            Some(now) if now >= not_after => Err(Refusal::Expired { key_id, not_after, now }),
            _ => Ok(key),
        }
    }

    /// The certificate's key, if a trusted root has signed the certificate.
    fn verified_key(&mut self, signed: &Signed) -> Result<PublicKey, Refusal> {
        let Signed { certificate, certificate_payload: payload, certificate_signature: signature, .. } = signed;
        let known = |known: &&VerifiedCertificate| known.payload == *payload && known.signature == *signature;
        if let Some(known) = self.verified.iter().find(known) {
            return Ok(known.key);
        }
        let id = certificate.root;
        let root = self.roots.iter().find(|root| root.id() == id).ok_or(Refusal::UnknownRoot(id))?;
        if !root.key().verifies(CERTIFICATE_DOMAIN, payload, signature) {
            return Err(Refusal::ForgedCertificate(id));
        }
        let key = PublicKey::new(&certificate.public_key);
        let key = key.ok_or_else(|| Refusal::UnsafeKey(KeyId::of(&certificate.public_key)))?;
        if self.verified.len() == REMEMBERED {
            self.verified.remove(0);
        }
        self.verified.push(VerifiedCertificate { payload: payload.clone(), signature: *signature, key });
        Ok(key)
    }
}

/// The parts of the text, or that it has another version.
fn parse(text: &str) -> Result<Signed, Refusal> {
    let version = text.split('.').next().unwrap_or_default();
    let number = version.strip_prefix("fence").unwrap_or_default();
    let is_version = !number.is_empty() && number.len() <= 3 && number.bytes().all(|digit| digit.is_ascii_digit());
    if is_version && number != "1" {
        return Err(Refusal::UnknownVersion(version.to_owned()));
    }
    Signed::parse(text).map_err(|malformed: Malformed| Refusal::Malformed(malformed))
}
