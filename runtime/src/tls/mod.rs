//! TLS and identities: who may speak to a node's two ports.
//!
//! A certificate names one identity of one cluster ([`identity`]): a node or a client. With TLS on,
//! every connection between nodes proves both identities before a byte of the protocol is believed;
//! a client proves its identity by a certificate or by a bearer token ([`tokens`]), and every
//! request carries the verified [`Principal`].
//!
//! The files are read again every second ([`watch`]): once two readings agree, new connections use
//! the new ones, and open connections continue. A file that cannot be used is reported, and the old one stays in use.
//!
//! Certificates are the one place where the wall clock counts: TLS compares their validity with it.

mod access;
mod handshakes;
mod identity;
mod issue;
mod material;
mod nodes;
mod reload;
mod tokens;

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;

use palisade_client::Security;
pub use palisade_client::TlsError;
use palisade_client::tls::PemFile;
pub use palisade_client::tls::Stream;

pub use self::access::{Access, Principal};
pub(crate) use self::handshakes::Handshakes;
pub use self::identity::{Identity, Subject, client_name};
pub use self::issue::{Authority, Issued, Validity};
pub use self::nodes::HandshakeError;
pub use self::reload::watch;
pub use self::tokens::{NewToken, TokenHash, Tokens, VerifiedBy};

use self::material::Material;
use self::reload::{Trouble, Unsettled};
use crate::log_pause::LogPause;
use crate::sync::Mutex;

/// The files of a node's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CAs that this node trusts: those of its own cluster.
    pub ca: PathBuf,
    /// This node's certificate, and those between it and the CA, if any.
    pub cert: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// The bearer tokens of clients.
    pub tokens: Option<PathBuf>,
    /// Whether connections without TLS are accepted and made, too: while a cluster changes to TLS.
    pub optional: bool,
}

/// A node's TLS, as its files are now.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    material: Mutex<Arc<Material>>,
    tokens: Option<Tokens>,
    unsettled: Mutex<Unsettled<[PemFile; 3]>>,
    trouble: Mutex<Trouble>,
    pause: LogPause,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// If one cannot be used, or the certificate is not a node's.
    pub fn load(files: TlsFiles) -> Result<Arc<Tls>, TlsError> {
        let material = Arc::new(Material::load(&files)?);
        material.warn_of_open_key();
        let tokens = files.tokens.as_deref().map(Tokens::load).transpose()?;
        let (unsettled, trouble, pause) = (Mutex::default(), Mutex::default(), LogPause::default());
        Ok(Arc::new(Tls { files, material: Mutex::new(material), tokens, unsettled, trouble, pause }))
    }

    /// When this node's certificate ends, in seconds of Unix time, if it can be told.
    pub(crate) fn certificate_end(&self) -> Option<u64> {
        self.material().end
    }

    /// Whom this node's certificate names: the cluster, and the node's number.
    pub fn identity(&self) -> (String, u16) {
        let material = self.material();
        (material.cluster.clone(), material.node)
    }

    /// Whether connections without TLS are accepted, too.
    pub fn is_optional(&self) -> bool {
        self.files.optional
    }

    /// How this node connects to other nodes' ports for clients: as itself.
    pub fn security(&self) -> Security {
        Security::tls(&self.files.ca).with_certificate(&self.files.cert, &self.files.key)
    }

    /// Resolves when the bearer token with this hash no longer counts for the principal: see [`Tokens::ended`].
    pub async fn token_ended(&self, token: TokenHash, principal: &str, by: VerifiedBy) -> String {
        match &self.tokens {
            Some(tokens) => tokens.ended(token, principal, by).await,
            None => pending().await,
        }
    }

    fn material(&self) -> Arc<Material> {
        Arc::clone(&self.material.lock())
    }
}
