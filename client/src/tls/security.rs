//! A client's security options: none, or TLS with a CA and a proof of the client's identity.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{DialError, PemFile, Stream, TlsError, client_config, identity};

/// What a client connects with: nothing at all, or TLS with the CA that it trusts and a proof of who it is.
///
/// ```no_run
/// use palisade_client::{Client, Options, Security};
///
/// # async fn example(endpoints: Vec<String>) -> Result<(), palisade_client::Error> {
/// let security = Security::tls("ca.pem").with_certificate("client-worker.pem", "client-worker-key.pem");
/// let client = Client::connect(&endpoints, Options { security, ..Options::default() }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security(Option<Arc<Files>>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Files {
    ca: PathBuf,
    /// A certificate and its key.
    certificate: Option<(PathBuf, PathBuf)>,
    token: Option<PathBuf>,
}

impl Security {
    /// Connections without TLS.
    #[must_use]
    pub fn plain() -> Security {
        Security(None)
    }

    /// Connections with TLS to nodes whose certificates were issued by a CA of this file.
    #[must_use]
    pub fn tls(ca: impl Into<PathBuf>) -> Security {
        Security(Some(Arc::new(Files { ca: ca.into(), certificate: None, token: None })))
    }

    /// Proves this client's identity by a certificate. Without TLS it has no effect.
    #[must_use]
    pub fn with_certificate(self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Security {
        self.with(|files| files.certificate = Some((cert.into(), key.into())))
    }

    /// Proves this client's identity by the bearer token in this file. Without TLS it has no effect: a token is never
    /// sent in plain text.
    #[must_use]
    pub fn with_token_file(self, file: impl Into<PathBuf>) -> Security {
        self.with(|files| files.token = Some(file.into()))
    }

    fn with(self, change: impl FnOnce(&mut Files)) -> Security {
        Security(self.0.map(|files| {
            let mut files = Arc::unwrap_or_clone(files);
            change(&mut files);
            Arc::new(files)
        }))
    }

    /// Whether connections use TLS.
    pub fn is_tls(&self) -> bool {
        self.0.is_some()
    }

    /// The options of the command line that stand for this, as pairs of a name and a file.
    pub fn arguments(&self) -> Vec<(&'static str, &Path)> {
        let Some(files) = &self.0 else { return Vec::new() };
        let mut arguments = vec![("--ca", files.ca.as_path())];
        if let Some((cert, key)) = &files.certificate {
            arguments.extend([("--cert", cert.as_path()), ("--cert-key", key.as_path())]);
        }
        arguments.extend(files.token.as_deref().map(|token| ("--token-file", token)));
        arguments
    }

    /// Reads all files, so that a missing or broken one is reported before anything is dialled.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn check(&self) -> Result<(), TlsError> {
        self.config()?;
        self.token().map(|_| ())
    }

    fn config(&self) -> Result<Option<Arc<ClientConfig>>, TlsError> {
        let Some(files) = &self.0 else { return Ok(None) };
        let roots = PemFile::read(&files.ca)?.roots()?;
        let identity = match &files.certificate {
            Some((cert, key)) => Some(identity(&PemFile::read(cert)?, &PemFile::read(key)?)?),
            None => None,
        };
        client_config(roots, identity).map(|config| Some(Arc::new(config)))
    }

    /// The bearer token to send with each request.
    ///
    /// # Errors
    /// If its file cannot be read, or has none.
    pub fn token(&self) -> Result<Option<String>, TlsError> {
        let Some(path) = self.0.as_ref().and_then(|files| files.token.as_ref()) else { return Ok(None) };
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|error| TlsError::unreadable(path, &error))?;
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TlsError(format!("{} has no token: one word of visible characters", path.display())));
        }
        Ok(Some(token.to_owned()))
    }

    /// Connects to a node's port for clients, `HOST:PORT`.
    ///
    /// # Errors
    /// The files cannot be used, the node cannot be reached, or is not one of the CA.
    pub async fn dial(&self, endpoint: &str) -> Result<Stream, DialError> {
        // Files that are being replaced are read again at the next attempt.
        let config = self.config().map_err(DialError::network)?;
        let stream = TcpStream::connect(endpoint).await.map_err(DialError::network)?;
        stream.set_nodelay(true).map_err(DialError::network)?;
        let Some(config) = config else { return Ok(Stream::Plain(stream)) };
        let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| DialError::refused(format!("`{host}` is no host name")))?;
        match TlsConnector::from(config).connect(name, stream).await {
            Ok(stream) => Ok(Stream::tls(stream)),
            Err(error) => Err(DialError::of(&error)),
        }
    }
}
