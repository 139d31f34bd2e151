//! Elections (§3.4), with PreVote (§9.6), CheckQuorum (§6.2) and the live leader's protection (§4.2.3).
//!
//! ```text
//!             election timeout            majority would            majority voted
//!  Follower ───────────────────▶ PreCandidate ─────────▶ Candidate ────────────────▶ Leader
//!     ▲                             ▲   │                  │   │                       │
//!     │                             └───┴─ election timeout┘   │                       │
//!     └──── a later term, or AppendEntries of this term ───────┴── no quorum answers ──┘
//! ```

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use super::progress::Progress;
use super::role::Leadership;
use super::{Body, DropReason, HardState, Node, NodeId, Output, Payload, Position, Role, StateMachine};

impl<S: StateMachine> Node<S> {
    /// The election timer ran out. A leader checks that a quorum still answers it; everybody else has heard from no
    /// leader for that long, and asks whether an election could be won.
    pub(super) fn on_election_timeout(&mut self, out: &mut Vec<Output<S>>) {
        if let Role::Leader(leadership) = &mut self.role {
            let majority = self.config.majority();
            let active = 1 + leadership.progress.values().filter(|progress| progress.active).count();
            if active >= majority {
                leadership.progress.values_mut().for_each(|progress| progress.active = false);
            } else {
                self.role = Role::Follower { leader: None };
            }
            out.push(Output::ArmElectionTimer);
        } else {
            self.become_pre_candidate(out);
        }
    }

    /// Would this node vote for `from`? No term or vote changes. That no leader is alive was checked before.
    pub(super) fn on_pre_vote(&mut self, from: NodeId, last: Position, out: &mut Vec<Output<S>>) {
        let granted = last.is_up_to_date_with(self.log.last());
        self.send(from, Body::PreVoteReply { granted }, out);
    }

    /// Somebody would vote for this node, or would not.
    pub(super) fn on_pre_vote_reply(&mut self, from: NodeId, granted: bool, out: &mut Vec<Output<S>>) {
        let majority = self.config.majority();
        let Role::PreCandidate { grants } = &mut self.role else {
            return out.push(Output::Dropped { from, reason: DropReason::Stale });
        };
        if granted {
            grants.insert(from);
        }
        if grants.len() >= majority {
            self.become_candidate(out);
        }
    }

    /// A candidate of this term asks for the vote. One vote a term, to a log at least as up-to-date as our own, and
    /// durable before it is given.
    pub(super) fn on_request_vote(&mut self, from: NodeId, last: Position, out: &mut Vec<Output<S>>) {
        let free = self.hard.vote.is_none_or(|vote| vote == from);
        let granted = free && last.is_up_to_date_with(self.log.last());
        if granted {
            self.set_hard_state(HardState { vote: Some(from), ..self.hard }, out);
            out.push(Output::ArmElectionTimer);
        }
        self.send(from, Body::RequestVoteReply { granted }, out);
    }

    /// Somebody voted for this node in this term, or refused to.
    pub(super) fn on_request_vote_reply(&mut self, from: NodeId, granted: bool, out: &mut Vec<Output<S>>) {
        let majority = self.config.majority();
        let Role::Candidate { votes } = &mut self.role else {
            return out.push(Output::Dropped { from, reason: DropReason::Stale });
        };
        if granted {
            votes.insert(from);
        }
        if votes.len() >= majority {
            self.become_leader(out);
        }
    }

    fn become_pre_candidate(&mut self, out: &mut Vec<Output<S>>) {
        self.role = Role::PreCandidate { grants: BTreeSet::from([self.id()]) };
        out.push(Output::ArmElectionTimer);
        if self.config.majority() == 1 {
            return self.become_candidate(out);
        }
        self.ask_everybody(Body::PreVote { last: self.log.last() }, out);
    }

    fn become_candidate(&mut self, out: &mut Vec<Output<S>>) {
        self.set_hard_state(HardState { term: self.term().next(), vote: Some(self.id()) }, out);
        self.role = Role::Candidate { votes: BTreeSet::from([self.id()]) };
        out.push(Output::ArmElectionTimer);
        if self.config.majority() == 1 {
            return self.become_leader(out);
        }
        self.ask_everybody(Body::RequestVote { last: self.log.last() }, out);
    }

    /// A new leader appends a no-op at once: entries of earlier terms are committed only together with one of its
    /// own (§3.6.2), and nobody may have to wait for a client to bring it.
    fn become_leader(&mut self, out: &mut Vec<Output<S>>) {
        let last = self.log.last().index;
        let progress: BTreeMap<NodeId, Progress> =
            self.config.peers().map(|peer| (peer, Progress::unknown(last))).collect();
        self.role = Role::Leader(Leadership { progress });
        self.clock.lead(self.hard.term, self.log.last_stamp());
        out.push(Output::ArmElectionTimer);
        out.push(Output::ArmHeartbeatTimer);
        self.append(vec![Payload::Noop], Self::probe, out);
    }

    fn ask_everybody(&self, question: Body<S>, out: &mut Vec<Output<S>>) {
        for peer in self.config.peers() {
            self.send(peer, question.clone(), out);
        }
    }
}
