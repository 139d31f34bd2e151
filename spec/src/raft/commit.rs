//! Commitment (§3.6.2) and application.

use alloc::vec::Vec;

use super::{Index, Node, Output, Role, StateMachine};

impl<S: StateMachine> Node<S> {
    /// As leader: commits what a majority has, if the last of it is of the leader's own term. An entry of an earlier
    /// term is never committed by counting (figure 3.7): it is committed by the entry of this term behind it.
    ///
    /// The leader counts its own log to its very end. That is sound although the write may still be under way: the
    /// write was put out before, so everything that tells of the commit stands behind it.
    pub(super) fn advance_commit(&mut self, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { unreachable!("only a leader counts") };
        let index = leadership.quorum_index(self.log.last().index, self.members());
        if self.log.term_at(index) == Some(self.term()) {
            self.commit_up_to(index, out);
            // Reads may have waited for the first commit of this term, or for the answer of a member that is gone now.
            self.confirm_round(out);
            self.begin_round(out);
            self.step_down_if_removed(out);
        }
    }

    /// As leader: commits more of what a majority has, if a step before could not commit all of it.
    pub(super) fn resume_commit(&mut self, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { unreachable!("only a leader counts") };
        if leadership.quorum_index(self.log.last().index, self.members()) > self.commit {
            self.advance_commit(out);
        }
    }

    /// Commits and applies everything up to `index`, as far as it is not yet, and as a step may. The rest has time: to
    /// believe too little to be committed is always safe.
    pub(super) fn commit_up_to(&mut self, index: Index, out: &mut Vec<Output<S>>) {
        let index = index.min(Index(self.commit.0 + self.config.max_commits));
        while self.commit < index {
            let entry = self.log.get(self.commit.next()).expect("what is committed here is in the log");
            let outcome = self.machine.apply_payload(entry.stamp, &entry.payload);
            self.commit = entry.index;
            out.push(Output::Applied { index: entry.index, term: entry.term, stamp: entry.stamp, outcome });
        }
    }
}
