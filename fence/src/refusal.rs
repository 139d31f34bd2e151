//! Reasons for which a fence rejects a token or does not open. Each says what happened and what to
//! do.

use std::io;
use std::path::PathBuf;

use crate::keys::KeyId;
use crate::text::Malformed;

/// Why a signed token is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The text is not exactly one signed token.
    #[error("this is not a signed token: {0}; pass the value of `signed` on unchanged")]
    Malformed(#[from] Malformed),
    /// The text has another version of the format.
    #[error("the signed token has format `{0}`, and this verifier knows `fence1`; update the verifier")]
    UnknownVersion(String),
    /// The certificate names a root that this resource does not trust.
    #[error(
        "the signing key is certified by root {0}, which this resource does not trust; add that root, or use a token of a trusted one"
    )]
    UnknownRoot(KeyId),
    /// The certificate has no valid signature of its root.
    #[error("the certificate is not signed by root {0}, which it names: it was forged or damaged")]
    ForgedCertificate(KeyId),
    /// The certified key is one that would accept forged signatures.
    #[error("the certified key {0} is not a safe Ed25519 public key; issue a certificate for another key")]
    UnsafeKey(KeyId),
    /// The signing key is on the list of refused keys.
    #[error(
        "the signing key {0} is on this resource's list of refused keys; acquire the lock anew from a node with another key"
    )]
    RefusedKey(KeyId),
    /// The certificate is for another cluster than this resource's.
    #[error("the signing key is certified for cluster `{got}`, and this resource belongs to cluster `{expected}`")]
    WrongCluster {
        /// The resource's cluster.
        expected: String,
        /// The certificate's.
        got: String,
    },
    /// The certificate's time has not come.
    #[error(
        "the certificate of key {key_id} is valid from second {not_before} on, and it is second {now}; check this machine's clock"
    )]
    NotYetValid {
        /// The signing key.
        key_id: KeyId,
        /// The begin of the window.
        not_before: u64,
        /// The verifier's time.
        now: u64,
    },
    /// The certificate's time is over.
    #[error(
        "the certificate of key {key_id} ended at second {not_after}, and it is second {now}; issue a new certificate for the \
         node (palisade fence issue), or check this machine's clock"
    )]
    Expired {
        /// The signing key.
        key_id: KeyId,
        /// The end of the window.
        not_after: u64,
        /// The verifier's time.
        now: u64,
    },
    /// The grant names another signing key than the certificate.
    #[error("the grant is signed by key {grant}, and the certificate beside it is of key {certificate}")]
    OtherKey {
        /// The key that the grant names.
        grant: KeyId,
        /// The certificate's.
        certificate: KeyId,
    },
    /// The grant has no valid signature of the certified key.
    #[error("the grant is not signed by key {0}, which it names: it was forged or changed")]
    Forged(KeyId),
    /// The grant is of another cluster than its signing key's certificate.
    #[error("the grant is of cluster `{grant}`, and its signing key is certified for cluster `{certificate}`")]
    CertificateOfAnotherCluster {
        /// The grant's cluster.
        grant: String,
        /// The certificate's.
        certificate: String,
    },
    /// The grant is of another restore epoch than its signing key's certificate.
    #[error("the grant is of restore epoch {grant}, and its signing key is certified for epoch {certificate}")]
    CertificateOfAnotherEpoch {
        /// The grant's epoch.
        grant: u64,
        /// The certificate's.
        certificate: u64,
    },
    /// The grant is of another lock.
    #[error("the token is of lock `{got}`, and this resource is protected by lock `{expected}`")]
    WrongKey {
        /// The key that the resource asks for.
        expected: String,
        /// The grant's.
        got: String,
    },
    /// The cluster was restored from a backup since this grant.
    #[error(
        "the token is of restore epoch {got}, and this resource has seen epoch {seen}: the cluster was restored since; acquire the lock anew"
    )]
    StaleEpoch {
        /// The highest epoch seen.
        seen: u64,
        /// The grant's.
        got: u64,
    },
    /// A later holder has used the resource.
    #[error("token {got} is stale: this resource has seen token {seen}, so the lock was lost; acquire it anew")]
    StaleToken {
        /// The highest token seen.
        seen: u64,
        /// The grant's.
        got: u64,
    },
    /// Two sessions have the same token: no cluster grants that.
    #[error(
        "token {token} was used by session {seen}, and now by session {got}: no cluster grants a token twice. Two clusters may share \
         name and epoch (a backup restored without a new epoch), or a signing key is stolen: stop, and see docs/fencing.md"
    )]
    TokenOfAnotherSession {
        /// The token.
        token: u64,
        /// The session that used it.
        seen: u64,
        /// The session that presents it now.
        got: u64,
    },
    /// The new highest token could not be made durable.
    #[error("the token is valid, but the highest token could not be kept in {}: {source}; free space or repair the disk, and repeat", .path.display())]
    NotPersisted {
        /// The fence's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Refusal {
    /// The refusal's short name, which the verifiers in all languages share.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::Malformed(_) => "malformed",
            Refusal::UnknownVersion(_) => "unknown_version",
            Refusal::UnknownRoot(_) => "unknown_root",
            Refusal::ForgedCertificate(_) => "forged_certificate",
            Refusal::UnsafeKey(_) => "unsafe_key",
            Refusal::RefusedKey(_) => "refused_key",
            Refusal::WrongCluster { .. } => "wrong_cluster",
            Refusal::NotYetValid { .. } => "not_yet_valid",
            Refusal::Expired { .. } => "expired",
            Refusal::OtherKey { .. } => "other_key",
            Refusal::Forged(_) => "forged",
            Refusal::CertificateOfAnotherCluster { .. } => "certificate_of_another_cluster",
            Refusal::CertificateOfAnotherEpoch { .. } => "certificate_of_another_epoch",
            Refusal::WrongKey { .. } => "wrong_key",
            Refusal::StaleEpoch { .. } => "stale_epoch",
            Refusal::StaleToken { .. } => "stale_token",
            Refusal::TokenOfAnotherSession { .. } => "token_of_another_session",
            Refusal::NotPersisted { .. } => "not_persisted",
        }
    }
}

/// Why a fence's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no file.
    #[error(
        "{} does not exist: the highest tokens are not known. Bring the file back; only for a resource that has never been used, \
         create it (Fence::create, or palisade fence verify --new)", .0.display()
    )]
    Missing(PathBuf),
    /// There is a file already.
    #[error("{} exists already: open it, or give another path", .0.display())]
    Exists(PathBuf),
    /// The content is not what a fence wrote.
    #[error("{} is damaged ({reason}): the highest tokens are not known. Bring back an undamaged copy that is not older", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file belongs to a resource of another cluster.
    #[error("{} keeps tokens of cluster `{found}`, not of `{expected}`: give another path or another cluster", .path.display())]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// The file's cluster.
        found: String,
        /// The verifier's.
        expected: String,
    },
    /// Another process, or another fence of this process, uses the file.
    #[error("{} is in use by another fence: two of them would not see one another's tokens; stop the other one", .0.display())]
    InUse(PathBuf),
    /// The system's error.
    #[error("cannot {action} {}: {source}; check the path, its permissions and the disk", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}
