//! The certificates and keys of TLS connections: the files of one moment, and the configurations
//! that follow.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::tls::{self, PemFile, TlsError};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use tracing::warn;

use super::TlsFiles;
use super::identity::{Identity, Subject};

/// The files as they were read, and the configurations that they make.
#[derive(Debug)]
pub(super) struct Material {
    /// The CA, the certificate and the key.
    pub(super) read: [PemFile; 3],
    /// The cluster that the certificate names.
    pub(super) cluster: String,
    /// The node that the certificate names.
    pub(super) node: u16,
    /// When the certificate ends, in seconds of Unix time, if it can be told.
    pub(super) end: Option<u64>,

    /// For connections that other nodes dial: both sides present a certificate.
    pub(super) nodes: Arc<ServerConfig>,
    /// For connections of clients, which may have a bearer token instead of a certificate.
    pub(super) clients: Arc<ServerConfig>,
    /// For connections to other nodes.
    pub(super) dial: Arc<ClientConfig>,
}

impl Material {
    pub(super) fn load(files: &TlsFiles) -> Result<Material, TlsError> {
        Material::of(Material::read(files)?)
    }

    pub(super) fn read(files: &TlsFiles) -> Result<[PemFile; 3], TlsError> {
        Ok([PemFile::read(&files.ca)?, PemFile::read(&files.cert)?, PemFile::read(&files.key)?])
    }

    pub(super) fn of(read: [PemFile; 3]) -> Result<Material, TlsError> {
        let [ca, cert, key] = &read;
        let roots = Arc::new(ca.roots()?);
        let (chain, secret) = tls::identity(cert, key)?;
        let unfit = |what: String| TlsError(format!("the certificate {} {what}", cert.path().display()));
        let Identity { cluster, subject } = Identity::of(&chain[0]).map_err(unfit)?;
        let Subject::Node(node) = subject else {
            return Err(unfit("is not a node's: issue one with `palisade cert node`".into()));
        };
        let server = |required| -> Result<Arc<ServerConfig>, TlsError> {
            let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), tls::provider());
            let clients = if required { clients } else { clients.allow_unauthenticated() };
            let clients = clients.build().map_err(|error| TlsError(format!("{}: {error}", ca.path().display())))?;
            let builder = ServerConfig::builder_with_provider(tls::provider()).with_protocol_versions(tls::VERSIONS);
            let builder =
                builder.expect("the provider has cipher suites of TLS 1.3").with_client_cert_verifier(clients);
            let config = builder.with_single_cert(chain.clone(), secret.clone_key());
            let mut config = config.map_err(|error| unfit(format!("cannot be used: {error}")))?;
            // A resumed connection would go on with the identities of an earlier one.
            config.send_tls13_tickets = 0;
            Ok(Arc::new(config))
        };
        let (nodes, clients) = (server(true)?, server(false)?);
        let verifier = Arc::new(NodeVerifier { roots: Arc::clone(&roots), provider: tls::provider() });
        let builder = tls::client_builder().dangerous().with_custom_certificate_verifier(verifier);
        let config = builder.with_client_auth_cert(chain.clone(), secret.clone_key());
        let mut dial = config.map_err(|error| unfit(format!("cannot be used: {error}")))?;
        tls::prove_anew(&mut dial);
        dial.enable_sni = false;
        let dial = Arc::new(dial);
        let end = end_of(&chain, &roots);
        Ok(Material { cluster, node, end, nodes, clients, dial, read })
    }

    /// The key's file, if users other than its owner and its group may read or change it.
    pub(super) fn open_key(&self) -> Option<&PemFile> {
        let [_, _, key] = &self.read;
        is_open_to_others(key).then_some(key)
    }

    /// Warns of a key that other users can read. No refusal: a node must be able to start after a careless copy.
    pub(super) fn warn_of_open_key(&self) {
        if let Some(key) = self.open_key() {
            let mode = mode_of(key);
            warn!(
                key = %key.path().display(), mode,
                "other users of this machine can read or change the file of --tls-key, and act as this node with it: \
                 run chmod 640 on it, and replace the CA if others had access"
            );
        }
    }
}

/// When a certificate ends. The verifier names the time when it refuses the certificate in the far future.
fn end_of(chain: &[CertificateDer<'_>], roots: &RootCertStore) -> Option<u64> {
    let [certificate, intermediates @ ..] = chain else { return None };
    let certificate = ParsedCertificate::try_from(certificate).ok()?;
    let (future, provider) = (UnixTime::since_unix_epoch(Duration::MAX), tls::provider());
    let algorithms = provider.signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, future, algorithms) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => Some(not_after.as_secs()),
        _ => None,
    }
}

/// Whether users other than its owner and its group may read or change a file. A group may: that is how Kubernetes and
/// the package for Debian give a node its key.
pub(super) fn is_open_to_others(file: &PemFile) -> bool {
    file.permissions().mode() & 0o007 != 0
}

/// The permissions of a file, as `chmod` takes them.
pub(super) fn mode_of(file: &PemFile) -> String {
    format!("{:04o}", file.permissions().mode() & 0o7777)
}

/// Verifies the certificate of a node that was dialled: one of the cluster's CA, whatever hosts it
/// names. The caller compares the identity: nodes are known by their numbers, and their addresses
/// may change.
#[derive(Debug)]
struct NodeVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
