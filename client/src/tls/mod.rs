//! TLS, for clients and for nodes: the stream, the files, and the sentences for what goes wrong.
//!
//! Only TLS 1.3 is spoken. A [`Security`] says what a program connects with: the CA that it trusts, and the certificate
//! or the bearer token that proves who it is. It holds paths, and the files are read at each new connection, so that a
//! rotated certificate or token is used without a restart.

mod pem;
mod refusal;
mod security;
mod stream;

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore, SupportedProtocolVersion, WantsVerifier};

pub use self::pem::PemFile;
pub use self::refusal::{Side, explain};
pub use self::security::Security;
pub use self::stream::Stream;

/// Why TLS cannot be used: a sentence that names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(pub String);

impl TlsError {
    /// A file that cannot be read, and what to do about it.
    pub fn unreadable(path: &Path, error: &io::Error) -> TlsError {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "; correct its name, which begins at the working directory if it is relative",
            io::ErrorKind::PermissionDenied => {
                "; let the user of this process read the file, and enter each directory above it"
            }
            _ => "",
        };
        TlsError(format!("cannot read {}: {error}{advice}", path.display()))
    }
}

/// Why there is no connection to a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct DialError {
    /// A sentence.
    pub why: String,
    /// Whether one of the two sides refuses the other, so that a repetition would be refused, too.
    pub refused: bool,
}

impl DialError {
    pub(crate) fn refused(why: impl Into<String>) -> DialError {
        DialError { why: why.into(), refused: true }
    }

    pub(crate) fn network(error: impl std::fmt::Display) -> DialError {
        DialError { why: error.to_string(), refused: false }
    }

    /// The error of the dialled node: a refusal of TLS, or one of the network.
    pub(crate) fn of(error: &std::io::Error) -> DialError {
        explain(error, Side::Server).map_or_else(|| DialError::network(error), DialError::refused)
    }
}

/// The versions of TLS that are spoken.
pub const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13];

/// The cryptography that TLS uses.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Begins the configuration of a side that dials.
pub fn client_builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(VERSIONS);
    builder.expect("the provider has cipher suites of TLS 1.3")
}

/// The certificates that prove an identity, with their key: a chain, in the order in which it is sent.
pub type Identity = (
    Vec<tokio_rustls::rustls::pki_types::CertificateDer<'static>>,
    tokio_rustls::rustls::pki_types::PrivateKeyDer<'static>,
);

/// Reads a certificate chain and its key, and says so if they do not belong together.
///
/// # Errors
/// If a file has no certificate or no key, or the key is another certificate's.
pub fn identity(cert: &PemFile, key: &PemFile) -> Result<Identity, TlsError> {
    let identity = (cert.chain()?, key.key()?);
    tokio_rustls::rustls::sign::CertifiedKey::from_der(identity.0.clone(), identity.1.clone_key(), &provider())
        .map_err(|error| {
            TlsError(format!(
                "the key {} does not belong to the certificate {}: {error}",
                key.path().display(),
                cert.path().display()
            ))
        })?;
    Ok(identity)
}

/// The configuration of a client: it trusts these CAs, and checks that the server's certificate names the dialled host.
fn client_config(roots: RootCertStore, identity: Option<Identity>) -> Result<ClientConfig, TlsError> {
    let builder = client_builder().with_root_certificates(roots);
    let mut config = match identity {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| TlsError(format!("the certificate cannot be used: {error}")))?,
        None => builder.with_no_client_auth(),
    };
    prove_anew(&mut config);
    Ok(config)
}

/// Makes every connection prove the identities anew: a resumed one would go on with those of an earlier connection.
pub fn prove_anew(config: &mut ClientConfig) {
    config.resumption = tokio_rustls::rustls::client::Resumption::disabled();
}
