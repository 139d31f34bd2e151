//! The secret keys: an offline root that certifies, and a node's key that signs.

use std::fmt;

use crate::format::{
    CERTIFICATE_DOMAIN, Certificate, GRANT_DOMAIN, Grant, PREFIX, certificate_bytes, grant_bytes,
    read_signed_certificate,
};
use crate::keys::{KeyId, PublicKey, Root};
use crate::secret::Secret;
use crate::text::{Malformed, encode_text};

/// A root's secret key. It belongs on a machine that is not part of the cluster.
pub struct RootKey(Secret);

/// What a certificate says of a signing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The cluster's name: 1 to 255 bytes.
    pub cluster: String,
    /// The restore epoch.
    pub epoch: u64,
    /// The first second at which the certificate counts, since 1970.
    pub not_before: u64,
    /// The first second at which it no longer counts.
    pub not_after: u64,
}

/// Why a root issues no such certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// The cluster's name does not fit the format.
    #[error("the cluster's name has {0} bytes; it may have 1 to 255")]
    Cluster(usize),
    /// The certificate would never be valid.
    #[error("the certificate would end at {not_after}, not after its begin at {not_before}; give a later end")]
    Window {
        /// Its begin, in seconds since 1970.
        not_before: u64,
        /// Its end.
        not_after: u64,
    },
    /// The secret is a key that no verifier accepts.
    #[error("this secret has a public key that no verifier accepts; draw another one")]
    Key,
}

/// A key that signs grants, and its certificate.
pub struct Signer {
    key: Secret,
    id: KeyId,
    certificate: Certificate,
    /// The end of every signed token: `.` and the certificate in base64url.
    certificate_text: String,
}

impl RootKey {
    /// The root of this secret: 32 bytes from a cryptographic random generator.
    pub fn from_seed(seed: [u8; 32]) -> RootKey {
        RootKey(Secret::from_seed(seed))
    }

    pub(crate) fn seed(&self) -> [u8; 32] {
        self.0.seed()
    }

    /// The public key, which resources are given.
    ///
    /// # Errors
    /// If the public key is one that verifiers refuse.
    pub fn root(&self) -> Result<Root, IssueError> {
        PublicKey::new(&self.0.public_key()).map(Root::from_key).ok_or(IssueError::Key)
    }

    /// Certifies the signing key of this secret: 32 bytes from a cryptographic random generator.
    ///
    /// # Errors
    /// If the terms do not make sense.
    pub fn issue(&self, seed: [u8; 32], terms: &Terms) -> Result<Signer, IssueError> {
        let key = Secret::from_seed(seed);
        let public_key = key.public_key();
        PublicKey::new(&public_key).ok_or(IssueError::Key)?;
        if !(1..=255).contains(&terms.cluster.len()) {
            return Err(IssueError::Cluster(terms.cluster.len()));
        }
        let (not_before, not_after) = (terms.not_before, terms.not_after);
        if not_before >= not_after {
            return Err(IssueError::Window { not_before, not_after });
        }
        let (root, cluster, epoch) = (self.root()?.id(), terms.cluster.clone(), terms.epoch);
        Ok(self.certify(key, Certificate { root, cluster, epoch, not_before, not_after, public_key }))
    }

    fn certify(&self, key: Secret, certificate: Certificate) -> Signer {
        let mut bytes = certificate_bytes(&certificate);
        let signature = self.0.sign(&[CERTIFICATE_DOMAIN, &bytes].concat());
        bytes.extend(signature);
        Signer::of(key, certificate, &encode_text(&bytes))
    }
}

impl Signer {
    fn of(key: Secret, certificate: Certificate, certificate_text: &str) -> Signer {
        let id = KeyId::of(&certificate.public_key);
        Signer { key, id, certificate, certificate_text: format!(".{certificate_text}") }
    }

    /// The signer of this secret and certificate. The root's signature is not checked here: a
    /// verifier checks it.
    pub(crate) fn from_parts(seed: [u8; 32], certificate_text: &str) -> Result<Signer, Malformed> {
        let (certificate, ..) = read_signed_certificate(certificate_text)?;
        let key = Secret::from_seed(seed);
        if key.public_key() != certificate.public_key {
            return Err(Malformed::new("the certificate is of another key than the secret beside it"));
        }
        Ok(Signer::of(key, certificate, certificate_text))
    }

    pub(crate) fn parts(&self) -> ([u8; 32], &str) {
        (self.key.seed(), &self.certificate_text[1..])
    }

    /// The key's ID.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The key's certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Signs a grant of the certificate's cluster and epoch, and returns the text form.
    ///
    /// # Panics
    /// If the key has no or more than 65,535 bytes.
    pub fn sign(&self, key: &str, token: u64, session: u64) -> String {
        let Certificate { cluster, epoch, .. } = &self.certificate;
        let grant = Grant { cluster: cluster.clone(), epoch: *epoch, key: key.to_owned(), token, session };
        self.sign_grant(&grant)
    }

    /// Signs any grant, also one that the certificate does not cover: for tests of verifiers.
    #[doc(hidden)]
    pub fn sign_grant(&self, grant: &Grant) -> String {
        let mut bytes = grant_bytes(self.id, grant);
        let signature = self.key.sign(&[GRANT_DOMAIN, &bytes].concat());
        bytes.extend(signature);
        let mut text = String::with_capacity(PREFIX.len() + bytes.len() * 4 / 3 + 2 + self.certificate_text.len());
        text.push_str(PREFIX);
        text.push_str(&encode_text(&bytes));
        text.push_str(&self.certificate_text);
        text
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootKey(secret)")
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.id)
    }
}
