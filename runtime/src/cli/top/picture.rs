//! One reading of the cluster.

use palisade_client::wire::{Answer, Consistency, ListLocks, LockView, Op, Stale, StatusView};
use palisade_client::{BootInstant, Security};

use super::super::connect::NODE_TIMEOUT;
use super::super::nodes::{NodeAnswer, ask_cluster, most_current};

/// How many locks are read: the most that a node puts on a page.
pub(super) const LOCKS: u64 = 1_000;

/// What the nodes answered.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) at: BootInstant,
    pub(super) nodes: Vec<NodeAnswer>,
    /// The first locks in the order of their keys, or why they could not be read.
    pub(super) locks: Result<Vec<LockView>, String>,
    /// Whether there are more of them.
    pub(super) has_more: bool,
}

impl Picture {
    /// Asks every node for its status, and the most current one for the locks.
    pub(super) async fn take(endpoints: &[String], security: &Security, prefix: &str) -> Picture {
        let nodes = ask_cluster(endpoints.to_vec(), security).await;
        let current = most_current(&nodes).map(|status| status.node);
        let endpoint = nodes.iter().find(|answer| answer.status.is_some() && answer.node == current);
        let mut has_more = false;
        let locks = match endpoint.and_then(|answer| answer.endpoint.as_deref()) {
            None => Err("no node answers".to_owned()),
            Some(endpoint) => {
                let consistency = Consistency::Stale;
                let query = ListLocks { prefix: prefix.to_owned(), limit: Some(LOCKS), after: None, consistency };
                match security.ask(endpoint, Op::ListLocks(query), NODE_TIMEOUT).await {
                    Ok(Answer::StaleLocks(Stale { view: page, .. }) | Answer::Locks(page)) => {
                        has_more = page.next_after.is_some();
                        Ok(page.locks)
                    }
                    Ok(other) => Err(format!("{endpoint} sent an unexpected answer: {other:?}")),
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        Picture { at: BootInstant::now(), nodes, locks, has_more }
    }

    /// The leader's status; without one, that of the most current node.
    pub(super) fn current(&self) -> Option<&StatusView> {
        most_current(&self.nodes)
    }
}
