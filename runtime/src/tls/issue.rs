//! Issuing certificates: a CA in a directory, and the certificates of nodes and clients that it
//! signs.
//!
//! ```text
//! ca.pem            the CA's certificate: every node and every client trusts it
//! ca-key.pem        the CA's key: needed only to issue certificates
//! node-N.pem        node N's certificate, and its key node-N-key.pem
//! client-NAME.pem   a client's certificate, and its key client-NAME-key.pem
//! admin-NAME.pem    an administrator's certificate, and its key admin-NAME-key.pem
//! ```
//!
//! Keys have mode 0600, and a CA's key that other users can read is refused. A file is never
//! overwritten: a rotated certificate is issued into another directory, or the old file is moved away
//! first.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade_client::tls::{PemFile, TlsError};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::OffsetDateTime;

use super::identity::{Identity, Subject, client_name};
use super::material::{is_open_to_others, mode_of};
use crate::limits;

/// How far the beginning of a certificate's validity lies in the past, so that a machine whose
/// clock is slow accepts it at once.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(300);
/// The CA's certificate, and its key.
const CA: (&str, &str) = ("ca.pem", "ca-key.pem");

/// When a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    from: OffsetDateTime,
    until: OffsetDateTime,
}

impl Validity {
    /// From now on, for so long.
    ///
    /// # Errors
    /// If it ends beyond the year 9999.
    pub fn starting_now(length: Duration) -> Result<Validity, TlsError> {
        let now = OffsetDateTime::now_utc();
        Validity::between(now - CLOCK_DIFFERENCE, now, length)
    }

    /// From a moment on, for so long.
    ///
    /// # Errors
    /// If it ends beyond the year 9999.
    pub fn starting(from: OffsetDateTime, length: Duration) -> Result<Validity, TlsError> {
        Validity::between(from, from, length)
    }

    fn between(from: OffsetDateTime, start: OffsetDateTime, length: Duration) -> Result<Validity, TlsError> {
        let length = time::Duration::try_from(length).ok();
        let until = length.and_then(|length| start.checked_add(length));
        let until = until.ok_or_else(|| TlsError("the certificate's validity ends beyond the year 9999".into()))?;
        Ok(Validity { from, until })
    }
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// The certificate's file.
    pub cert: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

impl Issued {
    /// Writes both files, or, if one of them exists, neither.
    fn write(&self, certificate: &str, key: &str) -> Result<(), TlsError> {
        if let Some(path) = [&self.cert, &self.key].into_iter().find(|path| path.exists()) {
            return Err(TlsError(format!(
                "{} exists, and is not overwritten: move it away, or use another directory",
                path.display()
            )));
        }
        write(&self.key, key, 0o600)?;
        write(&self.cert, certificate, 0o644)
    }
}

/// The CA of a cluster.
pub struct Authority {
    directory: PathBuf,
    cluster: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a CA in a directory, which is created if it is missing.
    ///
    /// # Errors
    /// If the directory has a CA already, or cannot be written.
    pub fn create(directory: &Path, cluster: &str, validity: Validity) -> Result<Authority, TlsError> {
        if cluster.is_empty() || cluster.len() > limits::CLUSTER_NAME_BYTES || cluster.chars().any(char::is_control) {
            return Err(TlsError(format!(
                "a cluster's name has 1 to {} bytes and no control characters",
                limits::CLUSTER_NAME_BYTES
            )));
        }
        let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        created.map_err(|error| TlsError(format!("cannot create the directory {}: {error}", directory.display())))?;
        let key = KeyPair::generate().map_err(cannot_sign)?;
        let mut params = ca_params(cluster);
        (params.not_before, params.not_after) = (validity.from, validity.until);
        params.subject_alt_names = vec![uri(cluster, Subject::Authority)?];
        let certificate = params.self_signed(&key).map_err(cannot_sign)?;
        let files = Issued { cert: directory.join(CA.0), key: directory.join(CA.1) };
        files.write(&certificate.pem(), &key.serialize_pem())?;
        let (directory, cluster) = (directory.to_owned(), cluster.to_owned());
        Ok(Authority { directory, cluster, issuer: Issuer::new(params, key) })
    }

