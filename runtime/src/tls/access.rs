//! The identity of the client that sends a request, from its certificate or its bearer token.

use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;

use palisade_client::tls::Stream;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::identity::{Identity, Subject};
use super::nodes::{accept, begins_with_tls};
use super::{HandshakeError, Tls, TokenHash, VerifiedBy};

/// The verified sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The client's name; `admin/NAME` for an administrator, `node/N` for node N of the cluster. No
    /// client's name has a slash.
    pub name: Arc<str>,
}

/// What a connection of a client proves, for all its requests.
#[derive(Clone, Debug)]
pub struct Access {
    tls: Arc<Tls>,
    address: IpAddr,
    connection: Connection,
}

#[derive(Clone, Debug)]
enum Connection {
    /// Without TLS, while TLS is optional.
    Plain,
    /// No certificate.
    Anonymous,
    Certified(Principal),
    /// A certificate of the CA that names no client of this cluster: the end of a sentence.
    Unfit(String),
}

impl Access {
    /// Accepts a connection of a client.
    ///
    /// # Errors
    /// If the handshake fails: also for a certificate that is not the CA's, or has expired.
    pub async fn accept(
        tls: &Arc<Tls>,
        stream: TcpStream,
        address: IpAddr,
    ) -> Result<(Stream, Access), HandshakeError> {
        let access = |connection| Access { tls: Arc::clone(tls), address, connection };
        if tls.is_optional() && !begins_with_tls(&stream).await? {
            return Ok((Stream::Plain(stream), access(Connection::Plain)));
        }
        let material = tls.material();
        let stream = accept(TlsAcceptor::from(material.clients.clone()), stream).await?;
        let connection = match Identity::of_peer(&stream) {
            None => Connection::Anonymous,
            Some(Err(what)) => Connection::Unfit(what),
            Some(Ok(Identity { cluster, .. })) if cluster != material.cluster => {
                Connection::Unfit(format!("is of cluster `{cluster}`, not of cluster `{}`", material.cluster))
            }
            Some(Ok(Identity { subject, .. })) => match subject {
                Subject::Client(name) => Connection::Certified(Principal::certified(name)),
                Subject::Administrator(name) => Connection::Certified(Principal::certified(format!("admin/{name}"))),
                Subject::Node(number) => Connection::Certified(Principal::certified(format!("node/{number}"))),
                Subject::Authority => Connection::Unfit("is the CA's, and no client's".into()),
            },
        };
        Ok((stream, access(connection)))
    }

    /// The address of the client.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        !matches!(self.connection, Connection::Plain)
    }

    /// The client's name, if a certificate has proved it.
    pub fn certified(&self) -> Option<&Arc<str>> {
        match &self.connection {
            Connection::Certified(principal) => Some(&principal.name),
            _ => None,
        }
    }

    /// Who sends a request, with its header `Authorization`. A token counts before the connection's
    /// certificate. `None` only without TLS, while TLS is optional.
    ///
    /// # Errors
    /// The sentence for a client that has proved nothing.
    pub fn principal(&self, authorization: Option<&[u8]>) -> Result<Option<Principal>, String> {
        if matches!(self.connection, Connection::Plain) {
            return Ok(None);
        }
        if let Some(header) = authorization {
            let token = std::str::from_utf8(header).ok().and_then(bearer);
            let token =
                token.ok_or("the header Authorization has no bearer token: send `Authorization: Bearer TOKEN`")?;
            return self.by_token(token).map(Some);
        }
        match &self.connection {
            Connection::Certified(principal) => Ok(Some(principal.clone())),
            Connection::Unfit(what) => Err(format!("the client's certificate {what}")),
            Connection::Plain | Connection::Anonymous => Err(
                "the request proves no identity: present a client certificate of this cluster's CA (--cert and --cert-key), or \
                 send a bearer token (--token-file)"
                    .into(),
            ),
        }
    }

    /// Resolves when a request with this header `Authorization` no longer counts for the principal
    /// that it counted for, with the sentence for its client: its token's line was removed, or has
    /// another name. Never for a client without a token.
    pub async fn ended(&self, authorization: Option<&[u8]>, principal: &str) -> String {
        match self.token(authorization) {
            Some(token) => self.tls.token_ended(token, principal, VerifiedBy::ThisNode).await,
            None => pending().await,
        }
    }

    /// The hash of the bearer token by which a request with this header `Authorization` counts for its client, if it
    /// is one.
    pub fn token(&self, authorization: Option<&[u8]>) -> Option<TokenHash> {
        let header = authorization.filter(|_| self.is_tls())?;
        std::str::from_utf8(header).ok().and_then(bearer).map(TokenHash::of)
    }

    fn by_token(&self, token: &str) -> Result<Principal, String> {
        let Some(tokens) = &self.tls.tokens else {
            return Err("this node accepts no bearer tokens: it was started without --client-tokens".into());
        };
        match tokens.name(token) {
            Ok(name) => Ok(Principal { name }),
            Err(refused) => Err(refused.to_string()),
        }
    }
}

impl Principal {
    fn certified(name: String) -> Principal {
        Principal { name: name.into() }
    }
}

/// The token of a header `Authorization`. The scheme's name has no case (RFC 9110, 11.1).
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_token_is_one_word_behind_its_scheme() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        for bad in ["", "abc", "Bearer", "Bearer ", "Basic abc"] {
            assert_eq!(bearer(bad), None, "{bad}");
        }
    }
}
