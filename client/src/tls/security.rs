//! A client's security options: none, or TLS with a CA and a proof of the client's identity.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::sleep;
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
        let addresses = lookup_host(endpoint).await.map_err(DialError::network)?.collect();
        let stream = connect(addresses).await.map_err(DialError::network)?;
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

/// How long the attempt at one address of a host lasts before the next address is tried, too (RFC 8305, "Connection
/// Attempt Delay"): an address that swallows packets must not use up the time for all.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Connects to the first of a host's addresses that accepts, in their order. The next one is tried after
/// [`NEXT_ADDRESS_AFTER`], and at once when an attempt has failed. The error is the last one.
async fn connect(mut addresses: VecDeque<SocketAddr>) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "the host has no address");
    let mut attempts = FuturesUnordered::new();
    loop {
        match addresses.pop_front() {
            Some(address) => attempts.push(TcpStream::connect(address)),
            None if attempts.is_empty() => return Err(failure),
            None => {}
        }
        tokio::select! {
            Some(connected) = attempts.next() => match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            },
            () = sleep(NEXT_ADDRESS_AFTER), if !addresses.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    use super::*;

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// A listener whose queue is full, and those that fill it: the system drops what else arrives.
    async fn silent() -> (TcpListener, SocketAddr, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(queued) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            queue.push(queued.unwrap());
            assert!(queue.len() < 100, "the queue is never full");
        }
        (listener, address, queue)
    }

    /// Goal: neither an address that refuses nor one that does not answer hides the next address of the same name; if all
    /// fail, the error is the last one.
    #[tokio::test]
    async fn a_silent_address_hides_no_other() {
        let (_silent, silent, _queue) = silent().await;
        let (_listener, good) = listener().await;
        let (closed, refused) = listener().await;
        drop(closed);
        let patience = Duration::from_secs(1);
        for addresses in [vec![good], vec![silent, good], vec![refused, good], vec![refused, silent, refused, good]] {
            let connected = timeout(patience, connect(addresses.clone().into())).await;
            let stream = connected.unwrap_or_else(|_| panic!("{addresses:?}: it waits for {silent}")).unwrap();
            assert_eq!(stream.peer_addr().unwrap(), good);
        }
        let error = connect(vec![refused, refused].into()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect(VecDeque::new()).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
