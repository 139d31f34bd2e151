//! The identity that a certificate proves: one URI among its alternative names.
//!
//! ```text
//! palisade://CLUSTER/node/N         node N
//! palisade://CLUSTER/client/NAME    a client
//! palisade://CLUSTER/admin/NAME     an administrator: a client with every right
//! palisade://CLUSTER/ca             the CA itself
//! ```
//!
//! The cluster's name is percent-encoded. A certificate without such a URI, or with several, proves
//! nothing.

use std::fmt;
use std::str::FromStr;

use palisade_client::tls::Stream;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

const SCHEME: &str = "palisade://";

/// Maximum length of a client's name, in bytes.
const CLIENT_NAME_BYTES: usize = 64;

/// What is encoded in a cluster's name: all but what a URI reserves for names (RFC 3986, 2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Whom a certificate names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's name.
    pub cluster: String,
    /// Who in that cluster.
    pub subject: Subject,
}

/// A member of a cluster, or a client of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The node with this number.
    Node(u16),
    /// The client with this name.
    Client(String),
    /// The administrator with this name.
    Administrator(String),
    /// The certificate authority.
    Authority,
}

impl Identity {
    /// The identity of a certificate.
    ///
    /// # Errors
    /// The end of a sentence that begins with "its certificate".
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Identity, String> {
        let parsed = EndEntityCert::try_from(certificate).map_err(|error| format!("cannot be read: {error}"))?;
        let mut names = parsed.valid_uri_names().filter(|name| name.starts_with(SCHEME));
        match (names.next(), names.next()) {
            (Some(name), None) => name.parse().map_err(|()| format!("names `{name}`, which is no identity")),
            (None, _) => Err(format!("names no identity of Palisade ({SCHEME}CLUSTER/…)")),
            (Some(_), Some(_)) => Err("names several identities".into()),
        }
    }

    /// The identity of a connection's other side; `None` if it presented no certificate.
    pub(super) fn of_peer(stream: &Stream) -> Option<Result<Identity, String>> {
        stream.certificate().map(Identity::of)
    }
}

impl FromStr for Identity {
    type Err = ();

    fn from_str(uri: &str) -> Result<Identity, ()> {
        let path = uri.strip_prefix(SCHEME).ok_or(())?;
        let mut parts = path.split('/');
        let cluster = percent_decode_str(parts.next().ok_or(())?).decode_utf8().map_err(|_| ())?.into_owned();
        let subject = match (parts.next(), parts.next(), parts.next()) {
            (Some("node"), Some(number), None) => Subject::Node(number.parse().map_err(|_| ())?),
            (Some("client"), Some(name), None) => Subject::Client(client_name(name).map_err(|_| ())?),
            (Some("admin"), Some(name), None) => Subject::Administrator(client_name(name).map_err(|_| ())?),
            (Some("ca"), None, None) => Subject::Authority,
            _ => return Err(()),
        };
        if cluster.is_empty() {
            return Err(());
        }
        let identity = Identity { cluster, subject };
        // One identity has one spelling.
        if identity.to_string() == uri { Ok(identity) } else { Err(()) }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/", utf8_percent_encode(&self.cluster, ENCODED))?;
        match &self.subject {
            Subject::Node(number) => write!(f, "node/{number}"),
            Subject::Client(name) => write!(f, "client/{name}"),
            Subject::Administrator(name) => write!(f, "admin/{name}"),
            Subject::Authority => f.write_str("ca"),
        }
    }
}

/// Checks a client's name: letters, digits and `. _ - @`, so that it can stand in a URI, in a file's
/// name and in a line of the log.
///
/// # Errors
/// The reason why it is none.
pub fn client_name(name: &str) -> Result<String, String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    if name.is_empty() || name.len() > CLIENT_NAME_BYTES || name.starts_with('.') || !name.bytes().all(is_good) {
        return Err(format!(
            "`{}` is not a client's name: 1 to {CLIENT_NAME_BYTES} letters, digits and . _ - @, without a dot at the beginning",
            name.escape_debug()
        ));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_round_trips_through_its_uri() {
        let administrator = Subject::Administrator("alice".into());
        for subject in [Subject::Node(7), Subject::Client("worker-7".into()), administrator, Subject::Authority] {
            for cluster in ["billing", "eu-west.1", "a/b c", "Größe"] {
                let identity = Identity { cluster: cluster.into(), subject: subject.clone() };
                let uri = identity.to_string();
                assert!(uri.is_ascii(), "{uri}");
                assert_eq!(uri.parse(), Ok(identity));
            }
        }
        let node = Identity { cluster: "billing".into(), subject: Subject::Node(3) };
        assert_eq!(node.to_string(), "palisade://billing/node/3");
        let client = Identity { cluster: "eu-1 b".into(), subject: Subject::Client("ci".into()) };
        assert_eq!(client.to_string(), "palisade://eu-1%20b/client/ci");
    }

    #[test]
    fn other_spellings_are_no_identities() {
        for bad in [
            "https://billing/node/1",
            "palisade://",
            "palisade:///node/1",
            "palisade://billing",
            "palisade://billing/node",
            "palisade://billing/node/",
            "palisade://billing/node/01",
            "palisade://billing/node/+1",
            "palisade://billing/node/70000",
            "palisade://billing/node/1/2",
            "palisade://billing/client/",
            "palisade://billing/client/a%2fb",
            "palisade://billing/client/admin/a",
            "palisade://billing/admin",
            "palisade://billing/admin/",
            "palisade://billing/admin/a/b",
            "palisade://billing/Admin/a",
            "palisade://billin%67/node/1",
            "palisade://billing/ca/1",
        ] {
            assert_eq!(bad.parse::<Identity>(), Err(()), "{bad}");
        }
    }
}
