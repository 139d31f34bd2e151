//! Changes of the members (§4), one server at a time.
//!
//! A change is a log entry. Every node acts on the latest one in its log, committed or not (§4.1): whoever decides about
//! the change must be a majority of the members after it too. A leader takes one only
//!
//! - once the one before is committed, so that the two differ by one server;
//! - once it has committed an entry of its own term. Without this a change that an earlier leader left uncommitted can
//!   come back later, beside one made meanwhile without it, and majorities of the two need not meet (Ongaro, "bug in
//!   single-server membership changes", 2015);
//! - for a promotion, once the learner has nearly all of the log: until it has, a commit might have to wait for it.
//!
//! A server that has lost its disk comes back as another member ([`Change::Replace`]): what its old identity has promised, the
//! new one need not know, because it is a new server in every respect. The change is a removal, as far as voters go. When the
//! new member has caught up, the leader promotes it by itself.
//!
//! A leader that is removed leads until the change is committed, without counting itself (§4.2.2), then hands over.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::progress::Progress;
use super::{Change, Members, Node, NodeId, Output, Payload, Refusal, Role, StateMachine};

impl<S: StateMachine> Node<S> {
    /// An operator asks for a change. Only a leader takes it.
    pub(super) fn on_change(&mut self, change: &Change, out: &mut Vec<Output<S>>) {
        match self.validate_change(change) {
            Ok(members) => {
                let first = self.log.last().index.next();
                out.push(Output::Accepted { first, term: self.term() });
                self.append(vec![Payload::Members(Arc::new(members))], Self::replicate, out);
            }
            Err(refusal) => out.push(Output::ChangeRefused(refusal)),
        }
    }

    /// The members after the change, if this node may make it now.
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

    /// As leader: makes one of those that come back without their disks a voter again, if it answers and has caught up.
    pub(super) fn promote_returned(&mut self, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { unreachable!("only a leader promotes") };
        let answers = |id: &NodeId| leadership.progress[id].active;
        let promotion = |id| self.validate_change(&Change::Promote(id)).ok();
        let promoted = self.members().returning().filter(answers).find_map(promotion);
        if let Some(members) = promoted {
            self.append(vec![Payload::Members(Arc::new(members))], Self::replicate, out);
        }
    }

    /// Whether the last committed entry is of this node's term: of all that was committed before its term, it knows
    /// then that it is committed (§6.4).
    pub(super) fn has_committed_in_its_term(&self) -> bool {
        self.log.term_at(self.commit) == Some(self.term())
    }

    /// As leader: keeps track of exactly the other members.
    pub(super) fn track_members(&mut self) {
        let members = Arc::clone(self.log.members());
        let (id, last) = (self.id(), self.log.last().index);
        let Role::Leader(leadership) = &mut self.role else { unreachable!("only a leader has followers") };
        leadership.progress.retain(|peer, _| members.get(*peer).is_some());
        for peer in members.ids().filter(|&peer| peer != id) {
            leadership.progress.entry(peer).or_insert_with(|| Progress::unknown(last));
        }
    }

    /// As leader: once its own removal is committed, it has nothing to lead (§4.2.2).
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

    /// Whether it may campaign: as a voter, or as one that is removed by an entry that may be lost yet. Nobody else may
    /// have that entry, and then nobody else could be elected (§4.2.2). It does not count itself, though.
    pub(super) fn may_campaign(&self) -> bool {
        let id = self.id();
        self.members().is_voter(id) || self.log.members_at(self.commit).is_voter(id)
    }

    /// The other voters.
    pub(super) fn other_voters(&self) -> Vec<NodeId> {
        self.members().voters().filter(|&voter| voter != self.id()).collect()
    }
}
