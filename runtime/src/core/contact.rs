//! When this node last knew that what it has is current: what a stale read says of its age.

use std::time::Instant;

use palisade_spec::raft::{Node, Role, StateMachine};

use super::read::Age;

/// The node's last contact. Known from its election timer, which is started afresh at every message of the leader, at the
/// beginning of every campaign, and at a leader whenever a majority has answered since the last time.
#[derive(Debug, Default)]
pub(super) struct Contact {
    /// When it heard from the leader; as a leader, the moment since which a majority has answered.
    heard: Option<Instant>,
    /// When the timer was last started.
    armed: Option<Instant>,
}

impl Contact {
    /// The node asked for its election timer to be started afresh.
    pub(super) fn armed<S: StateMachine>(&mut self, node: &Node<S>, now: Instant) {
        match node.role() {
            Role::Follower { leader: Some(_) } => self.heard = Some(now),
            Role::Leader(_) => self.heard = self.armed,
            Role::Follower { leader: None } | Role::PreCandidate { .. } | Role::Candidate { .. } => {}
        }
        self.armed = Some(now);
    }

    /// How old what the node has may be.
    pub(super) fn age(&self, now: Instant) -> Age {
        Age(self.heard.map(|heard| now.saturating_duration_since(heard)))
    }
}
