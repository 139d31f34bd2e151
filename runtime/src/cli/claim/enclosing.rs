//! The locks under which this `palisade lock` itself runs.
//!
//! `palisade lock k -- palisade lock k -- COMMAND` would wait for itself: the outer lock is
//! released when the inner command ends, and the inner command starts when the outer lock is
//! released. So each `palisade lock` gives its command the sessions of all enclosing ones in
//! [`VARIABLE`]. A cluster and a session's number identify a holder exactly, because a cluster never
//! uses a number again; and they open nothing, wherever a command prints its environment.

use palisade_client::Client;
use palisade_client::wire::{Consistency, HolderView};

/// Sessions of the enclosing `palisade lock`s, the outermost first, each as `CLUSTER/NUMBER`,
/// separated by commas.
pub(in super::super) const VARIABLE: &str = "PALISADE_SESSIONS";

/// The sessions of the enclosing `palisade lock`s, and the cluster of this one.
pub(in super::super) struct Enclosing {
    sessions: String,
    /// The cluster's ID; `None` if no node has said it: then the list stays as it is.
    cluster: Option<String>,
}

impl Enclosing {
    /// Reads the environment, and asks the cluster for its ID.
    pub(in super::super) async fn read(client: &Client) -> Enclosing {
        let sessions = std::env::var(VARIABLE).unwrap_or_default();
        let cluster = client.status().await.ok().map(|status| status.cluster);
        Enclosing { sessions, cluster }
    }

    /// The first of these locks that an enclosing `palisade lock` holds, and that holder. Locks that are
    /// shared count, too: the inner request would wait for itself behind a writer that waits for the outer
    /// one. A failed read finds none: the request for the lock that follows reports the failure.
    pub(in super::super) async fn holder(&self, client: &Client, keys: &[String]) -> Option<(String, HolderView)> {
        if self.sessions.is_empty() {
            return None;
        }
        for key in keys {
            let lock = client.show_lock(key.as_str(), Consistency::Linearizable).await.ok()?;
            if let Some(holder) = lock.holders.into_iter().find(|holder| self.contains(holder.session)) {
                return Some((lock.key, holder));
            }
        }
        None
    }

    /// The value of [`VARIABLE`] for the command of this `palisade lock`, whose session has this
    /// number.
    pub(in super::super) fn with(&self, session: u64) -> String {
        let outer = Some(self.sessions.clone()).filter(|sessions| !sessions.is_empty());
        outer.into_iter().chain(self.name(session)).collect::<Vec<_>>().join(",")
    }

    fn contains(&self, session: u64) -> bool {
        self.name(session).is_some_and(|name| self.sessions.split(',').any(|known| known == name))
    }

    fn name(&self, session: u64) -> Option<String> {
        self.cluster.as_ref().map(|cluster| format!("{cluster}/{session}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Enclosing;

    /// Goal: a session is recognised in its own cluster only, at every depth; a cluster that has not
    /// said its ID recognises none, and passes the list on.
    #[test]
    fn sessions_are_told_apart_by_cluster_and_number() {
        let [blank, inner, other, unknown] =
            [("", Some("c1")), ("c1/7,c1/12", Some("c1")), ("c1/7,c1/12", Some("c2")), ("c1/7", None)].map(
                |(sessions, cluster)| Enclosing { sessions: sessions.into(), cluster: cluster.map(str::to_owned) },
            );
        assert_eq!(blank.with(7), "c1/7");
        assert!(!blank.contains(7));
        assert_eq!(inner.with(20), "c1/7,c1/12,c1/20");
        assert!(inner.contains(7) && inner.contains(12) && !inner.contains(1) && !inner.contains(2));
        assert!(!other.contains(7));
        assert_eq!(unknown.with(8), "c1/7");
        assert!(!unknown.contains(7));
    }
}
