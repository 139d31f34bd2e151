//! Files of certificates and keys.

use std::fmt;
use std::fs::{File, Permissions};
use std::io::Read;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;

/// A file with more bytes is not one of certificates: it is refused unread.
const LARGEST: u64 = 1 << 20;

/// A file in PEM form, as it was read: a later reading can be compared with it.
#[derive(Clone, PartialEq, Eq)]
pub struct PemFile {
    path: PathBuf,
    bytes: Vec<u8>,
    permissions: Permissions,
}

impl PemFile {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or has more than 1 MiB.
    pub fn read(path: &Path) -> Result<PemFile, TlsError> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| {
            let permissions = file.metadata()?.permissions();
            file.take(LARGEST + 1).read_to_end(&mut bytes).map(|_| permissions)
        });
        let permissions = read.map_err(|error| TlsError::unreadable(path, &error))?;
        if bytes.len() as u64 > LARGEST {
            return Err(TlsError(format!("{} has more than {LARGEST} bytes", path.display())));
        }
        Ok(PemFile { path: path.to_owned(), bytes, permissions })
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its permissions when it was read.
    pub fn permissions(&self) -> &Permissions {
        &self.permissions
    }

    /// The certificates in it, in their order.
    ///
    /// # Errors
    /// If there is none, or one is damaged.
    pub fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let chain = chain.map_err(|error| self.unusable("a certificate", &error))?;
        if chain.is_empty() {
            return Err(self.lacks("certificate"));
        }
        Ok(chain)
    }

    /// Its certificates, as those of CAs to trust.
    ///
    /// # Errors
    /// If there is none, or one is damaged.
    pub fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.chain()? {
            roots.add(certificate).map_err(|error| self.unusable("a CA's certificate", &error))?;
        }
        Ok(roots)
    }

    /// The private key in it.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|_| self.lacks("private key"))
    }

    fn lacks(&self, what: &str) -> TlsError {
        TlsError(format!("{} has no {what} in PEM form", self.path.display()))
    }

    fn unusable(&self, what: &str, error: &dyn fmt::Debug) -> TlsError {
        TlsError(format!("{} has {what} that cannot be used: {error:?}", self.path.display()))
    }
}

/// Without the content, which may be a key.
impl fmt::Debug for PemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PemFile").field(&self.path).finish()
    }
}
