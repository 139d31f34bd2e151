//! The certificates of `palisade dev --tls`: a CA, one for each node, one for a client and one for an
//! administrator. Those that an earlier run left are used again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade::tls::{Authority, Validity};
use palisade_client::Security;

use super::quoted;

/// How long the certificates are valid.
const VALID: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The name of the client, and of the administrator.
const NAME: &str = "dev";
/// The cluster's name, as the nodes' command lines have it.
pub(super) const CLUSTER: &str = "dev";

/// A directory with certificates.
pub(super) struct Certificates(PathBuf);

impl Certificates {
    /// Makes those that are missing.
    pub(super) fn make(directory: &Path, nodes: u16) -> Result<Certificates, String> {
        let certificates = Certificates(directory.to_owned());
        let made = || {
            let validity = Validity::starting_now(VALID)?;
            let authority = match certificates.ca().exists() {
                true => Authority::open(directory)?,
                false => Authority::create(directory, CLUSTER, validity)?,
            };
            for id in (1..=nodes).filter(|id| !certificates.path(&format!("node-{id}.pem")).exists()) {
                authority.node(id, &["127.0.0.1".to_owned(), "localhost".to_owned()], validity)?;
            }
            if !certificates.client(NAME).0.exists() {
                authority.client(NAME, validity)?;
            }
            if !certificates.administrator().0.exists() {
                authority.administrator(NAME, validity)?;
            }
            Ok::<_, palisade::tls::TlsError>(())
        };
        made().map_err(|error| format!("cannot make the certificates: {error}"))?;
        Ok(certificates)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    fn client(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.path(&format!("client-{name}.pem")), self.path(&format!("client-{name}-key.pem")))
    }

    fn administrator(&self) -> (PathBuf, PathBuf) {
        (self.path(&format!("admin-{NAME}.pem")), self.path(&format!("admin-{NAME}-key.pem")))
    }

    /// The options of a node's command line.
    pub(super) fn of_node(&self, id: u16) -> Vec<String> {
        let files = [
            ("--tls-ca", self.ca()),
            ("--tls-cert", self.path(&format!("node-{id}.pem"))),
            ("--tls-key", self.path(&format!("node-{id}-key.pem"))),
        ];
        files.into_iter().flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]).collect()
    }

    /// What a client connects with.
    pub(super) fn security(&self) -> Security {
        self.security_with(NAME)
    }

    /// What another client connects with; its certificate is made if it is missing.
    pub(super) fn security_of(&self, client: &str) -> Result<Security, String> {
        if !self.client(client).0.exists() {
            let issued =
                Validity::starting_now(VALID).and_then(|validity| Authority::open(&self.0)?.client(client, validity));
            issued.map_err(|error| format!("cannot make the certificate of {client}: {error}"))?;
        }
        Ok(self.security_with(client))
    }

    fn security_with(&self, client: &str) -> Security {
        let (cert, key) = self.client(client);
        Security::tls(self.ca()).with_certificate(cert, key)
    }

    /// The options of a client's command line, each behind a space.
    pub(super) fn flags(&self) -> String {
        self.flags_with(self.client(NAME))
    }

    /// The same for the administrator.
    pub(super) fn administrator_flags(&self) -> String {
        self.flags_with(self.administrator())
    }

    fn flags_with(&self, (cert, key): (PathBuf, PathBuf)) -> String {
        [("--ca", self.ca()), ("--cert", cert), ("--cert-key", key)]
            .iter()
            .map(|(flag, file)| format!(" {flag} {}", quoted(&file.display().to_string())))
            .collect()
    }

    /// The beginning of a command with curl.
    pub(super) fn curl(&self) -> String {
        format!("curl -s{}", self.flags().replacen(" --ca ", " --cacert ", 1).replacen(" --cert-key ", " --key ", 1))
    }
}
