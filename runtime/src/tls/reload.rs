//! The files are read again at intervals, and used once they have changed: when two readings in a
//! row have found the same, for a file that is rewritten in place may be read half.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use super::material::Material;
use super::{Tls, TlsError};
use crate::certificate_end::CertificateEnd;

/// How often the files are read.
const EVERY: Duration = Duration::from_secs(1);

const CERTIFICATE_END: CertificateEnd = CertificateEnd {
    of: "--tls-cert",
    then: "nodes and clients refuse new connections with this node",
    advice: "issue another one in its file's place (palisade cert node); no restart is needed",
};

/// What was new at the last reading, until the next one has found the same.
#[derive(Debug)]
pub(super) struct Unsettled<T>(Option<T>);

impl<T> Default for Unsettled<T> {
    fn default() -> Unsettled<T> {
        Unsettled(None)
    }
}

impl<T: Clone + PartialEq> Unsettled<T> {
    /// Whether a reading found the same as the one before it, and something else than what is in use.
    pub(super) fn settles(&mut self, read: &T, in_use: &T) -> bool {
        let is_new = read != in_use;
        let is_same = self.0.as_ref() == Some(read);
        self.0 = is_new.then(|| read.clone());
        is_new && is_same
    }
}

/// What was wrong with the files at the last readings.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    error: Option<TlsError>,
    /// How many readings in a row met it.
    readings: u32,
}

/// Reads the files at intervals, for as long as the task lives.
pub async fn watch(tls: Arc<Tls>) {
    loop {
        sleep(EVERY).await;
        let tls = Arc::clone(&tls);
        // If the runtime is shutting down, no task waits for the result.
        let _ = spawn_blocking(move || tls.reload()).await;
    }
}

impl Tls {
    /// Uses the files as they are now, if they can be used.
    fn reload(&self) {
        let mut trouble = self.trouble.lock();
        // A token that was removed is revoked also while another file cannot be used.
        let (material, tokens) = (self.reload_material(), self.reload_tokens());
        let result = material.and(tokens);
        if let Some(end) = self.certificate_end() {
            CERTIFICATE_END.warn(end, &self.pause);
        }
        let Err(error) = result else {
            *trouble = Trouble::default();
            return;
        };
        if trouble.error.as_ref() == Some(&error) {
            trouble.readings += 1;
        } else {
            *trouble = Trouble { error: Some(error.clone()), readings: 1 };
        }
        // A certificate and its key are replaced one after the other: only what lasts is reported.
        if trouble.readings == 2 {
            warn!(%error, "a new file for TLS cannot be used; the files that were read before stay in use");
        }
    }

    fn reload_material(&self) -> Result<(), TlsError> {
        let (read, known) = (Material::read(&self.files)?, self.material());
        if !self.unsettled.lock().settles(&read, &known.read) {
            return Ok(());
        }
        let material = Material::of(read)?;
        if (&material.cluster, material.node) != (&known.cluster, known.node) {
            return Err(TlsError(format!(
                "the certificate {} is of node {} of cluster `{}`, and this is node {} of cluster `{}`",
                self.files.cert.display(),
                material.node,
                material.cluster,
                known.node,
                known.cluster
            )));
        }
        material.warn_of_open_key();
        *self.material.lock() = Arc::new(material);
        info!(ca = %self.files.ca.display(), cert = %self.files.cert.display(), "new connections use the changed files for TLS");
        Ok(())
    }

    fn reload_tokens(&self) -> Result<(), TlsError> {
        let Some(tokens) = &self.tokens else { return Ok(()) };
        if tokens.reload()? {
            info!("the file of clients' tokens has changed: new requests are compared with it");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::super::{Authority, Issued, TlsFiles, Validity};
    use super::*;

    /// Goal: a key that other users can read is noticed at the start, when it replaces another one, and when its
    /// permissions change. Those that the files in packaging/ give it are not.
    #[test]
    fn key_that_others_can_read_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let validity = Validity::starting_now(Duration::from_secs(3600)).unwrap();
        let authority = Authority::create(directory.path(), "billing", validity).unwrap();
        let Issued { cert, key } = authority.node(1, &["127.0.0.1".to_owned()], validity).unwrap();
        let ca = authority.certificate();
        let files = TlsFiles { ca, cert, key: key.clone(), tokens: None, optional: false };
        let running = Tls::load(files.clone()).unwrap();
        for (mode, is_open) in [(0o644, true), (0o640, false), (0o440, false), (0o602, true), (0o600, false)] {
            set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            (0..2).for_each(|_| running.reload());
            for tls in [&running, &Tls::load(files.clone()).unwrap()] {
                assert_eq!(tls.material().open_key().is_some(), is_open, "{mode:o}");
            }
        }
    }

    /// Goal: the end of the certificate is known, so that the log and the metrics can tell it, also of one that replaces
    /// another, or that has ended.
    #[test]
    fn end_of_the_certificate_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let validity = |hours: u64| Validity::starting_now(Duration::from_secs(3600 * hours)).unwrap();
        let authority = Authority::create(directory.path(), "billing", validity(100)).unwrap();
        let issue = |hours: u64| authority.node(1, &["127.0.0.1".to_owned()], validity(hours)).unwrap();
        let Issued { cert, key } = issue(50);
        let ca = authority.certificate();
        let files = TlsFiles { ca, cert: cert.clone(), key: key.clone(), tokens: None, optional: false };
        let tls = Tls::load(files).unwrap();
        let hours_left = || (tls.certificate_end().unwrap() - palisade_fence::unix_time()).div_ceil(3600);
        assert_eq!(hours_left(), 50);
        [cert, key].iter().for_each(|file| std::fs::remove_file(file).unwrap());
        issue(70);
        (0..2).for_each(|_| tls.reload());
        assert_eq!(hours_left(), 70);
    }

    /// Goal: a file with two CAs that is read when only the first is written takes no trust away.
    #[test]
    fn half_written_certificates_are_not_used() {
        let [ours, next] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let validity = Validity::starting_now(Duration::from_secs(3600)).unwrap();
        let authority = Authority::create(ours.path(), "billing", validity).unwrap();
        let Issued { cert, key } = authority.node(1, &["127.0.0.1".to_owned()], validity).unwrap();
        let next = std::fs::read_to_string(Authority::create(next.path(), "billing", validity).unwrap().certificate());
        let half = std::fs::read_to_string(authority.certificate()).unwrap();
        let whole = half.clone() + &next.unwrap();
        let ca = ours.path().join("trusted.pem");
        std::fs::write(&ca, &whole).unwrap();
        let tls = Tls::load(TlsFiles { ca: ca.clone(), cert, key, tokens: None, optional: false }).unwrap();
        let loaded = tls.material();
        let is_reloaded = || {
            tls.reload();
            !Arc::ptr_eq(&tls.material(), &loaded)
        };
        std::fs::write(&ca, &half).unwrap();
        assert!(!is_reloaded());
        std::fs::write(&ca, &whole).unwrap();
        assert!(!is_reloaded());
        std::fs::write(&ca, &half).unwrap();
        assert!(!is_reloaded() && is_reloaded());
    }
}
