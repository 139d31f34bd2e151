//! The queue of a ZooKeeper lock: the nodes below one parent, and requests with a deadline.
//!
//! A request whose connection broke is repeated until the deadline: the client's session goes on at another server. All
//! requests here have the same effect if they are applied twice, but for the creation of a node. So a waiter's node has a
//! random ID in its name: a creation whose answer was lost is found by it (the recipe of ZooKeeper's documentation).

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;
use zookeeper_client::{Acls, Client, CreateMode, Error as ZkError, SessionInfo};

use super::cleanup::Patience;
use super::{Error, Released};
use crate::text::percent_encoded;

const NAME: &str = "zookeeper";
/// The parent of all locks.
const ROOT: &str = "/locks";
/// The pause before a request whose connection broke is repeated.
const RETRY: Duration = Duration::from_millis(50);

/// A ZooKeeper ensemble.
#[derive(Debug, Clone)]
pub(super) struct Ensemble {
    servers: Arc<str>,
    timeout: Duration,
}

/// A waiter's node, or the holder's.
#[derive(Debug, Clone)]
pub(super) struct Node {
    parent: String,
    name: String,
    czxid: i64,
}

/// The parent node of a key's queue. A node's name must not contain a slash, so the key is percent-encoded.
pub(super) fn parent(key: &str) -> String {
    format!("{ROOT}/key:{}", percent_encoded(key, b"-_.:"))
}

/// The number that ZooKeeper put behind a node's name.
fn sequence(name: &str) -> Option<u64> {
    name.rsplit_once('-')?.1.parse().ok()
}

impl Node {
    /// A random ID for a waiter's node.
    pub(super) fn id() -> String {
        Uuid::new_v4().simple().to_string()
    }

    /// The fencing token.
    pub(super) fn token(&self) -> u64 {
        u64::try_from(self.czxid).unwrap_or(0)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.parent, self.name)
    }
}

impl Ensemble {
    pub(super) fn new(endpoints: &[String], timeout: Duration) -> Ensemble {
        Ensemble { servers: Arc::from(endpoints.join(",")), timeout }
    }

    fn error(&self, reason: impl Display) -> Error {
        Error::Backend { backend: NAME, reason: format!("{}: {reason}", self.servers) }
    }

    /// Sends a request, again if the connection broke, until the deadline.
    async fn ask<T, F>(&self, mut request: impl FnMut() -> F) -> Result<Result<T, ZkError>, Error>
    where
        F: Future<Output = Result<T, ZkError>>,
    {
        let repeated = async {
            loop {
                match request().await {
                    Err(ZkError::ConnectionLoss) => tokio::time::sleep(RETRY).await,
                    answer => return answer,
                }
            }
        };
        let answer = tokio::time::timeout(self.timeout, repeated).await;
        answer.map_err(|_| self.error(format!("no server answered within {:?}", self.timeout)))
    }

    async fn connect(
        &self,
        timeout: Duration,
        session: Option<SessionInfo>,
        leave: bool,
    ) -> Result<Result<Client, ZkError>, Error> {
        let dial = async {
            loop {
                let mut connector = Client::connector().with_session_timeout(timeout).with_fail_eagerly();
                if let Some(session) = session.clone() {
                    connector = connector.with_session(session);
                }
                if leave {
                    connector = connector.with_detached();
                }
                match connector.connect(&self.servers).await {
                    Err(error @ (ZkError::SessionExpired | ZkError::AuthFailed)) => return Err(error),
                    Err(_) => tokio::time::sleep(RETRY).await,
                    Ok(client) => return Ok(client),
                }
            }
        };
        let dialed = tokio::time::timeout(self.timeout, dial).await;
        dialed.map_err(|_| self.error(format!("no server opened a session within {:?}", self.timeout)))
    }

    /// Opens a session. A client that is to leave it does not close it when it is dropped.
    pub(super) async fn open(&self, timeout: Duration, leave: bool) -> Result<Client, Error> {
        self.connect(timeout, None, leave).await?.map_err(|error| self.error(error))
    }

