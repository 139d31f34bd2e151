//! Leadership transfer (§3.10): stopping the leader in an orderly way does not cost an election
//! timeout.
//!
//! The leader rejects new proposals, waits until the successor has its whole log, and sends it
//! TimeoutNow. The successor campaigns at once and marks its vote requests as a transfer, because
//! voters otherwise ignore requests while the leader is alive. Safety does not depend on any of
//! this: it is an election like any other, and an election may begin at any moment. If the
//! successor does not take over within an election timeout, the leader abandons the transfer and
//! continues.

use alloc::vec::Vec;

use super::{Body, DropReason, Node, NodeId, Output, RequestId, Role, StateMachine};

impl<S: StateMachine> Node<S> {
    /// Handles a transfer request: to this voter, or to the most up-to-date one. During a transfer it
    /// changes the successor.
    pub(super) fn on_transfer(&mut self, id: RequestId, to: Option<NodeId>, out: &mut Vec<Output<S>>) {
        let best = self.best_successor();
        let Role::Leader(leadership) = &mut self.role else {
            return out.push(Output::TransferRefused { id, leader: self.leader() });
        };
        let is_other_voter = |&voter: &NodeId| voter != self.config.id && self.log.members().is_voter(voter);
        let Some(successor) = to.or(best).filter(is_other_voter) else {
            return out.push(Output::TransferRefused { id, leader: self.leader() });
        };
        // A request during a transfer does not extend the timeout, whichever successor it names. At the timeout
        // a leader without a quorum steps down, and cluster time goes on.
        if leadership.successor.replace(successor).is_none() {
            out.push(Output::ArmElectionTimer);
        }
        self.maybe_send_timeout_now(successor, out);
    }

    /// Leader: sends TimeoutNow if `peer` is the successor and has the whole log.
    pub(super) fn maybe_send_timeout_now(&mut self, peer: NodeId, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { return };
        let ready = leadership.progress.get(&peer).is_some_and(|progress| progress.matched == self.log.last().index);
        if leadership.successor == Some(peer) && ready {
            self.send_timeout_now(peer, out);
        }
    }

    /// Leader: tells a voter to campaign at once.
    pub(super) fn send_timeout_now(&self, successor: NodeId, out: &mut Vec<Output<S>>) {
        self.send(successor, Body::TimeoutNow, out);
    }

    /// Leader: the other voter with the longest matching log, preferring voters that have answered
    /// recently.
    pub(super) fn best_successor(&self) -> Option<NodeId> {
        let Role::Leader(leadership) = &self.role else { return None };
        let voters = leadership.progress.iter().filter(|(id, _)| self.members().is_voter(**id));
        // The first of equals.
        voters.rev().max_by_key(|(_, progress)| (progress.active, progress.matched)).map(|(&id, _)| id)
    }

    /// Handles TimeoutNow from the leader of this term.
    pub(super) fn on_timeout_now(&mut self, from: NodeId, out: &mut Vec<Output<S>>) {
        let follows = matches!(self.role, Role::Follower { leader } if leader == Some(from));
        if !follows || !self.may_campaign() {
            return out.push(Output::Dropped { from, reason: DropReason::Stale });
        }
        self.become_candidate(true, out);
    }
}
