//! Elections (§3.4), with PreVote (§9.6), CheckQuorum (§6.2) and the live leader's protection
//! (§4.2.3).
//!
//! ```text
//!             election timeout            majority would            majority voted
//!  Follower ───────────────────▶ PreCandidate ─────────▶ Candidate ────────────────▶ Leader
//!     ▲                             ▲   │                  │   │                       │
//!     │                             └───┴─ election timeout┘   │                       │
//!     └──── a later term, or AppendEntries of this term ───────┴── no quorum answers ──┘
//! ```

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::role::Leadership;
use super::{Body, DropReason, HardState, Node, NodeId, Output, Payload, Position, Role, StateMachine};

impl<S: StateMachine> Node<S> {
    /// Handles the expiry of the election timer. A leader checks that a quorum still answers it;
    /// any other node has heard from no leader for that long, and starts a pre-vote if it
    /// may campaign.
    pub(super) fn on_election_timeout(&mut self, out: &mut Vec<Output<S>>) {
        if let Role::Leader(leadership) = &mut self.role {
            let (id, members) = (self.config.id, self.log.members());
            let answers =
                |voter| voter == id || leadership.progress.get(&voter).is_some_and(|progress| progress.active);
            if members.is_majority(answers) {
                leadership.progress.values_mut().for_each(|progress| progress.active = false);
                leadership.successor = None;
            } else {
                self.role = Role::Follower { leader: None };
            }
            out.push(Output::ArmElectionTimer);
        } else if self.may_campaign() {
            self.become_pre_candidate(out);
        } else {
            self.role = Role::Follower { leader: None };
            out.push(Output::ArmElectionTimer);
        }
    }

    /// Answers a pre-vote request. Changes neither term nor vote. The caller has checked that no
    /// leader is known to be alive.
    pub(super) fn on_pre_vote(&mut self, from: NodeId, last: Position, out: &mut Vec<Output<S>>) {
        let granted = last.is_up_to_date_with(self.log.last());
        self.send(from, Body::PreVoteReply { granted }, out);
    }

    /// Counts a peer's answer to a pre-vote request.
    pub(super) fn on_pre_vote_reply(&mut self, from: NodeId, granted: bool, out: &mut Vec<Output<S>>) {
        let members = Arc::clone(self.log.members());
        let Role::PreCandidate { grants } = &mut self.role else {
            return out.push(Output::Dropped { from, reason: DropReason::Stale });
        };
        if granted {
            grants.insert(from);
        }
        if members.is_majority(|voter| grants.contains(&voter)) {
            self.become_candidate(false, out);
        }
    }

    /// Handles a vote request of a candidate of this term: grants one vote per term, to a log at
    /// least as up-to-date as the voter's own, durable before the reply is sent.
    pub(super) fn on_request_vote(&mut self, from: NodeId, last: Position, out: &mut Vec<Output<S>>) {
        let free = self.hard.vote.is_none_or(|vote| vote == from);
        let granted = free && last.is_up_to_date_with(self.log.last());
        if granted {
            self.set_hard_state(HardState { vote: Some(from), ..self.hard }, out);
            out.push(Output::ArmElectionTimer);
        }
        self.send(from, Body::RequestVoteReply { granted }, out);
    }

    /// Counts a peer's vote, or ignores its refusal.
    pub(super) fn on_request_vote_reply(&mut self, from: NodeId, granted: bool, out: &mut Vec<Output<S>>) {
        let members = Arc::clone(self.log.members());
        let Role::Candidate { votes } = &mut self.role else {
            return out.push(Output::Dropped { from, reason: DropReason::Stale });
        };
        if granted {
            votes.insert(from);
        }
        if members.is_majority(|voter| votes.contains(&voter)) {
            self.become_leader(out);
        }
    }

    fn become_pre_candidate(&mut self, out: &mut Vec<Output<S>>) {
        self.role = Role::PreCandidate { grants: BTreeSet::from([self.id()]) };
        out.push(Output::ArmElectionTimer);
        if self.members().is_majority(|voter| voter == self.id()) {
            return self.become_candidate(false, out);
        }
        self.send_to_voters(&Body::PreVote { last: self.log.last() }, out);
    }

    /// Starts a campaign; `transfer` marks one that the leader requested.
    pub(super) fn become_candidate(&mut self, transfer: bool, out: &mut Vec<Output<S>>) {
        self.set_hard_state(HardState { term: self.term().next(), vote: Some(self.id()) }, out);
        self.role = Role::Candidate { votes: BTreeSet::from([self.id()]) };
        out.push(Output::ArmElectionTimer);
        if self.members().is_majority(|voter| voter == self.id()) {
            return self.become_leader(out);
        }
        self.send_to_voters(&Body::RequestVote { last: self.log.last(), transfer }, out);
    }

    /// A new leader appends a no-op at once: entries of earlier terms are committed only together
    /// with one of its own term (§3.6.2), and that must not depend on a client's proposal.
    fn become_leader(&mut self, out: &mut Vec<Output<S>>) {
        self.role = Role::Leader(Leadership::default());
        self.track_members();
        out.push(Output::ArmElectionTimer);
        out.push(Output::ArmHeartbeatTimer);
        self.append(vec![Payload::Noop], Self::probe, out);
    }

    fn send_to_voters(&self, question: &Body<S>, out: &mut Vec<Output<S>>) {
        for voter in self.other_voters() {
            self.send(voter, question.clone(), out);
        }
    }
}
