//! The bytes of grants and certificates, and the text form (docs/fence-format.md).
//!
//! Every value has exactly one encoding: lengths are explicit, numbers have a fixed width, and the
//! base64url decoder refuses padding and unused bits that are not zero. So two texts that differ
//! are two different signed tokens, and nothing can be appended to one or cut off.

use std::fmt;

use crate::keys::{KeyId, SIGNATURE};
use crate::text::{Malformed, decode_text, encode_text};

/// What a signed token begins with: the format's name and version.
pub(crate) const PREFIX: &str = "fence1.";
/// What the signature of a grant covers before the grant's bytes.
pub(crate) const GRANT_DOMAIN: &[u8] = b"palisade fence 1 grant\0";
/// What the signature of a certificate covers before the certificate's bytes.
pub(crate) const CERTIFICATE_DOMAIN: &[u8] = b"palisade fence 1 certificate\0";

/// A grant: this session of this cluster got the lock with this token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The cluster's name: 1 to 255 bytes, unique below a root.
    pub cluster: String,
    /// The cluster's restore epoch: the operator raises it with every restore of a backup.
    pub epoch: u64,
    /// The lock's key: 1 to 65,535 bytes.
    pub key: String,
    /// The fencing token.
    pub token: u64,
    /// The public number of the session that holds the lock.
    pub session: u64,
}

/// A root's statement that a key signs grants of a cluster in an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The root.
    pub root: KeyId,
    /// The cluster's name.
    pub cluster: String,
    /// The only restore epoch for which the key signs.
    pub epoch: u64,
    /// The first second at which the certificate counts, since 1970-01-01 00:00 UTC.
    pub not_before: u64,
    /// The first second at which it no longer counts.
    pub not_after: u64,
    /// The signing key's public part.
    pub public_key: [u8; 32],
}

/// The parts of a signed token, which nothing was verified of yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The ID of the key that is said to have signed the grant.
    pub key_id: KeyId,
    /// The grant.
    pub grant: Grant,
    /// The signature of the grant.
    pub grant_signature: [u8; SIGNATURE],
    /// The signing key's certificate.
    pub certificate: Certificate,
    /// The root's signature of the certificate.
    pub certificate_signature: [u8; SIGNATURE],
    /// The bytes that the first signature covers, without the domain.
    pub(crate) grant_payload: Vec<u8>,
    /// The bytes that the second signature covers, without the domain.
    pub(crate) certificate_payload: Vec<u8>,
}

impl Signed {
    /// Reads the text form. Verifies nothing: for tools that show a token.
    ///
    /// # Errors
    /// If the text is not exactly one signed token.
    pub fn parse(text: &str) -> Result<Signed, Malformed> {
        let Some(body) = text.strip_prefix(PREFIX) else {
            return Err(Malformed::new(format!("it does not begin with `{PREFIX}`")));
        };
        let (grant, certificate) =
            body.split_once('.').ok_or_else(|| Malformed::new("it has no certificate after the grant"))?;
        let grant = decode_text("grant", grant)?;
        let (grant_payload, grant_signature) = split_signature("grant", grant)?;
        let (key_id, read) = read_grant(&grant_payload)?;
        let (certificate, certificate_payload, certificate_signature) = read_signed_certificate(certificate)?;
        Ok(Signed {
            key_id,
            grant: read,
            grant_signature,
            certificate,
            certificate_signature,
            grant_payload,
            certificate_payload,
        })
    }
}

/// The text form.
impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grant = [&grant_bytes(self.key_id, &self.grant), self.grant_signature.as_slice()].concat();
        let certificate = [&certificate_bytes(&self.certificate), self.certificate_signature.as_slice()].concat();
        write!(f, "{PREFIX}{}.{}", encode_text(&grant), encode_text(&certificate))
    }
}

/// A certificate from its text, with the bytes that are signed and the signature.
pub(crate) fn read_signed_certificate(text: &str) -> Result<(Certificate, Vec<u8>, [u8; SIGNATURE]), Malformed> {
    let (payload, signature) = split_signature("certificate", decode_text("certificate", text)?)?;
    Ok((read_certificate(&payload)?, payload, signature))
}

