//! Signs grants on their way to the client, so that a resource need not believe a client's token
//! (docs/fencing.md).
//!
//! The tasks that encode answers call it, never the core's thread. A signature depends on nothing
//! but the grant, so every node may sign with a key of its own, and a repeated answer is signed
//! again. The key's file is read again when it changes: a new certificate takes over without a
//! restart, and a file that cannot be used leaves the old key in place.
//!
//! The end of a certificate keeps no node from starting or signing: the resources compare it with
//! their clocks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::wire::Acquired;
use palisade_fence::{KeyFileError, Signer, unix_time};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::certificate_end::CertificateEnd;
use crate::limits::RESTORE_GAP;
use crate::log_pause::LogPause;
use crate::sync::Mutex;

/// How often the key's file is looked at.
const CHECKED_EVERY: Duration = Duration::from_secs(1);
/// How often the log repeats what keeps grants from being signed, or a new file from being used.
const FAULT_EVERY: Duration = Duration::from_secs(60);

const CERTIFICATE_END: CertificateEnd = CertificateEnd {
    of: "the signing key",
    then: "resources refuse the tokens",
    advice: "issue a new key in its file's place (palisade fence issue)",
};

/// Why a node cannot sign with the key that it was given.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// The file cannot be read, others can read it, or it has something else.
    #[error("{0} (--sign-grants)")]
    File(#[from] KeyFileError),
    /// The certificate is for another cluster.
    #[error("the key in {} is certified for cluster `{certified}`, and this node belongs to cluster `{cluster}`: issue one for `{cluster}` (palisade fence issue --cluster)", .path.display())]
    Cluster {
        /// The key's file.
        path: PathBuf,
        /// The certificate's cluster.
        certified: String,
        /// The node's cluster.
        cluster: String,
    },
    /// The cluster began with a backup, and the certificate is of the first epoch.
    #[error(
        "the key in {} is certified for restore epoch 0, and this cluster was restored from a backup: resources could not tell its \
         grants from those of the old cluster. Issue a key with --epoch one higher than that of the old cluster's keys",
        .path.display()
    )]
    Epoch {
        /// The key's file.
        path: PathBuf,
    },
}

/// The key of a node that signs grants.
#[derive(Debug)]
pub struct GrantSigner {
    path: PathBuf,
    cluster: String,
    restored: bool,
    signer: Mutex<Arc<Signer>>,
    pause: LogPause,
}

/// Reads a key's file for a node of this cluster, which may have begun with a backup.
///
/// # Errors
/// If the key must not sign for this cluster.
pub fn open(path: &Path, cluster: &str, restored: bool) -> Result<Arc<GrantSigner>, SigningError> {
    let signer = check(path, Some(cluster), restored)?;
    let certificate = signer.certificate();
    info!(
        key = %signer.id(),
        root = %certificate.root,
        epoch = certificate.epoch,
        days_left = certificate.not_after.saturating_sub(unix_time()) / 86_400,
        "this node signs the grants that it answers"
    );
    let (path, cluster, signer) = (path.to_owned(), cluster.to_owned(), Mutex::new(Arc::new(signer)));
    Ok(Arc::new(GrantSigner { path, cluster, restored, signer, pause: LogPause::default() }))
}

/// Reads a key's file, and compares its certificate with what is known of the cluster: its name, and
/// whether it began with a backup.
///
/// # Errors
/// If the key must not sign for this cluster.
pub fn check(path: &Path, cluster: Option<&str>, restored: bool) -> Result<Signer, SigningError> {
    let signer = Signer::load(path)?;
    let (certificate, path) = (signer.certificate(), path.to_owned());
    if let Some(cluster) = cluster.filter(|&cluster| cluster != certificate.cluster) {
        let (certified, cluster) = (certificate.cluster.clone(), cluster.to_owned());
        return Err(SigningError::Cluster { path, certified, cluster });
    }
    if restored && certificate.epoch == 0 {
        return Err(SigningError::Epoch { path });
    }
    Ok(signer)
}

/// Looks at the key's file again and again.
pub(crate) async fn watch(signer: Arc<GrantSigner>) {
    loop {
        sleep(CHECKED_EVERY).await;
        let signer = Arc::clone(&signer);
        // If the runtime is shutting down, no task waits for the result.
        let _ = spawn_blocking(move || signer.look_at_file()).await;
    }
}

