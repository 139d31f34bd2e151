//! Handing the leadership over (§3.10): to a node that is about to be stopped, a change of leaders need not cost an
//! election timeout.
//!
//! The leader takes no more proposals, waits until the successor has its whole log, and calls it: the successor
//! campaigns at once, and says so, for otherwise nobody would listen while the leader is alive. Nothing here needs to be
//! right for safety: it is an election like any other, and an election may begin at any moment. A successor that does
//! not answer for an election timeout is given up, and the leader goes on.

use alloc::vec::Vec;

use super::{Body, DropReason, Node, NodeId, Output, Role, StateMachine};

impl<S: StateMachine> Node<S> {
    /// The leader is to hand over: to this voter, or to the one that is most up to date.
    pub(super) fn on_transfer(&mut self, to: Option<NodeId>, out: &mut Vec<Output<S>>) {
        let best = self.best_successor();
        let Role::Leader(leadership) = &mut self.role else {
            return out.push(Output::TransferRefused { leader: self.leader() });
        };
        let Some(successor) = to.or(best).filter(|&id| id != self.config.id && self.log.members().is_voter(id)) else {
            return out.push(Output::TransferRefused { leader: self.leader() });
        };
        // Asked again for the same, it does not get more time.
        if leadership.successor.replace(successor) != Some(successor) {
            out.push(Output::ArmElectionTimer);
        }
        self.maybe_send_timeout_now(successor, out);
    }

    /// As leader: calls the successor, if `peer` is one and has everything.
    pub(super) fn maybe_send_timeout_now(&mut self, peer: NodeId, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { return };
        let ready = leadership.progress.get(&peer).is_some_and(|progress| progress.matched == self.log.last().index);
        if leadership.successor == Some(peer) && ready {
            self.send_timeout_now(peer, out);
        }
    }

    /// As leader: asks a voter to campaign at once.
    pub(super) fn send_timeout_now(&self, successor: NodeId, out: &mut Vec<Output<S>>) {
        self.send(successor, Body::TimeoutNow, out);
    }

    /// As leader: the other voter that has most of the log, rather one that has answered lately.
    pub(super) fn best_successor(&self) -> Option<NodeId> {
        let Role::Leader(leadership) = &self.role else { return None };
        let voters = leadership.progress.iter().filter(|(id, _)| self.members().is_voter(**id));
        // Of equals the first.
        voters.rev().max_by_key(|(_, progress)| (progress.active, progress.matched)).map(|(&id, _)| id)
    }

    /// The leader of this term asks this node to take over.
    pub(super) fn on_timeout_now(&mut self, from: NodeId, out: &mut Vec<Output<S>>) {
        let follows = matches!(self.role, Role::Follower { leader } if leader == Some(from));
        if !follows || !self.may_campaign() {
            return out.push(Output::Dropped { from, reason: DropReason::Stale });
        }
        self.become_candidate(true, out);
    }
}
