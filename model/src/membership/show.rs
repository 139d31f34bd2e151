//! Text, JSON and labels for membership changes.

use palisade_spec::raft::NodeId;
use serde_json::{Value, json};

use super::{Move, Operators};
use crate::diagram::Tone;
use crate::state_table::StateTable;
use crate::world::{DescribeEnvironment, DescribeMove};

impl DescribeEnvironment for Operators {
    fn table(&self, table: &mut StateTable) {
        table.fields("clients", [("proposed", format!("{} of {}", self.made, self.most))]);
        let left = [
            ("may add", self.left.additions),
            ("may promote", self.left.promotions),
            ("may remove", self.left.removals),
            ("may replace", self.left.replacements),
        ];
        table.fields("operators", left.map(|(name, count)| (name, count.to_string())));
    }

    fn lifelines(&self) -> Vec<String> {
        vec!["operators".to_string()]
    }

    fn notes(&self, _: &Operators) -> Vec<(usize, String, Tone)> {
        Vec::new()
    }
}

impl Move {
    /// The kind of the move, its server, and the leader that receives it.
    fn parts(self) -> (&'static str, Option<NodeId>, NodeId) {
        match self {
            Move::Propose(leader) => ("propose", None, leader),
            Move::Add(leader, server) => ("add", Some(server), leader),
            Move::Promote(leader, server) => ("promote", Some(server), leader),
            Move::Remove(leader, server) => ("remove", Some(server), leader),
            Move::Replace { leader, lost, .. } => ("replace", Some(lost), leader),
        }
    }
}

impl DescribeMove for Move {
    fn sentence(&self) -> String {
        match self.parts() {
            (_, Some(lost), leader) if let Move::Replace { by, .. } = self => {
                format!("server {lost} lost its disk, and asks server {leader} to replace it by server {by}")
            }
            (what, Some(server), leader) => format!("an operator asks server {leader} to {what} server {server}"),
            (_, None, leader) => format!("a client's proposal arrives at server {leader}"),
        }
    }

    fn event(&self) -> Value {
        let (what, server, leader) = self.parts();
        match self {
            Move::Replace { by, .. } => json!({ what: leader, "server": server, "by": by }),
            _ => json!({ what: leader, "server": server }),
        }
    }

    fn participant(&self) -> Option<usize> {
        Some(0)
    }

    fn label(&self) -> String {
        match self.parts() {
            (what, Some(server), _) => format!("{what} {server}"),
            (what, None, _) => what.to_string(),
        }
    }
}
