//! Keys with which the nodes of a Palisade cluster sign their grants (docs/fencing.md).

use std::path::PathBuf;

use palisade_fence::{RootKey, Terms, unix_time};
use rand::Rng;

use super::home::Home;
use super::palisade::{CLUSTER, NODES, node_key};

/// How long the keys are good, in seconds.
const VALID_S: u64 = 24 * 3600;
/// How far a clock may be behind this machine's, in seconds.
const BEHIND_S: u64 = 3600;

/// A root, and a signing key for each node. The files end with this value; a node needs its file as long as it runs.
#[derive(Debug)]
pub struct Signing {
    root: String,
    directory: Home,
}

impl Signing {
    /// Makes a root that is kept nowhere, and certifies a key for each node.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn create() -> Result<Signing, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot make signing keys: {error}");
        let directory = Home::make(None, "keys", false, true).map_err(|error| failed(&error))?;
        let root = RootKey::from_seed(rand::rng().random());
        let now = unix_time();
        let terms =
            Terms { cluster: CLUSTER.to_owned(), epoch: 0, not_before: now - BEHIND_S, not_after: now + VALID_S };
        for node in 1..=NODES {
            let signer = root.issue(rand::rng().random(), &terms).map_err(|error| failed(&error))?;
            signer.save(&node_key(directory.path(), node)).map_err(|error| failed(&error))?;
        }
        let root = root.root().map_err(|error| failed(&error))?.to_string();
        Ok(Signing { root, directory })
    }

    /// The directory of the nodes' keys, for [`Options::sign_grants`](super::Options::sign_grants).
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// The flags of a resource that believes no other tokens.
    #[must_use]
    pub fn resource_flags(&self) -> [&str; 4] {
        ["--require-signature", &self.root, "--cluster", CLUSTER]
    }
}
