//! Membership changes (§4), one server at a time.
//!
//! A change is a log entry. Every node uses the latest change in its log, committed or not (§4.1):
//! the majority that commits a change is a majority of the members after it. A leader accepts a
//! change only
//!
//! - once the previous change is committed, so that the two configurations differ by one server;
//! - once it has committed an entry of its own term. Otherwise a change that an earlier leader left
//!   uncommitted can return later, next to one made meanwhile without it, and majorities of the two
//!   need not overlap (Ongaro, "bug in single-server membership changes", 2015);
//! - for a promotion, once the learner has nearly all of the log: otherwise a commit might have to
//!   wait for the learner.
//!
//! A server that has lost its disk returns as another member ([`Change::Replace`]). The new member
//! need not know the promises of the old identity, because it is a new server in every respect. For
//! the voters the change is a removal. The leader promotes the new member automatically once it has
//! caught up.
//!
//! A leader that is removed leads until the change is committed, without counting itself (§4.2.2),
//! then transfers its leadership.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::progress::Progress;
use super::{Change, Members, Node, NodeId, Output, Payload, Refusal, RequestId, Role, StateMachine};

impl<S: StateMachine> Node<S> {
    /// Handles an operator's membership change. Only a leader accepts one.
    pub(super) fn on_change(&mut self, id: RequestId, change: &Change, out: &mut Vec<Output<S>>) {
        match self.validate_change(change) {
            Ok(members) => {
                let first = self.log.last().index.next();
                out.push(Output::Accepted { id, first, term: self.term() });
                self.append(vec![Payload::Members(Arc::new(members))], Self::replicate, out);
            }
            Err(refusal) => out.push(Output::ChangeRefused { id, refusal }),
        }
    }

    /// The members after the change, if this node may make the change now.
    fn validate_change(&self, change: &Change) -> Result<Members, Refusal> {
        let Role::Leader(leadership) = &self.role else { return Err(Refusal::NotLeader(self.leader())) };
        let settled = self.has_committed_in_its_term() && self.log.members_since() <= self.commit;
        if !settled || leadership.successor.is_some() {
            return Err(Refusal::TooEarly);
        }
        let members = self.members().with(change)?;
        if let Change::Promote(id) = change {
            let lacks = self.log.last().index.0 - leadership.progress[id].matched.0;
            if lacks > self.config.max_batch as u64 {
                return Err(Refusal::NotCaughtUp);
            }
        }
        Ok(members)
    }

    /// Leader: promotes one returning member that answers and has caught up.
    pub(super) fn promote_returned(&mut self, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { unreachable!("only a leader promotes") };
        let answers = |id: &NodeId| leadership.progress[id].active;
        let promotion = |id| self.validate_change(&Change::Promote(id)).ok();
        let promoted = self.members().returning().filter(answers).find_map(promotion);
        if let Some(members) = promoted {
            self.append(vec![Payload::Members(Arc::new(members))], Self::replicate, out);
        }
    }

    /// Whether the last committed entry is of this node's term: then the node also knows which
    /// entries of earlier terms are committed (§6.4).
    pub(super) fn has_committed_in_its_term(&self) -> bool {
        self.log.term_at(self.commit) == Some(self.term())
    }

    /// Leader: makes the tracked peers equal to the other members.
    pub(super) fn track_members(&mut self) {
        let members = Arc::clone(self.log.members());
        let (id, last) = (self.id(), self.log.last().index);
        let Role::Leader(leadership) = &mut self.role else { unreachable!("only a leader has followers") };
        leadership.progress.retain(|peer, _| members.get(*peer).is_some());
        for peer in members.ids().filter(|&peer| peer != id) {
            leadership.progress.entry(peer).or_insert_with(|| Progress::unknown(last));
        }
    }

    /// Leader: steps down once its own removal is committed (§4.2.2).
    pub(super) fn step_down_if_removed(&mut self, out: &mut Vec<Output<S>>) {
        if self.members().get(self.id()).is_some() || self.log.members_since() > self.commit {
            return;
        }
        if let Some(successor) = self.best_successor() {
            self.send_timeout_now(successor, out);
        }
        self.role = Role::Follower { leader: None };
        out.push(Output::ArmElectionTimer);
    }

    /// The members that this node knows of: the latest in its log.
    pub fn members(&self) -> &Members {
        self.log.members()
    }

    /// Whether the node may campaign: as a voter, or if it was a voter as of its commit index, so
    /// that it does not know its removal to be committed. Possibly no other node has the entry of
    /// the removal, and none can be elected without this node's vote (§4.2.2). A removed node does
    /// not count its own vote.
    pub(super) fn may_campaign(&self) -> bool {
        let id = self.id();
        self.members().is_voter(id) || self.log.members_at(self.commit).is_voter(id)
    }

    /// The voters other than this node.
    pub(super) fn other_voters(&self) -> Vec<NodeId> {
        self.members().voters().filter(|&voter| voter != self.id()).collect()
    }
}