    /// Attaches to a session that was left; `None` if it has ended.
    pub(super) async fn reattach(
        &self,
        timeout: Duration,
        session: SessionInfo,
        leave: bool,
    ) -> Result<Option<Client>, Error> {
        match self.connect(timeout, Some(session), leave).await? {
            Ok(client) => Ok(Some(client)),
            Err(ZkError::SessionExpired) => Ok(None),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Closes a session that was left, and so deletes its nodes.
    pub(super) async fn close(&self, timeout: Duration, session: SessionInfo) {
        drop(self.reattach(timeout, session, false).await);
    }

    /// Creates the waiter's node.
    pub(super) async fn enqueue(&self, client: &Client, parent: &str, id: &str, owner: &str) -> Result<Node, Error> {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let path = format!("{parent}/w-{id}-");
        let deadline = Instant::now() + self.timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let created = tokio::time::timeout(left, client.create(&path, owner.as_bytes(), &options)).await;
            let parent = parent.to_owned();
            match created {
                Ok(Ok((stat, sequence))) => {
                    return Ok(Node { parent, name: format!("w-{id}-{sequence}"), czxid: stat.czxid });
                }
                // The container of the key is made with its first waiter, and deleted by ZooKeeper some time after the last.
                Ok(Err(ZkError::NoNode)) => {
                    self.make(client, ROOT, CreateMode::Persistent).await?;
                    self.make(client, &parent, CreateMode::Container).await?;
                }
                Ok(Err(ZkError::ConnectionLoss)) => {
                    if let Some(node) = self.find(client, &parent, id).await? {
                        return Ok(node);
                    }
                    tokio::time::sleep(RETRY).await;
                }
                Ok(Err(error)) => return Err(self.error(error)),
                Err(_) => return Err(self.error(format!("no server answered within {:?}", self.timeout))),
            }
        }
    }

    async fn make(&self, client: &Client, path: &str, mode: CreateMode) -> Result<(), Error> {
        let options = mode.with_acls(Acls::anyone_all());
        match self.ask(|| client.create(path, &[], &options)).await? {
            Ok(_) | Err(ZkError::NodeExists) => Ok(()),
            Err(error) => Err(self.error(format!("{path} was not created: {error}"))),
        }
    }

    /// The names of all nodes of a queue, in its order.
    async fn names(&self, client: &Client, parent: &str) -> Result<Vec<String>, Error> {
        let names = match self.ask(|| client.list_children(parent)).await? {
            Ok(names) => names,
            Err(ZkError::NoNode) => Vec::new(),
            Err(error) => return Err(self.error(error)),
        };
        let mut names: Vec<(u64, String)> =
            names.into_iter().filter_map(|name| sequence(&name).map(|number| (number, name))).collect();
        names.sort_unstable();
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }

    /// The node with this ID.
    async fn find(&self, client: &Client, parent: &str, id: &str) -> Result<Option<Node>, Error> {
        let names = self.names(client, parent).await?;
        let Some(name) = names.into_iter().find(|name| name.contains(id)) else { return Ok(None) };
        let node = Node { parent: parent.to_owned(), name, czxid: 0 };
        match self.ask(|| client.check_stat(&node.path())).await? {
            Ok(stat) => Ok(stat.map(|stat| Node { czxid: stat.czxid, ..node })),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Deletes the node with this ID, if there is one.
    pub(super) async fn withdraw(&self, client: &Client, parent: &str, id: &str) {
        if let Ok(Some(node)) = self.find(client, parent, id).await {
            let _ = self.delete(client, &node).await;
        }
    }

    /// Waits until no node precedes the waiter's. Returns the moment from which the session's timeout counts at the
    /// earliest: the last request before that, because every request to the servers starts it anew.
    pub(super) async fn reach_the_front(
        &self,
        client: &Client,
        key: &str,
        node: &Node,
        patience: Patience,
    ) -> Result<Instant, Error> {
        let ended = || self.error(format!("the session ended while the acquire of {key} waited"));
        loop {
            let sent = Instant::now();
            let names = self.names(client, &node.parent).await?;
            let index = names.iter().position(|name| *name == node.name).ok_or_else(ended)?;
            if index == 0 {
                return Ok(sent);
            }
            let left = patience.left();
            if left.is_zero() {
                return Err(patience.timeout(key));
            }
            let predecessor = format!("{}/{}", node.parent, names[index - 1]);
            let (stat, changed) = match self.ask(|| client.check_and_watch_stat(&predecessor)).await? {
                Ok(watched) => watched,
                Err(error) => return Err(self.error(error)),
            };
            if stat.is_some() {
                let _ = tokio::time::timeout(left, changed.changed()).await;
            }
            if client.state().is_terminated() {
                return Err(ended());
            }
        }
    }

    /// Whether the node is still there.
    pub(super) async fn exists(&self, client: &Client, node: &Node) -> Result<bool, Error> {
        match self.ask(|| client.check_stat(&node.path())).await? {
            Ok(stat) => Ok(stat.is_some_and(|stat| stat.czxid == node.czxid)),
            Err(ZkError::SessionExpired | ZkError::ClientClosed) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Deletes the node.
    pub(super) async fn delete(&self, client: &Client, node: &Node) -> Result<Released, Error> {
        let mut attempts = 0;
        let delete = || {
            attempts += 1;
            client.delete(&node.path(), None)
        };
        match self.ask(delete).await? {
            Ok(()) => Ok(Released::Done),
            Err(ZkError::NoNode) if attempts > 1 => {
                Err(self
                    .error("the answer to the release was lost; the lock is free now, by this release or before it"))
            }
            Err(ZkError::NoNode | ZkError::SessionExpired | ZkError::ClientClosed) => Ok(Released::NotOwner),
            Err(error) => Err(self.error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_path_component() {
        assert_eq!(parent("reports/nightly"), "/locks/key:reports%2Fnightly");
        assert_eq!(parent(".."), "/locks/key:..");
        assert_eq!(parent("ü%"), "/locks/key:%C3%BC%25");
    }

    #[test]
    fn names_sort_by_their_sequence() {
        assert_eq!(sequence("w-ff-0000000012"), Some(12));
        assert_eq!(sequence("w-ff-2147483648"), Some(2_147_483_648));
        assert_eq!(sequence("note"), None);
    }
}
