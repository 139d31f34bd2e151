//! Asks the nodes of a cluster for their status: those of --endpoints, and all members of which
//! these tell.

use palisade_client::wire::StatusView;
use palisade_client::{Error, Security};
use serde::Serialize;
use tokio::task::JoinSet;

use super::connect::NODE_TIMEOUT;

/// A node, and its answer to a request for its status.
#[derive(Debug, Serialize)]
pub(super) struct NodeAnswer {
    /// Where the request went; `None` for a member whose client address no node knows.
    pub(super) endpoint: Option<String>,
    /// Its node ID, if it answered or another node knows it.
    pub(super) node: Option<u16>,
    pub(super) status: Option<StatusView>,
    /// Why there is no status.
    pub(super) error: Option<String>,
}

/// Asks the nodes at `endpoints`, and then every other member of their cluster.
pub(super) async fn ask_cluster(endpoints: Vec<String>, security: &Security) -> Vec<NodeAnswer> {
    let mut answers = ask(endpoints, security).await;
    let Some(StatusView { cluster, members, .. }) = most_current(&answers).cloned() else { return answers };
    let (mut others, mut unknown) = (Vec::new(), Vec::new());
    for member in members {
        let answered = |answer: &NodeAnswer| {
            answer.status.as_ref().is_some_and(|status| status.cluster == cluster && status.node == member.id)
        };
        if answers.iter().any(answered) {
            continue;
        }
        let silent = |answer: &&mut NodeAnswer| answer.status.is_none() && answer.endpoint == member.client_addr;
        match &member.client_addr {
            Some(_) if let Some(silent) = answers.iter_mut().find(silent) => silent.node = Some(member.id),
            Some(client_addr) => others.push((member.id, client_addr.clone())),
            None => unknown.push(NodeAnswer {
                endpoint: None,
                node: Some(member.id),
                status: None,
                error: Some("no node that answered knows its client address: it was not connected to them".into()),
            }),
        }
    }
    let (ids, addresses): (Vec<u16>, Vec<String>) = others.into_iter().unzip();
    for (id, other) in ids.into_iter().zip(ask(addresses, security).await) {
        answers.push(NodeAnswer { node: Some(id), ..other });
    }
    answers.extend(unknown);
    answers
}

/// The status of the leader; without one, of the node with the highest term.
pub(super) fn most_current(answers: &[NodeAnswer]) -> Option<&StatusView> {
    let statuses = answers.iter().filter_map(|answer| answer.status.as_ref());
    // The first of equals.
    statuses.rev().max_by_key(|status| (status.role == "leader", status.term, status.commit))
}

/// Asks these nodes only.
pub(super) async fn ask(endpoints: Vec<String>, security: &Security) -> Vec<NodeAnswer> {
    let mut tasks = JoinSet::new();
    for (order, endpoint) in endpoints.into_iter().enumerate() {
        let security = security.clone();
        tasks.spawn(async move {
            let answer = security.status(&endpoint, NODE_TIMEOUT).await;
            let error = answer.as_ref().err().map(|error| match error {
                // The cause alone: the error's own text reports a search for a leader, and none was
                // made.
                Error::Unreachable { trouble, .. } | Error::Unauthenticated { trouble } => trouble.clone(),
                other => other.to_string(),
            });
            let status = answer.ok();
            (
                order,
                NodeAnswer { endpoint: Some(endpoint), node: status.as_ref().map(|status| status.node), status, error },
            )
        });
    }
    let mut answers = tasks.join_all().await;
    answers.sort_by_key(|(order, _)| *order);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