    /// Opens the CA of a directory.
    ///
    /// # Errors
    /// If there is none, or other users can read its key.
    pub fn open(directory: &Path) -> Result<Authority, TlsError> {
        let (cert, key) = (directory.join(CA.0), directory.join(CA.1));
        let unusable = |what: String| TlsError(format!("{}: the CA's certificate {what}", cert.display()));
        let chain = PemFile::read(&cert)?.chain()?;
        let identity = Identity::of(&chain[0]).map_err(unusable)?;
        if identity.subject != Subject::Authority {
            return Err(unusable("is not a CA's: make one with `palisade cert init`".into()));
        }
        let secret = PemFile::read(&key)?;
        if is_open_to_others(&secret) {
            return Err(TlsError(format!(
                "the CA's key {} has mode {}, so other users of this machine can read or change it, and make any \
                 identity of the cluster with it. Run chmod 600 on it, and replace the CA if others had access",
                key.display(),
                mode_of(&secret)
            )));
        }
        let pair = KeyPair::try_from(&secret.key()?);
        let pair = pair.map_err(|error| TlsError(format!("the CA's key {} cannot be used: {error}", key.display())))?;
        let issuer = Issuer::new(ca_params(&identity.cluster), pair);
        Ok(Authority { directory: directory.to_owned(), cluster: identity.cluster, issuer })
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The CA's certificate.
    pub fn certificate(&self) -> PathBuf {
        self.directory.join(CA.0)
    }

    /// Issues the certificate of a node whose port for clients is reached by these host names and IP
    /// addresses.
    ///
    /// # Errors
    /// If a host is no host name, or a file exists or cannot be written.
    pub fn node(&self, number: u16, hosts: &[String], validity: Validity) -> Result<Issued, TlsError> {
        let mut names = vec![uri(&self.cluster, Subject::Node(number))?];
        for host in hosts {
            names.push(match host.parse() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(dns_name(host)?),
            });
        }
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&format!("node-{number}"), &format!("node {number} of {}", self.cluster), names, usages, validity)
    }

    /// Issues the certificate of a client.
    ///
    /// # Errors
    /// If the name is none, or a file exists or cannot be written.
    pub fn client(&self, name: &str, validity: Validity) -> Result<Issued, TlsError> {
        self.person("client", name, Subject::Client, validity)
    }

    /// Issues the certificate of an administrator: a client that has every right, whatever the access
    /// rules of the cluster say.
    ///
    /// # Errors
    /// As [`Authority::client`].
    pub fn administrator(&self, name: &str, validity: Validity) -> Result<Issued, TlsError> {
        self.person("admin", name, Subject::Administrator, validity)
    }

    fn person(
        &self,
        kind: &str,
        name: &str,
        subject: fn(String) -> Subject,
        validity: Validity,
    ) -> Result<Issued, TlsError> {
        let name = client_name(name).map_err(TlsError)?;
        let names = vec![uri(&self.cluster, subject(name.clone()))?];
        let usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&format!("{kind}-{name}"), &format!("{kind} {name} of {}", self.cluster), names, usages, validity)
    }

    fn issue(
        &self,
        file: &str,
        common_name: &str,
        names: Vec<SanType>,
        usages: Vec<ExtendedKeyUsagePurpose>,
        validity: Validity,
    ) -> Result<Issued, TlsError> {
        let key = KeyPair::generate().map_err(cannot_sign)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished(common_name);
        (params.not_before, params.not_after) = (validity.from, validity.until);
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(cannot_sign)?;
        let issued = Issued {
            cert: self.directory.join(format!("{file}.pem")),
            key: self.directory.join(format!("{file}-key.pem")),
        };
        issued.write(&certificate.pem(), &key.serialize_pem())?;
        Ok(issued)
    }
}

/// What all certificates of a CA that name their issuer must find in it again.
fn ca_params(cluster: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished(&format!("Palisade CA of {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn distinguished(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn uri(cluster: &str, subject: Subject) -> Result<SanType, TlsError> {
    let uri = Identity { cluster: cluster.to_owned(), subject }.to_string();
    Ok(SanType::URI(ascii(&uri)?))
}

fn dns_name(host: &str) -> Result<Ia5String, TlsError> {
    tokio_rustls::rustls::pki_types::DnsName::try_from(host.to_owned())
        .map_err(|_| TlsError(format!("`{host}` is neither a host name nor an IP address: give it without a port")))?;
    ascii(host)
}

fn ascii(text: &str) -> Result<Ia5String, TlsError> {
    Ia5String::try_from(text).map_err(|_| TlsError(format!("`{text}` has characters outside ASCII")))
}

fn cannot_sign(error: rcgen::Error) -> TlsError {
    TlsError(format!("cannot make the certificate: {error}"))
}

/// Writes a new file.
fn write(path: &Path, content: &str, mode: u32) -> Result<(), TlsError> {
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(content.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(|error| TlsError(format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Goal: a CA whose key other users can read issues nothing, and says what to do.
    #[test]
    fn key_of_a_ca_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let validity = Validity::starting_now(Duration::from_secs(3600)).unwrap();
        Authority::create(directory.path(), "billing", validity).unwrap();
        let key = directory.path().join(CA.1);
        for (mode, is_refused) in [(0o644, true), (0o640, false), (0o602, true), (0o600, false)] {
            set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            let refused = Authority::open(directory.path()).err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), is_refused, "{mode:o}: {refused:?}");
            assert!(refused.is_none_or(|why| why.contains("Run chmod 600 on it")), "{mode:o}");
        }
    }
}
