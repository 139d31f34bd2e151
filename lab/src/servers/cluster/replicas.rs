//! Redis servers as replicas of others.

use super::Cluster;
use crate::servers::error::Error;
use crate::servers::redis;

impl Cluster {
    /// Sends a command to a Redis, and returns the answer as text.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the command.
    pub async fn redis(&self, node: usize, command: &[&str]) -> Result<String, Error> {
        let answer = redis::ask(self.address(node), command).await;
        answer.map_err(|reason| Error::Unfit { node: self.name(node).to_owned(), reason })
    }

    /// Makes a Redis the replica of the one at this address, which may be a link's, and waits until it follows.
    ///
    /// # Errors
    /// The server cannot be reached, or does not follow within 30 s.
    pub async fn replicate(&self, node: usize, primary: &str) -> Result<(), Error> {
        let (host, port) = primary.rsplit_once(':').unwrap_or_default();
        self.redis(node, &["REPLICAOF", host, port]).await?;
        let following = redis::follows(self.address(node), primary).await;
        following.map_err(|reason| Error::Unfit { node: self.name(node).to_owned(), reason })
    }
}
