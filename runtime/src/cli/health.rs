//! Finds what is wrong with the nodes of a cluster, as far as their status tells.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use super::nodes::NodeAnswer;
use super::print_error;

/// Reports the nodes that do not answer or know no leader: the same question as `GET /readyz`, for programs that have no
/// HTTP client, or that a node with TLS does not answer.
pub(super) fn report_unready(answers: &[NodeAnswer]) -> ExitCode {
    let mut exit_code = ExitCode::SUCCESS;
    for NodeAnswer { endpoint, status, error, .. } in answers {
        let endpoint = endpoint.as_deref().unwrap_or("-");
        match status {
            Some(status) if status.leader.is_some() => {}
            Some(status) => {
                let founding = status.role == "founding";
                let why = if founding { ": this founder takes no part until all founders have met" } else { "" };
                print_error(format!("{endpoint} knows no leader at the moment{why}; try again"));
                exit_code = ExitCode::from(75);
            }
            None => {
                print_error(format!("{endpoint} is unreachable: {}", error.as_deref().unwrap_or("no answer")));
                return ExitCode::from(69);
            }
        }
    }
    exit_code
}

/// Prints a line about nodes that run different versions, if some do.
pub(super) fn print_different_versions(answers: &[NodeAnswer]) {
    if let Some(line) = different_versions(answers) {
        outln!("{line}");
    }
}

/// Different versions are an upgrade that is not finished.
fn different_versions(answers: &[NodeAnswer]) -> Option<String> {
    let mut nodes = BTreeMap::<&str, BTreeSet<u16>>::new();
    for status in answers.iter().filter_map(|answer| answer.status.as_ref()) {
        nodes.entry(&status.version).or_default().insert(status.node);
    }
    if nodes.len() < 2 {
        return None;
    }
    let versions = nodes.iter().map(|(version, nodes)| {
        let nodes: Vec<String> = nodes.iter().map(u16::to_string).collect();
        format!("{version} on node {}", nodes.join(", "))
    });
    let versions: Vec<String> = versions.collect();
    Some(format!("versions differ: {}; upgrade the other nodes", versions.join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(node: u16, version: &str) -> NodeAnswer {
        let status = json!({
            "node": node, "cluster": "c1", "role": "follower", "term": 1, "leader": null, "commit": 1, "applied": 1,
            "cluster_time_ms": 1, "sessions": 0, "locks": 0, "members": [], "snapshot": null, "version": version,
        });
        let status = serde_json::from_value(status).unwrap();
        NodeAnswer {
            endpoint: Some(format!("10.0.0.{node}:7400")),
            node: Some(node),
            status: Some(status),
            error: None,
        }
    }

    /// Goal: an upgrade that is not finished is seen, and nothing is said when it is.
    #[test]
    fn versions_are_shown_if_they_differ() {
        let down = NodeAnswer { endpoint: None, node: Some(4), status: None, error: Some("down".into()) };
        let alike = [node(1, "0.1.0"), node(2, "0.1.0"), down];
        assert_eq!(different_versions(&alike), None);
        let [old, new] = ["0.1.0", "0.2.0"];
        assert_eq!(
            different_versions(&[node(3, old), node(2, new), node(1, old)]).unwrap(),
            "versions differ: 0.1.0 on node 1, 3; 0.2.0 on node 2; upgrade the other nodes"
        );
    }
}