impl GrantSigner {
    /// Adds the signed tokens to a grant, one for each key; leaves them out if the key must not sign this grant.
    pub(crate) fn sign(&self, acquired: &mut Acquired) {
        let signer = Arc::clone(&self.signer.lock());
        // Every restore advances the tokens by one gap, so a grant's token shows at least how often
        // its cluster was restored, also to a node that joined later.
        let (restores, epoch) = (acquired.token / RESTORE_GAP, signer.certificate().epoch);
        if restores > epoch {
            let line = format!(
                "the signing key is certified for restore epoch {epoch}, and the tokens show {restores} restores"
            );
            if let Some(repeats) = self.pause.due(&line, FAULT_EVERY, Instant::now()) {
                error!(repeats, "grants are not signed: {line}; issue keys with --epoch {restores} or higher");
            }
            return;
        }
        // The session's number is public; its secret is not signed.
        let sign = |key: &String| signer.sign(key, acquired.token, acquired.session.number());
        acquired.signed = acquired.keys.iter().map(sign).collect();
    }

    /// Takes over a changed file, and warns of the certificate's end.
    fn look_at_file(&self) {
        let current = Arc::clone(&self.signer.lock());
        match check(&self.path, Some(&self.cluster), self.restored) {
            Ok(new) if new.certificate() != current.certificate() => {
                info!(key = %new.id(), epoch = new.certificate().epoch, "took over a new signing key");
                *self.signer.lock() = Arc::new(new);
            }
            Ok(_) => {}
            Err(error) => {
                let line =
                    format!("the file of the signing key cannot be used, and the key from before signs on: {error}");
                if let Some(repeats) = self.pause.due(&line, FAULT_EVERY, Instant::now()) {
                    warn!(repeats, "{line}");
                }
            }
        }
        let end = self.signer.lock().certificate().not_after;
        CERTIFICATE_END.warn(end, &self.pause);
    }
}

#[cfg(test)]
mod tests {
    use palisade_client::wire::SessionId;
    use palisade_fence::{Clock, RootKey, Terms, Verifier};

    use super::*;

    const END: u64 = 1_700_000_000;

    fn signer(epoch: u64) -> GrantSigner {
        let terms = Terms { cluster: "billing".into(), epoch, not_before: END - 10, not_after: END };
        let signer = RootKey::from_seed([1; 32]).issue([2; 32], &terms).unwrap();
        let (path, cluster, signer) = (PathBuf::new(), "billing".into(), Mutex::new(Arc::new(signer)));
        GrantSigner { path, cluster, restored: false, signer, pause: LogPause::default() }
    }

    fn signed(epoch: u64, token: u64) -> Option<String> {
        let session = SessionId::new(3, [0xFF; 10]).unwrap();
        let keys = ["invoices", "report"].into();
        let mut acquired = Acquired { keys, token, session, ttl_ms: 1, signed: Vec::new() };
        signer(epoch).sign(&mut acquired);
        acquired.signed.pop()
    }

    /// Goal: the token is signed with the session's number, and not with what makes the session
    /// impossible to guess. This machine's clock, by which the certificate has ended, plays no part.
    #[test]
    fn grant_is_signed_with_the_sessions_number() {
        let root = RootKey::from_seed([1; 32]).root().unwrap();
        let mut verifier = Verifier::new("billing", [root]).with_clock(Clock::At(END - 1));
        let grant = verifier.verify("report", &signed(0, 7).unwrap()).unwrap();
        assert_eq!((grant.token, grant.session), (7, 3));
    }

    /// Goal: a cluster that was restored more often than its key's epoch says signs nothing, so that
    /// no resource takes its grants for those of the old cluster.
    #[test]
    fn tokens_show_how_often_the_cluster_was_restored() {
        let is_signed = |epoch, token| signed(epoch, token).is_some();
        assert!(is_signed(0, RESTORE_GAP - 1) && !is_signed(0, RESTORE_GAP));
        assert!(is_signed(1, RESTORE_GAP) && is_signed(1, 2 * RESTORE_GAP - 1) && !is_signed(1, 2 * RESTORE_GAP));
        assert!(is_signed(7, 1), "the operator may count further than the tokens show");
    }
}