fn split_signature(what: &str, mut bytes: Vec<u8>) -> Result<(Vec<u8>, [u8; SIGNATURE]), Malformed> {
    let Some((payload, signature)) = bytes.split_last_chunk::<SIGNATURE>() else {
        return Err(Malformed::new(format!("the {what} has {} bytes, less than a signature", bytes.len())));
    };
    let (length, signature) = (payload.len(), *signature);
    bytes.truncate(length);
    Ok((bytes, signature))
}

/// The bytes of a grant that are signed.
///
/// # Panics
/// If the cluster's name or the key is empty or too long.
pub(crate) fn grant_bytes(key_id: KeyId, grant: &Grant) -> Vec<u8> {
    let key_length = u16::try_from(grant.key.len()).ok().filter(|&length| length > 0);
    let key_length = key_length.expect("a key has 1 to 65,535 bytes");
    let mut bytes = Vec::with_capacity(128 + grant.key.len());
    bytes.extend(key_id.0);
    put_cluster(&mut bytes, &grant.cluster);
    bytes.extend(grant.epoch.to_be_bytes());
    bytes.extend(key_length.to_be_bytes());
    bytes.extend(grant.key.as_bytes());
    bytes.extend(grant.token.to_be_bytes());
    bytes.extend(grant.session.to_be_bytes());
    bytes
}

/// The bytes of a certificate that are signed.
///
/// # Panics
/// If the cluster's name is empty or too long.
pub(crate) fn certificate_bytes(certificate: &Certificate) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend(certificate.root.0);
    put_cluster(&mut bytes, &certificate.cluster);
    bytes.extend(certificate.epoch.to_be_bytes());
    bytes.extend(certificate.not_before.to_be_bytes());
    bytes.extend(certificate.not_after.to_be_bytes());
    bytes.extend(certificate.public_key);
    bytes
}

fn put_cluster(bytes: &mut Vec<u8>, cluster: &str) {
    let length = u8::try_from(cluster.len()).ok().filter(|&length| length > 0);
    bytes.push(length.expect("a cluster's name has 1 to 255 bytes"));
    bytes.extend(cluster.as_bytes());
}

fn read_grant(bytes: &[u8]) -> Result<(KeyId, Grant), Malformed> {
    let mut reader = Reader { what: "grant", rest: bytes };
    let key_id = KeyId(reader.array()?);
    let cluster = reader.cluster()?;
    let epoch = reader.number()?;
    let key_length = u16::from_be_bytes(reader.array()?);
    let key = reader.text("key", usize::from(key_length))?;
    let (token, session) = (reader.number()?, reader.number()?);
    reader.end()?;
    Ok((key_id, Grant { cluster, epoch, key, token, session }))
}

fn read_certificate(bytes: &[u8]) -> Result<Certificate, Malformed> {
    let mut reader = Reader { what: "certificate", rest: bytes };
    let root = KeyId(reader.array()?);
    let cluster = reader.cluster()?;
    let (epoch, not_before, not_after) = (reader.number()?, reader.number()?, reader.number()?);
    let public_key = reader.array()?;
    reader.end()?;
    Ok(Certificate { root, cluster, epoch, not_before, not_after, public_key })
}

/// Reads fields of a fixed layout, and no byte more.
pub(crate) struct Reader<'a> {
    pub(crate) what: &'static str,
    pub(crate) rest: &'a [u8],
}

impl Reader<'_> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((first, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(Malformed::new(format!("the {} is too short", self.what)));
        };
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn cluster(&mut self) -> Result<String, Malformed> {
        let [length] = self.array()?;
        self.text("cluster's name", usize::from(length))
    }

    /// A text that is not empty.
    pub(crate) fn text(&mut self, field: &str, length: usize) -> Result<String, Malformed> {
        let what = self.what;
        let Some((text, rest)) = self.rest.split_at_checked(length).filter(|_| length > 0) else {
            return Err(Malformed::new(format!("the {field} in the {what} is empty or too short")));
        };
        self.rest = rest;
        let text = std::str::from_utf8(text);
        text.map(str::to_owned).map_err(|_| Malformed::new(format!("the {field} in the {what} is not UTF-8")))
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(Malformed::new(format!("{more} bytes follow the fields of the {}", self.what))),
        }
    }
}
