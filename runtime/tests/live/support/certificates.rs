//! The CA of a cluster and what it issued, made by `palisade cert`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_client::Security;

use super::process::{palisade, printed};

/// The directory of a CA.
pub struct Certificates {
    directory: tempfile::TempDir,
    /// The file with the CAs that the nodes trust.
    trusted: PathBuf,
}

/// A certificate that expired long ago.
pub const EXPIRED: [&str; 4] = ["--valid-from", "2020-01-01T00:00:00Z", "--valid", "1day"];

/// Runs `palisade cert`, and returns what it printed.
pub fn cert<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    printed(palisade().arg("cert").args(arguments))
}

impl Certificates {
    /// Makes the CA of a cluster, the certificates of its nodes 1 to `nodes`, and that of the client
    /// `test`.
    pub fn of(cluster: &str, nodes: u16) -> Certificates {
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca");
        let certificates = Certificates { trusted: directory.path().join("trusted.pem"), directory };
        cert(&[OsStr::new("init"), ca.as_os_str(), OsStr::new("--cluster"), OsStr::new(cluster)]);
        std::fs::copy(ca.join("ca.pem"), &certificates.trusted).unwrap();
        (1..=nodes).for_each(|id| certificates.issue_node(id, &[]));
        certificates.issue_client("test", &[]);
        certificates
    }

    /// The nodes trust another CA, too.
    pub fn trust(&self, other: &Certificates) {
        let both = [&self.trusted, &other.ca()].map(|path| std::fs::read_to_string(path).unwrap()).concat();
        std::fs::write(&self.trusted, both).unwrap();
    }

    /// A file in the directory of the CA.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join("ca").join(name)
    }

    /// A file beside it.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The CA's certificate.
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// The CAs that the nodes trust.
    pub fn trusted(&self) -> &Path {
        &self.trusted
    }

    /// Issues a node's certificate; an earlier one is removed.
    pub fn issue_node(&self, id: u16, flags: &[&str]) {
        let id = id.to_string();
        self.remove(&format!("node-{id}"));
        let directory = self.file("").display().to_string();
        cert(&[&["node", &directory, "--id", &id, "--host", "127.0.0.1", "--host", "localhost"], flags].concat());
    }

    /// Issues a client's certificate; an earlier one is removed.
    pub fn issue_client(&self, name: &str, flags: &[&str]) {
        self.remove(&format!("client-{name}"));
        cert(&[&["client", &self.file("").display().to_string(), "--name", name], flags].concat());
    }

    /// Issues an administrator's certificate, and returns what connects with it.
    pub fn administrator(&self, name: &str) -> Security {
        cert(&["client", &self.file("").display().to_string(), "--name", name, "--admin"]);
        self.with(self, &format!("admin-{name}"))
    }

    fn remove(&self, stem: &str) {
        for name in [format!("{stem}.pem"), format!("{stem}-key.pem")] {
            let _ = std::fs::remove_file(self.file(&name));
        }
    }

    /// The certificate and the key of `node-N`, `client-NAME` or `admin-NAME`.
    pub fn pair(&self, stem: &str) -> (PathBuf, PathBuf) {
        (self.file(&format!("{stem}.pem")), self.file(&format!("{stem}-key.pem")))
    }

    /// What connects to this cluster with nothing that proves an identity.
    pub fn anonymous(&self) -> Security {
        Security::tls(self.ca())
    }

    /// What connects to this cluster with the certificate `stem` of these or other certificates.
    pub fn with(&self, of: &Certificates, stem: &str) -> Security {
        let (cert, key) = of.pair(stem);
        self.anonymous().with_certificate(cert, key)
    }

    /// What connects as a client.
    pub fn client(&self, name: &str) -> Security {
        self.with(self, &format!("client-{name}"))
    }

    /// The options of node `id`.
    pub fn flags(&self, id: u16) -> Vec<String> {
        self.flags_with(self, &format!("node-{id}"))
    }

    /// The options of a node with the certificate `stem` of these or other certificates.
    pub fn flags_with(&self, of: &Certificates, stem: &str) -> Vec<String> {
        let (cert, key) = of.pair(stem);
        let files = [("--tls-ca", self.trusted.clone()), ("--tls-cert", cert), ("--tls-key", key)];
        files.into_iter().flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]).collect()
    }

    /// Adds its options to the command of each node.
    pub fn adjust(&self) -> impl Fn(u16, &mut Command) + Send + Sync + use<> {
        let stem = self.file("").display().to_string();
        let trusted = self.trusted.clone();
        move |id, command| {
            command.arg("--tls-ca").arg(&trusted).arg("--tls-cert").arg(format!("{stem}node-{id}.pem"));
            command.arg("--tls-key").arg(format!("{stem}node-{id}-key.pem"));
        }
    }

    /// The options of a client's command line with this security.
    pub fn arguments(security: &Security) -> Vec<String> {
        let pairs = security.arguments().into_iter();
        pairs.flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]).collect()
    }
}
