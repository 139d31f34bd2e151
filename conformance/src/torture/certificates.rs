//! The certificates of a cluster that is tortured with TLS: the nodes prove their numbers, and all clients have one name.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use palisade::addresses::host_of;
use palisade::storage::DEFAULT_CLUSTER_NAME;
use palisade::tls::{Authority, Validity};
use palisade_client::Security;

use super::network::Address;

/// Until long after today. It begins in 1970, as the time of day by the [fast clocks](super::clock) does.
const VALIDITY: Duration = Duration::from_secs(200 * 365 * 86_400);
/// The name of all clients.
const CLIENT: &str = "torture";

/// The directory of a CA.
#[derive(Clone, Debug)]
pub(super) struct Certificates(PathBuf);

impl Certificates {
    /// Makes a CA, and the clients' certificate.
    pub(super) fn create(directory: &Path) -> io::Result<Certificates> {
        let validity = validity()?;
        let authority = Authority::create(directory, DEFAULT_CLUSTER_NAME, validity).map_err(io::Error::other)?;
        authority.client(CLIENT, validity).map_err(io::Error::other)?;
        Ok(Certificates(directory.to_owned()))
    }

    /// How clients connect.
    pub(super) fn security(&self) -> Security {
        let (cert, key) = self.pair(&format!("client-{CLIENT}"));
        Security::tls(self.0.join("ca.pem")).with_certificate(cert, key)
    }

    /// Issues the certificate of a node.
    pub(super) fn issue(&self, node: u16, address: &Address) -> io::Result<()> {
        let hosts: Vec<String> = host_of(&address.client_addr).into_iter().collect();
        let authority = Authority::open(&self.0).map_err(io::Error::other)?;
        authority.node(node, &hosts, validity()?).map(drop).map_err(io::Error::other)
    }

    /// The options of a node.
    pub(super) fn options(&self, node: u16) -> [PathBuf; 6] {
        let (cert, key) = self.pair(&format!("node-{node}"));
        ["--tls-ca".into(), self.0.join("ca.pem"), "--tls-cert".into(), cert, "--tls-key".into(), key]
    }

    fn pair(&self, stem: &str) -> (PathBuf, PathBuf) {
        (self.0.join(format!("{stem}.pem")), self.0.join(format!("{stem}-key.pem")))
    }
}

fn validity() -> io::Result<Validity> {
    Validity::starting(SystemTime::UNIX_EPOCH.into(), VALIDITY).map_err(io::Error::other)
}
